"""`tilewright show OP RUNG`: one kernel's idea, cost, source, machine code and drawing."""

from __future__ import annotations

from dataclasses import dataclass
from inspect import getdoc
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Argument, Option

from tilewright.cli._options import MACHINE, verb
from tilewright.cli._output import say
from tilewright.cli._output import show as put
from tilewright.cli._sizes import sized
from tilewright.errors import Refused, UsageError, suggestion
from tilewright.ops.core.ladder import Ladder, Rung, in_words, operations

if TYPE_CHECKING:
    from tilewright.bench.kernels.compiled import Compiled
    from tilewright.bench.kernels.table import KernelRow

SIZES, SHOWN = "Sizes", "What to show"  # groups of options
LONGEST = 120  # lines of a loop that are printed


def _completed(incomplete: str) -> list[str]:
    """The operations that a shell offers."""
    return [op for op in operations() if op.startswith(incomplete)]


@dataclass
class Options:
    """One field per option."""

    op: Annotated[
        str,
        Argument(
            metavar="OP", help=f"One of {', '.join(operations())}.", autocompletion=_completed, show_default=False
        ),
    ]
    rung: Annotated[
        str,
        Argument(
            metavar="RUNG",
            help="The kernel, by its name in `tilewright ladder OP --list`. Without it, a table shows all kernels.",
            show_default=False,
        ),
    ] = ""
    size: Annotated[
        str | None,
        Option(
            metavar="LIST",
            help="The size of the problem, as in N=768,K=768 for matmul. Missing sizes are those of the first problem "
            "that the ladder times. If a name is wrong, the error lists the names.",
            show_default="the first that the kernel takes",
            rich_help_panel=SIZES,
        ),
    ] = None
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16", "tf32"] | None,
        Option(help="The precision.", show_default="the first that the kernel takes", rich_help_panel=MACHINE),
    ] = None
    source: Annotated[
        bool, Option("--source", help="Only the source, with its file and lines.", rich_help_panel=SHOWN)
    ] = False
    code: Annotated[
        bool,
        Option(
            "--code",
            help="Only the machine code: assembly of the inner loop, or PTX, registers and occupancy on a GPU.",
            rich_help_panel=SHOWN,
        ),
    ] = False
    drawing: Annotated[
        bool,
        Option(
            "--drawing",
            help="Only the drawing of its tiling, as SVG: redirect it to a file.",
            rich_help_panel=SHOWN,
        ),
    ] = False
    save: Annotated[
        bool,
        Option(
            "--save",
            help="Write the table of all kernels to results/ of the current directory, for `tilewright report`.",
            rich_help_panel=SHOWN,
        ),
    ] = False


@verb(Options)
def show(options: Options) -> None:
    """Show one kernel of an operation: its idea, its cost, its source, its machine code and its drawing.

    \b
    tilewright show matmul cpu.packed
    tilewright show matmul simt.strip --drawing > strip.svg
    tilewright show matmul --save

    A CPU kernel is compiled again, to get its assembly; this takes seconds. Registers, shared memory and occupancy of a
    GPU kernel are shown only on a machine with a GPU. Without RUNG, all kernels that run on this machine are compiled,
    which takes a minute, and listed in a table.
    """
    ladder = _ladder(options)
    if not options.rung:
        _table(options, ladder)
        return
    rung = _rung(options, ladder)
    case, lacking = _case(options, ladder, rung)
    every = not (options.source or options.code or options.drawing)
    if every:
        put(
            "\n".join(
                [*_idea(ladder, rung), "", *_cost(ladder.op, case, lacking), *_traffic(ladder.op, rung, case), ""]
            )
        )
    if every or options.source:
        put("\n".join(_source(rung)))
    if every or options.code:
        put("\n".join(_code(ladder.op, rung, case, lacking)))
    if every or options.drawing:
        put(_drawing(ladder.op, rung, alone=not every))


def _ladder(options: Options) -> Ladder:
    """Raises UsageError for an operation that does not exist, with the nearest one, and for options without effect."""
    from tilewright.bench.climb import parts

    for name in () if options.rung else ("size", "dtype", "source", "code", "drawing"):
        if getattr(options, name):
            raise UsageError(f"show {options.op}: --{name} is for one kernel", remedy="name its rung after OP")
    if options.rung and options.save:
        raise UsageError(f"show {options.op} {options.rung}: --save is for the table of all kernels; leave RUNG out")

    if options.op not in operations():
        near = suggestion(options.op, operations())
        raise UsageError(f"there is no operation {options.op!r}{near}; the operations are {', '.join(operations())}")
    ladder: Ladder = parts(options.op)[0]
    return ladder


def _rung(options: Options, ladder: Ladder) -> Rung:
    """Raises UsageError for a rung that does not exist, with the nearest one."""
    if options.rung not in ladder.rungs:
        near = suggestion(options.rung, ladder.rungs)
        raise UsageError(f"{options.op} has no rung {options.rung!r}{near}; it has {', '.join(ladder.rungs)}")
    return ladder.rungs[options.rung]


def _case(options: Options, ladder: Ladder, rung: Rung) -> tuple[Any, list[str]]:
    """(the problem, what this machine lacks to run the rung at all).

    Raises Refused if the rung does not take the problem for a reason of its own.
    """
    from tilewright.bench.climb import parts
    from tilewright.bench.kernels.table import case_for

    case, lacking = case_for(ladder.op, rung)
    if options.size is None and options.dtype is None:
        return case, lacking
    _, spec = parts(ladder.op)
    every = spec.sizes() if case.device == "cpu" else spec.device_sizes()
    if options.size is not None:
        case = sized(ladder.op, every, options.size, options.dtype)
    else:
        case = next((case for case in every if case.dtype == options.dtype), None)
    if case is None:
        raise UsageError(f"{ladder.op} has no size in --dtype {options.dtype} for {rung.name}")
    if why := [reason for reason in rung.refuses(case.problem) if reason not in lacking]:
        raise Refused(f"{ladder.op}.{rung.name} refuses {in_words(case.problem)}: {'; '.join(why)}")
    return case, lacking


def _idea(ladder: Ladder, rung: Rung) -> list[str]:
    """What the ladder says about the rung."""
    chosen = "chosen where it can run" if rung.chosen else "taught, never chosen"
    lines = [f"{ladder.op}.{rung.name}  ({chosen})", f"  idea: {rung.idea}"]
    lines += [f"  stands on: {rung.after}"] if rung.after else []
    needs = [(getdoc(need) or need.__name__).rstrip(".") for need in (*rung.needs, *rung.slow)]
    lines += [f"  needs: {'; '.join(needs)}"] if needs else []
    given = ", ".join(f"{name}={value}" for name, value in rung.options.items())
    lines += [f"  options: {given}"] if given else []
    lines += [f"  runs: {', '.join(rung.calls)} with a rung of its own"] if rung.calls else []
    return lines


def _cost(op: str, case: Any, lacking: list[str]) -> list[str]:
    """Operations, bytes, and the limit of this machine."""
    from tilewright.bench.climb import parts

    flops, nbytes = parts(op)[1].cost(case)
    label = f", {case.label}" if case.label else ""
    lines = [f"problem: {case.name}{label}"]
    each = f", {flops / nbytes:,.1f} operations per byte" if flops and nbytes else ""
    lines.append(f"  {flops / 1e9:,.3f} GFLOP; {nbytes / 1e6:,.3f} MB if each operand is read or written once{each}")
    levels = _levels(nbytes) if case.device == "cpu" else []
    return [*lines, *levels, *_roof(case, flops, nbytes, lacking)]


def _levels(nbytes: float) -> list[str]:
    """The caches of this CPU that hold the operands."""
    from tilewright.hardware import cpu

    sizes = {"L1": cpu().l1d, "L2": cpu().l2, "L3": cpu().l3}
    known = [f"{name} {size >> 10:,} KiB" for name, size in sizes.items() if size]
    held = [name for name, size in sizes.items() if size and nbytes <= size]
    where = f"the operands fit in {held[0]}" if held else "the operands fit in no cache"
    return [f"  this CPU has {', '.join(known)}: {where}"] if known else []


def _roof(case: Any, flops: float, nbytes: float, lacking: list[str]) -> list[str]:
    """The two limits, measured now, and the one that holds."""
    if lacking:
        return [f"  roof: not measured here: {'; '.join(lacking)}"]
    from tilewright.bench.roofs import measured_roofs
    from tilewright.ops.core.launch import thread_count

    count = thread_count() if case.device == "cpu" else 0
    roofs = measured_roofs(count)
    on = f"{count} thread{'s' * (count > 1)}" if count else "the GPU"
    rate, least = roofs.gflops[case.dtype], roofs.seconds(flops, nbytes, case.dtype)
    limit = "arithmetic" if flops / rate > nbytes / roofs.copy_gbytes_s else "memory"
    return [
        f"  roof of {on}: {rate:,.0f} GFLOP/s and {roofs.copy_gbytes_s:,.0f} GB/s, equal at "
        f"{rate / roofs.copy_gbytes_s:,.1f} operations per byte",
        f"  {limit} is the limit: at least {least * 1e3:,.3f} ms",
    ]


def _traffic(op: str, rung: Rung, case: Any) -> list[str]:
    """The counted accesses per element of the result."""
    from tilewright.bench.kernels.traffic import traffic_of

    traffic = traffic_of(op, rung, case)
    if traffic is None:
        return []
    where = "loads and stores" if case.device == "cpu" else "device memory"
    lines = [f"  per element of the result: {where} {traffic.reads:,.6g} read, {traffic.writes:,.6g} written"]
    if traffic.shared_writes:
        reads = "read by the matrix units" if traffic.shared_reads is None else f"{traffic.shared_reads:,.6g} read"
        lines.append(f"  shared memory {reads}, {traffic.shared_writes:,.6g} written")
    return lines


def _table(options: Options, ladder: Ladder) -> None:
    """All kernels of the operation that run on this machine."""
    from tilewright.bench.kernels.table import case_for, rows_of, save
    from tilewright.bench.report.kernels import kernel_tables

    rows: list[KernelRow] = []
    for rung in ladder.rungs.values():
        case, lacking = case_for(ladder.op, rung)
        say(f"{rung.name}: {'; '.join(lacking) or 'compile'}", err=True)
        rows += [] if lacking else rows_of(ladder.op, rung, case)
    put("\n\n".join(table.text() for table in kernel_tables(rows)))
    for path in save(Path("results"), rows) if options.save else ():
        say(f"written to {path}")


def _source(rung: Rung) -> list[str]:
    """The function that runs the rung, and its kernels."""
    from tilewright.bench.kernels.source import sources

    try:
        found = sources(rung)
    except ImportError as error:
        return [f"source: ops/{str(rung.kernel).split(':')[0].replace('.', '/')}.py; it cannot be loaded here: {error}"]
    lines = []
    for source in found:
        lines += [f"source: {source.name}, {source.path}, lines {source.first} to {source.last}", source.text, ""]
    return lines


def _code(op: str, rung: Rung, case: Any, lacking: list[str]) -> list[str]:
    """The kernels of the rung as the compiler made them."""
    if lacking:
        return [f"machine code: {rung.name} is not compiled here: {'; '.join(lacking)}"]
    if case.device == "cpu":
        say(f"Compiling {rung.name} without the cache, which holds no assembly", err=True)
    from tilewright.bench.kernels.compiled import compiled_kernels

    return [line for kernel in compiled_kernels(op, rung, case) for line in _kernel(kernel)]


def _drawing(op: str, rung: Rung, *, alone: bool) -> str:
    """The SVG, or in a longer output what it shows. Raises Refused if the rung has none and nothing else is shown."""
    from tilewright.bench.report.drawings import DRAWN, drawing_of

    drawing = drawing_of(op, rung)
    if drawing is None and alone:
        raise Refused(f"{op}.{rung.name} has no drawing; there is one for {', '.join(DRAWN[op])}")
    if drawing is None:
        return "drawing: none"
    words = f"`tilewright show {op} {rung.name} --drawing > {rung.name}.svg` writes it"
    return drawing.svg() if alone else f"drawing: {drawing.title}; {words}"


def _kernel(kernel: Compiled) -> list[str]:
    """One kernel: its resources, then its inner loop."""
    lines = [f"kernel: {kernel.name}"]
    if kernel.threads:
        lines += [
            f"  {kernel.registers} registers per thread, {kernel.local} bytes of local memory per thread, "
            f"{kernel.shared:,} bytes of shared memory per block",
            f"  {kernel.threads} threads per block, occupancy {kernel.occupancy:.0%}",
        ]
    loop = kernel.loop
    if loop is None:
        return [*lines, "  no loop multiplies and adds", ""]
    lines.append(f"  inner loop: {loop.described}")
    left = len(loop.lines) - LONGEST
    return [*lines, *(f"    {line}" for line in loop.lines[:LONGEST]), *([f"    and {left} more"] * (left > 0)), ""]
