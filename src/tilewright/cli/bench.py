"""`tilewright bench WORKLOAD`: a workload end to end, side by side with its peers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import typer
from typer import Argument, Option

from tilewright.cli._options import Device, check_threads, parse_sizes, verb
from tilewright.cli._output import say, show

COUNT = {"cpu": 1024, "cuda": 6400}  # prompts of the course unless the user says
PEERS = {"sentiment": "torch", "gpt2": "transformers,ctranslate2", "dcgan": "torch", "conv3d": "scipy,torch"}
# The workloads that an option is for, where that is not all of them.
ONLY_FOR = {
    "against": tuple(PEERS),
    "data": ("sentiment", "gpt2"),
    "count": ("sentiment", "gpt2", "dcgan", "scaling"),
    "threads": tuple(PEERS),
    "model": ("gpt2",),
    "max_tokens": ("gpt2", "scaling"),
    "only": ("gpt2", "scaling"),
    "rounds": ("gpt2", "dcgan"),
    "profile": ("gpt2",),
    **dict.fromkeys(("workers", "engine", "launcher", "folder", "tiny"), ("scaling",)),
}
IMAGES = 960  # of dcgan unless the user says: half a second


@dataclass
class Options:
    """One field an option."""

    workload: Annotated[
        Literal["sentiment", "gpt2", "dcgan", "conv3d", "scaling"],
        Argument(metavar="WORKLOAD", help="sentiment, gpt2, dcgan, conv3d or scaling"),
    ]
    against: Annotated[str | None, Option(metavar="LIST", help="Peers, or 'none'; all that fit unless given.")] = None
    data: Annotated[str | None, Option("--input", "-i", metavar="FILE", help="Token ids, i32 [n][16].")] = None
    count: Annotated[int | None, Option("--count", "-n", min=1, help="So many sentences, prompts or images.")] = None
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16", "both"], Option(help="Accuracy; float16: GPU; both: gpt2, dcgan.")
    ] = "float32"
    device: Device = "cpu"
    threads: Annotated[int | None, Option(min=1, help="CPU threads; one a core unless given.")] = None
    save: Annotated[bool, Option("--save", help="Add the rows to results/ of the current directory.")] = False
    model: Annotated[str | None, Option(metavar="PATH", help="gpt2: this model; else random weights, 124M.")] = None
    max_tokens: Annotated[int, Option(min=1, help="gpt2: new tokens of the course's prompts; scaling: of all.")] = 8
    only: Annotated[
        str | None,
        Option(
            metavar="LIST",
            help="gpt2: of course, batch, single, sampled; scaling: of sentiment, gpt2, dcgan, dcgan-pixels.",
        ),
    ] = None
    rounds: Annotated[int, Option(min=1, help="gpt2, dcgan: turns of each engine.")] = 3
    profile: Annotated[bool, Option("--profile", help="gpt2: where our time goes, operation by operation.")] = False
    workers: Annotated[str, Option(metavar="LIST", help="scaling: how many, from 1 on.")] = "1,2"
    engine: Annotated[Literal["local", "mpi"], Option(help="scaling: what runs the shards.")] = "local"
    launcher: Annotated[str, Option(help="scaling: starts {n} ranks.")] = "mpiexec -n {n}"
    folder: Annotated[str | None, Option(metavar="DIR", help="scaling: of models and outputs; a temporary one.")] = None
    tiny: Annotated[bool, Option("--tiny", help="scaling: models that are for tests alone.")] = False


@verb(Options)
def bench(options: Options) -> None:
    """Time the whole job on this machine, its result checked first.

    sentiment uses the sentences of --input, else the course's 16,384 if they lie in ./course or the folder that
    TILEWRIGHT_COURSE names, else the sample that is shipped. gpt2 uses the prompts of --input, else the course's 8,192
    from there, else random ones: 8 new tokens for 1,024 of them (on a GPU 6,400), 128 for 64 (1,024), and 64 for one.
    dcgan draws images from noise of a seed, and ends with the time of each layer. conv3d filters random volumes.
    scaling runs whole jobs with 1, 2, ... workers, each on a GPU or on its own cores, and compares their bytes.
    """
    check_threads(options.threads)
    _check(options)

    from tilewright.bench.results import save_here

    rows = {"sentiment": _sentiment, "gpt2": _gpt2, "dcgan": _dcgan, "conv3d": _conv3d, "scaling": _scaling}[
        options.workload
    ](options)
    if options.save:
        for path in save_here(rows):
            say(f"written to {path}")
    if any(row.op == "gpt2_profile" and not row.threads for row in rows):  # on a GPU
        from tilewright.bench.gpt2_device import leave

        leave()


def _check(options: Options) -> None:
    """Raises BadParameter for an option that another workload has and this one would ignore."""
    usual = Options(options.workload)
    for name, workloads in ONLY_FOR.items():
        if getattr(options, name) != getattr(usual, name) and options.workload not in workloads:
            option = f"--{'input' if name == 'data' else name.replace('_', '-')}"
            raise typer.BadParameter(f"it is for {', '.join(workloads)}, not for {options.workload}", param_hint=option)


def _peers(options: Options) -> tuple[str, ...]:
    names = PEERS[options.workload] if options.against is None else options.against
    return () if names == "none" else tuple(name.strip() for name in names.split(","))


def _sentiment(options: Options) -> list[Any]:
    if options.dtype == "both":
        raise typer.BadParameter("both is for gpt2 and dcgan; write float32 or bfloat16", param_hint="--dtype")
    from tilewright.bench.sentiment import bench as run
    from tilewright.demo import sentences
    from tilewright.ops.core.launch import thread_count
    from tilewright.runtime.devices import place_for

    place = place_for(options.device, options.dtype)
    ids, source = sentences(options.data)
    ids, count, peers = ids[: options.count], options.threads or thread_count(), _peers(options)
    where = f"{count} threads" if place == "cpu" else "on the GPU"
    say(f"{len(ids):,} sentences of {source}, {options.dtype}, {where}")
    peer = ",".join(peers) or None
    rows = run(ids, count=count, dtype=options.dtype, device=place, against=peer, say=lambda text: say(f"  {text}"))
    for row in rows:
        ratio = f"   {row.peer_ratio:.1f} x {row.peer}" if row.peer_ratio else ""
        show(f"{row.rung:<14} {row.rows / row.median_s:>12,.1f} sentences/s{ratio}")
    return rows


def _gpt2(options: Options) -> list[Any]:
    from dataclasses import replace

    from tilewright.bench.gpt2 import USUAL, Setting, bench, model_name, random_prompts, random_weights
    from tilewright.bench.tables import bench_tables
    from tilewright.models.gpt2 import GPT2Config
    from tilewright.ops.core.launch import thread_count, threads
    from tilewright.runtime.devices import place_for
    from tilewright.runtime.load import config_of, read_weights

    place = place_for(options.device, options.dtype)
    config = config_of(options.model, GPT2Config) if options.model else GPT2Config()
    count = options.count or COUNT[place]
    prompts, source = _prompts(options.data, config.vocab_size) or (random_prompts(config, count), "random numbers")
    name = options.model or f"random weights, {model_name(config)}"
    with threads(options.threads):
        where = f"{thread_count()} threads" if place == "cpu" else "on the GPU"
        say(f"GPT-2, {name}; prompts: {source}; {where}")
        weights = read_weights(options.model)[1] if options.model else random_weights(config, seed=1)
        setting = Setting(
            config, weights, prompts, count, tokens=options.max_tokens, rounds=options.rounds,
            workloads=tuple(options.only.split(",")) if options.only else USUAL, against=_peers(options),
            profile=options.profile, device=place,
        )  # fmt: skip
        if place == "cuda" and options.against is None:
            setting = replace(setting, against=("transformers", "torch"))
        rows = []
        for dtype in ("float32", "bfloat16") if options.dtype == "both" else (options.dtype,):
            rows += bench(setting, dtype=dtype, say=lambda text: say(f"  {text}"))
    for table in bench_tables(rows):
        show(f"\n{table.text()}")
    return rows


def _dcgan(options: Options) -> list[Any]:
    from tilewright.bench.dcgan import bench
    from tilewright.bench.tables import bench_tables
    from tilewright.ops.core.launch import thread_count, threads
    from tilewright.runtime.devices import place_for

    if place_for(options.device, options.dtype) == "cuda":
        return _dcgan_on_gpu(options)
    count, rows = options.count or IMAGES, []
    with threads(options.threads):
        say(f"DCGAN, 64 x 64 pixels, random weights; {count:,} images; {thread_count()} threads")
        for dtype in ("float32", "bfloat16") if options.dtype == "both" else (options.dtype,):
            rows += bench(
                count, dtype=dtype, against=_peers(options), rounds=options.rounds, say=lambda text: say(f"  {text}")
            )
    for table in bench_tables(rows):
        show(f"\n{table.text()}")
    return rows


def _dcgan_on_gpu(options: Options) -> list[Any]:
    """float32's class, and a 16-bit one beside it: float16 unless bfloat16 is asked for; both: all three."""
    from tilewright.bench.dcgan_device import IMAGES as MANY
    from tilewright.bench.dcgan_device import bench
    from tilewright.bench.tables import bench_tables

    classes = {"float32": ("float32", "float16"), "both": ("float32", "float16", "bfloat16")}
    count, rows = options.count or MANY, []
    say(f"DCGAN, 64 x 64 pixels, random weights; {count:,} images on the GPU")
    for dtype in classes.get(options.dtype, (options.dtype,)):
        say(f"{dtype}:")
        rows += bench(count, dtype=dtype, against=_peers(options), say=lambda text: say(f"  {text}"))
    for table in bench_tables(rows):
        show(f"\n{table.text()}")
    return rows


def _conv3d(options: Options) -> list[Any]:
    if options.dtype != "float32":
        raise typer.BadParameter("volumes are float32", param_hint="--dtype")
    from tilewright.bench.conv3d import bench, bench_on_gpu, lines
    from tilewright.ops.core.launch import threads
    from tilewright.runtime.devices import place_for

    if place_for(options.device, options.dtype) == "cuda":
        from tilewright.bench.results import save_here

        peers = None if options.against is None else _peers(options)
        keep = save_here if options.save else list  # case by case: what comes later may fail
        rows = bench_on_gpu(against=peers, say=lambda text: say(f"  {text}"), done=keep)
    else:
        with threads(options.threads):
            rows = bench(against=_peers(options), say=lambda text: say(f"  {text}"))
    for line in lines(rows):
        show(line)
    return rows


def _scaling(options: Options) -> list[Any]:
    """Each job by each number of workers."""
    from pathlib import Path
    from tempfile import TemporaryDirectory

    from tilewright.bench.scaling import COUNT as RECORDS
    from tilewright.bench.scaling import JOBS, Setting, bench
    from tilewright.bench.tables import bench_tables
    from tilewright.runtime.devices import place_for

    jobs = tuple((options.only or ",".join(JOBS)).split(","))
    workers = parse_sizes(options.workers)
    if not set(jobs) <= set(JOBS):
        raise typer.BadParameter(f"{options.only!r}: there are {', '.join(JOBS)}", param_hint="--only")
    if options.dtype == "both":
        raise typer.BadParameter("both is for gpt2 and dcgan; write float32 or bfloat16", param_hint="--dtype")
    if workers[:1] != (1,) or list(workers) != sorted(workers):
        raise typer.BadParameter(f"{options.workers!r}: write 1,2,4", param_hint="--workers")
    device, rows = place_for(options.device), []
    with TemporaryDirectory() as temporary:
        setting = Setting(
            Path(options.folder or temporary), workers, options.engine, device, options.dtype, options.launcher,
            options.max_tokens, options.tiny,
        )  # fmt: skip
        for job in jobs:
            rows += bench(job, options.count or RECORDS[device][job], setting, lambda text: say(f"  {text}"))
    for table in bench_tables(rows):
        show(f"\n{table.text()}")
    return rows


def _prompts(path: str | None, vocabulary: int) -> tuple[Any, str] | None:
    """(int32 ids (n, 16), where they come from): the given file or the course's; None if it is not there."""
    import numpy as np

    from tilewright.demo import course_file
    from tilewright.formats.course import TokenFile

    course = course_file("gpt2_input.bin")
    if path is None and not (course.exists() and vocabulary > 50256):  # a smaller model has not its words
        return None
    path = path or str(course)
    reader = TokenFile(path, length=16, vocabulary=vocabulary)
    return np.concatenate([batch.tokens for batch in reader.batches(1 << 16)]), path
