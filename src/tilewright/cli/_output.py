"""What the command line writes, and what becomes of it where a stream is closed or full."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from math import floor, isfinite, log10
from typing import Any

from tilewright.errors import ResourceError, printable
from tilewright.formats.fetched import as_urls

_lost: set[str] = set()  # the names of streams that could not be written


def say(text: str, *, err: bool = False) -> None:
    """A line on stdout or stderr that tells how things go; what cannot be written is dropped, and the work goes on."""
    name = "stderr" if err else "stdout"
    try:
        _write(name, text)
    except OSError:
        _drop(name)


def show(text: str) -> bool:
    """A result on stdout; False if nobody reads it any more (a closed pipe).

    Raises ResourceError where it cannot be written, on a full disk.
    """
    try:
        return _write("stdout", text)
    except BrokenPipeError:
        _drop("stdout")
        return False
    except OSError as error:
        _drop("stdout")
        what = (error.strerror or str(error)).lower()
        raise ResourceError(f"cannot write: {what}", path="stdout", remedy="redirect it to another disk") from error


def show_json(value: Any) -> bool:
    """As `show`, an object as a line of JSON, in ASCII: every reader takes it, whatever the encoding of stdout. Bytes
    of a file name that are no UTF-8 are told as "\\xff"."""
    from json import dumps

    from msgspec import to_builtins

    return show(dumps(_plain(to_builtins(value)), separators=(",", ":")))


def _plain(value: Any) -> Any:
    """What JSON can say: text without surrogates, None for a number that is not finite."""
    if isinstance(value, dict):
        return {_plain(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if isinstance(value, float) and not isfinite(value):
        return None
    return (
        value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
        if isinstance(value, str)
        else value
    )


def banner(verb: str, rows: dict[str, str]) -> str:
    """What a job is about to do, as the course's programs print it."""
    line = "=" * 64
    table = [f" {name + ':':<11} {value}" for name, value in rows.items()]
    return "\n".join([line, f" tilewright {verb}", line, *table, line])


def summary(report: Any, unit: str) -> str:
    """What a job did. unit: what its throughput counts; all but "tokens" are records."""
    total, count, rate = report.seconds["total"], report.computed, report.records_per_second
    if unit == "tokens":
        count, rate = int(report.figures.get("tokens", 0)), report.tokens_per_second
    timed = [
        f"Elapsed time: {significant(report.seconds.get('run', 0.0), 4)} (sec)",
        f"Throughput: {significant(rate)} ({unit}/sec)",
        f"Whole run: {significant(total, 4)} (sec), {significant(count / total)} ({unit}/sec)",
    ]
    if report.records and report.errors >= report.records:  # nothing was computed, so there is no rate
        timed = [timed[0], f"Whole run: {significant(total, 4)} (sec)"]
    lines = [
        *(timed if report.computed or not report.job else ()),  # else there was nothing to do
        f"Peak memory: {report.peak_memory / 2**20:,.0f} MiB{_of_workers(report)}",
    ]
    if report.errors:
        lines += [f"Bad records: {report.errors:,} of {report.records:,}"]
        lines += [f"  {error}" for error in report.first_errors]
        more = report.errors - len(report.first_errors)
        lines += [f"  and {more:,} more"] * (more > 0)
    if report.validation:
        lines += [f"Validation...{'PASS' if report.validation.passed else 'FAIL'}", f"  {report.validation.detail}"]
    return "\n".join(lines)


def significant(value: float, digits: int = 3) -> str:
    """A number with this many significant digits, never with an exponent: 30506151.7 -> "30500000"."""
    if not value or not isfinite(value):
        return f"{value:g}"
    decimals = digits - 1 - floor(log10(abs(value)))
    return f"{round(value, decimals):.{max(decimals, 0)}f}"


def _of_workers(report: Any) -> str:
    """The memory of worker processes, which the first figure does not count."""
    found = report.job.get("worker_memory") if report.computed else None
    if not found:
        return ""
    largest, together = (f"{found[name] / 2**20:,.0f} MiB" for name in ("largest", "sum"))
    return f" in this process; the largest worker {largest}, all workers {together}"


def show_report(verb: str, options: dict[str, Any], report: Any) -> None:
    """The report as one JSON object on stdout, after some options."""
    show_json({"verb": verb, **options, **report.as_dict(), "exit_code": report.exit_code})


def show_part(verb: str, options: Any, report: Any) -> None:
    """With --json, what a part of a job did, as one object on stdout; nothing where the report is of no part."""
    if options.json and "part" in report.job:
        names = ("part", "directory", "shards", "computed")
        said = {"verb": verb, "output": options.output, **{name: report.job[name] for name in names}}
        said |= {"records": report.records, "errors": report.errors}
        show_json({**said, "seconds": report.seconds, "exit_code": report.exit_code})


def _write(name: str, text: str) -> bool:
    """False if the stream was lost before. What its encoding lacks, and what could drive a terminal, is escaped."""
    stream = getattr(sys, name)
    if stream is None or name in _lost:
        return False
    encoding = getattr(stream, "encoding", None) or "utf-8"
    stream.write(printable(as_urls(text)).encode(encoding, "backslashreplace").decode(encoding) + "\n")
    stream.flush()
    return True


def _drop(name: str) -> None:
    """Lets the stream, and what its buffer still holds for the end of the process, go nowhere."""
    _lost.add(name)
    with suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, getattr(sys, name).fileno())
        os.close(null)
