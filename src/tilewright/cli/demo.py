"""`tilewright demo`: every job once, with models made from a seed."""

from __future__ import annotations

import typer

from tilewright.cli._output import say


def demo() -> None:
    """Make models from a seed; classify real sentences, continue prompts, draw images, smooth a volume; check some of
    each against float64, and say how fast. A grid of the images and a slice of the volume stay in demo/.

    Takes the course's 16,384 sentences if they lie in ../shared/data/course, else the 1,024 that are shipped, and
    0.8 GB in the directory for temporary files.
    """
    from tilewright.demo import run

    raise typer.Exit(0 if run(say) else 1)
