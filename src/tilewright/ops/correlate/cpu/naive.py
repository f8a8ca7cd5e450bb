"""One output after the other, its taps one after the other; a number is looked up through its axes' offsets."""

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
from tilewright.ops.correlate.cpu.tile import SIGNATURE, choice, number_reader, offset_of, row_writer
from tilewright.ops.correlate.frame import AXIS, ENDS, axes_of, frame_of
from tilewright.ops.correlate.operands import KINDS, NEGATED, OUTSIDE, Edges, Taps

read_number = choice([number_reader(kind) for kind in KINDS])
write_number = choice([row_writer(kind, 1) for kind in (*KINDS, NEGATED)])


@simd.inline
def fetch_number(scratch, slot, axes, ends, offsets, place, cval):
    """The number at `place` of the extended array to scratch[slot]."""
    w, z, y, x = place
    from_w, from_z = offset_of(axes, offsets, 0, w), offset_of(axes, offsets, 1, z)
    from_y, from_x = offset_of(axes, offsets, 2, y), offset_of(axes, offsets, 3, x)
    if from_w == OUTSIDE or from_z == OUTSIDE or from_y == OUTSIDE or from_x == OUTSIDE:
        store_sums(scratch, slot, start_sums(cval, 1, 1))
    else:
        read_number(ends[ENDS.source_kind], scratch, slot, ends[ENDS.source] + from_w + from_z + from_y + from_x)


@simd.inline
def sum_taps(scratch, axes, ends, offsets, taps, weights, numbers, output):
    """The sum of an output's taps."""
    w, z, y, x = output
    total = start_sums(numbers[1], 1, 1)
    for t in range(weights.size):
        place = w + taps[t, 0], z + taps[t, 1], y + taps[t, 2], x + taps[t, 3]
        fetch_number(scratch, 0, axes, ends, offsets, place, numbers[0])
        if t < ends[ENDS.singles]:
            total = add_product(total, scratch, 0, weights[t])
        else:
            place = w + taps[t, 4], z + taps[t, 5], y + taps[t, 6], x + taps[t, 7]
            fetch_number(scratch, 1, axes, ends, offsets, place, numbers[0])
            if ends[ENDS.sign] > 0:
                total = add_even_pair(total, scratch, 0, 1, weights[t])
            else:
                total = add_odd_pair(total, scratch, 0, 1, weights[t])
    return divide_sums(total, start_sums(numbers[2], 1, 1))


@simd.kernel(SIGNATURE, name="correlate.naive")
def loops(axes, ends, offsets, taps, weights, numbers, tasks, scratch):
    """taps: eight columns, the places of a tap and of its partner."""
    scratch, offsets = address_of(scratch), address_of(offsets)
    for w in range(axes[0, AXIS.size]):
        for z in range(axes[1, AXIS.size]):
            for y in range(axes[2, AXIS.size]):
                for x in range(axes[3, AXIS.size]):
                    total = sum_taps(scratch, axes, ends, offsets, taps, weights, numbers, (w, z, y, x))
                    store_sums(scratch, 0, total)
                    out = ends[ENDS.out] + w * axes[0, AXIS.out_step] + z * axes[1, AXIS.out_step]
                    out += y * axes[2, AXIS.out_step] + x * axes[3, AXIS.out_step]
                    write_number(ends[ENDS.out_kind], scratch, 0, out, 0, 1)


def sum_each(x: np.ndarray, taps: Taps, edges: Edges, out: np.ndarray) -> None:
    """The rung's run function."""
    x = x.copy() if np.may_share_memory(x, out) else x
    frame = frame_of(x, out, axes_of(x, out, taps.window), taps, edges, 1)
    places = np.zeros((len(taps.weights), 8), np.int64)
    places[:, :4] = frame.places(taps.places)
    places[taps.singles :, 4:] = frame.places(taps.partners)
    numbers = np.array([edges.cval, taps.start, taps.divisor])
    tables = frame.axes, frame.ends, frame.offsets, places, taps.weights, numbers
    launch(loops, *tables, tasks=1, words=4)
