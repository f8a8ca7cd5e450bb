"""Two laws of scaling, fitted to measured speed-ups: Amdahl's law and the Universal Scalability Law.

Both say how much slower n workers are than n times one: n / S(n) - 1, with S the speed-up over one worker. Amdahl:
serial * (n - 1). USL: contention * (n - 1) + coherency * n * (n - 1). Both are linear in their parameters, so they are
fitted by linear least squares. Each residual is weighted by S(n) / n, so that it is a relative error of the speed-up.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Amdahl:
    """Amdahl's law: S(n) = n / (1 + serial (n - 1)).

    serial: the share of one worker's time that further workers do not shorten, from 0 to 1. error: the largest relative
    error of a fitted speed-up. points: the number of measured speed-ups, of two or more workers, that were fitted.
    Source: G. Amdahl, Validity of the single processor approach to achieving large scale computing capabilities, AFIPS
    1967.
    """

    serial: float
    error: float
    points: int

    def speedup(self, workers: float) -> float:
        """The speed-up of this many workers over one."""
        return workers / (1 + self.serial * (workers - 1))

    @property
    def limit(self) -> float:
        """The speed-up that no number of workers exceeds; infinite without a serial share."""
        return 1 / self.serial if self.serial else math.inf


@dataclass(frozen=True)
class Usl:
    """Universal Scalability Law: S(n) = n / (1 + contention (n - 1) + coherency n (n - 1)).

    contention: the share of time for which workers wait for a shared resource. coherency: the cost of each pair of
    workers that must agree, as a share of one worker's time. error, points: as in `Amdahl`. Source: N. Gunther,
    Guerrilla Capacity Planning, Springer 2007, chapter 4.
    """

    contention: float
    coherency: float
    error: float
    points: int

    def speedup(self, workers: float) -> float:
        """The speed-up of this many workers over one."""
        return workers / (1 + self.contention * (workers - 1) + self.coherency * workers * (workers - 1))

    @property
    def peak(self) -> float:
        """The number of workers with the highest speed-up; infinite without a coherency cost."""
        return max(1.0, math.sqrt(max(1 - self.contention, 0.0) / self.coherency)) if self.coherency else math.inf


def amdahl(speedups: Mapping[int, float]) -> Amdahl | None:
    """Fit the law to measured speed-ups by their number of workers. None if there is none of several workers."""
    points = _several(speedups)
    if not points:
        return None
    (serial,) = _solved(points, quadratic=False)
    law = Amdahl(min(serial, 1.0), 0.0, len(points))
    return Amdahl(law.serial, _error(law, points), law.points)


def usl(speedups: Mapping[int, float]) -> Usl | None:
    """Fit the law to measured speed-ups by their number of workers. None unless at least two are of several workers."""
    points = _several(speedups)
    if len(points) < 2:
        return None
    contention, coherency = _solved(points, quadratic=True)
    law = Usl(min(contention, 1.0), coherency, 0.0, len(points))
    return Usl(law.contention, law.coherency, _error(law, points), law.points)


def _several(speedups: Mapping[int, float]) -> dict[int, float]:
    return {workers: speedup for workers, speedup in speedups.items() if workers > 1 and speedup > 0}


def _solved(points: Mapping[int, float], *, quadratic: bool) -> tuple[float, ...]:
    """The parameters, none of them negative. If the best fit has a negative one, take the better of the two fits with
    one parameter."""
    n, speedup = np.array(list(points), float), np.array(list(points.values()))
    weight = speedup / n
    columns = [n - 1, n * (n - 1)] if quadratic else [n - 1]
    matrix = np.stack(columns, axis=1) * weight[:, None]  # (points, parameters)
    wanted = (1 / weight - 1) * weight
    found = np.linalg.lstsq(matrix, wanted, rcond=None)[0]
    if quadratic and found.min() < 0:
        alone = [max(float(column @ wanted / (column @ column)), 0.0) for column in matrix.T]
        fits = [(alone[0], 0.0), (0.0, alone[1])]
        return min(fits, key=lambda one: float(np.sum((matrix @ np.array(one) - wanted) ** 2)))
    return tuple(max(float(value), 0.0) for value in found)


def _error(law: Amdahl | Usl, points: Mapping[int, float]) -> float:
    return max(abs(law.speedup(workers) / speedup - 1) for workers, speedup in points.items())
