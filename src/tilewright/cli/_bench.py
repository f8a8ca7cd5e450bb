"""What the workloads of `tilewright bench` share: options, the watch over the machine, saving."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from tilewright.cli._options import Device, check_threads
from tilewright.cli._output import say

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tilewright.bench.noise import Watch
    from tilewright.bench.results import Row

    Saver = Callable[[list[Row]], list[Path]]  # writes rows, and what is drawn of them

Against = Annotated[
    str | None,
    Option(
        metavar="LIST",
        help="The libraries to compare with, as in torch; or none. If a name is wrong, the error lists the names.",
        show_default="all that are installed",
    ),
]
Input = Annotated[
    str | None, Option("--input", "-i", metavar="FILE", help="Token ids as int32 [n][16].", show_default="see above")
]
Rounds = Annotated[int | None, Option(metavar="N", min=1, help="Runs of each library.", show_default="by the workload")]


@dataclass
class Common:
    """Options of every workload."""

    device: Device = "cpu"
    save: Annotated[bool, Option("--save", help="Add the rows to results/ of the current directory.")] = False


def begin(options: Common, dtype: str | None = None, threads: int | None = None) -> tuple[Watch, str]:
    """(a watch over the machine, "cpu" or "cuda"), the options checked. Raises BadParameter."""
    check_threads(threads)
    if options.save:
        from tilewright.bench.results import check_here

        check_here()
    from tilewright.bench.noise import Watch
    from tilewright.runtime.devices import place_for

    device = place_for(options.device, dtype) if dtype else place_for(options.device)
    if threads and device != "cpu":
        raise typer.BadParameter(f"{threads} is for the CPU; on a GPU there are none", param_hint="--threads")
    return Watch(), device


def saved(parts: Iterable[list[Row]], options: Common, watch: Watch, saver: Saver | None = None) -> list[Row]:
    """The rows of all parts. Each part is saved before the next is measured. watch: begun before the first one."""
    from tilewright.bench.noise import Watch

    rows: list[Row] = []
    for part in parts:
        finish(part, options, watch, saver)
        rows, watch = rows + part, Watch()
    return rows


def finish(rows: list[Row], options: Common, watch: Watch, saver: Saver | None = None) -> None:
    """Warn of noise, and save."""
    from tilewright.bench.libraries import version_of, versions_note
    from tilewright.bench.noise import warning
    from tilewright.bench.results import PEER, save_here

    rows = watch.noted(rows)
    if text := warning(rows):
        say(text, err=True)
    for sentence in versions_note(version_of(row.rung) for row in rows if row.check == PEER):
        say(sentence)
    for path in (saver or save_here)(rows) if options.save else ():
        say(f"written to {path}")


def names(given: str | None, usual: tuple[str, ...]) -> tuple[str, ...]:
    """The peers that --against names; without it, the usual ones. Raises BadParameter for an unknown one, or one that
    is not installed."""
    from tilewright.bench.libraries import version_of

    if given is None or given == "none":
        return usual if given is None else ()
    chosen = tuple(name.strip() for name in given.split(","))
    for name in chosen:
        if name not in usual:
            known = f"choose from {', '.join(usual)}, or none"
            raise typer.BadParameter(f"there is no peer {name!r} here; {known}", param_hint="--against")
        if not version_of(name):
            extra = "eval" if name == "lm-eval" else "peers"
            remedy = f"in a clone of tilewright: pip install -e '.[{extra}]'"
            raise typer.BadParameter(f"{name} is not installed; {remedy}", param_hint="--against")
    return chosen


def indented(text: str) -> None:
    say(f"  {text}")
