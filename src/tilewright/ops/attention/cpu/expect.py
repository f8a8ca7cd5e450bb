"""Lines asked for before they are read: a core waits for few at a time, and a cache of short sequences lies all over
memory, where no stream is long enough for the processor to foresee it.
"""

import functools

from tilewright import simd
from tilewright.ops.attention.cpu.parameters import numbers_of
from tilewright.ops.attention.operands import PANEL_VECTORS, SPAN
from tilewright.ops.core.memory import LINE

WORDS_A_LINE = LINE // 4
EXPECTED = 64  # rows of a span up to which the lines of its next head fit into L1 beside those of this one
FORESEEN = 4 << 10  # words of a head's keys beyond which the processor foresees them
NOTHING = (0, 0)  # no next keys
NOBODY = -1  # no span


@simd.inline
def next_keys(size, spans, s, following, job):
    """What `asking` asks for while the lone query of the span at s is looked at: (whether anything, where the keys of
    the next task begin). size: words of a key; following: (the next task's span, its first head)."""
    slot = spans[following[0] + SPAN.slot] * job.heads + following[1]
    return (int(spans[s + SPAN.first] * size < FORESEEN), slot * job.head_keys)


@functools.cache
def asking(lanes: int):
    """The inline function that asks for lines while a number of some heads meets a panel of their keys."""
    PANEL = PANEL_VECTORS * lanes

    @simd.inline
    def ask(height, ahead, d):
        """The panel's values and the next task's keys, as far in as number d of the keys that are read now: they take
        the same room. ahead: (whether at all, keys, where the next begin, step from head to head, values, where, step).

        Values go to L1, where they are read in a moment; keys to L2, beside what is in use.
        """
        wanted, keys, k_at, k_step, values, v_at, v_step = ahead
        if wanted:
            for i in range(height):
                for line in range(d * PANEL, d * PANEL + PANEL, WORDS_A_LINE):
                    simd.prefetch(values, v_at + i * v_step + line)
                    simd.prefetch_far(keys, k_at + i * k_step + line)

    return ask


@functools.cache
def expecting(lanes: int, dtype: str):
    """(what asks for the rows of a span's next head, what asks for the lines that its results and its new keys and
    values go to): inline functions. Two portions with work between them: no more lines are on their way at once than
    a core waits for."""
    NUMBERS, PANEL = numbers_of(dtype), PANEL_VECTORS * lanes

    @simd.inline
    def expect_rows(q, spans, s, head, job):
        """Rows of q, and of new keys and values; s: the span, or NOBODY."""
        if s == NOBODY or spans[s + SPAN.length] > EXPECTED:
            return
        size = job.head_size // NUMBERS
        for row in range(spans[s + SPAN.row], spans[s + SPAN.row] + spans[s + SPAN.length]):
            at = row * job.q_step + head * size
            for d in range(at, at + size, WORDS_A_LINE):
                simd.prefetch(q, d)
                if job.new_k:
                    simd.prefetch(q, d + job.new_k)
                    simd.prefetch(q, d + job.new_v)

    @simd.inline
    def expect_kept(keys, values, spans, s, head, job):
        """Where the first panel of new keys and all new values will be kept."""
        size, width, first, count = job.head_size // NUMBERS, job.width, spans[s + SPAN.first], spans[s + SPAN.length]
        slot = spans[s + SPAN.slot] * job.heads + head
        k_at, v_at = slot * job.head_keys + first // PANEL * PANEL * size, slot * job.head_values
        for d in range(size):
            simd.prefetch_write(keys, k_at + d * PANEL + first % PANEL)
        for d in range(first // NUMBERS * width, (first + count + NUMBERS - 1) // NUMBERS * width, WORDS_A_LINE):
            simd.prefetch_write(values, v_at + d)

    @simd.inline
    def expect_results(arrays, spans, s, head, job):
        """Rows of out, and what `expect_kept` asks for; s: the span, or NOBODY."""
        if s == NOBODY or spans[s + SPAN.length] > EXPECTED:
            return
        _, keys, values, out = arrays
        if job.new_k:
            expect_kept(keys, values, spans, s, head, job)
        for row in range(spans[s + SPAN.row], spans[s + SPAN.row] + spans[s + SPAN.length]):
            at = row * job.out_step + head * job.head_size
            for d in range(at, at + job.head_size, LINE // out.itemsize):
                simd.prefetch_write(out, d)

    return expect_rows, expect_results
