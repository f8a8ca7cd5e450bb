"""What all job verbs share: their options, their job, and how they run and speak."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from importlib import import_module
from typing import Annotated, Any, Literal

import typer

from tilewright.cli._options import (
    Device,
    Dtype,
    Json,
    Rungs,
    Threads,
    WithoutOption,
    check_threads,
    of_messages,
    of_runs,
    parse_bytes,
    parse_keep,
    parse_rungs,
)
from tilewright.cli._output import banner, say, show_part, show_report, summary
from tilewright.runtime.jobs.settings import Settings

Engine = Literal["inline", "local", "mpi", "ray"]
SharedFiles = Literal["auto", "yes", "no"]


@dataclass(kw_only=True)
class JobOptions:
    """Options of every job verb, one field per option. A verb's `Options` derive from it and add their own."""

    FIRST = ("dtype", "device", "threads")  # in their group of --help

    device: Device = "auto"
    threads: Threads = None
    workers: Annotated[
        int | None,
        of_runs(
            metavar="N",
            min=1,
            max=1024,
            help="Number of worker processes. Each gets one GPU, or an equal share of the CPU cores. On a Ray cluster, "
            "at most N run at a time.",
            show_default="one per GPU, else one",
        ),
    ] = None
    engine: Annotated[
        Engine | None,
        of_runs(
            help="What runs the shards: this process (inline), supervised worker processes (local), the ranks of an "
            "MPI launcher (mpi), or Ray actors (ray).",
            show_default="inline, or local with --workers",
        ),
    ] = None
    shared_files: Annotated[
        SharedFiles,
        of_runs(
            help="With --engine mpi: whether all nodes see the job's files (yes), or only rank 0's node (no). If not, "
            "rank 0 sends inputs and weights to each node once, and writes all shards. auto: check which nodes do.",
        ),
    ] = "auto"
    shard_size: Annotated[
        str | None,
        of_runs(
            metavar="SIZE",
            help="Size of the shards of a new job: a number of records for a binary input, else bytes, as in 4M.",
        ),
    ] = None
    max_errors: Annotated[
        int | None,
        of_runs(
            metavar="N",
            min=0,
            help="Stop the job with exit code 5 when more than N records have failed.",
            show_default="no limit",
        ),
    ] = None
    restart: Annotated[bool, of_runs("--restart", help="Discard the shards of earlier runs and start anew.")] = False
    retry_failed: Annotated[
        bool,
        of_runs(
            "--retry-failed",
            help="Compute shards with failed records again, and write the output anew. Needs --engine local or ray.",
        ),
    ] = False
    job_dir: Annotated[
        str | None,
        of_runs(
            "--job-dir",
            metavar="DIR",
            help="Store the state of a new job in DIR; for an output by URL, below the URL DIR. Later runs find it "
            "without the option. Each job needs its own DIR.",
            show_default="OUTPUT.job, beside the output",
        ),
    ] = None
    force: Annotated[bool, of_runs("--force", help="Replace an output file that this job did not make.")] = False
    grace: Annotated[
        float,
        of_runs(
            metavar="SECONDS",
            min=0,
            help="Stop at most this long after a stop signal. Shards that are finished by then are saved.",
        ),
    ] = Settings.grace
    watchdog: Annotated[
        float, of_runs(metavar="SECONDS", min=1, help="Replace a worker that has reported no progress for this long.")
    ] = Settings.watchdog
    json: Json = False
    trace: Annotated[
        str | None,
        of_messages(
            metavar="FILE", help="Write a Chrome trace to FILE. It shows when each worker read, computed and wrote."
        ),
    ] = None
    config: Annotated[
        str | None,
        of_messages(
            metavar="FILE",
            help="Read options from a TOML file, as in max-tokens = 64. Options on the command line take precedence.",
        ),
    ] = None
    rung: Rungs = None
    without: WithoutOption = None
    part: Annotated[
        str | None,
        of_runs(
            metavar="K/N",
            help="Compute only part K of N, and write no output. Start N processes with K from 0 to N - 1, on any "
            "machines that see the same files. Then run the command without --part: it joins the parts. With K/N+ a "
            "process that has finished its part helps the others.",
        ),
    ] = None


@dataclass(kw_only=True)
class RecordOptions(JobOptions):
    """Options of the verbs on records."""

    FIRST = ("device", "dtype", "threads")

    dtype: Dtype = "float32"


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
    """The `Settings` of the options of a job, such as "classify". Resolves --dtype auto.

    Raises BadParameter, UsageError and ResourceError.
    """
    if options.engine != "ray":  # its nodes may have more cores
        check_threads(options.threads)
    resolve_dtype(options)
    given = {field.name: getattr(options, field.name) for field in fields(JobOptions)}
    del given["config"]  # its options have become ours
    given |= {"dtype": options.dtype, "without": frozenset(options.without or ())}
    given["rungs"] = parse_rungs(given.pop("rung") or [], job, options.device)
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


def of_records(options: Any, verb: str) -> dict[str, Any]:
    """The arguments of the job of a verb on records that follow from its shared options.

    Raises what `settings_of` does.
    """
    given = {name: getattr(options, name) for name in ("model", "input", "output", "count", "content_field")}
    return given | {"keep": parse_keep(options.keep), "settings": settings_of(options, verb)}


def answers_of(options: Any) -> str | None:
    """The reference to compare the output with. Raises BadParameter for -v without one, and for -a without -v."""
    if options.check and not (options.answers or options.validate):
        raise typer.BadParameter("-v compares with the answers of -a; none are given", param_hint="-v")
    if options.answers and not options.check:
        raise typer.BadParameter("-a names the answers that -v compares with; give -v, too", param_hint="-a")
    return options.validate or options.answers


def bytes_of(options: Any, name: str) -> int | None:
    """The bytes of a size such as --batch-memory 512M; None if it is not given. Raises BadParameter."""
    given = getattr(options, name)
    return None if given is None else parse_bytes(given, f"--{name.replace('_', '-')}")


def threads_of(options: Any) -> int:
    """The threads of CPU kernels."""
    from tilewright.ops.core.launch import thread_count

    return options.threads or thread_count()


def _device_row(options: Any) -> dict[str, str]:
    """The rows of the banner that say where the job runs."""
    device = _device_of(options, options.dtype)
    workers = {"Workers": f"{options.workers:,}"} if options.workers else {}
    if device == "cpu" and (options.threads or options.engine not in ("ray", "mpi")):  # these divide the cores of nodes
        threads = threads_of(options)
        device = f"cpu, {threads} thread{'s' * (threads > 1)}"
    return workers | {"Device": device}


def model_rows(options: Any, unit: str, more: dict[str, str] | None = None) -> dict[str, str]:
    """The rows of the banner of a job with a model. unit: "Texts", what --count counts. more: rows of the verb."""
    return {
        "Model": options.model,
        "Input": options.input,
        "Output": options.output,
        unit: "all" if options.count is None else f"{options.count:,}",
        **(more or {}),
        "Precision": options.dtype,
        **_device_row(options),
    }


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


def _start_gpu(options: Any) -> None:
    """Start the GPU's driver ahead for a job that may compute on a GPU in this process, and leave out a part of PyTorch
    that no job needs.

    With --device auto the context is not created, because a float64 volume stays on the CPU.
    """
    alone = options.engine in (None, "inline") and options.workers in (None, 1)
    if options.device != "cpu" and alone:
        from tilewright.hardware.gpu import start_ahead
        from tilewright.runtime.process import pytorch_import, startup

        if startup.prepared:  # the process is only for this command
            pytorch_import.leave_out_meta_kernels()
        start_ahead(context=options.device == "cuda")


def run_job(
    verb: str,
    job_of: Callable[[Any], Any],
    options: Any,
    rows: Callable[[], dict[str, str]],
    unit: str,
    *,
    warnings: Callable[[Any], Iterable[str]] = lambda report: (),
    head: Callable[[], dict[str, Any]] | None = None,
) -> None:
    """Run the job of a verb, say how it goes, and exit with the job's exit code.

    job_of(options): the job. rows: of the banner. unit: of the throughput; "tokens" are counted by the report, all else
    is its records. warnings: of a report. head: the options that --json repeats; None: those of a job with a model.
    """
    _start_gpu(options)
    job = job_of(options)
    run = getattr(import_module(f"tilewright.runtime.verbs.{verb}"), verb)

    def told() -> str:
        without = {"Without": ", ".join(sorted(set(options.without)))} if options.without else {}
        return banner(verb, rows() | without)

    speak = Speaker(options, told)
    report = run(job, speak)
    show_part(verb, options, report)
    if report.lead:
        speak(summary(report, unit))
        for line in warnings(report):
            speak(line)
            say(f"Warning: {line}", err=True)
        if options.json:
            own = head() if head else {name: getattr(options, name) for name in ("model", "input", "output", "dtype")}
            show_report(verb, own, report)
    raise typer.Exit(report.exit_code)
