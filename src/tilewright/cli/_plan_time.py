"""What `tilewright plan` says of time and workers: by a similar job, or by a saved measurement of this machine."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING, Any

from tilewright.errors import counted
from tilewright.formats.fetched import STAGED

if TYPE_CHECKING:
    from tilewright.bench.rates import Job, Scaling
    from tilewright.runtime.plan import Declared
    from tilewright.runtime.trials import Trial

TRIAL = 20  # records of a trial
TRIAL_SECONDS = 5  # about the duration of a trial after one that was too short
FEW = 100  # records below which a job's batches are too small for its full speed
NOT_OF_A_TRIAL = ("-n", "--count", "-o", "--output", "--gpu-memory", "--trace", "--part")  # options with a value


def trial_command(verb: str, given: list[str], output: str, records: int, earlier: Trial | None = None) -> str | None:
    """The command of a short trial, beside the output, or in the current directory if the output is a URL.

    earlier: a similar job; if it was too short, the trial gets more records. None where the job is as small, or the
    verb has no --count.
    """
    count = TRIAL
    if earlier and earlier.is_short:
        count = max(TRIAL, round(earlier.records * TRIAL_SECONDS / earlier.seconds))
    if verb == "convolve" or records <= count:
        return None
    bare = output.rstrip("/")
    folder = "." if _is_url(output) else os.path.dirname(bare)
    stem = "try" if count == TRIAL else f"try{count}"  # a job with the same name and another count would be refused
    name = os.path.join(folder, f"{stem}{os.path.splitext(bare)[1]}{output[len(bare) :]}")
    return shlex.join(["tilewright", verb, *_without(given), "-n", str(count), "-o", name])


def _is_url(output: str) -> bool:
    return os.path.abspath(output.rstrip("/")) in STAGED


def _without(given: list[str]) -> list[str]:
    """The words of a command line without the options NOT_OF_A_TRIAL and --json."""
    words, rest = [], iter(given)
    for word in rest:
        if word in NOT_OF_A_TRIAL:
            next(rest, None)
        elif word.partition("=")[0] not in (*NOT_OF_A_TRIAL, "--json"):
            words.append(word)
    return words


def effort(
    name: str, found: Declared, told: dict[str, Any], threads: int, output: str, trial: str | None
) -> tuple[list[str], dict[str, Any]]:
    """(lines, figures) of operations, time and workers. trial: the command that measures a rate."""
    from tilewright.bench.rates import Job, saved_rows, scaling
    from tilewright.hardware import cpu
    from tilewright.runtime.plan import JobPlan
    from tilewright.runtime.start import visible_gpus

    job = Job(name, told["dtype"], threads, found.records, found.flops, found.figures)
    lines, figures = _work(found, told, threads) if name == "generate" else ([], {})
    rows = [] if told.get("without") else saved_rows(job)  # they are of jobs with every optimisation
    most = found.figures.get("planes", found.records)
    if isinstance(found, JobPlan) and found.begun.done:  # its shards stay as they are; a new job has more if need be
        most = found.begun.cut.shards
    units = cpu().cores if threads else max(1, len(visible_gpus()))
    useful = scaling(job, rows, most, units)
    line, seconds, source = _rate(job, found, rows, trial, _missing(found, output))
    figures |= {"workers_that_pay": useful.workers, "workers_measured": useful.row is not None,
                "expected_seconds": seconds}  # fmt: skip
    if source:
        figures["measured_in"] = source
    return [*lines, line, _workers(job, useful, units, seconds)], figures


def _missing(found: Declared, output: str) -> str:
    """Why no similar job gives a rate."""
    earlier = getattr(found, "trial", None)
    if earlier:
        took = f"{os.path.relpath(earlier.path)} took only {_duration(earlier.seconds)}"
        return f"the longest similar job is too short ({took} for {earlier.records:,} {_unit(found)})"
    return f"there is no similar job {'in the current directory' if _is_url(output) else 'beside the output'}"


def _unit(found: Declared) -> str:
    """The unit of a similar job's records."""
    return "planes" if "planes" in found.figures else found.unit


def _rate(job: Job, found: Declared, rows: list[Any], trial: str | None, missing: str) -> tuple[str, float | None, str]:
    """(line, seconds of the whole job with one worker, the measurement that says so); None and "" if none does."""
    from tilewright.bench.rates import rate
    from tilewright.runtime.plan import JobPlan

    seconds, source, why = None, "", ""
    if isinstance(found, JobPlan) and (similar := found.trial) and not similar.is_short:
        seconds = similar.seconds / similar.records * found.figures.get("planes", found.records)
        source = os.path.relpath(similar.path)
        why = f"{source} took {_duration(similar.seconds)} for {similar.records:,} {_unit(found)}"
        if similar.records < FEW:
            why += "; a larger job is faster per record"
    elif measured := rate(job, rows):
        seconds, row = measured
        threads = f", {counted(row.threads, 'thread')}" if row.threads else ""
        source = f"results/{row.machine}/{row.op}.csv: {row.rung}, {row.size}, {row.dtype}{threads}"
        why = f"{source}, {row.date}; scaled by the number of operations, without reading and writing"
    if seconds is None:
        return _no_rate(job, trial, missing), None, ""
    per_second = _amount(found.records / max(seconds, 1e-9))
    line = f"rate: about {per_second} {found.unit}/s, {_duration(seconds)} with one worker. Source: {why}"
    return line, seconds, source


def _no_rate(job: Job, trial: str | None, missing: str) -> str:
    from tilewright.bench.rates import saving_command

    if not job.flops:
        return "rate: not known: no record that was read is good"
    advice = (
        f"To measure it, run a short trial, then plan again: `{trial}`"
        if trial
        else "Start the job: `tilewright status OUTPUT` shows the time left, and the same command resumes a stopped job"
    )
    command = saving_command(job)
    bench = f"`{command}` measures this machine in some minutes" if command else f"`tilewright bench {job.verb}` "
    bench += "" if command else "measures float32 only"
    return f"rate: not known: {missing}, and no measurement in ./results. {advice}. Or: {bench}"


def _workers(job: Job, useful: Scaling, units: int, seconds: float | None) -> str:
    """The number of workers that is worth starting, and why. units: cores or GPUs here."""
    time = f", {_duration(seconds / useful.faster)} together" if seconds is not None and useful.workers > 1 else ""
    head = f"useful workers: {useful.workers:,}{time}; more of them gain little"
    if useful.row is not None:
        return f"{head} (measured: {useful.faster:.2f} times as fast as one, {useful.row.size}, {useful.row.date})"
    rule = f"{counted(job.threads, 'thread')} each on {counted(units, 'core')}" if job.threads else "one per GPU"
    device = "" if job.threads else "--device cuda "
    return f"{head} (an estimate: {rule}; `tilewright bench scaling {device}--save` measures it)"


def _work(found: Declared, told: dict[str, Any], threads: int) -> tuple[list[str], dict[str, Any]]:
    """Operations of a worker of `generate`, and the least time that this machine's peak rates allow."""
    figures = found.figures
    work = f"work of a worker: {figures['worker_flops'] / 1e9:,.1f} GFLOP, {told['dtype']}"
    work += f"; {figures['at_once']:,} sequences at once"
    if not threads:
        return [f"{work}; {figures['bytes_moved'] / 1e9:,.1f} GB through the GPU's memory"], {"least_seconds": None}
    least_s, here = _least_seconds(figures, told["dtype"], threads), counted(threads, "thread")
    time = (
        f"{_duration(least_s)} with {here}, at the peak rates of arithmetic and memory that were measured here"
        if least_s is not None
        else f"not known: ./results has no peak rates of this machine with {here}; "
        f"`tilewright ladder matmul --threads {threads} --save` measures them"
    )
    return [work, f"least time: {time}"], {"least_seconds": least_s}


def _least_seconds(figures: dict[str, Any], dtype: str, threads: int) -> float | None:
    """By the roofs that were measured on this machine with as many threads; None if none were."""
    from pathlib import Path

    from tilewright.bench.results import read
    from tilewright.hardware import machine_name

    same = (machine_name(), dtype, threads)
    rows = [row for row in read(Path("results"), machine_name()) if (row.machine, row.dtype, row.threads) == same]
    gflops = max((row.roof_gflops or 0 for row in rows), default=0)
    gbytes = max((row.roof_gbytes_s or 0 for row in rows), default=0)
    if not gflops or not gbytes:
        return None
    return max(figures["worker_flops"] / gflops, figures["bytes_moved"] / gbytes) / 1e9


def _amount(rate: float) -> str:
    """1234.5 -> "1,234", 12.34 -> "12.3"."""
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def _duration(seconds: float) -> str:
    """90.0 -> "1.5 min"."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:,.2g} s" if seconds < 10 else f"{seconds:,.0f} s"
