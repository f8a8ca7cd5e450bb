"""`tilewright init KIND PATH`: a model with random weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import typer
from typer import Option

from tilewright.cli._options import parse_sizes, verb
from tilewright.cli._output import say

TEXTCNN = ("sequence_length", "hidden_size", "num_filters", "num_labels", "kernel_sizes", "hidden_sizes")
GPT2 = {"layers": "n_layer", "heads": "n_head", "width": "n_embd", "context": "n_positions"}


@dataclass
class Options:
    kind: Annotated[Literal["textcnn", "gpt2"], typer.Argument(metavar="KIND", help="textcnn or gpt2")]
    path: Annotated[str, typer.Argument(metavar="PATH", help="A directory, or FILE.bin for the course's layout.")]
    seed: Annotated[int, Option(min=0, max=2**63 - 1, help="The same seed gives the same weights.")] = 0
    force: Annotated[bool, Option("--force", help="Replace a model, or a FILE.bin that is no such weights.")] = False
    vocab_size: Annotated[int | None, Option(min=1, help="21635 for textcnn, 50257 for gpt2.")] = None
    sequence_length: Annotated[int | None, Option(min=1, help="textcnn: tokens a sentence; 16.")] = None
    hidden_size: Annotated[int | None, Option(min=1, help="textcnn: width of the embedding; 4096.")] = None
    num_filters: Annotated[int | None, Option(min=1, help="textcnn: filters of each kernel size; 1024.")] = None
    kernel_sizes: Annotated[str | None, Option(metavar="LIST", help="textcnn: 3,5,7,9.")] = None
    hidden_sizes: Annotated[str | None, Option(metavar="LIST", help="textcnn: widths of the linear layers.")] = None
    num_labels: Annotated[int | None, Option(min=1, help="textcnn: classes; 2.")] = None
    layers: Annotated[int | None, Option(min=1, help="gpt2: layers; 12.")] = None
    heads: Annotated[int | None, Option(min=1, help="gpt2: heads of a layer; 12.")] = None
    width: Annotated[int | None, Option(min=1, help="gpt2: width of the embedding; 768.")] = None
    context: Annotated[int | None, Option(min=1, help="gpt2: positions; 1024.")] = None


@verb(Options)
def init(options: Options) -> None:
    """Make a model with random weights, scaled like a trained one.

    The defaults are the course's sizes (801 MB for textcnn, 498 MB for gpt2). An option that the kind does not have is
    refused.
    """
    given = {name: value for name, value in vars(options).items() if value is not None}
    path, seed, kind, force = (given.pop(name) for name in ("path", "seed", "kind", "force"))
    sizes = {"vocab_size": given.pop("vocab_size")} if "vocab_size" in given else {}
    own: dict[str, str] = {name: name for name in TEXTCNN} if kind == "textcnn" else GPT2
    for name, value in given.items():
        if name not in own:
            raise typer.BadParameter(f"{kind} has no such size", param_hint=f"--{name.replace('_', '-')}")
        sizes[own[name]] = _parsed(name, value)

    import time

    from tilewright.runtime import models

    start = time.perf_counter()
    written = {"textcnn": models.init_textcnn, "gpt2": models.init_gpt2}[kind](path, seed, force=force, **sizes)
    seconds = time.perf_counter() - start
    say(f"{path}: {written:,} bytes of weights from seed {seed}...Done! ({seconds:.3f} sec)")


def _parsed(name: str, value: Any) -> Any:
    return parse_sizes(value) if name.endswith("sizes") else value
