"""docs/results/: one Markdown page per operation and per job, and an index. Every page is written as a whole."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from tilewright.bench.kernels.table import KernelRow
from tilewright.bench.report import experiments
from tilewright.bench.report.job_ladders import MEASURED, job_ladders, job_name, job_table, published_table
from tilewright.bench.report.kernels import kernel_tables
from tilewright.bench.report.layers import layer_tables
from tilewright.bench.report.shown import by_machine
from tilewright.bench.report.side_by_side import side_table
from tilewright.bench.report.sweeps import PREFIX, matrix_table, sweep_table, sweeps
from tilewright.bench.report.tables import (
    WHY_ABOVE,
    bench_tables,
    groups,
    ladder_tables,
    machine_title,
    origin,
    plain,
    sizes_tables,
)
from tilewright.bench.report.timelines import ABOUT, Timeline
from tilewright.bench.results import Row
from tilewright.ops.core.ladder import Ladder

MARK = "<!-- Written by `tilewright report` from results/*/*.csv: changes made here are lost. -->"
METHOD = (
    "Every kernel is measured in one process with its peer. Calls are interleaved in random order, and each starts "
    "with empty caches. Figures are medians, with the 10th and 90th percentile where a spread is given. A kernel is "
    "timed only after its result passed the check against float64; on a GPU the first rows of a result are compared. "
    "Roofs are measured on the same machine: the copy bandwidth of large arrays, and the rate of multiply-adds on "
    "registers. In tf32 and 16 bits on a GPU it is the rate of cuBLAS on large products. Whole jobs run with warm "
    "caches; volumes, and images on a GPU, do not."
)

READING = {
    "rung": "one kernel variant: cpu rungs are in Numba, simt rungs in numba-cuda, tile rungs in Triton or Gluon",
    "of the roof": f"the share of the lower of the two measured roofs. {WHY_ABOVE}",
    "speed-up over the rung below": "the rate over that of the rung that this one improves; below 1 it is slower",
    "peer": "another library for the same work, measured in the same process",
    "check": "the result's error against the reference, found before the timing",
    "one-off": "time that is spent once, before the first call: preparing weights, building tables",
    "device": "the number of CPU threads, or GPU",
    "tilewright is x times as fast": "the ratio of two rates, the median over rounds. In tilewright's own rows the "
    'other rate is that of the fastest peer, named under "compared with". In a peer\'s row it is that of this peer',
}


@dataclass(frozen=True)
class Job:
    """The page of a job: its title, what is measured, and its result files with a heading for each."""

    title: str
    about: str
    files: dict[str, str]


JOBS = {
    "sentiment": Job(
        "Sentiment",
        "The course's TextCNN on real sentences: vocabulary 21,635, width 4,096, 1,024 filters of each kernel size, "
        'random weights. "table inside" computes the token table within the run; on a CPU this is a single run. '
        '"table exists" has the table in memory, as later runs have after they have read it from disk '
        "(`--keep-table`). Reading it is not timed. PyTorch runs at its fastest batch in the same process, on the "
        "first 256 sentences (4,096 on a GPU).",
        {"sentiment": "End to end", "sentiment_profile": "Where the time goes"},
    ),
    "gpt2": Job(
        "GPT-2",
        "GPT-2 124M with random weights: prompts of 16 tokens with 8 new ones, a batch with 128 new tokens per prompt "
        '(64 prompts on a CPU, 1,024 on a GPU), and one prompt with 64. "as given" computes equal prompts once. A '
        "prefix that prompts share is computed once in every case. Peers run at their fastest batch, interleaved with "
        "tilewright. On a CPU they get the first 256 prompts of the 8-token workload.",
        {
            "gpt2": "End to end",
            "gpt2_profile": "Where the time goes",
            "gpt2_accuracy": "bfloat16 against float32 on the same weights",
        },
    ),
    "embed": Job(
        "Embeddings",
        "Encoders of the sizes of all-MiniLM-L6, DistilBERT and BERT with random weights. The token ids are random, "
        "and lengths are like those of movie reviews, 28 tokens on average. Peers get the texts sorted by length, "
        "in batches of 32, the default of sentence-transformers; on a GPU also of 512.",
        {"embed": "End to end"},
    ),
    "score": Job(
        "Scores",
        "Log-probabilities of continuations by GPT-2 124M with random weights, beside PyTorch and the hf backend of "
        "lm-evaluation-harness.",
        {"score": "End to end"},
    ),
    "dcgan": Job(
        "Images",
        "The course's DCGAN generator (64 x 64 pixels, random weights). On a CPU the peers are PyTorch in both memory "
        "layouts, and OpenVINO, each with its fastest batch. On a GPU PyTorch runs as CUDA graphs of 1,024 images.",
        {"dcgan": "End to end", "dcgan_profile": "Where the time goes"},
    ),
    "volumes": Job(
        "Volumes",
        "Filters on whole volumes, beside SciPy, PyTorch, Halide and OpenCV on a CPU, CuPy and cuDNN on a GPU. On a "
        "CPU only PyTorch allocates its result in each call.",
        {"volumes": "End to end", "volumes_profile": "Where the time goes"},
    ),
    "scaling": Job(
        "Scaling",
        "The same job with 1, 2, 4, ... workers: one CPU core or one GPU for each worker, MPI rank or Ray actor. Two "
        "laws are fitted to the speed-ups: Amdahl's, and the Universal Scalability Law. A single `.npy` file "
        "limits the scaling of images: on tmpfs all workers contend for one page-cache lock.",
        {"scaling": "Workers"},
    ),
}


SWEPT = (
    "`tilewright sweep` times kernels of an operation, or a whole job, at each value of one or two parameters. Every "
    "point is checked before it is timed. All points of one size are interleaved. Times are medians; a point over "
    "workers runs once, in processes of its own. The best point is "
    "the smallest value within 2 % of the fastest one. In a figure a ring marks the best point of a curve, a vertical "
    "line its 10th and 90th percentile, a cross a value that cannot run."
)


def pages(
    by_op: dict[str, list[Row]],
    ladders: dict[str, Ladder],
    figures: list[str],
    swept: list[Row],
    stepwise: list[Row],
    compiled: dict[str, list[KernelRow]],
    timelines: Sequence[Timeline] = (),
) -> dict[str, str]:
    """File name -> text. figures: the names of all figures under results/, "<machine>/<op>-<dtype>.svg".

    swept: the rows of sweeps. stepwise: the rows of ladders of jobs. Without such rows their page is left out.
    compiled: operation -> rows of its compiled kernels. timelines: the saved ones; without them their page is left out.
    """
    machines = list(by_machine(by_op))
    written = {"index.md": _index(by_op, ladders, swept, stepwise, timelines)}
    if timelines:
        written["timelines.md"] = _page(_timelines(timelines))
    if stepwise:
        written["job-ladders.md"] = _page(_steps(stepwise, figures))
    if swept:
        written["sweeps.md"] = _page(_sweeps(swept, by_op, figures))
    for op, ladder in ladders.items():
        parts = _operation(by_op.get(op, []), ladder, machines, figures)
        written[f"{op}.md"] = _page(chain(parts, _compiled(op, compiled.get(op, []))))
    for name, job in jobs(by_op, ladders).items():
        written[f"{name}.md"] = _page(_job(name, job, by_op, machines, figures))
    every = [*chain.from_iterable(by_op.values()), *swept, *stepwise]
    written[experiments.PAGE] = _page(experiments.experiments(every, compiled, written))
    return written


def jobs(by_op: dict[str, list[Row]], ladders: dict[str, Ladder]) -> dict[str, Job]:
    """Name -> job: those of `JOBS`, and one for each other result file that does not belong to a ladder."""
    known = {file for job in JOBS.values() for file in job.files}
    others = [op for op in by_op if op not in known and op not in ladders]
    return JOBS | {re.sub(r"\W+", "-", op): Job(op, "", {op: "End to end"}) for op in sorted(others)}


def without(rows: list[Row], machines: list[str]) -> str:
    """One sentence that says which machines have no rows here. Empty if all have some."""
    missing = [machine_title(name) for name in machines if all(row.machine != name for row in rows)]
    return f"No rows from: {'; '.join(missing)}." if missing else ""


def _compiled(op: str, rows: list[KernelRow]) -> Iterator[str]:
    """What the compilers made of the kernels, as text."""
    if rows:
        yield "## Compiled kernels"
        yield f"`tilewright show {op} --save` wrote these rows. `tilewright show {op} RUNG` shows the code."
        yield from (table.markdown() for table in kernel_tables(rows))


def _page(parts: Iterator[str]) -> str:
    return "\n\n".join([*(plain(part) for part in parts if part), MARK]) + "\n"


def _operation(rows: list[Row], ladder: Ladder, machines: list[str], figures: list[str]) -> Iterator[str]:
    op = ladder.op
    yield f"# {op}"
    yield (
        f"Each rung of the ladder is one kernel variant; [ladder.py](../../src/tilewright/ops/{op}/ladder.py) declares "
        "them. A table shows rows of one session of one commit on one machine. [How it is measured](index.md)."
    )
    for machine, own in groups(rows, lambda row: row.machine).items():
        yield f"## {machine_title(machine)}"
        yield _images(figures, f"{machine}/{op}-", f"{machine}/roofline-{op}.")
        yield "### Every rung at one size"
        yield from (table.markdown() for table in ladder_tables(own, ladder))
        if layers := layer_tables(own, ladder):
            yield "### Every rung at every layer"
            yield from (table.markdown() for table in layers)
        yield "### The default rung at every size"
        yield from (table.markdown() for table in sizes_tables(own, ladder))
    yield without(rows, machines)


def _images(figures: list[str], *prefixes: str) -> str:
    """The figures whose names begin with a prefix. A figure's text is its file name and its machine."""
    names = [name for name in figures if name.startswith(prefixes)]
    return "\n".join(f"![{_words(*name[:-4].split('/'))}](../../results/{name})" for name in names)


def _words(machine: str, figure: str) -> str:
    return f"{figure} on {machine_title(machine)}"


def _job(name: str, job: Job, by_op: dict[str, list[Row]], machines: list[str], figures: list[str]) -> Iterator[str]:
    yield f"# {job.title}"
    yield job.about
    rows = [row for file in job.files for row in by_op.get(file, [])]
    for machine, own in groups(rows, lambda row: row.machine).items():
        yield f"## {machine_title(machine)}"
        yield _images(figures, f"{machine}/{name}-")
        for file, some in groups(own, lambda row: row.op).items():
            yield f"### {job.files[file]}" if len(job.files) > 1 else ""
            yield from (table.markdown() for table in bench_tables(some))
    yield without(rows, machines)


def _sweeps(swept: list[Row], by_op: dict[str, list[Row]], figures: list[str]) -> Iterator[str]:
    yield "# Sweeps"
    yield f"{SWEPT} [How to sweep](../guide/sweep.md)."
    for op, rows in groups(swept, lambda row: row.op).items():
        yield f"## {op.removeprefix(PREFIX)}"
        for (machine, _, names, dtype), some in sweeps(rows).items():
            yield f"### {' and '.join(names.split('-'))} on {machine_title(machine)}, {dtype}"
            yield _images(figures, f"{machine}/{op}-{names}-{dtype}.svg")
            if matrix := matrix_table(some):
                yield matrix.markdown()
            yield sweep_table(some).markdown()
    if sides := side_table([*by_op.get("conv3d", []), *swept]):
        yield "## conv3d on CPU and GPU"
        yield _images(figures, *(f"{row.machine}/sides_" for row in swept))
        yield sides.markdown()


def _steps(stepwise: list[Row], figures: list[str]) -> Iterator[str]:
    yield "# From naive to today's"
    yield f"{MEASURED} [How to run it](../guide/job-ladder.md)."
    for name, rows in groups(stepwise, job_name).items():
        yield f"## {name}"
        for (machine, op), some in job_ladders(rows).items():
            yield f"### On {machine_title(machine)}"
            yield _images(figures, f"{machine}/{op}.svg")
            yield job_table(some).markdown()
        if table := published_table(name):
            yield "### Published"
            yield table.markdown()


def _timelines(timelines: Sequence[Timeline]) -> Iterator[str]:
    yield "# Timelines"
    yield f"{ABOUT} [How to draw one](../guide/timeline.md)."
    for machine, own in groups(timelines, lambda one: one.machine).items():
        yield f"## {machine_title(machine)}"
        for one in own:
            yield f"### {one.name}"
            yield _images([one.figure], one.figure)
            yield f"{one.origin}."


def _index(
    by_op: dict[str, list[Row]], ladders: dict[str, Ladder], swept: list[Row], stepwise: list[Row],
    timelines: Sequence[Timeline],
) -> str:  # fmt: skip
    parts = [
        "# Results",
        METHOD,
        "The same figures are on one page, [results/report.html](../../results/report.html). "
        "Each machine has a folder of CSV files under `results/`. `make bench` measures your machine; `make report` "
        "writes these pages. [Where a peer is close, or faster](../lab/peers.md) says why.",
        "## How to read the tables",
        "\n".join(f"* **{word}**: {meaning}" for word, meaning in READING.items()),
        f"[Experiments]({experiments.PAGE}) lists the experiments of a university course's reports, and where each "
        "was measured.",
        "## Machines",
        "\n".join(f"* {machine_title(name)}: {origin(rows)}" for name, rows in by_machine(by_op).items()),
        "## Jobs",
        "\n".join(
            f"* [{job.title}]({name}.md): {_measured_on([r for f in job.files for r in by_op.get(f, [])])}"
            for name, job in jobs(by_op, ladders).items()
        ),
        "## Operations",
        "\n".join(f"* [{op}]({op}.md): {_measured_on(by_op.get(op, []))}" for op in ladders),
    ]
    if stepwise:
        parts += ["## Steps", f"* [From naive to today's](job-ladders.md): {_measured_on(stepwise)}"]
    if swept:
        parts += ["## Parameters", f"* [Sweeps](sweeps.md): {_measured_on(swept)}"]
    if timelines:
        parts += ["## Workers over time", f"* [Timelines](timelines.md): {_measured_on(timelines)}"]
    return _page(iter(parts))


def _measured_on(rows: Sequence[Row] | Sequence[Timeline]) -> str:
    """The machines of the rows or timelines, in one line."""
    return "; ".join(dict.fromkeys(machine_title(row.machine) for row in rows)) or "not measured yet"
