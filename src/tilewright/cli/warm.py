"""`tilewright warm --for DIR`: kernels that are compiled before the first job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer
from typer import Option

from tilewright.cli._options import Json, verb
from tilewright.cli._output import say, show, show_json
from tilewright.errors import counted

DTYPES = ("float32", "bfloat16")  # of jobs on the CPU


@dataclass
class Options:
    """One field per option."""

    home: Annotated[
        str, Option("--for", metavar="DIR", help="Where to put the kernels. Jobs find them by TILEWRIGHT_CACHE=DIR.")
    ]
    model: Annotated[
        list[str] | None,
        Option(
            "--model",
            metavar="MODEL",
            help="Compile for jobs with this model: a directory or a name. May be repeated.",
            show_default="poet, critic, portraits, and the filters of convolve",
        ),
    ] = None
    dtype: Annotated[
        list[str] | None,
        Option(
            "--dtype",
            metavar="DTYPE",
            help="Accuracy class of the jobs with a model. May be repeated.",
            show_default="float32",
        ),
    ] = None
    json: Json = False


@verb(Options)
def warm(options: Options) -> None:
    """Compile the kernels of jobs ahead, into a directory for other machines or a container image.

    \b
    tilewright warm --for /shared/kernels
    TILEWRIGHT_CACHE=/shared/kernels tilewright classify --model critic -i reviews.txt -o labels.jsonl

    The kernels depend on the features of the CPU, not on the host. Run it once on each kind of CPU; one directory may
    hold the kernels of several kinds. Kernels that are there already are not compiled again.
    """
    from tilewright.runtime.named_models import NAMES, model_path
    from tilewright.runtime.warm import warm

    dtypes = tuple(options.dtype or DTYPES[:1])
    if unknown := [dtype for dtype in dtypes if dtype not in DTYPES]:
        raise typer.BadParameter(f"{unknown[0]!r} is not one of {', '.join(DTYPES)}", param_hint="--dtype")
    models = [model_path(name) for name in options.model or NAMES]
    found = warm(options.home, models, dtypes, volumes=not options.model, say=lambda line: say(line, err=options.json))
    if options.json:
        show_json({"verb": "warm", **vars(found)})
    else:
        show(f"{counted(found.kernels, 'kernel')} for this CPU, {found.new:,} of them new: {found.directory}")
