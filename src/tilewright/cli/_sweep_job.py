"""`tilewright sweep --job NAME`: a whole job against its batch size, threads, number of records or workers."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer
from typer import Option

from tilewright.cli._output import say, show
from tilewright.cli._values import parse_counts
from tilewright.errors import UsageError

if TYPE_CHECKING:
    from tilewright.bench.results import Row
    from tilewright.bench.sweep_kinds import Setting

WHOLE = "Whole jobs, with --job"  # a group of options
OF_VERBS = {"classify": "sentiment", "generate": "gpt2", "draw": "dcgan"}  # the bench's names of the product's verbs
MOST = {"batch_size": 1 << 20, "count": 1 << 30, "threads": 256, "workers": 1024, "gpus": 1024}
LEGEND = """\
rate: records of a job per second, of GPT-2 new tokens; time: median of the runs; spread: their 10th and 90th percentile
best: the smallest value at which the rate is within 2 % of the highest one
check: largest error against float64, the SHA-256 of the output of workers, or why the point is refused"""


@dataclass(kw_only=True)
class JobOptions:
    """One field per option of a sweep of a whole job."""

    job: Annotated[
        Literal["sentiment", "gpt2", "dcgan", "convolve", "classify", "generate", "draw"] | None,
        Option(
            help="Sweep a whole job instead of an operation. classify means sentiment, generate gpt2, and draw dcgan.",
            show_default=False,
            rich_help_panel=WHOLE,
        ),
    ] = None
    batch_size: Annotated[
        str | None,
        Option(
            "--batch-size",
            metavar="LIST",
            help="Batch sizes to measure, in records, as in 1,8,64,800.",
            rich_help_panel=WHOLE,
        ),
    ] = None
    count: Annotated[
        str | None,
        Option(
            "--count",
            "--images",
            "-n",
            metavar="LIST",
            help="Numbers of records to measure: sentences, prompts, images or planes. A single number is used for all "
            "points of the sweep.",
            show_default="depends on the job and the device",
            rich_help_panel=WHOLE,
        ),
    ] = None
    workers: Annotated[
        str | None,
        Option(
            "--workers",
            metavar="LIST",
            help="Numbers of worker processes to measure, as in 1,2,4. Each gets a GPU or an equal share of the cores.",
            rich_help_panel=WHOLE,
        ),
    ] = None
    gpus: Annotated[
        str | None,
        Option(
            "--gpus",
            metavar="LIST",
            help="Numbers of GPUs to measure, as in 1,2,4: one worker process per GPU.",
            rich_help_panel=WHOLE,
        ),
    ] = None
    again: Annotated[
        bool | None,
        Option(
            "--again",
            help="With --workers or --gpus: also measure points that --save has saved at this commit.",
            show_default=False,
            rich_help_panel=WHOLE,
        ),
    ] = None
    model: Annotated[
        str | None,
        Option(
            metavar="PATH", help="The model.", show_default="the course's, with random weights", rich_help_panel=WHOLE
        ),
    ] = None


def check_no_job(options: Any) -> None:
    """Raises UsageError for options of a whole job, without --job."""
    for field in fields(JobOptions):
        if getattr(options, field.name) is not None:
            name = field.name.replace("_", "-")
            raise UsageError(f"sweep {options.op}: --{name} is for a whole job", remedy="write --job gpt2, without OP")


def sweep_job(options: Any) -> None:
    """Sweep the job that the options name, and show it. Raises BadParameter and UsageError."""
    job = OF_VERBS.get(options.job, options.job)
    _check(options, job)
    counts = {name: _values(options, name) for name in MOST if getattr(options, name) is not None}
    from tilewright.bench.noise import Watch, warning
    from tilewright.bench.report.sweeps import matrix_table, remarks, save_sweeps, sweep_table
    from tilewright.bench.results import WORKERS
    from tilewright.bench.sweep_jobs import COUNT, sweep

    setting = _setting(options, job)
    axes, count = _axes(options, setting, counts), max(COUNT[setting.device][job], *counts.get("batch_size", (0,)))
    if setting.records not in axes and "count" in counts:
        (count,) = counts["count"]
    if WORKERS in axes:
        rows, files = _by_workers(options, setting, axes, count)
    else:
        watch = Watch()
        rows, files = watch.noted(sweep(setting, axes, count, say)), []
    tables = filter(None, (matrix_table(rows), sweep_table(rows)))
    if not show("\n\n".join(table.heading() for table in tables)) and not options.save:
        raise typer.Exit
    if text := warning(rows):
        say(text, err=True)
    if options.save and WORKERS not in axes:
        files = save_sweeps(rows)
    for path in files:
        say(f"written to {path}")
    show("\n".join(["", LEGEND, *remarks(rows)]))


def _check(options: Any, job: str) -> None:
    """Raises UsageError for options of an operation, and for those that exclude each other."""
    for name, flag in (("op", "OP"), ("set_", "--set"), ("rung", "--rung"), ("size", "--size"), ("label", "--label")):
        if getattr(options, name):
            raise UsageError(
                f"sweep --job {job}: {flag} is for an operation", remedy="leave it out, or leave out --job"
            )
    if options.gpus is not None and options.workers is not None:
        raise UsageError(f"sweep --job {job}: --workers and --gpus are the same parameter", remedy="give one of them")
    if options.gpus is not None and options.device != "cuda":
        raise UsageError(
            f"sweep --job {job}: --gpus {options.gpus} needs --device cuda", remedy="give it, or write --workers"
        )
    if options.threads is not None and options.device != "cpu":
        raise UsageError(
            f"sweep --job {job}: --threads {options.threads} is for the CPU; --device {options.device} has none"
        )
    if options.model is not None and job == "convolve":
        raise UsageError(f"sweep --job convolve: --model {options.model}: it has no model", remedy="leave it out")
    if options.again and not (options.workers or options.gpus):
        raise UsageError(
            f"sweep --job {job}: --again is for --workers and --gpus; other sweeps measure every point",
            remedy="leave it out",
        )
    if options.again and not options.save:
        raise UsageError(
            f"sweep --job {job}: --again without --save: only saved points are not measured again",
            remedy="leave out --again, or give --save",
        )
    if options.workers or options.gpus:
        for name in ("threads", "batch_size", "model"):
            if getattr(options, name) is not None:
                flag = name.replace("_", "-")
                raise UsageError(f"sweep --job {job}: --{flag} cannot be combined with several workers")


def _setting(options: Any, job: str) -> Setting:
    """What to run. Raises UsageError for a dtype that is not measured, InputError for another model."""
    from tilewright.bench.sweep_kinds import DTYPES, MODELS, Measured, Setting
    from tilewright.demo import sentences
    from tilewright.runtime.devices import place_for
    from tilewright.runtime.load import read_weights

    dtype = options.dtype or "float32"
    if dtype not in DTYPES[job]:
        raise UsageError(f"sweep --job {job}: --dtype {dtype}: {job} is measured in {', '.join(DTYPES[job])}")
    place_for(options.device, dtype)
    if options.model is not None:
        config, weights = read_weights(options.model, MODELS[job])
        return Setting(job, options.device, dtype, cast(Measured, config), weights, Path(options.model).resolve().name)
    return Setting(job, options.device, dtype, ids=sentences()[0] if job == "sentiment" else None)


def _values(options: Any, name: str) -> tuple[int, ...]:
    return parse_counts(f"sweep: --{name.replace('_', '-')}", getattr(options, name), MOST[name])


def _axes(options: Any, setting: Setting, counts: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Parameter -> its values. Raises UsageError unless there are one or two."""
    from tilewright.bench.results import WORKERS
    from tilewright.bench.sweep_jobs import BATCH, THREADS

    names = {"count": setting.records, "batch_size": BATCH, "threads": THREADS, "workers": WORKERS, "gpus": WORKERS}
    axes = {names[name]: counts[name] for name in names if name in counts}
    if len(axes) > 1 and len(counts.get("count", ())) == 1:
        del axes[setting.records]
    if not 1 <= len(axes) <= 2:
        what = ", ".join(axes) or "no parameter"
        remedy = "write --batch-size 1,8,64, --threads 1,2, -n 10,100 or --workers 1,2"
        raise UsageError(f"sweep --job {options.job}: {what}: one or two parameters are wanted", remedy=remedy)
    return axes


def _by_workers(
    options: Any, setting: Setting, axes: dict[str, tuple[int, ...]], count: int
) -> tuple[list[Row], list[Path]]:
    """(the rows, the files written). Each point is saved as soon as it is measured, and then not measured again."""
    from tilewright.bench.noise import Watch
    from tilewright.bench.report.sweeps import save_sweeps
    from tilewright.bench.sweep_workers import Sweep, saved_points, sweep_workers

    known = saved_points(setting) if options.save and not options.again else []
    rows: list[Row] = []
    files: list[Path] = []
    watch = Watch()
    with TemporaryDirectory() as folder:
        for row in sweep_workers(Sweep(setting, axes, count, Path(folder), known), say):
            if row in known:
                say(f"{setting.job}, {row.point}: measured on {row.date} at this commit; --again measures it again")
                rows.append(row)
                continue
            rows += watch.noted([row])
            files = save_sweeps(rows[-1:]) if options.save else []
            watch = Watch()
    return rows, files
