"""`tilewright demo`: the sentiment job on real sentences, with a model made from a seed."""

from __future__ import annotations

import typer

from tilewright.cli._output import say


def demo() -> None:
    """Make a TextCNN at full size from a seed, classify real sentences, check some against float64, say how fast.

    Takes the course's 16,384 sentences if they lie in ../shared/data/course, else the 1,024 that are shipped, and
    0.8 GB in the directory for temporary files.
    """
    from tilewright.demo import run

    raise typer.Exit(0 if run(say) else 1)
