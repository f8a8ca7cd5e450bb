"""`tilewright demo`: verse, reviews, faces, a volume; then four jobs at full size."""

from __future__ import annotations

from typing import Annotated

import typer
from typer import Option

from tilewright.cli._output import say


def demo(
    prompt: Annotated[
        str | None, Option(metavar="TEXT", help="The text that poet continues.", show_default="a line of Hamlet")
    ] = None,
    save: Annotated[
        bool, Option("--save", help="Write the text and the pictures to results/demo/, as README.md shows them.")
    ] = False,
) -> None:
    """Continue a line of verse, judge reviews, draw faces and smooth a volume, with the models of the package. Then run
    four jobs at full size: sentiment, text, images and a volume.

    \b
    tilewright demo

    The full-size jobs use random weights. The demo compares some of their results with float64, and prints their speed.
    The pictures are written to demo/ in the current directory. It needs 2 GB of memory, and no network, GPU or PyTorch.
    """
    from tilewright.bench.report import transcript
    from tilewright.demo import FOLDER, PROMPT, run
    from tilewright.errors import printable
    from tilewright.formats.atomic import AtomicFile

    lines: list[str] = []

    def tell(line: str) -> None:
        lines.append(line)
        say(line)

    folder = transcript.FOLDER if save else FOLDER
    passed = run(tell, prompt=PROMPT if prompt is None else prompt, folder=folder)
    if save:
        with AtomicFile(folder / transcript.TEXT) as file:
            file.write(printable("\n".join([*lines, ""])).encode())
    raise typer.Exit(0 if passed else 1)
