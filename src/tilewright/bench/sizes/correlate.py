"""The sizes at which the bench times correlate, their random inputs, and their float64 results."""

import dataclasses
import math

import numpy as np

from tilewright.ops.correlate.problem import Case, Problem, bound, cost  # noqa: F401 - also for callers


def make(case: Case, rng: np.random.Generator) -> dict:
    """Random arguments of `correlate`: x, weights (with as many dimensions as x), mode, cval, origin."""
    if case.layout == "F":
        x = numbers(rng, case.shape[::-1], case.kind).T
    elif case.layout == "strided":
        x = numbers(rng, tuple(3 * n for n in case.shape), case.kind)[(slice(1, None, 3),) * len(case.shape)]
    else:
        x = numbers(rng, case.shape, case.kind)
        x = x[(slice(None, None, -1),) * x.ndim] if case.layout == "reversed" else x
    weights = rng.standard_normal(case.window)
    if case.form in ("even", "odd"):
        weights = weights + (1 if case.form == "even" else -1) * np.flip(weights)
    elif case.form == "mean":
        weights = np.full(case.window, 1 / math.prod(case.window))
    return {"x": x, "weights": weights, "mode": case.mode, "cval": case.cval, "origin": case.origins}


def numbers(rng: np.random.Generator, shape: tuple[int, ...], kind: str) -> np.ndarray:
    """Normal random numbers, or integers of the type's range, at most 2**40."""
    if kind.startswith("float"):
        return rng.standard_normal(shape).astype(kind)
    if kind == "bool":
        return rng.random(shape) < 0.5
    info = np.iinfo(kind)
    return rng.integers(max(info.min, -(2**40)), min(info.max, 2**40), shape, dtype=kind, endpoint=True)


def rows(case: Case) -> int:
    """The number of rows along the first axis."""
    return case.shape[0]


def with_rows(case: Case, count: int) -> Case:
    """The same problem with another number of rows along the first axis."""
    return dataclasses.replace(case, shape=(count, *case.shape[1:]))


def bind(case: Case, inputs: dict):
    """call(out=None) for the chosen rung; the result is float32 if out is None."""
    from tilewright.ops.correlate import correlate, correlate1d, uniform1d

    x, weights, axis, origin = inputs["x"], inputs["weights"], case.axis, inputs["origin"]
    beyond = {"mode": inputs["mode"], "cval": inputs["cval"]}

    def call(out=None):
        out = np.empty(x.shape, np.float32) if out is None else out
        if case.form == "dense":
            return correlate(x, weights, origin=origin, out=out, **beyond)
        if case.form == "mean":
            return uniform1d(x, weights.size, axis, origin=origin[axis], out=out, **beyond)
        return correlate1d(x, weights.ravel(), axis, origin=origin[axis], out=out, **beyond)

    return call


def reference(case: Case, inputs: dict) -> np.ndarray:
    """The float64 answer."""
    from tilewright.ops.correlate.reference import correlate

    return correlate(**inputs)


def sizes() -> list[Case]:
    """Sizes: volumes and images, with dense kernels, lines along each axis, and means."""
    cube = (128, 128, 128)
    found = [Case(cube, (3, 3, 3), kind="float64", mode="reflect", label="volume")]
    found += [Case(cube, (5, 5, 5), kind="uint8", mode="reflect", label="volume of bytes")]
    found += [Case((2048, 2048), (7, 7), kind="uint16", mode="nearest", label="image")]
    for axis, name in enumerate(("z", "y", "x")):
        window = tuple(17 if a == axis else 1 for a in range(3))
        found += [Case(cube, window, "even", kind="float64", mode="reflect", label=f"gaussian along {name}")]
        found += [Case(cube, window, "mean", kind="float64", mode="reflect", label=f"mean along {name}")]
    return found
