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

    output: Annotated[
        str, Argument(metavar="OUTPUT", help="Path or URL of the job's output, or the directory with the job's state.")
    ]
    json: Json = False


@verb(Options)
def status(options: Options) -> None:
    """Show how far a job is: shards, records, bad records, rate, time left, and each worker's host, device and records.

    \b
    tilewright status labels.jsonl

    OUTPUT is the file or directory that the job was given after -o. The job creates the directory OUTPUT.job when it
    starts, and stores its state there. This command reads that directory and changes nothing. A job counts as running
    while a process on any host holds its lock.
    """
    from tilewright.runtime.stores.views import status

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
        lines += [f"missing since it finished: {', '.join(found.gone)}; `tilewright verify` checks the rest"]
    if found.state == "perhaps running":
        lines += [
            f"perhaps running on: {found.holder or 'another run'}; this file system has no locks, so check that host: "
            "from here only processes of this host can be seen"
        ]
    elif found.starter_gone:
        lines += [
            "the process that started the job is gone; the workers continue. Run its command again: it writes the "
            "output"
        ]
    elif found.state == "running":
        lines += [f"running on: {found.holder or 'a run whose name cannot be read'}"]
    if found.seconds_left is not None and found.state not in ("finished", "damaged") and not found.too_many:
        lines += [f"{found.rate:,.1f} records a second; {found.seconds_left:,.0f} s left at that rate"]
    if found.too_many:
        lines += [f"stopped by --max-errors: {found.too_many}; allow more, or give --restart with a corrected input"]
    elif found.state == "stopped":
        lines += ["run the same command again to resume it"]
    if found.state == "damaged":
        lines += ["run the command of the job again: it makes the missing parts"]
    for done in found.workers[:SHOWN]:
        rows = f"{counted(done.records, 'record')} in {counted(done.shards, 'shard')}"
        lines += [f"worker {done.worker} on {done.host}, {done.device}: {rows}"]
    if len(found.workers) > SHOWN:
        lines += [f"and {len(found.workers) - SHOWN:,} more workers, which --json lists"]
    return "\n".join(lines)
