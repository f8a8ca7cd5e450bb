"""OpenCV, a library for images: separable filters of volumes, as two passes over images."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from tilewright.bench.measure import Call
from tilewright.ops.core.launch import thread_count
from tilewright.ops.core.memory import zeros

BORDERS = {  # ours -> OpenCV's
    "constant": "BORDER_CONSTANT",
    "reflect": "BORDER_REFLECT",
    "mirror": "BORDER_REFLECT_101",
    "nearest": "BORDER_REPLICATE",
}
ROWS = 2  # of each plane, in one image of the pass along z: the rows under a window stay in the first cache
PARTS = 4  # for each thread: more balance the work better, and cost more calls


def opencv_call(case, inputs: dict) -> Call | None:
    """A separable kernel: along z over images of D rows, then along y and x over each plane. `thread_count()` threads
    share the images. Its result is float32 (D, H, W), in memory that is allocated. None if the kernel is not given as
    factors, if its sizes are even, or for a border that OpenCV lacks.

    Raises ModuleNotFoundError if OpenCV is missing.
    """
    import cv2

    x, weights = inputs["x"], inputs["weights"]
    odd = all(K % 2 for K in (case.KD, case.KH, case.KW))
    if not isinstance(weights, tuple) or case.mode not in BORDERS or case.cval or case.origin or not odd:
        return None
    border, one = getattr(cv2, BORDERS[case.mode]), np.ones(1, np.float32)
    wz, wy, wx = (np.ascontiguousarray(w, np.float32) for w in weights)
    x = np.ascontiguousarray(x)
    between, out = zeros(x.shape), zeros(x.shape)
    threads = ThreadPoolExecutor(thread_count())
    strips, planes = (_parts(n, thread_count()) for n in (case.H, case.D))

    def along_z(strip: range) -> None:
        for y in strip[::ROWS]:
            image, result = (array[:, y : min(y + ROWS, strip.stop)].reshape(case.D, -1) for array in (x, between))
            cv2.sepFilter2D(image, -1, one, wz, dst=result, borderType=border)

    def along_y_and_x(part: range) -> None:
        for z in part:
            cv2.sepFilter2D(between[z], -1, wx, wy, dst=out[z], borderType=border)

    def call():
        cv2.setNumThreads(1)  # of each of our threads: OpenCV's own threads do not share an image as small as a plane
        list(threads.map(along_z, strips))
        list(threads.map(along_y_and_x, planes))
        return out

    return call


def _parts(count: int, threads: int) -> list[range]:
    """The numbers below count, in PARTS ranges for each thread."""
    size = max(1, -(-count // (PARTS * threads)))
    return [range(at, min(at + size, count)) for at in range(0, count, size)]
