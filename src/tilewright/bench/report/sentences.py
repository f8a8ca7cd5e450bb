"""Sentences of a writeup. Each function takes saved rows, and returns only what follows from them."""

import itertools
import re

from tilewright.bench.fits import amdahl
from tilewright.bench.report.laws import Curve, shares, workers
from tilewright.bench.report.sweeps import Curve as SweepCurve
from tilewright.bench.report.tables import UNITS, device_of, percent, rate, size_of, three, times
from tilewright.bench.results import PEER, Row
from tilewright.bench.sweep import THREADS
from tilewright.ops.core.ladder import Ladder

SAME = 1.03  # a smaller factor may come from the spread of two measurements
PAYS = 0.7  # share of linear scaling; below it, most of a further worker is wasted
FEW = 3  # the most steps, layers or peers that a sentence names


def cores_of(machine: str) -> int | None:
    """The cores of a machine by its name, "amd-epyc-zen5-2c"; None for a GPU."""
    found = re.search(r"-(\d+)c$", machine)
    return int(found[1]) if found else None


def ladder_sentences(rows: list[Row], ladder: Ladder) -> list[str]:
    """How much the steps of a ladder gain, and the result. rows: of one size, dtype and number of threads."""
    ours = [row for name in ladder.rungs for row in rows if row.rung == name and row.check != PEER]
    rated = [row for row in ours if rate(row)[0]]
    if not rated:
        return []
    told = []
    first, best = rated[0], max(rated, key=lambda row: rate(row)[0] or 0.0)
    value, unit = rate(best)
    gain = (value or 0.0) / (rate(first)[0] or 1.0)
    if gain >= SAME:
        roof = f", {percent(best.roof_share)} % of the roof" if best.roof_share else ""
        told.append(
            f"From {first.rung} to {best.rung} the rate grows {times(gain)} times, to {three(value)} {unit}{roof}."
        )
    told += [_step(row, ladder) for row in ours if row.versus_below and not 1 / SAME < row.versus_below < SAME]
    same = [row.rung for row in ours if row.versus_below and 1 / SAME <= row.versus_below <= SAME]
    if same:
        told.append(f"Within {SAME - 1:.0%} of the rung below: {', '.join(same)}.")
    peers = [row for row in rows if row.check == PEER and rate(row)[0]]
    if peers:
        peer = max(peers, key=lambda row: rate(row)[0] or 0.0)
        told.append(f"{best.rung} {_compared((value or 0.0) / (rate(peer)[0] or 1.0))} {peer.rung}.")
    return told


def _step(row: Row, ladder: Ladder) -> str:
    """A rung compared with the rung below it, and its idea."""
    rung = ladder.rungs[row.rung]
    return f"{row.rung} {_compared(row.versus_below or 1.0)} {rung.after}. Its idea: {rung.idea}."


def _compared(factor: float, *, many: bool = False) -> str:
    """The ratio of two rates in words: "run 2.90 times as fast as", "run as fast as", "take 1.25 times as long as"."""
    one = "" if many else "s"
    if 1 / SAME < factor < SAME:
        return f"run{one} as fast as"
    return (
        f"run{one} {times(factor)} times as fast as"
        if factor > 1
        else f"take{one} {times(1 / factor)} times as long as"
    )


def thread_sentences(rows: list[Row]) -> list[str]:
    """How the fastest rung scales from the smallest to the largest number of threads. rows: of one size and dtype."""
    ours = [row for row in rows if row.check != PEER and row.threads and rate(row)[0]]
    counts = sorted({row.threads for row in ours})
    if len(counts) < 2:
        return []
    few, many = counts[0], counts[-1]
    best = max((row for row in ours if row.threads == many), key=lambda row: rate(row)[0] or 0.0)
    alone = [row for row in ours if row.threads == few and row.rung == best.rung]
    if not alone:
        return []
    gain = (rate(best)[0] or 0.0) / (rate(alone[0])[0] or 1.0)
    return [f"On {device_of(many)} {best.rung} {_compared(gain)} on {device_of(few)}."]


def sweep_sentences(curve: SweepCurve) -> list[str]:
    """At which value a swept parameter is best, and by how much. For numbers of threads: where the speed-up ends, and
    why."""
    best, measured = curve.best, curve.measured
    if best is None:
        return [f"{curve.name}: no point could run."]
    if len(measured) < 2:
        return []
    name = next(iter(best.setting))
    worst = max(measured, key=_time)
    gain = _time(worst) / _time(best)
    if gain < SAME:
        return [f"{curve.name}: {name} makes no difference; all points are within {gain - 1:.1%}."]
    if name == THREADS:
        return _thread_sweep(curve)
    return [
        f"{curve.name}: {name}={best.setting[name]} is best, "
        f"{times(gain)} times as fast as {name}={worst.setting[name]}."
    ]


def _time(row: Row) -> float:
    """Seconds per row of the case, because slow points are timed on fewer rows."""
    return row.median_s / max(row.rows, 1)


def _thread_sweep(curve: SweepCurve) -> list[str]:
    """The number of threads above which no point is faster, the number of cores, and Amdahl's serial share up to it."""
    by_count = {int(row.setting[THREADS]): _time(row) for row in curve.measured}
    cores = cores_of(curve.rows[0].machine)
    end = int(curve.best.setting[THREADS]) if curve.best else 1
    told = f"{curve.name}: the speed-up ends at {end} thread{'s' * (end != 1)}"
    if 1 in by_count and end > 1:
        told += f", {times(by_count[1] / by_count[end])} times as fast as one"
    told += f"{_cores_beside(end, cores, max(by_count))}."
    speedups = {count: by_count.get(1, 0.0) / seconds for count, seconds in by_count.items() if count <= (cores or end)}
    law = amdahl(speedups)
    noisy = any(row.noise for row in curve.measured)
    if noisy:
        return [f"{told} The rows are noisy, so no law is fitted."]
    fits = law and end <= (cores or end)
    return [f"{told} Amdahl's serial share is {100 * law.serial:.2g} %." if law and fits else told]


def _cores_beside(end: int, cores: int | None, most: int) -> str:
    """Why a speed-up over threads ends at this number: a clause, empty if the number of cores is unknown. most: the
    largest number of threads that was measured."""
    if cores is None:
        return ""
    if end == most < cores:
        return ", the most that were measured"
    have = f"{cores} core{'s' * (cores != 1)}"
    if end > cores:
        return f", beyond the machine's {have}"
    return f": the machine has {have}" if end == cores else f", although the machine has {have}"


def scaling_sentences(curve: Curve) -> list[str]:
    """One sentence on the speed-up of more workers. The report states the fitted laws below its table."""
    own = [row for row in curve.rows if row.versus_below and not shares(row)]
    if len(own) < 2:
        return []
    most = own[-1]
    efficiency = (most.versus_below or 0.0) / workers(most)
    told = [
        f"{curve.name}: {workers(most)} workers {_compared(most.versus_below or 1.0, many=True)} one, "
        f"{efficiency:.0%} of linear."
    ]
    poor = next((row for row in own if (row.versus_below or 0.0) < PAYS * workers(row)), None)
    if poor:
        told.append(f"From {workers(poor)} workers on, less than {PAYS:.0%} of linear is left.")
    return told


def job_sentences(rows: list[Row]) -> list[str]:
    """The rate of each workload, compared with its peer. rows: of one job on one machine."""
    told = []
    for row in rows:
        unit = UNITS.get(row.op)
        if row.check == PEER or unit is None:
            continue
        beside = f". It {_compared(row.peer_ratio)} {row.peer}" if row.peer and row.peer_ratio else ""
        speed = f"{three(row.rows / row.median_s)} {unit}"
        told.append(f"{size_of(row)}, {row.rung}, {row.dtype}, {device_of(row.threads)}: {speed}{beside}.")
    return told


def profile_sentences(rows: list[Row]) -> list[str]:
    """The operations that take most of the time. rows: of one profile."""
    total = sum(row.median_s for row in rows)
    if not total:
        return []
    largest = sorted(rows, key=lambda row: -row.median_s)[:FEW]
    parts = ", ".join(f"{row.rung} ({row.median_s / total:.0%})" for row in largest)
    first = rows[0]
    return [f"{first.size}, {first.dtype}, {device_of(first.threads)}: most of the time goes to {parts}."]


def steps_sentences(rows: list[Row]) -> list[str]:
    """The steps of a whole job's ladder: the factor of each, and of all together. rows: the ladder from the first step
    on."""
    rated = [row for row in rows if row.rows and row.median_s]
    told = [
        f"{row.rung} {_compared(row.versus_below)} {below.rung}."
        for below, row in itertools.pairwise(rated)
        if row.versus_below
    ]
    if len(rated) > 1:
        first, last = rated[0], rated[-1]
        gain = (last.rows / last.median_s) / (first.rows / first.median_s)
        told.append(f"All steps together: {last.rung} {_compared(gain)} {first.rung}.")
    return told


PUBLISHED: dict[str, str] = {
    "dcgan": "on a cluster's GPUs (models not stated) a second GPU pays from 200 images on, four from 1,000",
    "conv3d": "2.78 times one thread with SIMD and threads, 837 times on a GPU (models not stated)",
    "matmul": "unrolling makes no difference; 8 results per thread are best (GPUs not stated)",
}


def published(op: str) -> list[str]:
    """What a report of the course says about the same work, with its machine. Another machine allows no comparison."""
    found = PUBLISHED.get(op)
    return [f"Published by a report of the course, on another machine: {found}."] if found else []
