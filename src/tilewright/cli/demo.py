"""`tilewright demo`: verse, reviews, faces, a volume; then every job at full size."""

from __future__ import annotations

from typing import Annotated

import typer
from typer import Option

from tilewright.cli._output import say


def demo(
    prompt: Annotated[
        str | None, Option(metavar="TEXT", help="What the poet continues, instead of a line of Hamlet.")
    ] = None,
    save: Annotated[
        bool, Option("--save", help="Keep text and pictures in results/demo/ of the current directory, for README.md.")
    ] = False,
) -> None:
    """Continue a line of verse, judge reviews, draw faces, smooth a volume with the models that come along; then run
    the course's four jobs at full size with weights from a seed, check some of each against float64, and say how fast.

    The pictures stay in demo/. Needs no network, no GPU, no PyTorch, and 2 GB of memory for all of it.
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
