"""One output after the other, one tap (one element of the filter) after the other, in float64.

out[i] = (start + sum over taps t of weights[t] * x[i + taps[t]]) / divisor. For each tap the element is found
through its axes' offsets and converted from x's dtype, which takes longer than the multiplication.
"""

import numpy as np

from tilewright import simd
from tilewright.ops.core.launch import launch
from tilewright.ops.correlate.cpu.doubles import (
    add_even_pair,
    add_odd_pair,
    add_product,
    address_of,
    divide_sums,
    start_sums,
    store_sums,
)
from tilewright.ops.correlate.cpu.tile import SIGNATURE, PerAxis, choice, element_reader, offset_of, row_writer
from tilewright.ops.correlate.frame import axes_of, frame_of
from tilewright.ops.correlate.operands import KINDS, NEGATED, OUTSIDE, Edges, Taps

read_element = choice([element_reader(kind) for kind in KINDS])
write_element = choice([row_writer(kind, 1) for kind in (*KINDS, NEGATED)])


@simd.inline
def fetch_element(scratch, slot, job, offsets, index):
    """scratch[slot] = the element at `index` of the extended x."""
    from_w, from_z = offset_of(job.w, offsets, index.w), offset_of(job.z, offsets, index.z)
    from_y, from_x = offset_of(job.y, offsets, index.y), offset_of(job.x, offsets, index.x)
    if from_w == OUTSIDE or from_z == OUTSIDE or from_y == OUTSIDE or from_x == OUTSIDE:
        store_sums(scratch, slot, start_sums(job.cval, 1, 1))
    else:
        read_element(job.source_kind, scratch, slot, job.source + from_w + from_z + from_y + from_x)


@simd.inline
def moved(output, taps, t, c):
    """The index of an output's element under a tap, whose window indices are in columns c to c + 3."""
    return PerAxis(
        output.w + taps[t, c], output.z + taps[t, c + 1], output.y + taps[t, c + 2], output.x + taps[t, c + 3]
    )


@simd.inline
def sum_taps(scratch, job, offsets, taps, weights, output):
    """The value of the output at index `output`."""
    total = start_sums(job.start, 1, 1)
    for t in range(weights.size):
        fetch_element(scratch, 0, job, offsets, moved(output, taps, t, 0))
        if t < job.singles:
            total = add_product(total, scratch, 0, weights[t])
        else:
            fetch_element(scratch, 1, job, offsets, moved(output, taps, t, 4))
            if job.sign > 0:
                total = add_even_pair(total, scratch, 0, 1, weights[t])
            else:
                total = add_odd_pair(total, scratch, 0, 1, weights[t])
    return divide_sums(total, start_sums(job.divisor, 1, 1))


@simd.kernel(SIGNATURE, name="correlate.naive")
def loops(job, offsets, taps, weights, tasks, scratch):
    """job: `Job`. offsets: `Frame.offsets`. taps: int64 (T, 8), window indices of each tap, then of its partner.
    weights: float64 (T,). scratch: two float64."""
    scratch, offsets = address_of(scratch), address_of(offsets)
    for w in range(job.w.size):
        for z in range(job.z.size):
            for y in range(job.y.size):
                for x in range(job.x.size):
                    total = sum_taps(scratch, job, offsets, taps, weights, PerAxis(w, z, y, x))
                    store_sums(scratch, 0, total)
                    out = job.out + w * job.w.out_step + z * job.z.out_step + y * job.y.out_step + x * job.x.out_step
                    write_element(job.out_kind, scratch, 0, out, 0, 1)


def sum_each(x: np.ndarray, taps: Taps, edges: Edges, out: np.ndarray) -> None:
    """out = the correlation of x with taps."""
    x = x.copy() if np.may_share_memory(x, out) else x
    frame = frame_of(x, out, axes_of(x, out, taps.window), taps, edges, 1)
    positions = np.zeros((len(taps.weights), 8), np.int64)
    positions[:, :4] = frame.on_axes(taps.positions)
    positions[taps.singles :, 4:] = frame.on_axes(taps.partners)
    launch(loops, frame.job, frame.offsets, positions, taps.weights, tasks=1, words=4)
