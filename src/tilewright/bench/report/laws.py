"""Curves of `bench scaling`: one job's speed-ups against the number of workers, with Amdahl's law and the USL."""

import math
from dataclasses import dataclass
from functools import cached_property

from tilewright.bench.fits import Amdahl, Usl, amdahl, usl
from tilewright.bench.results import Row


@dataclass(frozen=True)
class Curve:
    """The rows of one job, size, dtype and engine from one session, by ascending number of workers."""

    rows: tuple[Row, ...]

    @property
    def name(self) -> str:
        """Job, records, dtype and engine, such as "gpt2, 512 prompts, bfloat16, mpi"."""
        return f"{self.rows[0].size}, {self.rows[0].dtype}, {self.rows[0].engine}"

    @cached_property
    def speedups(self) -> dict[int, float]:
        """Workers -> the speed-up over one worker, without rows in which workers share a core or a GPU."""
        return {workers(row): row.versus_below for row in self.rows if row.versus_below and not shares(row)}

    @cached_property
    def amdahl(self) -> Amdahl | None:
        """The fitted curve of Amdahl's law. None if no row has several workers on devices of their own."""
        return amdahl(self.speedups)

    @cached_property
    def usl(self) -> Usl | None:
        """The fitted curve of the USL. None unless there are two such rows."""
        return usl(self.speedups)


def curves(rows: list[Row]) -> list[Curve]:
    """The curves of rows of `bench scaling`, in the order of their first rows. Rows of two sessions are never mixed."""
    found: dict[tuple, list[Row]] = {}
    for row in rows:
        found.setdefault((row.machine, row.climb, row.engine, row.origin), []).append(row)
    return [Curve(tuple(sorted(some, key=workers))) for some in found.values()]


def workers(row: Row) -> int:
    """The number of workers, MPI ranks or Ray actors of a row."""
    return int(row.label)


def devices(row: Row) -> int | None:
    """How many different cores or GPUs the workers of a row used. None in rows of earlier versions."""
    found = row.setting.get("devices", "")
    return int(found) if found else None


def hosts(row: Row) -> int:
    """How many hosts the workers of a row ran on."""
    return int(row.setting.get("hosts", "1"))


def shares(row: Row) -> bool:
    """True if several workers of a row ran on one core or one GPU. Their speed-up then says nothing about the job."""
    found = devices(row)
    return found is not None and found < workers(row)


def law_sentences(curve: Curve) -> list[str]:
    """What the two laws say about a curve, and which workers shared a device."""
    told = []
    several = [speedup for count, speedup in curve.speedups.items() if count > 1]
    if several and max(several) <= 1:
        told.append("no number of workers was faster than one")
    elif law := curve.amdahl:
        most = "no limit" if math.isinf(law.limit) else f"at most {law.limit:,.3g} times as fast as one worker"
        told.append(f"Amdahl's serial share is {_percent(law.serial)}, {most} ({_fitted(law)})")
    if (found := curve.usl) and max(several) > 1:
        peak = "no peak" if math.isinf(found.peak) else f"fastest at {found.peak:,.0f} workers"
        shares_of = f"contention {_percent(found.contention)}, coherency {_percent(found.coherency)}"
        told.append(f"Universal Scalability Law: {shares_of}, {peak} ({_fitted(found)})")
    sentences = [f"{curve.name}: {'. '.join(told)}."] if told else []
    shared = [row for row in curve.rows if shares(row)]
    if shared:
        many = ", ".join(f"{workers(row)} on {devices(row)}" for row in shared)
        why = "Their speed-up means nothing, so no law is fitted to it."
        sentences.append(f"{curve.name}: workers share cores or GPUs ({many}). {why}")
    if (most_hosts := max(map(hosts, curve.rows))) > 1:
        sentences.append(f"{curve.name}: up to {most_hosts} hosts.")
    return sentences


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 0.1 else f"{share:.0%}".replace("%", " %")


def _fitted(law: Amdahl | Usl) -> str:
    """How well the law fits, and to how many points."""
    points = f"from {law.points} point{'s' * (law.points > 1)}"
    return points if law.error < 1e-9 else f"{points}, within {_percent(law.error)}"
