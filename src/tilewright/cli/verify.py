"""`tilewright verify OUTPUT`: is it what the job has written?"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from typer import Argument

from tilewright.cli._options import Json, output_of, verb
from tilewright.cli._output import show, show_json
from tilewright.errors import counted


@dataclass
class Options:
    """One field per option."""

    output: Annotated[
        str, Argument(metavar="OUTPUT", help="Path or URL of the job's output, or the directory with the job's state.")
    ]
    json: Json = False


@verb(Options)
def verify(options: Options) -> None:
    """Check that a job's output and its shards are intact: read all of them, and compare their hashes.

    \b
    tilewright verify labels.jsonl

    Exit code 0: intact. 1: something is damaged; its name is printed. 75: the job is not finished, and all that exists
    is intact. To repair an output, run the command that made it once more.
    """
    from tilewright.runtime.stores.views import verify

    options.output = output_of(options.output)
    found = verify(options.output)
    if options.json:
        said = {"verb": "verify", "output": options.output, "intact": found.intact, **vars(found)}
        show_json({**said, "exit_code": found.exit_code})
    else:
        show(_text(found, options.output))
    raise typer.Exit(found.exit_code)


def _text(found: Any, output: str) -> str:
    if not found.intact:
        lines = [
            f"damaged: {len(found.damaged):,} of {counted(found.checked, 'file')}",
            *map("  {}".format, found.damaged),
        ]
    elif found.finished:
        return f"intact: {counted(found.checked, 'file')}"
    else:
        there = f"{found.done:,} of {counted(found.shards, 'shard')} {'is' if found.done == 1 else 'are'} there"
        lines = [f"unfinished: {there}, and all that is there is intact"]
    if not found.finished:
        there = f"what is at {output} may be of an earlier one" if os.path.lexists(output) else "no output yet"
        lines += [f"the job is not finished: {there}; its command goes on with it, if `tilewright status` says stopped"]
    return "\n".join(lines)
