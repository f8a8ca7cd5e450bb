"""`tilewright report`: pages of tables, figures and the HTML page from the measured results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tilewright.cli._output import say


def report(
    root: Annotated[Path, typer.Option(metavar="DIR", help="Checkout with README.md, results/ and docs/.")] = Path(),
) -> None:
    """Write docs/results, the figures, results/report.html and the tables of README.md from results/*/*.csv.

    \b
    tilewright report

    README.md and docs/learn/*.md have tables between markers such as `<!-- ladder:matmul -->` and
    `<!-- /ladder:matmul -->`. What is between two markers is replaced.
    """
    from tilewright.bench.report.write import write

    changed = write(root)
    for path in changed:
        say(f"wrote {path}" if path.exists() else f"removed {path}")
    if not changed:
        say("nothing to change: all tables and figures are those of the results")
