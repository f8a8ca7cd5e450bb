"""Options of a verb as a dataclass, and the values that options take."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal, get_args, get_type_hints

import typer

from tilewright.switches import OPTIMISATIONS

JOB = ".job"  # ending of a job's directory
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
FILES, SAMPLING, SCORING = "Files and records", "Sampling", "Scoring"  # groups of options
MACHINE = "Device, precision and speed"
CHECKS, RUNS, MESSAGES = "Comparison with a reference", "Workers, shards and restarts", "Messages and settings"
GROUPS = (FILES, SAMPLING, SCORING, MACHINE, CHECKS, MESSAGES, RUNS)  # in the order of --help


def _in_group(title: str) -> Callable[..., Any]:
    """`typer.Option` for the options of one group of --help."""
    return partial(typer.Option, rich_help_panel=title)


of_files, of_sampling, of_scoring, of_machine, of_checks, of_messages, of_runs = map(_in_group, GROUPS)

# options whose help each verb words for its own records
of_model = partial(of_files, "--model", "-p", metavar="PATH")
of_input = partial(of_files, "--input", "-i", metavar="FILE")
of_output = partial(of_files, "--output", "-o", metavar="FILE")
of_count = partial(of_files, "--count", "-n", metavar="N", min=1, show_default="all")
of_text_field = partial(of_files, "--text-field", metavar="NAME")
of_batch_size = partial(of_machine, metavar="N", min=1, max=1 << 20)
of_batch_memory = partial(
    of_machine,
    metavar="SIZE",
    help="Memory for the keys and values of a batch, as in 512M. It changes no result.",
)

Device = Annotated[
    Literal["cpu", "cuda", "auto"],
    of_machine("--device", help="Where to compute. auto: on every GPU if there is one, else on the CPU."),
]
Dtype = Annotated[
    Literal["float32", "bfloat16", "float16", "auto"],
    of_machine(help="Precision of the products; float16 needs a GPU. auto: the precision of the model's weights."),
]
Threads = Annotated[int | None, of_machine(metavar="N", min=1, help="CPU threads.", show_default="one per core")]
Rungs = Annotated[
    list[str] | None,
    of_machine(
        metavar="OP=RUNG",
        help="Force a kernel (rung) for an operation. conv_transpose2d@3=cpu.scatter forces it only for the model's "
        "third call of the operation. Repeat the option for several. `tilewright ladder OP --list` lists the kernels.",
    ),
]
WithoutOption = Annotated[
    list[str] | None,
    of_machine(
        "--without",
        metavar="NAME",
        help=f"Switch an optimisation off, to measure its effect: {', '.join(OPTIMISATIONS)}. Repeat the option for "
        "several. An optimisation that the job does not have is refused.",
    ),
]
Validate = Annotated[
    str | None,
    of_checks("--validate", metavar="FILE", help="Compare the output with FILE. The exit code is 1 if they differ."),
]
Answers = Annotated[str | None, of_checks("--answers", "-a", metavar="FILE", help="The reference for -v.")]
Check = Annotated[bool, of_checks("-v", help="Compare the output with the file given as -a.")]
Tolerance = Annotated[
    float,
    of_checks(metavar="X", min=0, help="An element passes if its absolute or its relative error is at most X."),
]
Keep = Annotated[
    list[str] | None,
    of_files(
        "--keep",
        metavar="NAMES",
        help="Copy these fields of each record to the output, as in label,meta. A missing field becomes null. NAME=AS "
        "renames a field.",
    ),
]
PerInput = Annotated[
    bool,
    of_files(
        "--per-input",
        help="With -o DIR/: write one output file per input file. Without this option, one file per shard is written.",
    ),
]
TextField = Annotated[
    str | None,
    of_text_field(
        help="Name of the field that holds a record's text or token ids.", show_default="text, tokens or input_ids"
    ),
]
Json = Annotated[bool, of_messages("--json", help="Write one JSON object to stdout, and all text to stderr.")]


def output_of(path: str) -> str:
    """The output of a job that is named by its output, by OUTPUT.job, or by the directory of --job-dir."""
    from tilewright.runtime.jobs.location import moved_to, output_in

    bare = path.rstrip(os.sep)
    if bare.endswith(JOB) and not os.path.lexists(bare + JOB):
        output = bare.removesuffix(JOB)
        if os.path.isdir(bare) or moved_to(os.path.realpath(output)):
            return output
    return output_in(path) or path


def verb(options: type) -> Callable[[Callable[[Any], None]], Callable[..., None]]:
    """Makes `f(options)` a function with a keyword argument for each field of the dataclass, as typer wants it.

    The verb's own options come first, then the options that it shares with other verbs. If a verb has FIRST, its
    options are in groups, and in each group the options that FIRST names come first.
    """

    def wrap(function: Callable[[Any], None]) -> Callable[..., None]:
        def called(**values: Any) -> None:
            function(options(**values))

        called.__name__, called.__doc__ = function.__name__, function.__doc__
        hints = get_type_hints(options, include_extras=True)  # the signature's own are text, and mean nothing elsewhere
        depth = {name: i for i, kind in enumerate(options.__mro__) for name in vars(kind).get("__annotations__", ())}
        first: tuple[str, ...] = getattr(options, "FIRST", ())

        def rank(field: inspect.Parameter) -> tuple[int, int, int]:
            group = getattr(get_args(hints[field.name])[1], "rich_help_panel", None) if first else None
            ahead = first.index(field.name) if field.name in first else len(first)
            return GROUPS.index(group) if group in GROUPS else len(GROUPS), ahead, depth[field.name]

        fields = sorted(inspect.signature(options).parameters.values(), key=rank)
        called.__annotations__ = hints
        typed = [field.replace(annotation=hints[field.name]) for field in fields]
        vars(called)["__signature__"] = inspect.Signature(typed)
        return called

    return wrap


def parse_bytes(text: str, option: str | None = None) -> int:
    """Bytes of a text such as "256M", which was given for this option; K, M, G and T are powers of 1024."""
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,6})?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if not found:
        raise typer.BadParameter(f"{text!r} is no size; write 256M or 4G", param_hint=option)
    return int(float(found[1]) * _UNITS[found[2].upper()])


def parse_keep(texts: list[str] | None) -> tuple[tuple[str, str], ...]:
    """["label,meta", "text=input_text"] as (name in the input, name in the output)."""
    names = [name.strip() for text in texts or () for name in text.split(",")]
    pairs = [name.partition("=") for name in names]
    return tuple((name, shown if equals else name) for name, equals, shown in pairs)


def parse_sizes(text: str) -> tuple[int, ...]:
    """Numbers of a text such as "3,5,7,9"; the empty text is the empty tuple."""
    try:
        return tuple(int(part) for part in text.split(",")) if text.strip() else ()
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is no list of sizes; write 3,5,7") from error


def check_threads(*counts: int | None) -> None:
    """Raises BadParameter unless each is None, or from 1 to four times the cores."""
    from tilewright.hardware import cpu

    cores = cpu().cores
    for count in counts:
        if count is not None and not 1 <= count <= 4 * cores:
            what = (
                f"{count:,} threads: this machine has {cores} usable cores, 1 to {4 * cores} threads can be asked for"
            )
            raise typer.BadParameter(what, param_hint="--threads")


def parse_threads(text: str) -> tuple[int, ...]:
    """Numbers of threads of a text such as "1,2", as `check_threads` allows."""
    try:
        counts = tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is no list of numbers; write 1,2", param_hint="--threads") from error
    check_threads(*counts)
    return counts


def parse_rungs(texts: list[str], job: str, device: str) -> dict[str, str]:
    """["matmul=cpu.packed", "matmul@2=cpu.naive"] as {"matmul": "cpu.packed", "matmul@2": "cpu.naive"}.

    Raises BadParameter for what is no pair, and an operation or a layer that is given twice; UsageError for a wrong
    layer, an operation that the job never runs, and a rung that is unknown or cannot run on the device; ResourceError
    for a rung that needs a GPU where there is none. `forcing` refuses unknown operations.
    """
    from tilewright.ops.core.ladder import operations
    from tilewright.ops.core.layers import split_target
    from tilewright.runtime.forced_rungs import check_operations

    pairs = [text.partition("=") for text in texts]
    if any(not (target.partition("@")[0].isidentifier() and name) for target, _, name in pairs):
        what = f"{', '.join(texts)}: write OP=RUNG, as in matmul=cpu.packed, or OP@N=RUNG for the model's layer N"
        raise typer.BadParameter(what, param_hint="--rung")
    rungs: dict[str, str] = {}
    for given, _, name in pairs:
        op, number = split_target(given)
        target = op if number is None else f"{op}@{number}"
        if target in rungs:
            of = "an operation" if number is None else "a layer"
            what = f"{target} is given twice, as {rungs[target]} and {name}: one kernel of {of} can be forced"
            raise typer.BadParameter(what, param_hint="--rung")
        rungs[target] = name
    known = {target: name for target, name in rungs.items() if split_target(target)[0] in operations()}
    check_operations(job, known)
    for target, name in known.items():
        _check_rung(split_target(target)[0], name, device)
    return rungs


def _check_rung(op: str, name: str, device: str) -> None:
    """Raises UsageError unless the operation has the rung, and its engine runs on `device`; ResourceError where that
    needs a GPU that is missing."""
    from importlib import import_module

    from tilewright.errors import ResourceError, UsageError, suggestion
    from tilewright.hardware import unavailable
    from tilewright.runtime.devices import is_gpu_elsewhere

    rungs = import_module(f"tilewright.ops.{op}.ladder").ladder.rungs
    wanted = {"cpu": {"cpu"}, "cuda": {"simt", "tile"}}.get(device, {"cpu", "simt", "tile"})
    there = {"cpu", "simt", "tile"} if is_gpu_elsewhere() else {"cpu"}
    missing = {engine: None if engine in there else unavailable(engine) for engine in ("cpu", "simt", "tile")}
    fit = [rung for rung in rungs if (engine := rung.partition(".")[0]) in wanted and not missing[engine]]
    engine, remedy = name.partition(".")[0], f"use one of: {', '.join(fit)}" if fit else "leave out --rung"
    if name not in rungs:
        why = f"{op} has no rung {name!r}{suggestion(name, fit)}"
    elif engine not in wanted:
        other = "cuda" if device == "cpu" else "cpu"
        gpu = " on a machine with a GPU" if missing[engine] else ""
        why = f"--rung {op}={name} runs on {other}, and the job's device is {device}"
        remedy = f"give --device {other}{gpu}, or {remedy}"
    elif missing[engine]:
        raise ResourceError(f"--rung {op}={name} needs a GPU, and this machine offers none ({missing[engine]})",
                            parameter="--rung", remedy=remedy)  # fmt: skip
    else:
        return
    raise UsageError(why, parameter="--rung", remedy=remedy)
