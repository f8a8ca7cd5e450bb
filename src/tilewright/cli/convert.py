"""`tilewright convert SRC DST`: the same weights in the other layout."""

from __future__ import annotations

from typing import Annotated

import typer

from tilewright.cli._output import say


def convert(
    source: Annotated[str, typer.Argument(metavar="SRC", help="params.bin, or a model directory.")],
    destination: Annotated[str, typer.Argument(metavar="DST", help="The other of the two.")],
    force: Annotated[bool, typer.Option("--force", help="Replace a file at DST that is no such weights.")] = False,
) -> None:
    """Convert a TextCNN: params.bin to a directory with config.json and model.safetensors, or such a directory back.

    params.bin has room for one set of sizes only, the course's. The weights are checked and copied bit for bit; the
    result appears when it is whole.
    """
    import time

    from tilewright.runtime.models import convert

    start = time.perf_counter()
    written = convert(source, destination, force=force)
    say(f"{destination}: {written:,} bytes of weights...Done! ({time.perf_counter() - start:.3f} sec)")
