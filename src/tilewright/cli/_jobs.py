"""Options that all four jobs have, and how they speak."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

import typer
from typer import Option

from tilewright.cli._options import MESSAGES, RUNS, WithoutOption, check_threads, parse_bytes, parse_rungs
from tilewright.cli._output import say
from tilewright.runtime.jobs.settings import Settings

Engine = Literal["inline", "local", "mpi", "ray"]
SharedFiles = Literal["auto", "yes", "no"]


@dataclass(kw_only=True)
class JobOptions:
    """One field an option; the options of a verb inherit them."""

    workers: Annotated[
        int | None,
        Option(
            metavar="N",
            min=1,
            max=1024,
            help="Number of worker processes. Each gets one GPU, or an equal share of the CPU cores. On a Ray cluster, "
            "at most N run at a time.",
            show_default="one per GPU, else one",
            rich_help_panel=RUNS,
        ),
    ] = None
    engine: Annotated[
        Engine | None,
        Option(
            help="What runs the shards: this process (inline), supervised worker processes (local), the ranks of an "
            "MPI launcher (mpi), or Ray actors (ray).",
            show_default="inline, or local with --workers",
            rich_help_panel=RUNS,
        ),
    ] = None
    shared_files: Annotated[
        SharedFiles,
        Option(
            help="With --engine mpi: whether all nodes see the job's files (yes), or only rank 0's node (no). If not, "
            "rank 0 sends inputs and weights to each node once, and writes all shards. auto: check which nodes do.",
            rich_help_panel=RUNS,
        ),
    ] = "auto"
    shard_size: Annotated[
        str | None,
        Option(
            metavar="SIZE",
            help="Size of the shards of a new job: a number of records for a binary input, else bytes, as in 4M.",
            rich_help_panel=RUNS,
        ),
    ] = None
    max_errors: Annotated[
        int | None,
        Option(
            metavar="N",
            min=0,
            help="Stop the job with exit code 5 when more than N records have failed.",
            show_default="no limit",
            rich_help_panel=RUNS,
        ),
    ] = None
    restart: Annotated[
        bool, Option("--restart", help="Discard the shards of earlier runs and start anew.", rich_help_panel=RUNS)
    ] = False
    retry_failed: Annotated[
        bool,
        Option(
            "--retry-failed",
            help="Compute shards with failed records again, and write the output anew. Needs --engine local or ray.",
            rich_help_panel=RUNS,
        ),
    ] = False
    job_dir: Annotated[
        str | None,
        Option(
            "--job-dir",
            metavar="DIR",
            help="Store the state of a new job in DIR; for an output by URL, below the URL DIR. Later runs find it "
            "without the option. Each job needs its own DIR.",
            show_default="OUTPUT.job, beside the output",
            rich_help_panel=RUNS,
        ),
    ] = None
    force: Annotated[
        bool,
        Option("--force", help="Replace an output file that this job did not make.", rich_help_panel=RUNS),
    ] = False
    grace: Annotated[
        float,
        Option(
            metavar="SECONDS",
            min=0,
            help="Stop at most this long after a stop signal. Shards that are finished by then are saved.",
            rich_help_panel=RUNS,
        ),
    ] = Settings.grace
    watchdog: Annotated[
        float,
        Option(
            metavar="SECONDS",
            min=1,
            help="Replace a worker that has reported no progress for this long.",
            rich_help_panel=RUNS,
        ),
    ] = Settings.watchdog
    trace: Annotated[
        str | None,
        Option(
            metavar="FILE",
            help="Write a Chrome trace to FILE. It shows when each worker read, computed and wrote.",
            rich_help_panel=MESSAGES,
        ),
    ] = None
    config: Annotated[
        str | None,
        Option(
            metavar="FILE",
            help="Read options from a TOML file, as in max-tokens = 64. Options on the command line take precedence.",
            rich_help_panel=MESSAGES,
        ),
    ] = None
    without: WithoutOption = None
    part: Annotated[
        str | None,
        Option(
            metavar="K/N",
            help="Compute only part K of N, and write no output. Start N processes with K from 0 to N - 1, on any "
            "machines that see the same files. Then run the command without --part: it joins the parts. With K/N+ a "
            "process that has finished its part helps the others.",
            rich_help_panel=RUNS,
        ),
    ] = None


def resolve_dtype(options: Any) -> None:
    """Replaces --dtype auto by the dtype of the model's weights. Raises UsageError, InputError and ResourceError."""
    if options.dtype == "auto":
        if options.engine == "mpi" and not os.path.exists(options.model):
            return  # this node does not see the model: its ranks take the job of rank 0
        from tilewright.runtime.load import stored_dtype

        options.dtype = stored_dtype(options.model, _device_of(options, "float32"))


def _device_of(options: Any, dtype: str) -> str:
    """The device of a job. The GPUs of a Ray cluster are on other machines, so they are not checked here."""
    from tilewright.runtime.devices import place_for

    if options.device == "cuda" and getattr(options, "engine", None) == "ray":
        return "cuda"
    return place_for(options.device, dtype)


def settings_of(options: Any, job: str) -> Settings:
    """The `Settings` of the options of a job: "classify", "generate", "draw" or "convolve". Resolves --dtype auto.

    Raises BadParameter, UsageError and ResourceError.
    """
    if options.engine != "ray":  # its nodes may have more cores
        check_threads(options.threads)
    resolve_dtype(options)
    given = {field.name: getattr(options, field.name) for field in fields(JobOptions)}
    del given["config"]  # its options have become ours
    given |= {name: getattr(options, name) for name in ("device", "dtype", "threads", "json")}
    given["without"] = frozenset(options.without or ())
    given["rungs"] = parse_rungs(options.rung or [], job, options.device)
    given["batch_size"], given["keep_others"] = getattr(options, "batch_size", None), not given.pop("force")
    if options.shard_size is not None:
        given["shard_size"] = parse_bytes(options.shard_size, "--shard-size")
        if given["shard_size"] < 1:
            raise typer.BadParameter("a shard has at least 1 record or byte", param_hint="--shard-size")
    if options.part is not None:
        given["helps"] = options.part.endswith("+")
        numbers = options.part.removesuffix("+").split("/")
        if len(numbers) != 2 or not all(number.isdecimal() for number in numbers):
            raise typer.BadParameter(f"{options.part!r} is no part; write 0/8 or 0/8+", param_hint="--part")
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
    """The rows of the banner that say where the job runs, and without what."""
    device = _device_of(options, options.dtype or "float32")
    workers = {"Workers": f"{options.workers:,}"} if options.workers else {}
    if device == "cpu" and (options.threads or options.engine != "ray"):
        threads = threads_of(options)
        device = f"cpu, {threads} thread{'s' * (threads > 1)}"
    return workers | {"Device": device, **without_row(options)}


def without_row(options: Any) -> dict[str, str]:
    """The row of the banner that names the optimisations that are switched off."""
    return {"Without": ", ".join(sorted(set(options.without)))} if options.without else {}


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
