"""Halide and OpenCV beside conv3d: a compiler for stencils, and a library of image filters."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np

from tilewright.bench.measure import Call
from tilewright.ops.core.launch import thread_count
from tilewright.ops.core.memory import zeros

LANES = 16  # elements of a Halide vector: one AVX-512 register, two of AVX2
TILES = ((1, 1), (1, 4), (2, 4))  # (vectors along x, rows along y) of the sums that a schedule keeps in registers
TRIED = 3  # runs of each schedule; the fastest one is the peer
BORDERS = {"constant": "BORDER_CONSTANT", "nearest": "BORDER_REPLICATE", "reflect": "BORDER_REFLECT",
           "mirror": "BORDER_REFLECT_101", "wrap": "BORDER_WRAP"}  # scipy's name -> OpenCV's  # fmt: skip


def halide_call(case, inputs: dict) -> Call | None:
    """Halide's filter with every tap written out, by the fastest of three schedules.

    None for channels, for factors, for a border that is not 0, and for a number of threads that Halide does not take:
    its pool has one thread per core. Raises ModuleNotFoundError without Halide.
    """
    import halide

    dense = not isinstance(inputs["weights"], tuple)
    if case.C or case.mode != "constant" or case.cval or case.origin or not dense:
        return None
    if thread_count() not in (1, len(os.sched_getaffinity(0))):
        return None
    calls = [_filter(halide, inputs["x"], inputs["weights"], tile) for tile in TILES]
    return min(calls, key=lambda call: min(_seconds(call) for _ in range(TRIED)))


def _filter(hl: Any, x: np.ndarray, weights: np.ndarray, tile: tuple[int, int]) -> Call:
    """A compiled filter. x: float32 (D, H, W). weights: (KD, KH, KW). tile: one of TILES."""
    vectors, rows = tile
    i, j, k, ii, jj = (hl.Var(name) for name in ("i", "j", "k", "ii", "jj"))  # i along W, j along H, k along D
    KD, KH, KW = weights.shape
    padded, out = hl.Func("padded"), hl.Func("out")
    padded[i, j, k] = hl.BoundaryConditions.constant_exterior(hl.Buffer(x), hl.f32(0.0))[i, j, k]
    terms = [
        hl.f32(float(weights[a, b, c])) * padded[i + c - KW // 2, j + b - KH // 2, k + a - KD // 2]
        for a, b, c in np.ndindex(KD, KH, KW)
    ]
    out[i, j, k] = sum(terms[1:], terms[0])
    out.tile(i, j, ii, jj, LANES * vectors, rows).vectorize(ii, LANES).unroll(ii).unroll(jj)
    padded.compute_root().vectorize(i, LANES)
    if thread_count() > 1:
        out.parallel(k)
        padded.parallel(k)
    out.compile_jit()
    result = zeros(x.shape)
    buffer = hl.Buffer(result)

    def call() -> np.ndarray:
        out.realize(buffer)
        return result

    return call


def opencv_call(case, inputs: dict) -> Call | None:
    """OpenCV's separable filter of each plane, then a filter along z. None for channels and dense kernels, where it has
    no three-dimensional filter. Raises ModuleNotFoundError without OpenCV."""
    import cv2

    x, weights = inputs["x"], inputs["weights"]
    if case.C or not isinstance(weights, tuple) or case.origin or case.cval or case.mode not in BORDERS:
        return None
    cv2.setNumThreads(thread_count())
    border = getattr(cv2, BORDERS[case.mode])
    along_z, along_y, along_x = (np.asarray(factor, np.float32) for factor in weights)
    D, H, W = x.shape
    planes, out = zeros(x.shape), zeros((D, H * W))

    def call() -> np.ndarray:
        for plane, result in zip(x, planes, strict=True):
            cv2.sepFilter2D(plane, cv2.CV_32F, along_x, along_y, dst=result, borderType=border)
        cv2.filter2D(planes.reshape(D, H * W), cv2.CV_32F, along_z[:, None], dst=out, borderType=border)
        return out.reshape(D, H, W)

    return call


def _seconds(call: Call) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin
