"""The sizes at which the bench times conv3d, their random inputs, and their float64 results."""

import dataclasses

import numpy as np

from tilewright.ops.conv3d.problem import SEPARABLE, Case, Problem, bound, cost  # noqa: F401 - also for callers
from tilewright.ops.core.gpu.tensors import moved

PROBE_ROWS = 16  # planes with which a rung is tested for being slow


def make(case: Case, rng: np.random.Generator) -> dict:
    """Random arguments of `conv3d`. Weights of kind "factors" are a tuple."""
    x = _volume(rng, (case.D, case.H, case.W), case.layout)
    if case.C:
        x = np.stack([x, *(_volume(rng, x.shape, "C") for _ in range(case.C - 1))])
    sizes = (case.KD, case.KH, case.KW)
    weights: np.ndarray | tuple[np.ndarray, ...]
    if case.kind == "gaussian":
        weights = tuple(_gaussian(K) for K in sizes)
    elif case.kind in SEPARABLE:
        factors = tuple(rng.standard_normal(K, dtype=np.float32) for K in sizes)
        product = np.einsum("a,b,c->abc", *factors, dtype=np.float64).astype(np.float32)
        weights = factors if case.kind == "factors" else product
    else:
        numbers = rng.standard_normal((case.O, case.C, *sizes) if case.C else sizes, dtype=np.float32)
        weights = numbers + numbers[..., ::-1, :, :] if case.kind == "symmetric" else numbers
    return {"x": x, "weights": weights, "mode": case.mode, "cval": case.cval, "origin": case.origin}


def _gaussian(K: int) -> np.ndarray:
    """float32 (K,): the normal distribution from -4 to 4 sigma, with the sum 1."""
    density = np.exp(-0.5 * (np.arange(-(K // 2), K - K // 2) * 4 / (K // 2)) ** 2)
    return (density / density.sum()).astype(np.float32)


def _volume(rng, shape: tuple[int, ...], layout: str) -> np.ndarray:
    """Normal random numbers with the strides that `layout` names."""
    normal = lambda sizes: rng.standard_normal(sizes, dtype=np.float32)  # noqa: E731
    if layout == "F":
        return normal(shape[::-1]).T
    if layout == "strided":
        return normal([2 * n for n in shape])[::2, 1::2, ::2]
    if layout == "reversed":
        return normal(shape)[::-1, ::-1, ::-1]
    return normal(shape)


def rows(case: Case) -> int:
    """The number of planes of the volume."""
    return case.D


def with_rows(case: Case, count: int) -> Case:
    """The same problem with another number of planes."""
    return dataclasses.replace(case, D=count)


def bind(case: Case, inputs: dict):
    """call(out=None) for the chosen rung, its weights prepared."""
    from tilewright.ops.conv3d import conv3d, prepare, prepare_separable

    rest = {name: value for name, value in inputs.items() if name != "weights"}
    weights = inputs["weights"]
    packed = prepare_separable(weights) if isinstance(weights, tuple) else prepare(weights)
    return lambda out=None: conv3d(weights=packed, out=out, **rest)


def reference(case: Case, inputs: dict) -> np.ndarray:
    """The float64 answer."""
    from tilewright.ops.conv3d.reference import conv3d

    return conv3d(**inputs)


def sizes() -> list[Case]:
    """Sizes: the course's largest; a short kernel, which memory limits, also symmetric and separable; a layer of a
    network; the course's small volumes.

    The elements are random, unlike the course's. Its volumes 1 and 2 have the same size and differ only in their
    elements, so they share a row.
    """
    return [
        Case(128, 128, 128, 5, 5, 5, label="course volume 3"),
        Case(256, 256, 256, 3, 3, 3, label="memory-bound"),
        Case(128, 128, 128, 5, 5, 5, kind="symmetric", label="symmetric"),
        Case(256, 256, 256, 17, 17, 17, kind="gaussian", mode="reflect", label="gaussian, sigma 2"),
        Case(64, 64, 64, 3, 3, 3, O=32, C=16, label="channels"),
        Case(64, 64, 64, 3, 3, 3, label="course volume 1 and course volume 2"),
        Case(32, 64, 64, 5, 5, 5, label="course volume 4"),
        Case(32, 64, 32, 3, 3, 3, label="course volume 5"),
    ]


def device_sizes() -> list[Case]:
    """Sizes on a GPU: volumes that fill it, and the sizes of the CPU, which are small there, without the symmetric
    one."""
    large = [Case(512, 512, 512, K, K, K, label=f"large, K {K}") for K in (3, 5)]
    large += [Case(512, 512, 512, 5, 5, 5, mode="reflect", label="large, K 5, reflect")]
    large += [Case(512, 512, 512, 9, 9, 9, kind="gaussian", mode="reflect", label="large, gaussian, sigma 1")]
    small = [case for case in sizes() if case.kind != "symmetric"]
    return [dataclasses.replace(case, device="cuda") for case in [*large, *small]]


def bind_tensors(case, inputs: dict, device: str = "cuda"):
    """call(out=None) on tensors made of a case's NumPy inputs, weights prepared; for the bench and the tests."""
    from tilewright.ops.conv3d import conv3d, prepare, prepare_separable

    weights = inputs["weights"]
    packed = (prepare_separable if isinstance(weights, tuple) else prepare)(weights, device=device)
    values = moved({name: value for name, value in inputs.items() if name != "weights"}, device)
    return lambda out=None: conv3d(weights=packed, out=out, **values)
