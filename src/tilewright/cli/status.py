"""`tilewright status OUTPUT`: how far a job is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from typer import Argument, Option

from tilewright.cli._options import verb
from tilewright.cli._output import show


@dataclass
class Options:
    """One field an option."""

    output: Annotated[str, Argument(metavar="OUTPUT", help="The output that the job writes, or is to write.")]
    json: Annotated[bool, Option("--json", help="One JSON object on stdout.")] = False


@verb(Options)
def status(options: Options) -> None:
    """How far a job is: shards and records done, bad records, rate, time left, and who works on it.

    Reads the job's directory and changes nothing.
    """
    from tilewright.runtime.jobs.merge import status

    found = status(options.output)
    if options.json:
        from msgspec.json import encode

        show(encode({"verb": "status", "output": options.output, **vars(found)}).decode())
        return
    show(_text(found))


def _text(found: Any) -> str:
    lines = [
        f"{found.state}: {found.done:,} of {found.shards:,} shards, {found.records:,} records, {found.errors:,} bad",
    ]
    if found.holder:
        lines += [f"at work: {found.holder}"]
    if found.seconds_left is not None and found.state != "finished":
        lines += [f"{found.rate:,.1f} records a second; {found.seconds_left:,.0f} s left at that rate"]
    if found.state == "stopped":
        lines += ["the command that began it goes on"]
    return "\n".join(lines)
