"""`tilewright writeup FOLDER`: a report of this machine from its saved rows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tilewright.cli._output import say
from tilewright.errors import counted


def writeup(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to write the report.", show_default=False)],
    results: Annotated[
        Path, typer.Option(metavar="DIR", help="Directory with a folder of rows per machine, which --save writes.")
    ] = Path("results"),
    machine: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="A folder of DIR.", show_default="this machine and its GPU"),
    ] = None,
) -> None:
    """Write a report of one machine: steps, jobs, sweeps, scaling, figures, and sentences that follow from the rows.

    \b
    tilewright writeup report

    It writes FOLDER/writeup.md, FOLDER/writeup.html and FOLDER/figures/*.svg from the rows and timelines that --save
    has written. The same rows give the same bytes.
    """
    from tilewright.bench.report.write import ladders
    from tilewright.bench.report.writeup import write_writeup
    from tilewright.hardware import gpu_name, gpus, machine_name

    machines = [machine] if machine else [machine_name(), *([gpu_name()] if gpus() else [])]
    changed = write_writeup(results, machines, folder, ladders())
    figures = sum(path.suffix == ".svg" for path in changed)
    for path in changed:
        if path.suffix != ".svg":
            say(f"wrote {path}")
    if figures:
        say(f"wrote {counted(figures, 'figure')} in {folder / 'figures'}")
    if not changed:
        say(f"nothing to change: {folder} is the report of these rows")
