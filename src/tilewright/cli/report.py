"""`tilewright report`: tables, figures and the HTML page from the measured results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tilewright.cli._output import say


def report(
    root: Annotated[Path, typer.Option(metavar="DIR", help="Checkout with README.md, results/ and docs/.")] = Path(),
) -> None:
    """Write the tables of README.md, results/README.md and docs/ladders, the figures, and results/report.html.

    \b
    tilewright report

    All figures come from results/*/*.csv.
    In Markdown, a table is written between its markers, such as `<!-- ladder:matmul -->` and `<!-- /ladder:matmul -->`.
    """
    from tilewright.bench.report.write import write

    changed = write(root)
    for path in changed:
        say(f"wrote {path}")
    if not changed:
        say("nothing to change: all tables and figures are those of the results")
