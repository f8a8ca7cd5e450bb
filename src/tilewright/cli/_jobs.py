"""Options that all four jobs have, and how they speak."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

import typer
from typer import Option

from tilewright.cli._output import say
from tilewright.runtime.jobs.settings import Settings

Engine = Literal["inline", "local", "mpi", "ray"]


@dataclass(kw_only=True)
class JobOptions:
    """One field an option; the options of a verb inherit them."""

    workers: Annotated[
        int | None,
        Option(min=1, max=1024, help="Processes: each takes a GPU, or a part of the cores; one if not given."),
    ] = None
    engine: Annotated[
        Engine | None,
        Option(help="What runs the shards; inline: here, local: supervised processes, mpi: ranks, ray: actors."),
    ] = None
    shard_size: Annotated[
        str | None, Option(metavar="SIZE", help="Of a new job: records of a binary input, bytes of a text, as in 4M.")
    ] = None
    max_errors: Annotated[int | None, Option(min=0, help="Bad records allowed; any number unless given.")] = None
    restart: Annotated[bool, Option("--restart", help="Throw away what was done before.")] = False
    force: Annotated[bool, Option("--force", help="Replace an output that this job has not made.")] = False
    grace: Annotated[float, Option(min=0, help="Seconds from a signal to the end; what is whole by then is kept.")] = (
        Settings.grace
    )
    watchdog: Annotated[float, Option(min=1, help="Seconds without a sign of life that a worker may take.")] = (
        Settings.watchdog
    )
    trace: Annotated[
        str | None, Option(metavar="FILE", help="Write a Chrome trace: who read, computed, wrote what, when.")
    ] = None
    config: Annotated[
        str | None,
        Option(metavar="FILE", help="TOML with options, as in max-tokens = 64; the command line wins over it."),
    ] = None
    part: Annotated[
        str | None,
        Option(metavar="K/N", help="Only part K (from 0) of N, and no output: for N processes that share a job."),
    ] = None


def settings_of(options: Any, job: str) -> Settings:
    """The `Settings` of the options of a job: "classify", "generate", "draw" or "convolve"."""
    from tilewright.cli._options import check_threads, parse_bytes, parse_rungs

    check_threads(options.threads)

    given = {field.name: getattr(options, field.name) for field in fields(JobOptions)}
    del given["config"]  # its options have become ours
    given |= {name: getattr(options, name) for name in ("device", "dtype", "threads", "json")}
    given["rungs"] = parse_rungs(options.rung or [], job, options.device)
    given["batch_size"], given["keep_others"] = getattr(options, "batch_size", None), not given.pop("force")
    if options.shard_size is not None:
        given["shard_size"] = parse_bytes(options.shard_size)
        if given["shard_size"] < 1:
            raise typer.BadParameter("a shard has at least 1 record or byte", param_hint="--shard-size")
    if options.part is not None:
        numbers = options.part.split("/")
        if len(numbers) != 2 or not all(number.isdecimal() for number in numbers):
            raise typer.BadParameter(f"{options.part!r} is no part; write 0/8", param_hint="--part")
        given["part"] = tuple(map(int, numbers))
    if options.device != "cpu" and (options.workers, options.engine, options.part) == (None, None, None):
        given["workers"] = _gpus(options.device)
    return Settings(**given)


def _gpus(device: str) -> int | None:
    """One worker per GPU if the job runs on several; None: the default of `Settings`."""
    from tilewright.runtime.devices import place_for
    from tilewright.runtime.start import visible_gpus

    count = len(visible_gpus())
    return count if count > 1 and place_for(device) == "cuda" else None


def threads_of(options: Any) -> int:
    """The threads of CPU kernels."""
    from tilewright.ops.core.launch import thread_count

    return options.threads or thread_count()


def device_row(options: Any) -> dict[str, str]:
    """The row of the banner that says where the job runs."""
    from tilewright.runtime.devices import place_for

    device = place_for(options.device, options.dtype or "float32")
    workers = {"Workers": f"{options.workers:,}"} if options.workers else {}
    if device == "cpu":
        threads = threads_of(options)
        device = f"cpu, {threads} thread{'s' * (threads > 1)}"
    return workers | {"Device": device}


@dataclass
class Speaker:
    """Says lines, on stderr with --json, the banner before the first: a rank of MPI that says nothing has none."""

    options: Any
    banner: Callable[[], str]
    has_begun: bool = False

    def __call__(self, line: str) -> None:
        if not self.has_begun:
            self.has_begun = True
            say(self.banner(), err=self.options.json)
        say(line, err=self.options.json)
