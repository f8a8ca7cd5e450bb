"""`tilewright ladder OP`: every kernel of an operation, checked, then timed beside the vendor's library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from inspect import cleandoc
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Argument, Option

from tilewright.cli._options import MACHINE, parse_threads, verb
from tilewright.cli._output import say, show
from tilewright.cli._sizes import HELP as SIZE_HELP
from tilewright.cli._sizes import sized
from tilewright.formats.packages import install_command
from tilewright.ops.core.ladder import operations

if TYPE_CHECKING:
    from tilewright.bench.results import Row
    from tilewright.ops.core.ladder import Rung

LEGEND = """\
time: median of the runs; spread: their 10th and 90th percentile, relative to the median
roof: share of this machine's measured limit, by arithmetic or by memory
x below: rate divided by that of the rung below; x peer: by that of the fastest other library, as a median over rounds
check: largest error as a share of the allowed one; a rung whose check fails is not timed
idea: what the rung changes, compared with the rung below"""
SIZES, SHOWN, WHOLE = "Sizes", "What to show or save", "A whole job"  # groups of options


def _completed(incomplete: str) -> list[str]:
    """The operations that a shell offers."""
    return [op for op in ("all", *operations()) if op.startswith(incomplete)]


@dataclass
class Options:
    """One field per option."""

    op: Annotated[
        str,
        Argument(
            metavar="OP",
            help=f"all, or one of {', '.join(operations())}. Without it, the operations are listed.",
            autocompletion=_completed,
            show_default=False,
        ),
    ] = ""
    m: Annotated[
        int | None, Option("--m", metavar="N", min=1, help="Number of rows, as in a batch.", rich_help_panel=SIZES)
    ] = None
    n: Annotated[int | None, Option("--n", metavar="N", min=1, help="Number of columns.", rich_help_panel=SIZES)] = None
    k: Annotated[
        int | None,
        Option("--k", metavar="N", min=1, help="Depth: products that are summed for each element of the result.",
               rich_help_panel=SIZES),
    ] = None  # fmt: skip
    size: Annotated[
        str | None,
        Option(
            metavar="LIST",
            help=SIZE_HELP,
            rich_help_panel=SIZES,
        ),
    ] = None
    label: Annotated[
        str | None, Option(metavar="TEXT", help="Time only sizes whose name contains TEXT.", rich_help_panel=SIZES)
    ] = None
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16", "tf32"] | None,
        Option(help="Precision to time; float16 and tf32 need a GPU.", show_default="all", rich_help_panel=MACHINE),
    ] = None
    device: Annotated[
        Literal["cpu", "cuda"], Option(help="The device whose kernels are timed.", rich_help_panel=MACHINE)
    ] = "cpu"
    threads: Annotated[
        str | None,
        Option(
            metavar="LIST",
            help="Numbers of CPU threads to time, as in 1,2.",
            show_default="1 and one per core",
            rich_help_panel=MACHINE,
        ),
    ] = None
    rung: Annotated[str | None, Option(metavar="NAME", help="Time only this kernel.", rich_help_panel=SHOWN)] = None
    mine: Annotated[
        str | None,
        Option(
            metavar="FILE",
            help="Also check, time and rank a kernel of your own: the function `kernel` in this Python file, which is "
            "executed. --list shows the arguments of a kernel.",
            rich_help_panel=SHOWN,
        ),
    ] = None
    explain: Annotated[
        bool,
        Option("--explain", help="Print which kernel would run, and why. Time nothing.", rich_help_panel=SHOWN),
    ] = False
    list_: Annotated[
        bool,
        Option(
            "--list",
            help="List every kernel with its idea, its file and its requirements. Time nothing.",
            rich_help_panel=SHOWN,
        ),
    ] = False
    save: Annotated[
        bool,
        Option(
            "--save",
            help="Add the rows to results/ of the current directory, for `tilewright report`.",
            rich_help_panel=SHOWN,
        ),
    ] = False
    job: Annotated[
        Literal["sentiment", "dcgan", "gpt2", "convolve"] | None,
        Option(help="Time the steps of a whole job instead of an operation.", rich_help_panel=WHOLE),
    ] = None
    count: Annotated[
        int | None,
        Option(
            "--count",
            "-n",
            min=1,
            metavar="N",
            help="Number of records of the job. Slow steps run on fewer records.",
            show_default="depends on the job and the device",
            rich_help_panel=WHOLE,
        ),
    ] = None
    quick: Annotated[bool, Option("--quick", help="Use fewer records, shorter rounds.", rich_help_panel=WHOLE)] = False


@verb(Options)
def ladder(options: Options) -> None:
    """Check and time every kernel of an operation, from the naive one to the fastest, beside other libraries.

    \b
    tilewright ladder softmax --threads 1
    tilewright ladder matmul --explain --size N=768,K=768
    tilewright ladder --job sentiment

    A ladder is the list of an operation's kernels. Each kernel is a rung: it adds one idea to the rung below. Without
    --size, the ladder runs at the sizes that the models use. A very slow rung is timed on fewer rows. A rung whose
    result is wrong is not timed. With --job, the steps of a whole job are timed, from a naive program to today's.
    """
    if options.job:
        from tilewright.cli.job_ladder import job_ladder

        job_ladder(options.job, vars(options))
        return
    for name in [name for name in ("count", "quick") if getattr(options, name)]:
        raise typer.BadParameter("it is for a whole job: name one with --job", param_hint=f"--{name}")
    if not options.op:
        _show_operations(options)
        return
    _check(options)
    if options.list_:
        _list(options)
        return
    counts = None if options.threads is None else parse_threads(options.threads)
    from tilewright.bench.climb import parts
    from tilewright.bench.results import check_here, save_here
    from tilewright.ops.core.launch import thread_count

    if options.save:
        check_here()
    counts = counts or (tuple(sorted({1, thread_count()})) if options.device == "cpu" else (0,))
    for op in operations() if options.op == "all" else [options.op]:
        tower, spec = parts(op)
        if options.op == "all" and options.device != "cpu" and not hasattr(spec, "device_sizes"):
            continue
        if options.rung:
            tower.check_name(options.rung)
        if options.explain:
            _explain(tower, _cases(op, spec, options), options)
            continue
        cases = _cases(op, spec, options)
        own = _mine(op, spec, cases, options)
        if len(cases) > 1:
            show(f"{op}, {len(cases)} sizes; Ctrl-C ends it, and --save saves a ladder when all of it is measured\n")
        rows = [row for case in cases for count in counts for row in _climb(op, case, count, options, own)]
        for path in save_here(rows) if options.save and rows else ():
            say(f"written to {path}")
    if not options.explain:
        show("\n".join([LEGEND, *_without_peers(options)]))


def _show_operations(options: Options) -> None:
    """A line per operation. Raises UsageError for options that need one."""
    from importlib import import_module

    from tilewright.errors import UsageError

    if given := [name for name, value in vars(options).items() if value not in ("", None, False) and name != "device"]:
        flag = given[0].rstrip("_")
        raise UsageError(f"--{flag} needs an operation", remedy=f"write tilewright ladder OP --{flag}")
    for op in operations():
        module = import_module(f"tilewright.ops.{op}")
        about = cleandoc(module.__doc__ or "").partition("\n\n")[0].replace("\n", " ")
        show(f"{op:<18}{len(module.ladder.rungs):>3} rungs  {about}")
    show("\n`tilewright ladder OP` times the rungs of one; `tilewright ladder OP --list` tells their ideas.")


def _list(options: Options) -> None:
    """The tables of rungs. Raises UsageError for an unknown operation."""
    from textwrap import indent, wrap

    from tilewright.bench.climb import parts
    from tilewright.bench.mine import contract

    for op in operations() if options.op == "all" else [options.op]:
        table = parts(op)[0].table()
        show("\n".join([table, "", indent("\n".join(wrap(contract(op), 116)), "  "), ""]))


def _mine(op: str, spec: Any, cases: list[Any], options: Options) -> Rung | None:
    """The rung of --mine, checked at every size of the operation that it takes.

    Raises InputError if it is wrong, Refused if it takes none of the cases that are timed.
    """
    if options.mine is None:
        return None
    from tilewright.bench.mine import check, load
    from tilewright.errors import Refused, counted

    own = load(op, options.mine, options.device)
    if not any(not own.refuses(case.problem) for case in cases):
        raise Refused(f"{own.name} takes no size that would be timed: {'; '.join(own.refuses(cases[0].problem))}")
    every = spec.sizes() if options.device == "cpu" else spec.device_sizes()
    show(f"{own.name}: check a few rows of every size of {op}")
    count = check(op, own, {case.name: case for case in (*every, *cases)}.values())
    show(f"{own.name}: right on a few rows of {counted(count, 'size')}\n")
    return own


def _climb(op: str, case: Any, count: int, options: Options, own: Rung | None = None) -> list[Row]:
    """Time the rungs of one case on `count` threads. If nobody reads the output, only a ladder to save is worth it."""
    from tilewright.bench.climb import climb, parts
    from tilewright.bench.mine import limit_threads, rank
    from tilewright.bench.noise import Watch, warning

    where = f"{count} thread{'s' * (count > 1)}" if count else "on the GPU"
    read = show(f"{op} {case.name}  {case.label}  {where}")
    if not read and not options.save:
        raise typer.Exit
    rungs = parts(op)[0].rungs
    if own:
        if reasons := own.refuses(case.problem):
            show(f"  not timed: {own.name} does not take it: {'; '.join(reasons)}")
            return []
        limit_threads(count)
    watch = Watch()
    rows = watch.noted(list(climb(op, case, count=count, only=options.rung, mine=own)))
    show(_table(rows, {name: rung.idea for name, rung in rungs.items()} | ({own.name: own.idea} if own else {})))
    if own:
        show(rank(own.name, rows, rungs))
    if text := warning(rows):
        say(text, err=True)
    return rows


def _check(options: Options) -> None:
    """Raises UsageError for options that exclude each other: none is ignored."""
    from tilewright.errors import UsageError

    op = options.op
    for name in ("m", "n", "k", "size", "rung", "mine") if op == "all" else ():
        if (value := getattr(options, name)) is not None:
            raise UsageError(f"ladder all: --{name} {value} is for one operation", remedy="name it in place of all")
    if options.device != "cpu" and options.threads is not None:
        raise UsageError(f"ladder {op}: --threads {options.threads} is for the CPU; --device {options.device} has none")
    alone = "explain" if options.explain else "list" if options.list_ else ""
    others = {
        "explain": ("threads", "save", "list_", "mine"),
        "list": ("m", "n", "k", "size", "dtype", "threads", "rung", "label", "save", "mine"),
    }
    for name in ("m", "n", "k", "label") if options.size is not None and not options.list_ else ():
        if (value := getattr(options, name)) is not None:
            raise UsageError(f"ladder {op}: --{name} {value} and --size {options.size} both choose sizes; give one")
    if options.mine is not None and options.save:
        why = "results/ holds rungs of the project only"
        raise UsageError(f"ladder {op}: --save and --mine {options.mine} exclude each other: {why}")
    for name in others.get(alone, ()):
        if getattr(options, name):
            raise UsageError(f"ladder {op}: --{name.rstrip('_')} has no effect with --{alone}, which times nothing")


def _cases(op: str, spec: Any, options: Options) -> list[Any]:
    """The op's sizes, or the one that the options name. Raises UsageError naming the option that fits none, Refused if
    no rung could be timed at it."""
    from tilewright.bench.climb import parts
    from tilewright.errors import UsageError

    if options.device != "cpu" and not hasattr(spec, "device_sizes"):
        raise UsageError(f"{op} has no kernels for a GPU", remedy="use --device cpu")
    every = spec.sizes() if options.device == "cpu" else spec.device_sizes()
    if options.size is not None:
        case = sized(op, every, options.size, options.dtype)
        if not options.explain and options.device == "cpu":
            parts(op)[0].choose(case.problem)
        return [case]
    classes = list(dict.fromkeys(case.dtype for case in every))
    found = [case for case in every if options.dtype in (None, case.dtype)]
    if not found and options.op == "all":
        return []
    if not found:
        has = " and ".join(classes)
        raise UsageError(f"{op} has no size in --dtype {options.dtype} on --device {options.device}; it has {has}")
    found = [case for case in found if (options.label or "") in f"{case.label} {case.name}"]
    if not found and options.op != "all":
        names = ", ".join(dict.fromkeys(case.label or case.name for case in every))
        raise UsageError(f"{op} has no size whose name contains --label {options.label}; there are {names}")
    sizes = {name: size for name, size in (("M", options.m), ("N", options.n), ("K", options.k)) if size is not None}
    if not sizes:
        return found
    return list({case.name: case for case in (_resized(op, case, sizes) for case in found)}.values())


def _resized(op: str, case: Any, sizes: dict[str, int]) -> Any:
    """The case with other sizes. Raises UsageError naming the option and the operation where it has no such size."""
    from tilewright.bench.climb import replaced
    from tilewright.errors import UsageError

    takes = [name for name in "MNK" if isinstance(getattr(case, name, None), int)]
    for name, size in sizes.items():
        if name not in takes:
            its = (
                f"it takes {' and '.join(f'--{name.lower()}' for name in takes)}"
                if takes
                else "it takes none of --m, --n, --k"
            )
            remedy = "choose one of its sizes with --label"
            raise UsageError(f"ladder {op}: --{name.lower()} {size} is no size of {op}; {its}", remedy=remedy)
    changed = replaced(case, **sizes, label="")
    if getattr(changed, "positions", 1) < 1:
        raise UsageError(f"ladder {op}: --k {changed.K} leaves no output of {op}'s {case.L} positions")
    return changed


def _without_peers(options: Options) -> list[str]:
    """Why there is nothing to compare with, where PyTorch would bring it."""
    from importlib.util import find_spec

    from tilewright.bench.peers import has_peers

    if find_spec("torch") or (options.op != "all" and not has_peers(options.op)):
        return []
    return [f"No peers: PyTorch is not installed. To compare with it: {install_command('bench')}"]


def _explain(tower: Any, cases: list[Any], options: Options) -> None:
    """Which rung runs, and why: once for all problems of which the same is to be said."""
    from tilewright.ops.core.ladder import forcing, in_words
    from tilewright.runtime.devices import place_for

    place_for(options.device)  # no kernel of a GPU accepts a problem where there is none
    problems: dict[str, list[str]] = {}
    with forcing(**({tower.op: options.rung} if options.rung else {})):
        for case in cases:
            names = problems.setdefault(_in_short(tower.explain(case.problem), options.device), [])
            if (name := f"{tower.op} {in_words(case.problem)}") not in names:
                names.append(name)
    for text, names in problems.items():
        show("\n".join([*names, text, ""]))


def _in_short(explained: str, device: str) -> str:
    """`Ladder.explain`'s lines, those of rungs for other devices as one."""
    lines = explained.splitlines()
    others = [line for line in lines if (line[3:].startswith("cpu.") != (device == "cpu")) and line[:2] != "->"]
    of_others = [f"   and {len(others)} for {'GPUs' if device == 'cpu' else 'CPUs'}"] if others else []
    return "\n".join([line for line in lines if line not in others] + of_others)


def _table(rows: list[Row], ideas: Mapping[str, str]) -> str:
    """Text columns, the rungs from the lowest to the highest. ideas: of the rungs; a peer has none."""
    head = f"  {'rung':<22}{'time':>12}{'spread':>11}{'GFLOP/s':>10}{'GB/s':>8}{'roof':>7}{'x below':>9}{'x peer':>8}"
    width = max(len(_check_of(row, rows)) for row in rows) if rows else 5
    lines = [f"{head}  {'check':<{width}}  idea"]
    for row in rows:
        numbers = (
            f"{row.median_s * 1e3:>9.3f} ms",
            f"{row.low_s / row.median_s - 1:>+5.0%} {row.high_s / row.median_s - 1:>+5.0%}",
            f"{row.gflops:>10,.1f}" if row.gflops else f"{'-':>10}",
            f"{row.gbytes_s:>8.1f}",
            f"{row.roof_share:>6.0%} ",
            f"{row.versus_below:>8.2f}x" if row.versus_below else f"{'':>9}",
            f"{row.peer_ratio:>7.2f}x" if row.peer_ratio else f"{'':>8}",
        )
        line = f"  {row.rung:<22}{''.join(numbers)}  {_check_of(row, rows):<{width}}  {ideas.get(row.rung, '')}"
        lines.append(line.rstrip())
    return "\n".join(lines)


def _check_of(row: Row, rows: list[Row]) -> str:
    """How a row was checked, and on how many rows of the problem it was timed if these are fewer."""
    return row.check + ("" if row.rows == max(r.rows for r in rows) else f"  ({row.rows} rows)")
