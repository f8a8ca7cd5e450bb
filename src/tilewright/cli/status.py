"""`tilewright status OUTPUT`: how far a job is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from typer import Argument

from tilewright.cli._options import Json, output_of, verb
from tilewright.cli._output import show, show_json
from tilewright.errors import counted

SHOWN = 32  # workers that are listed


@dataclass
class Options:
    """One field per option."""

    output: Annotated[str, Argument(metavar="OUTPUT", help="The output of the job, or its directory OUTPUT.job.")]
    json: Json = False


@verb(Options)
def status(options: Options) -> None:
    """Show how far a job is: shards, records, bad records, rate, time left, and each worker's host, device and records.

    \b
    tilewright status labels.jsonl

    This reads the job's directory and changes nothing. A run is at work as long as it holds the job's lock, on any
    host.
    """
    from tilewright.runtime.jobs.status import status

    options.output = output_of(options.output)
    found = status(options.output)
    if options.json:
        show_json({"verb": "status", "output": options.output, **vars(found)})
        return
    show(_text(found))


def _text(found: Any) -> str:
    lines = [
        f"{found.state}: {found.done:,} of {counted(found.shards, 'shard')}, {counted(found.records, 'record')}, "
        f"{found.errors:,} bad",
    ]
    if found.gone:
        lines += [f"gone since then: {', '.join(found.gone)}; `tilewright verify` reads what is left"]
    if found.state == "perhaps running":
        lines += [
            f"perhaps at work: {found.holder or 'another run'}; this file system has no locks, so ask there: only what "
            "runs on this host can be known here"
        ]
    elif found.state == "running":
        lines += [f"at work: {found.holder or 'a run whose name cannot be read'}"]
    if found.seconds_left is not None and found.state not in ("finished", "damaged") and not found.too_many:
        lines += [f"{found.rate:,.1f} records a second; {found.seconds_left:,.0f} s left at that rate"]
    if found.too_many:
        lines += [f"stopped by --max-errors: {found.too_many}; allow more, or give --restart with a corrected input"]
    elif found.state == "stopped":
        lines += ["the same command, given again, goes on with it"]
    if found.state == "damaged":
        lines += ["the command that made it, given again, makes that again"]
    for done in found.workers[:SHOWN]:
        rows = f"{counted(done.records, 'record')} in {counted(done.shards, 'shard')}"
        lines += [f"worker {done.worker} on {done.host}, {done.device}: {rows}"]
    if len(found.workers) > SHOWN:
        lines += [f"and {len(found.workers) - SHOWN:,} more workers, which --json lists"]
    return "\n".join(lines)
