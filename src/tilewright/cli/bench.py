"""`tilewright bench WORKLOAD`: a workload end to end, beside its peers. Each workload has its own options."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Option

from tilewright.cli._bench import Against, Common, Input, Rounds, begin, finish, indented, names, saved
from tilewright.cli._bench_texts import embed, score
from tilewright.cli._options import Threads, parse_sizes, verb
from tilewright.cli._output import say, show
from tilewright.errors import counted

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tilewright.bench.results import Row

    Saver = Callable[[list[Row]], list[Path]]  # writes rows, and what is drawn of them


@dataclass
class Sentiment(Common):
    """Options of `bench sentiment`."""

    against: Against = None
    data: Input = None
    count: Annotated[
        int | None,
        Option("--count", "-n", min=1, metavar="N", help="Classify the first N sentences only.", show_default="all"),
    ] = None
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"], Option(help="Precision of the products; float16 needs a GPU.")
    ] = "float32"
    threads: Threads = None


@verb(Sentiment)
def sentiment(options: Sentiment) -> None:
    """Classify sentences with a TextCNN of 200 M weights, beside PyTorch. Then time each layer.

    \b
    tilewright bench sentiment --threads 2

    The sentences come from --input. Without --input they come from sentiment_inputs.bin (16,384 sentences), if that
    file is in ./course or in the folder that TILEWRIGHT_COURSE names. Else the sample in the package is used.
    """
    watch, device = begin(options, options.dtype, options.threads)
    from tilewright.bench.workloads.sentiment import bench
    from tilewright.demo import sentences
    from tilewright.ops.core.launch import thread_count

    ids, source = sentences(options.data)
    ids, count = ids[: options.count], options.threads or thread_count()
    where = f"{count} threads" if device == "cpu" else "on the GPU"
    say(f"{counted(len(ids), 'sentence')} of {source}, {options.dtype}, {where}")
    against = names(options.against, ("torch",))
    rows = bench(ids, count=count, dtype=options.dtype, device=device, against=against, say=indented)
    for row in [row for row in rows if row.op == "sentiment"]:
        ratio = f"   {row.peer_ratio:.1f} x {row.peer}" if row.peer_ratio else ""
        show(f"{row.rung:<14} {row.rows / row.median_s:>12,.1f} sentences/s{ratio}")
    _show_tables([row for row in rows if row.op != "sentiment"])
    finish(rows, options, watch)


@dataclass
class Gpt2(Common):
    """Options of `bench gpt2`."""

    against: Against = None
    model: Annotated[str | None, Option(metavar="PATH", help="A model.", show_default="124M random weights")] = None
    data: Input = None
    count: Annotated[
        int | None,
        Option("--count", "-n", min=1, metavar="N", help='Number of prompts of the workload "course".',
               show_default="1,024, or 6,400 on a GPU"),
    ] = None  # fmt: skip
    only: Annotated[
        str | None,
        Option(metavar="LIST", help="Run only these workloads: some of course, batch, single, sampled.",
               show_default="all but sampled"),
    ] = None  # fmt: skip
    max_tokens: Annotated[int, Option(metavar="N", min=1, help='New tokens per prompt of the workload "course".')] = 8
    dtype: Annotated[Literal["float32", "bfloat16", "both"], Option(help="Precision of the products.")] = "float32"
    threads: Threads = None
    rounds: Rounds = 3
    profile: Annotated[bool, Option("--profile", help="Also print the time of each operation.")] = False


@verb(Gpt2)
def gpt2(options: Gpt2) -> None:
    """Generate text beside transformers, CTranslate2 and OpenVINO; on a GPU, beside transformers and PyTorch.

    \b
    tilewright bench gpt2 --only batch --dtype bfloat16

    The prompts come from --input. Without --input they come from gpt2_input.bin (8,192 prompts), if that file is in
    ./course or in the folder that TILEWRIGHT_COURSE names. Else they are random token ids.

    Workloads: "course" generates 8 tokens for each of 1,024 prompts (6,400 on a GPU), as a student's report did.
    "batch" generates 128 tokens for each of 64 prompts (1,024 on a GPU). "single" generates 64 tokens for one prompt.
    "sampled" is "batch" with drawn tokens.
    """
    watch, device = begin(options, "float32" if options.dtype == "both" else options.dtype, options.threads)
    from tilewright.bench.workloads.gpt2 import COUNT, USUAL, Setting, bench, model_name, random_prompts, random_weights
    from tilewright.models.gpt2 import GPT2Config
    from tilewright.ops.core.launch import thread_count, threads
    from tilewright.runtime.load import config_of, read_weights

    config = config_of(options.model, GPT2Config) if options.model else GPT2Config()
    count = options.count or COUNT[device]
    prompts, source = _prompts(options.data, config.vocab_size) or (random_prompts(config, count), "random numbers")
    name = options.model or f"random weights, {model_name(config)}"
    with threads(options.threads):
        where = f"{thread_count()} threads" if device == "cpu" else "on the GPU"
        say(f"GPT-2, {name}; prompts: {source}; {where}")
        weights = read_weights(options.model)[1] if options.model else random_weights(config, seed=1)
        usual = ("transformers", "ctranslate2", "openvino") if device == "cpu" else ("transformers", "torch")
        setting = Setting(
            config, weights, prompts, count, tokens=options.max_tokens, rounds=options.rounds or 3,
            workloads=tuple(options.only.split(",")) if options.only else USUAL, profile=options.profile,
            against=names(options.against, usual), device=device,
        )  # fmt: skip
        dtypes = ("float32", "bfloat16") if options.dtype == "both" else (options.dtype,)
        parts = (part for dtype in dtypes for part in bench(setting, dtype=dtype, say=indented))
        rows = saved(parts, options, watch)
    _show_tables(rows)
    if options.profile and device != "cpu":
        from tilewright.bench.workloads.gpt2_profile import leave

        leave()


@dataclass
class Dcgan(Common):
    """Options of `bench dcgan`."""

    against: Against = None
    count: Annotated[
        int | None,
        Option("--count", "-n", min=1, metavar="N", help="Number of images.", show_default="depends on the device"),
    ] = None
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16", "both"],
        Option(help="Precision of the products. On a GPU, float32 also times float16, and both times all three."),
    ] = "float32"
    threads: Threads = None
    rounds: Rounds = None


@verb(Dcgan)
def dcgan(options: Dcgan) -> None:
    """Draw images with a DCGAN generator of 5 M random weights, beside PyTorch and OpenVINO. Then time each layer.

    \b
    tilewright bench dcgan --count 256

    On a GPU the peer is PyTorch alone.
    """
    watch, device = begin(options, "float32" if options.dtype == "both" else options.dtype, options.threads)
    from tilewright.bench.workloads.dcgan import IMAGES, PEERS, ROUNDS, bench
    from tilewright.ops.core.launch import thread_count, threads

    classes: dict[str, tuple[str, ...]] = {"both": ("float32", "bfloat16")}
    if device != "cpu":
        classes = {"float32": ("float32", "float16"), "both": ("float32", "float16", "bfloat16")}
    count = options.count or IMAGES[device]
    with threads(options.threads):
        where = f"{thread_count()} threads" if device == "cpu" else "on the GPU"
        say(f"DCGAN, 64 x 64 pixels, random weights; {counted(count, 'image')}; {where}")
        measured = partial(
            bench, count, device=device, against=names(options.against, PEERS[device]),
            rounds=options.rounds or ROUNDS[device], say=indented,
        )  # fmt: skip
        dtypes = classes.get(options.dtype, (options.dtype,))
        parts = (part for dtype in dtypes for part in measured(dtype=dtype))
        rows = saved(parts, options, watch)
    _show_tables(rows)


@dataclass
class Convolve(Common):
    """Options of `bench convolve`."""

    against: Against = None
    threads: Threads = None


@verb(Convolve)
def convolve(options: Convolve) -> None:
    """Filter random volumes beside SciPy, PyTorch, Halide and OpenCV. Then time the parts of a job.

    \b
    tilewright bench convolve --against scipy

    On a GPU the peers are cuDNN and CuPy. A missing library is left out; the extra `peers` installs all for CPUs
    (pip install -e '.[peers]' in a clone). Of several programs that Halide compiles, the fastest is timed. With --save,
    each case is saved at once.
    """
    watch, device = begin(options, "float32", options.threads)
    from tilewright.bench.noise import Watch
    from tilewright.bench.workloads.convolve import PEERS, bench, lines
    from tilewright.bench.workloads.convolve_profile import profile
    from tilewright.ops.core.launch import threads

    with threads(options.threads):
        for rows in bench(device=device, against=names(options.against, PEERS[device]), say=indented):
            for line in lines(rows):
                show(line)
            finish(rows, options, watch)
            watch = Watch()
        show("  Ratios and shares of the limit are medians over the rounds: medians of times may give others.")
        rows = profile(device)
        _show_tables(rows)
        finish(rows, options, watch)


@dataclass
class Scaling(Common):
    """Options of `bench scaling`."""

    only: Annotated[
        str | None,
        Option(metavar="LIST", help="Run only these jobs: some of sentiment, gpt2, dcgan, dcgan-pixels.",
               show_default="all"),
    ] = None  # fmt: skip
    count: Annotated[
        str | None,
        Option("--count", "-n", metavar="LIST", help="Numbers of records per job, as in 10,100,1000.",
               show_default="depends on the job"),
    ] = None  # fmt: skip
    dtype: Annotated[Literal["float32", "bfloat16", "float16"], Option(help="Precision of the products.")] = "float32"
    max_tokens: Annotated[int, Option(metavar="N", min=1, help="New tokens per prompt, for gpt2.")] = 8
    workers: Annotated[
        str | None,
        Option(metavar="LIST", help="Numbers of workers (or Ray actors) to measure, as in 1,2,4. The first must be 1.",
               show_default="1,2"),
    ] = None  # fmt: skip
    ranks: Annotated[
        str | None,
        Option(
            metavar="LIST",
            help="Numbers of MPI ranks to measure, as in 1,2,4. The first must be 1. With --launcher, ranks may run on "
            "several hosts.",
            show_default="1,2 with --engine mpi",
        ),
    ] = None
    engine: Annotated[
        Literal["local", "mpi", "ray"] | None,
        Option(help="What runs the shards.", show_default="mpi with --ranks, else local"),
    ] = None
    launcher: Annotated[
        str, Option(metavar="COMMAND", help="The command that starts {n} MPI ranks, for --engine mpi.")
    ] = "mpiexec -n {n}"
    folder: Annotated[
        str | None, Option(metavar="DIR", help="Directory for models and outputs.", show_default="a temporary one")
    ] = None
    tiny: Annotated[bool, Option("--tiny", help="Use tiny models, to test this command quickly.")] = False


@verb(Scaling)
def scaling(options: Scaling) -> None:
    """Run whole jobs with 1, 2, ... workers, each on a GPU or on its own cores. All runs must write the same bytes.

    \b
    tilewright bench scaling --only gpt2 --workers 1,2,4
    tilewright bench scaling --only dcgan -n 100,1000 --ranks 1,2,4,8,16

    The command fits Amdahl's law and the Universal Scalability Law to the speed-ups. With --engine mpi the workers are
    MPI ranks on the launcher's hosts; with --engine ray they are actors of the cluster. --save saves the rows and a
    figure.
    """
    from pathlib import Path
    from tempfile import TemporaryDirectory

    from tilewright.bench.report.scaling import save_scaling
    from tilewright.bench.workloads.scaling import COUNT, JOBS, Setting, bench

    jobs = tuple((options.only or ",".join(JOBS)).split(","))
    if not set(jobs) <= set(JOBS):
        raise typer.BadParameter(f"{options.only!r}: there are {', '.join(JOBS)}", param_hint="--only")
    engine, workers = _engine_and_workers(options)
    counts = parse_sizes(options.count or "")
    if (options.count is not None and not counts) or any(count < 1 for count in counts):
        raise typer.BadParameter(f"{options.count!r}: write 10,100,1000", param_hint="--count")
    watch, device = begin(options)
    with TemporaryDirectory() as temporary:
        setting = Setting(
            Path(options.folder or temporary), workers, engine, device, options.dtype, options.launcher,
            options.max_tokens, options.tiny,
        )  # fmt: skip
        found = (bench(job, count, setting, indented) for job in jobs for count in counts or (COUNT[device][job],))
        rows = saved(found, options, watch, save_scaling)
    _show_tables(rows)


def _engine_and_workers(options: Scaling) -> tuple[str, tuple[int, ...]]:
    """The engine, and the numbers of its workers or ranks. Raises BadParameter for options that exclude each other."""
    engine = options.engine or ("mpi" if options.ranks is not None else "local")
    if options.ranks is not None and engine != "mpi":
        raise typer.BadParameter(f"{options.ranks!r}: only --engine mpi has ranks; use --workers", param_hint="--ranks")
    if options.ranks is not None and options.workers is not None:
        both = f"{options.ranks!r}, and --workers {options.workers}: both count the ranks; give one"
        raise typer.BadParameter(both, param_hint="--ranks")
    given = options.workers if options.ranks is None else options.ranks
    workers = parse_sizes("1,2" if given is None else given)
    if workers[:1] != (1,) or list(workers) != sorted(set(workers)):
        hint = "--workers" if options.ranks is None else "--ranks"
        raise typer.BadParameter(f"{given!r}: write 1,2,4", param_hint=hint)
    return engine, workers


ABOUT = """Time a whole workload beside other libraries, on this machine and in one run.

\b
tilewright bench sentiment --against torch

Each workload has its own options: tilewright bench WORKLOAD --help."""
COMMANDS = {
    "sentiment": sentiment, "embed": embed, "gpt2": gpt2, "score": score, "dcgan": dcgan, "convolve": convolve,
    "scaling": scaling,
}  # fmt: skip
OLD_NAMES = {"conv3d": "convolve"}  # what a workload was called earlier still works


def _show_tables(rows: list[Row]) -> None:
    from tilewright.bench.report.tables import bench_tables

    for table in bench_tables(rows):
        show(f"\n{table.text()}")


def _prompts(path: str | None, vocabulary: int) -> tuple[Any, str] | None:
    """(int32 ids (n, 16), where they come from): the given file or the course's; None without one."""
    import numpy as np

    from tilewright.demo import course_file
    from tilewright.formats.course import TokenFile

    course = course_file("gpt2_input.bin")
    if path is None and not (course.exists() and vocabulary > 50256):  # a smaller model lacks its words
        return None
    path = path or str(course)
    reader = TokenFile(path, length=16, vocabulary=vocabulary)
    return np.concatenate([batch.tokens for batch in reader.batches(1 << 16)]), path
