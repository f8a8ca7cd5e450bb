"""The experiments of the course's reports: the command of each, where it was measured, its page, the published figure.

A row of the table follows from the saved rows. An experiment that no machine has measured says so.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from tilewright.bench.job_ladders import job_of
from tilewright.bench.kernels.table import KernelRow
from tilewright.bench.report.job_ladders import job_name
from tilewright.bench.report.tables import Table, groups, machine_title
from tilewright.bench.results import JOB_LADDER, SCALING, WORKERS, Row
from tilewright.bench.sweep import PREFIX
from tilewright.errors import counted
from tilewright.ops.core.ladder import operations

PAGE = "experiments.md"
CPU, GPU = "CPU", "GPU"
BOTH = (CPU, GPU)
ABOUT = (
    "tilewright grew out of five reports of a university course. This page lists their experiments. Each is one "
    "command on your machine; with `--save` and `tilewright report` its rows, table and figure join these pages. A "
    "published figure is quoted from a report. It was measured on a machine of that report, whose models are not "
    'stated, and must not be compared with our machines. "Not measured" means that no saved row exists.'
)
NOT_MEASURED = "not measured"
Wanted = Callable[[Row], bool]


@dataclass(frozen=True)
class Experiment:
    """One line. commands: the first one for a CPU where it runs on one. page: link to its table and figure, or
    {name: link} for several pages.

    wanted: which rows are its own. devices: where it can run. detail: what was measured there, in words, of the rows of
    one machine. published: what a report says.
    """

    number: str
    what: str
    commands: tuple[str, ...]
    page: str | dict[str, str]
    wanted: Wanted
    devices: tuple[str, ...] = BOTH
    published: str = ""
    detail: Callable[[list[Row]], str] = lambda rows: ""


def _swept(op: str, *names: str) -> Wanted:
    return lambda row: row.op == PREFIX + op and tuple(row.setting) in {tuple(name.split("-")) for name in names}


def _of(*ops: str) -> Wanted:
    return lambda row: row.op in ops


def _most_workers(rows: list[Row]) -> str:
    """Jobs with their largest number of workers."""
    most = groups(rows, lambda row: row.size.partition(",")[0])
    return ", ".join(f"{job} on {max(int(row.label) for row in some)}" for job, some in most.items())


def _layers(rows: list[Row]) -> str:
    """How many layers were measured."""
    return counted(len({row.label for row in rows if row.label}), "layer")


def _jobs(rows: list[Row]) -> str:
    return ", ".join(dict.fromkeys(row.op.removesuffix("_profile") for row in rows))


def _parameters(rows: list[Row]) -> str:
    """The parameters of each sweep, such as "tile; tile and wpt"."""
    return "; ".join(dict.fromkeys(" and ".join(row.setting) for row in rows))


def _lacking(rows: list[Row]) -> str:
    """The steps of a job's ladder that are not measured; "" if none is missing. rows: of one machine."""
    measured = {row.rung for row in rows}
    steps = job_of(job_name(rows[0])).steps("cpu" if rows[0].threads else "cuda")
    lacking = [step.name for step in steps if step.name not in measured]
    return f"without {', '.join(lacking)}" if lacking else ""


ROWS = ("softmax", "layernorm", "elementwise", "batchnorm")  # operations on rows
OF_MATMUL = "tilewright sweep matmul --size 1024x2304x768"  # GPT-2's first product for 1,024 tokens
STREAMS = "CUDA streams were [tried and lost](../lab/{}.md#cuda-streams-tried-and-lost)"
SWEEPS = (
    Experiment("S1", "conv3d: time against 1 to 9 threads",
               ("tilewright sweep conv3d --rung cpu.taps --threads 1..9 --label course --save",),
               "sweeps.md#conv3d", _swept("conv3d", "threads"), (CPU,),
               "the best number of threads is near the number of cores"),
    Experiment("S2", "conv3d: time against the tile, 1 to 5",
               ("tilewright sweep conv3d --set tile=1..5 --label course --device cuda --save",),
               "sweeps.md#conv3d", _swept("conv3d", "tile"), (GPU,), "a line per volume"),
    Experiment("S3", "conv3d: one thread, several threads and a GPU side by side",
               ("tilewright ladder conv3d --label course --save",
                "tilewright ladder conv3d --label course --device cuda --save"),
               "sweeps.md#conv3d-on-cpu-and-gpu", _of("conv3d"), BOTH, "2.78 x with threads, 837 x on a GPU"),
    Experiment("S4", "matmul: tile, unrolling, work per thread, shape of a block",
               (f"{OF_MATMUL} --rung simt.shared --rung simt.unrolled --set tile --device cuda --save",
                f"{OF_MATMUL} --set tile=16,32,64 --set wpt=2,4,8 --device cuda --save",
                f"{OF_MATMUL} --rung simt.register --rung simt.coalesced --set block_rows=8,16,32 "
                "--set block_columns=8,16,32 --device cuda --save"),
               "sweeps.md#matmul", _swept("matmul", "tile", "tile-wpt", "block_rows-block_columns"), (GPU,),
               "unrolling makes no difference; a work per thread of 8 is best", _parameters),
    Experiment("S5", "matmul: T sums per thread, A transposed in shared memory",
               (f"{OF_MATMUL} --set T=8,16,32 --set V=2,4,8 --device cuda --save",),
               "sweeps.md#matmul", _swept("matmul", "T-V"), (GPU,), "1.x times the tiled kernel"),
    Experiment("S6", "operations on rows: time against the block size",
               (f"tilewright sweep {','.join(ROWS)} --set block=64..1024x2 --device cuda --save",),
               {op: f"sweeps.md#{op}" for op in ROWS}, lambda row: any(_swept(op, "block")(row) for op in ROWS), (GPU,),
               "128 threads per block are best"),
    Experiment("S7", "GPT-2: tokens/s against the batch size. " + STREAMS.format("matmul"),
               ("tilewright sweep --job gpt2 --batch-size 1,4,16,64 --save",
                "tilewright sweep --job gpt2 --batch-size 1,8,64,800 --device cuda --save"),
               "sweeps.md#gpt2", _swept("gpt2", "batch"), BOTH, "a batch of 800 and 16 streams are best"),
    Experiment("S8", "sentiment: sentences/s against the batch size. " + STREAMS.format("conv1d"),
               ("tilewright sweep --job sentiment --batch-size 1,8,64,512 --save",
                "tilewright sweep --job sentiment --batch-size 1,8,64,512,4096 --device cuda --save"),
               "sweeps.md#sentiment", _swept("sentiment", "batch"), BOTH, "a batch of 64 is best"),
    Experiment("S9", "DCGAN: seconds against the number of images and of GPUs",
               ("tilewright sweep --job dcgan --images 10,100,1000 --workers 1,2 --save",
                "tilewright sweep --job dcgan --images 10,100,200,1000,5248 --gpus 1,2,4 --device cuda --save"),
               "sweeps.md#dcgan", _swept("dcgan", f"images-{WORKERS}"), BOTH,
               "a second GPU pays from 200 images on, four pay from 1,000"),
    Experiment("S10", "whole jobs on 1, 2, 4, ... GPUs, nodes or MPI ranks; two laws are fitted",
               ("tilewright bench scaling --workers 1,2 --save", "tilewright bench scaling --ranks 1,2,4,8,16 --save",
                "tilewright bench scaling --device cuda --workers 1,2,4 --save"),
               "scaling.md", _of(SCALING), BOTH, "16 GPUs: 12,545 sentences/s, 438.9 tokens/s", _most_workers),
)  # fmt: skip


COPIES = "dcgan-copies"  # the saved timeline of the steps that differ in copies to the host
STEPS_OF_IMAGES = {"steps": "job-ladders.md#dcgan", "timelines": f"timelines.md#{COPIES}"}


def _ladder(number: str, job: str, published: str, more: str = "") -> Experiment:
    commands = tuple(f"tilewright ladder --job {job}{device} --save" for device in ("", " --device cuda"))
    page: str | dict[str, str] = f"job-ladders.md#{job}"
    if job == "dcgan":
        commands, page = (*commands, f"tilewright timeline a.json b.json --save {COPIES}"), STEPS_OF_IMAGES
    what = f"{job}: the whole job step by step{more}"
    return Experiment(number, what, commands, page, _of(JOB_LADDER + job), BOTH, published, _lacking)


SCALED = "; several GPUs: S10"
LADDERS = (
    _ladder("J1", "sentiment", "8, 43, 212, 319, 1,015 sentences/s on one GPU, 3,451 on 4 GPUs, 12,545 on 16", SCALED),
    _ladder("J2", "dcgan", "a timeline per step; copies that hide behind kernels save 60 ms", f"{SCALED} and S9"),
    _ladder("J3", "gpt2", "438.9 tokens/s on 16 GPUs", f"{SCALED}; streams: S7"),
    _ladder("J4", "convolve", "2.78 x with threads and SIMD, 837 x on a GPU"),
    Experiment("J5", "matmul: every rung",
               ("tilewright ladder matmul --save", "tilewright ladder matmul --device cuda --save"),
               "matmul.md", _of("matmul")),
)  # fmt: skip
TABLES = (
    Experiment("T1", "time per layer of every job, with rates and shares of the roof",
               ("tilewright bench sentiment --save", "tilewright bench dcgan --save",
                "tilewright bench gpt2 --profile --save", "tilewright bench convolve --save",
                "the same with --device cuda"),
               {job: f"{job}.md#where-the-time-goes" for job in ("sentiment", "dcgan", "gpt2", "volumes")},
               lambda row: row.op.endswith("_profile"), BOTH, "", _jobs),
    Experiment("T2", "transposed convolutions: every rung at every layer",
               ("tilewright ladder conv_transpose2d --save", "tilewright ladder conv_transpose2d --device cuda --save"),
               "conv_transpose2d.md#every-rung-at-every-layer", _of("conv_transpose2d"), BOTH, "", _layers),
    Experiment("T3", "matmul: counted memory traffic of each rung beside its measured rate",
               ("tilewright ladder matmul --save", "tilewright ladder matmul --device cuda --save"),
               "../learn/matmul.md#memory-traffic-counted", _of("matmul")),
    Experiment("T4", "registers, shared memory and occupancy, vector width and register block",
               ("tilewright show matmul --save", "the same for any other operation"),
               {op: f"{op}.md#compiled-kernels" for op in operations()}, lambda row: False),
    Experiment("T5", "page-locked memory, overlapped copies and CUDA graphs, each switched off and on",
               ("tilewright ladder --job dcgan --device cuda --save",), STEPS_OF_IMAGES,
               _of(f"{JOB_LADDER}dcgan"), (GPU,)),
)  # fmt: skip
GROUPS = {"Sweeps": SWEEPS, "Ladders of whole jobs": LADDERS, "Tables": TABLES}
HEADER = ("no.", "experiment", "command", "measured on", "published")


def experiments(rows: list[Row], compiled: dict[str, list[KernelRow]], written: Mapping[str, str]) -> Iterator[str]:
    """The parts of the page. rows: of all operations, sweeps and jobs; compiled: of compiled kernels by operation;
    written: the other pages by their names, for links."""
    yield "# Experiments"
    yield ABOUT
    kernels = [row for some in compiled.values() for row in some]
    for title, group in GROUPS.items():
        yield f"## {title}"
        lines = tuple(_line(each, rows, kernels, written) for each in group)
        yield Table("", HEADER, lines, len(HEADER)).markdown().strip()


def _line(each: Experiment, rows: list[Row], kernels: list[KernelRow], written: Mapping[str, str]) -> tuple[str, ...]:
    own = [row for row in rows if each.wanted(row)]
    found = {
        CPU: _machines([row for row in own if row.threads], each),
        GPU: _machines([row for row in own if not row.threads], each),
    }
    if each.number == "T4":
        found = {CPU: _compiled(kernels, on_gpu=False), GPU: _compiled(kernels, on_gpu=True)}
    where = "; ".join(f"{device}: {found[device] or NOT_MEASURED}" for device in each.devices)
    links = _links(each.page, written) if any(found.values()) else ""
    what = f"{each.what}. {links}" if links else each.what
    commands = "; ".join(f"`{command}`" if command.startswith("tilewright ") else command for command in each.commands)
    return each.number, what, commands, where, each.published


def _links(page: str | dict[str, str], written: Mapping[str, str]) -> str:
    """Links to the pages that exist. Of several pages, only pages with the heading are linked."""
    if isinstance(page, str):
        link = _link(page, written)
        return f"[Table and figure]({link})" if link else ""
    found = [f"[{name}]({link})" for name, link in page.items() if _link(link, written) == link]
    return f"Tables and figures: {', '.join(found)}" if found else ""


def _link(page: str, written: Mapping[str, str]) -> str:
    """The page with its heading, if both exist; "" without the page. A page outside of docs/results is not written."""
    name, _, anchor = page.partition("#")
    if name.startswith("../"):
        return page
    headings = {
        re.sub(r"[^\w -]", "", line.strip("# ").lower()).replace(" ", "-")
        for line in written.get(name, "").splitlines()
        if line.startswith("#")
    }
    return (page if anchor in headings else name) if name in written else ""


def _machines(rows: Iterable[Row], each: Experiment) -> str:
    """The machines of the rows, each with what was measured there."""
    names = []
    for machine, some in groups(rows, lambda row: row.machine).items():
        detail = each.detail(some)
        names.append(f"{machine_title(machine)}{f' ({detail})' if detail else ''}")
    return ", ".join(names)


def _compiled(rows: list[KernelRow], *, on_gpu: bool) -> str:
    """The machines of compiled kernels, each with its operations."""
    some = [row for row in rows if row.rung.startswith("cpu.") != on_gpu]
    machines = groups(some, lambda row: row.machine)
    return ", ".join(
        f"{machine_title(name)} ({', '.join(dict.fromkeys(row.op for row in own))})" for name, own in machines.items()
    )
