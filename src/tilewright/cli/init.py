"""`tilewright init KIND PATH`: a model with random weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import typer
from typer import Option

from tilewright.cli._options import parse_sizes, verb
from tilewright.cli._output import say

TEXTCNN = ("vocab_size", "sequence_length", "hidden_size", "num_filters", "num_labels", "kernel_sizes", "hidden_sizes")
GPT2 = {"vocab_size": "vocab_size", "layers": "n_layer", "heads": "n_head", "width": "n_embd", "context": "n_positions"}
DCGAN = {"z_size": "z_size", "base_size": "size", "channels": "channels", "kernel": "kernel"}


@dataclass
class Options:
    kind: Annotated[Literal["textcnn", "gpt2", "dcgan"], typer.Argument(metavar="KIND", help="textcnn, gpt2 or dcgan")]
    path: Annotated[str, typer.Argument(metavar="PATH", help="A directory, or FILE.bin for the course's layout.")]
    seed: Annotated[int, Option(min=0, max=2**63 - 1, help="The same seed gives the same weights.")] = 0
    force: Annotated[bool, Option("--force", help="Replace what lies there.")] = False
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
    z_size: Annotated[int | None, Option(min=1, help="dcgan: numbers of noise an image; 100.")] = None
    base_size: Annotated[int | None, Option(min=1, help="dcgan: pixels a side that each layer doubles; 4.")] = None
    channels: Annotated[str | None, Option(metavar="LIST", help="dcgan: 512,256,128,64,3, the image's last.")] = None
    kernel: Annotated[int | None, Option(min=2, help="dcgan: taps a side of each layer; 5.")] = None


@verb(Options)
def init(options: Options) -> None:
    """Make a model with random weights, scaled like a trained one.

    The defaults are the course's sizes (801 MB for textcnn, 498 MB for gpt2, 21 MB for dcgan). An option that the kind
    does not have is refused.
    """
    given = {name: value for name, value in vars(options).items() if value is not None}
    path, seed, kind, force = (given.pop(name) for name in ("path", "seed", "kind", "force"))
    sizes: dict[str, Any] = {}
    own = {"textcnn": {name: name for name in TEXTCNN}, "gpt2": GPT2, "dcgan": DCGAN}[kind]
    for name, value in given.items():
        if name not in own:
            raise typer.BadParameter(f"{kind} has no such size", param_hint=f"--{name.replace('_', '-')}")
        sizes[own[name]] = parse_sizes(value) if isinstance(value, str) else value

    import time

    from tilewright.runtime.convert import models

    start = time.perf_counter()
    make = {"textcnn": models.init_textcnn, "gpt2": models.init_gpt2, "dcgan": models.init_dcgan}[kind]
    written = make(path, seed, force=force, **sizes)
    seconds = time.perf_counter() - start
    say(f"{path}: {written:,} bytes of weights from seed {seed}...Done! ({seconds:.3f} sec)")
