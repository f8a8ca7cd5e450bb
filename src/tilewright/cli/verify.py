"""`tilewright verify OUTPUT`: is it what the job has written?"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from typer import Argument, Option

from tilewright.cli._options import verb
from tilewright.cli._output import show, show_json


@dataclass
class Options:
    """One field an option."""

    output: Annotated[str, Argument(metavar="OUTPUT", help="The output of a job.")]
    json: Annotated[bool, Option("--json", help="One JSON object on stdout.")] = False


@verb(Options)
def verify(options: Options) -> None:
    """Whether an output and all that its job keeps are what was written: reads it all, compares the hashes.

    Exit code 0: intact; 1: something is damaged, and is named; 75: the job is not finished, and what there is of it is
    intact. The command that made the output, given again, makes damaged parts again, and what is missing.
    """
    from tilewright.runtime.jobs.merge import verify

    found = verify(options.output)
    if options.json:
        said = {"verb": "verify", "output": options.output, "intact": found.intact, **vars(found)}
        show_json({**said, "exit_code": found.exit_code})
    else:
        show(_text(found, options.output))
    raise typer.Exit(found.exit_code)


def _text(found: Any, output: str) -> str:
    if not found.intact:
        lines = [f"damaged: {len(found.damaged):,} of {found.checked:,} files", *map("  {}".format, found.damaged)]
    elif found.finished:
        return f"intact: {found.checked:,} files"
    else:
        there = f"{found.done:,} of {found.shards:,} shards {'is' if found.done == 1 else 'are'} there"
        lines = [f"unfinished: {there}, and all that is there is intact"]
    if not found.finished:
        there = f"what is at {output} may be of an earlier one" if os.path.lexists(output) else "no output yet"
        lines += [f"the job is not finished: {there}; its command goes on with it, if `tilewright status` says stopped"]
    return "\n".join(lines)
