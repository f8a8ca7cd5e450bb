"""`tilewright timeline TRACE...`: a figure of what each worker did when."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Argument, Option

from tilewright.cli._options import verb
from tilewright.cli._output import say
from tilewright.cli._values import parse_values
from tilewright.errors import UsageError, counted

if TYPE_CHECKING:
    from tilewright.bench.report.timeline import Run

MOST_TRACES = 8  # below each other
ENDING = ".svg"


@dataclass(kw_only=True)
class Options:
    """One field per option."""

    traces: Annotated[
        list[str], Argument(metavar="TRACES", help="Files that --trace has written, drawn below each other.")
    ]
    output: Annotated[
        str | None, Option("--output", "-o", metavar="FILE.svg", help="The figure.", show_default=False)
    ] = None
    save: Annotated[
        str | None,
        Option(
            metavar="NAME",
            help="Save the figure's data to results/MACHINE/timeline_NAME.json. `tilewright report` and `writeup` "
            "draw it.",
            show_default=False,
        ),
    ] = None
    begin: Annotated[float, Option("--from", metavar="MS", help="The start of the time axis.")] = 0.0
    end: Annotated[
        float | None, Option("--until", metavar="MS", help="The end of the time axis.", show_default="the last event")
    ] = None
    zero: Annotated[
        Literal["job", "shard"],
        Option(help="What time 0 is: the start of the job, or that of its first shard. Shard aligns several runs."),
    ] = "job"
    worker: Annotated[
        str | None, Option(metavar="LIST", help="The workers to draw, as in 0,1 or 0..3.", show_default="all")
    ] = None


@verb(Options)
def timeline(options: Options) -> None:
    """Draw traces of jobs as an SVG: a lane per worker and kind of work, several runs below each other.

    \b
    tilewright timeline one.json two.json -o runs.svg --zero shard
    tilewright timeline one.json two.json --save two-workers

    The kinds of work are reading, copies to and from a GPU, computing, writing and commits. All runs have the same time
    axis, in milliseconds. The column busy is the share of the shown time that a lane is at work. The figure fits light
    and dark pages.
    """
    _check(options)
    from tilewright.bench.report.svg import standalone
    from tilewright.bench.report.timeline import Run, Window
    from tilewright.bench.report.timeline import timeline as drawn
    from tilewright.bench.report.timelines import save_timeline
    from tilewright.bench.results import write_text
    from tilewright.formats.traces import read_trace

    runs = [Run(os.path.basename(path), read_trace(path)) for path in options.traces]
    if options.zero == "shard":
        runs = [run.shifted() for run in runs]
    if options.worker is not None:
        runs = [_chosen(run, options.worker) for run in runs]
    window = Window(options.begin, max(run.last for run in runs) if options.end is None else options.end)
    if not (window.begin < window.end and all(map(math.isfinite, window))):
        raise UsageError(
            f"the time axis goes from {window.begin:g} to {window.end:g} ms; its end must be later than its start",
            remedy="give other times with --from and --until",
        )
    drawing = drawn(runs, window)
    told = f"{counted(len(runs), 'run')}, {window.begin:,.1f} to {window.end:,.1f} ms"
    if options.output is not None:
        write_text(Path(options.output), standalone(drawing))
        say(f"wrote {options.output}: {told}")
    if options.save is not None:
        say(f"wrote {save_timeline(Path('results'), options.save, runs, window)}: {told}")


def _check(options: Options) -> None:
    """Raises UsageError for wrong names and too many traces."""
    from tilewright.bench.report.timelines import NAME
    from tilewright.formats.files import check_no_stream, same_file

    if options.output is None and options.save is None:
        raise UsageError("neither --output nor --save is given", remedy="give one of them, as in -o runs.svg")
    if options.save is not None and not NAME.fullmatch(options.save):
        rule = "a name has 1 to 40 characters from a-z, 0-9 and -, and does not start with -"
        remedy = "give one such as two-workers"
        raise UsageError(parameter="--save", value=repr(options.save), rule=rule, remedy=remedy)

    if len(options.traces) > MOST_TRACES:
        raise UsageError(f"there are {len(options.traces)} traces; at most {MOST_TRACES} are drawn in one figure")
    for path in options.traces:
        check_no_stream(path, "trace")
        if options.output is not None and same_file(path, options.output):
            raise UsageError(
                "the figure would be written over its trace", path=path, remedy="give --output another file"
            )
    if options.output is not None and not options.output.endswith(ENDING):
        raise UsageError(
            f"--output is {options.output!r}; a name that ends in {ENDING} is wanted",
            remedy=f"write -o {Path(options.output).stem}{ENDING}",
        )


def _chosen(run: Run, wanted: str) -> Run:
    """The run with these workers only. Raises UsageError for a worker that it does not have."""
    numbers = parse_values("timeline: --worker", wanted)
    there = {one.worker: one for one in run.processes if one.worker is not None}
    for number in numbers:
        if number not in there:
            has = ", ".join(map(str, there)) or "none"
            raise UsageError(f"--worker {number}: {run.name} has no such worker; it has {has}")
    return run._replace(processes=[there[number] for number in numbers])
