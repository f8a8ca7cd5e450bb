"""`tilewright verify OUTPUT`: is it what the job has written?"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Annotated

import typer
from typer import Argument, Option

from tilewright.cli._options import verb
from tilewright.cli._output import show


@dataclass
class Options:
    """One field an option."""

    output: Annotated[str, Argument(metavar="OUTPUT", help="The output of a job.")]
    json: Annotated[bool, Option("--json", help="One JSON object on stdout.")] = False


@verb(Options)
def verify(options: Options) -> None:
    """Whether an output and all that its job keeps are what was written: reads it all, compares the hashes.

    Exit code 0: intact; 1: something is damaged, and is named. The command that made the output, given again, makes
    damaged parts again.
    """
    from tilewright.runtime.jobs.merge import verify

    found = verify(options.output)
    if options.json:
        from msgspec.json import encode

        said = {"verb": "verify", "output": options.output, "intact": found.intact, **vars(found)}
        show(encode({**said, "exit_code": int(not found.intact)}).decode())
    elif found.intact:
        show(f"intact: {found.checked:,} files{'' if found.finished else _unfinished(options.output)}")
    else:
        show(
            "\n".join(
                [f"damaged: {len(found.damaged):,} of {found.checked:,} files", *map("  {}".format, found.damaged)]
            )
        )
    raise typer.Exit(int(not found.intact))


def _unfinished(output: str) -> str:
    if not os.path.lexists(output):
        return "; the job is not finished: no output yet"
    return f"; the job is not finished: what is at {output} may be of an earlier one"
