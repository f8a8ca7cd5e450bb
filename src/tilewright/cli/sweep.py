"""`tilewright sweep OP`: kernels of an operation against one or two parameters, checked, then timed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Argument, Option

from tilewright.cli._options import MACHINE, verb
from tilewright.cli._output import say, show
from tilewright.cli._sizes import HELP as SIZE_HELP
from tilewright.cli._sizes import sized
from tilewright.cli._sweep_job import JobOptions, check_no_job, sweep_job
from tilewright.cli._values import parse_counts, parse_values
from tilewright.errors import UsageError
from tilewright.ops.core.ladder import Ladder, Rung, operations

if TYPE_CHECKING:
    from tilewright.bench.results import Row

SIZES, SHOWN, VARIED = "Sizes", "What to save", "What to vary"  # groups of options
MOST_THREADS = 256
THREADS = "threads"
LEGEND = """\
time: median of the runs; spread: their 10th and 90th percentile, relative to the median
best: the smallest value at which a kernel and a size are within 2 % of their fastest
check: largest error as a share of the allowed one, or why the point is refused"""


def _completed(incomplete: str) -> list[str]:
    """The operations that a shell offers."""
    return [op for op in operations() if op.startswith(incomplete)]


@dataclass(kw_only=True)
class Options(JobOptions):
    """One field per option."""

    op: Annotated[
        str,
        Argument(
            metavar="OP",
            help=f"One of {', '.join(operations())}. Several are separated by commas.",
            autocompletion=_completed,
            show_default=False,
        ),
    ] = ""
    threads: Annotated[
        str | None,
        Option(
            metavar="LIST",
            help="Numbers of CPU threads to time, as in 1,2,4 or 1..9. They may exceed the number of cores.",
            show_default="one per core",
            rich_help_panel=VARIED,
        ),
    ] = None
    set_: Annotated[
        list[str] | None,
        Option(
            "--set",
            metavar="NAME=LIST",
            help="Values of a kernel option to time: tile=8,16,32, tile=1..5, or block=64..1024x2 (doubled each time). "
            "NAME alone means the values that `tilewright ladder OP --list` shows after sweep. Repeat the option to "
            "vary a second one.",
            rich_help_panel=VARIED,
        ),
    ] = None
    rung: Annotated[
        list[str] | None,
        Option(
            "--rung",
            metavar="RUNG",
            help="The kernel to time. Repeat the option for several.",
            show_default="the kernels with these options, or the default one",
            rich_help_panel=VARIED,
        ),
    ] = None
    size: Annotated[
        list[str] | None,
        Option(
            "--size",
            metavar="LIST",
            help=f"{SIZE_HELP} Repeat it for several.",
            rich_help_panel=SIZES,
        ),
    ] = None
    label: Annotated[
        str | None,
        Option(metavar="TEXT", help="Time the ladder's sizes whose name contains TEXT.", rich_help_panel=SIZES),
    ] = None
    dtype: Annotated[
        Literal["float32", "float64", "bfloat16", "float16", "tf32"] | None,
        Option(
            help="The precision; float16 and tf32 need a GPU.",
            show_default="that of the first size",
            rich_help_panel=MACHINE,
        ),
    ] = None
    device: Annotated[
        Literal["cpu", "cuda"], Option(help="The device whose kernels are timed.", rich_help_panel=MACHINE)
    ] = "cpu"
    save: Annotated[
        bool,
        Option(
            "--save",
            help="Add the rows and their figures to results/ of the current directory, for `tilewright report`.",
            rich_help_panel=SHOWN,
        ),
    ] = False


@verb(Options)
def sweep(options: Options) -> None:
    """Time kernels of an operation, or a whole job, at each value of one or two parameters.

    \b
    tilewright sweep conv3d --rung cpu.taps --threads 1..9
    tilewright sweep matmul --rung simt.shared --set tile=8,16,32 --device cuda
    tilewright sweep softmax,layernorm,elementwise,batchnorm --set block=64..1024x2 --device cuda
    tilewright sweep --job gpt2 --batch-size 1,8,64,800
    tilewright sweep --job dcgan --images 1000,10000,100000 --gpus 1,2,4 --device cuda

    A kernel's parameters are the number of threads and the options that it declares. A job's parameters are the batch
    size, the number of records and the number of workers. The result at each value is checked before the value is
    timed. If a value cannot run, the table gives the reason. In the figure, the first parameter is the x axis, and each
    kernel, size and value of the second parameter is a curve. Without --size and --label, all sizes of the ladder are
    timed.
    """
    if options.job:
        sweep_job(options)
        return
    check_no_job(options)
    if not options.op:
        raise UsageError("sweep: no operation is given", remedy="write sweep OP, as in softmax, or sweep --job gpt2")
    from tilewright.bench.report.sweeps import remarks, save_sweeps

    every = [_operation(replace(options, op=op.strip())) for op in options.op.split(",")]
    for path in save_sweeps([row for rows in every for row in rows]) if options.save else ():
        say(f"written to {path}")
    show("\n".join([LEGEND, *(text for rows in every for text in remarks(rows))]))


def _operation(options: Options) -> list[Row]:
    """Time an operation and show a table for each size."""
    from tilewright.bench.climb import parts

    ladder, spec = parts(options.op)
    _check(options)
    cases = _cases(options, spec)
    axes, wanted = _axes(options, ladder), _rungs(options, ladder)
    axes |= {name: _defaults(options.op, name, wanted) for name, values in axes.items() if not values}
    for name, values in axes.items():
        _check_types(options.op, name, values, wanted)
    rows = []
    for case in cases:
        rows += _swept(options, case, wanted or [ladder.choose(case.problem)], axes)
    return rows


def _swept(options: Options, case: Any, rungs: list[Rung], axes: dict[str, tuple]) -> list[Row]:
    """Time one case and show its table. If nobody reads the output, only a sweep to save is worth it."""
    from tilewright.bench.noise import Watch, warning
    from tilewright.bench.report.sweeps import sweep_table
    from tilewright.bench.sweep import sweep

    if not show(f"{options.op} {case.name}  {case.label}") and not options.save:
        raise typer.Exit
    watch = Watch()
    rows = watch.noted(sweep(options.op, case, rungs, axes))
    show(f"{sweep_table(rows).heading()}\n")
    if text := warning(rows):
        say(text, err=True)
    return rows


def _check(options: Options) -> None:
    """Raises UsageError for options that exclude each other: none is ignored."""
    op = options.op
    if options.device != "cpu" and options.threads is not None:
        raise UsageError(f"sweep {op}: --threads {options.threads} is for the CPU; --device {options.device} has none")
    if options.size and options.label is not None:
        raise UsageError(
            f"sweep {op}: --size {options.size[0]} and --label {options.label} both choose sizes; give one"
        )


def _axes(options: Options, ladder: Ladder) -> dict[str, tuple]:
    """Parameter -> its values, none for the kernels' own values. Raises UsageError unless there are one or two."""
    op, axes = options.op, dict[str, tuple]()
    if options.threads is not None:
        axes[THREADS] = parse_counts(f"sweep {op}: --threads", options.threads, MOST_THREADS)
    for given in options.set_ or []:
        name, equals, values = given.partition("=")
        if name == THREADS or not name:
            raise UsageError(f"sweep {op}: --set {given!r}: write NAME=LIST, as in tile=8,16, or --threads LIST")
        if name in axes:
            raise UsageError(f"sweep {op}: --set {name} is given twice", remedy="give all its values in one list")
        axes[name] = parse_values(f"sweep {op}: --set {name}", values) if equals else ()
    if not 1 <= len(axes) <= 2:
        what = ", ".join(axes) or "no parameter"
        has = _options_of(list(ladder.rungs.values()))
        remedy = f"write --threads 1..4, or --set NAME=LIST with an option of a kernel: {has}"
        raise UsageError(f"sweep {op}: {what}: one or two parameters are wanted", remedy=remedy)
    return axes


def _rungs(options: Options, ladder: Ladder) -> list[Rung]:
    """The kernels to time; empty where each case has its default one.

    Raises UsageError for a kernel of another device, and an option that a kernel, or every kernel, lacks.
    """
    op, device = options.op, options.device
    names = [given.partition("=")[0] for given in options.set_ or []]
    here = [rung for rung in ladder.rungs.values() if rung.name.startswith("cpu.") == (device == "cpu")]
    for name in options.rung or []:
        ladder.check_name(name)
        if ladder.rungs[name] not in here:
            other = "cuda" if device == "cpu" else "cpu"
            raise UsageError(
                f"sweep {op}: --rung {name} does not run on --device {device}", remedy=f"use --device {other}"
            )
    if options.rung:
        chosen = [ladder.rungs[name] for name in dict.fromkeys(options.rung)]
        for rung in chosen:
            rung.varied(**dict.fromkeys(names))
        return chosen
    found = [rung for rung in here if set(names) <= set(rung.swept)] if names else []
    if names and not found:
        what = f"no kernel of {op} on {device} has the option {' and '.join(names)}"
        raise UsageError(f"sweep {op}: {what}; {_options_of(here)}")
    return found


def _options_of(rungs: list[Rung]) -> str:
    """The options of each kernel that has some, in words."""
    has = [f"{rung.name} has {', '.join(rung.swept)}" for rung in rungs if rung.swept]
    return "; ".join(has) or "no kernel has one"


def _defaults(op: str, name: str, rungs: list[Rung]) -> tuple:
    """The values that the kernels declare for an option, each once."""
    return tuple(dict.fromkeys(value for rung in rungs for value in rung.swept[name]))


def _check_types(op: str, name: str, values: tuple, rungs: list[Rung]) -> None:
    """Raises UsageError for a value that is of another type than the kernels' own values."""
    for value in values if name != THREADS else ():
        for rung in rungs:
            own = rung.swept[name]
            if not any(isinstance(value, type(one)) for one in own):
                raise UsageError(f"sweep {op}: --set {name}={value}: a value such as {own[0]} is wanted by {rung.name}")


def _cases(options: Options, spec: Any) -> list[Any]:
    """The ladder's sizes, or those that the options name. Raises UsageError naming the option that fits none."""
    op = options.op
    if options.device != "cpu" and not hasattr(spec, "device_sizes"):
        raise UsageError(f"{op} has no kernels for a GPU", remedy="use --device cpu")
    every = spec.sizes() if options.device == "cpu" else spec.device_sizes()
    dtype = options.dtype or every[0].dtype
    same = [case for case in every if case.dtype == dtype]
    if not same:
        has = " and ".join(dict.fromkeys(case.dtype for case in every))
        raise UsageError(f"{op} has no size in --dtype {dtype} on --device {options.device}; it has {has}")
    if options.size:
        return [sized(op, same, text, dtype) for text in options.size]
    found = [case for case in same if (options.label or "") in f"{case.label} {case.name}"]
    if not found:
        names = ", ".join(dict.fromkeys(case.label or case.name for case in same))
        raise UsageError(f"{op} has no size whose name contains --label {options.label}; there are {names}")
    return found
