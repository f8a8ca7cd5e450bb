"""`tilewright init textcnn PATH`: a model with random weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import typer

from tilewright.cli._options import parse_sizes, verb


@dataclass
class Options:
    kind: Annotated[Literal["textcnn"], typer.Argument(metavar="KIND", help="textcnn")]
    path: Annotated[str, typer.Argument(metavar="PATH", help="A directory, or params.bin for the course's layout.")]
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="The same seed gives the same weights.")] = 0
    vocab_size: Annotated[int, typer.Option(min=1)] = 21635
    sequence_length: Annotated[int, typer.Option(min=1, help="Tokens a sentence.")] = 16
    hidden_size: Annotated[int, typer.Option(min=1, help="Width of the embedding.")] = 4096
    num_filters: Annotated[int, typer.Option(min=1, help="Filters of each kernel size.")] = 1024
    kernel_sizes: Annotated[str, typer.Option(metavar="LIST")] = "3,5,7,9"
    hidden_sizes: Annotated[str, typer.Option(metavar="LIST", help="Widths of the linear layers but the last.")] = (
        "2048,1024,512"
    )
    num_labels: Annotated[int, typer.Option(min=1)] = 2


@verb(Options)
def init(options: Options) -> None:
    """Make a TextCNN with random weights, scaled like a trained one.

    The embedding is drawn from N(0, 1), a layer's weights and biases from N(0, 1 / inputs). The defaults are the
    course's sizes (801 MB).
    """
    kernel_sizes, hidden_sizes = parse_sizes(options.kernel_sizes), parse_sizes(options.hidden_sizes)

    import time

    from tilewright.runtime.models import init_textcnn

    start = time.perf_counter()
    sizes = {
        name: getattr(options, name)
        for name in ("vocab_size", "sequence_length", "hidden_size", "num_filters", "num_labels")
    }
    written = init_textcnn(options.path, options.seed, **sizes, kernel_sizes=kernel_sizes, hidden_sizes=hidden_sizes)
    seconds = time.perf_counter() - start
    typer.echo(f"{options.path}: {written:,} bytes of weights from seed {options.seed}...Done! ({seconds:.3f} sec)")
