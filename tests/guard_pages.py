"""Random problems whose operands and outputs end, or begin, at a page that nobody may touch: a kernel that reads or
writes one byte beside them ends the process.

    python tests/guard_pages.py                                      # every operation, every rung, 20 problems each
    python tests/guard_pages.py conv_transpose2d cpu.columns --seed 19   # one again: the last line of a run that ended

`ops/test_guard_pages.py` runs it in `make test-long`, in a process for each operation and width of vectors.
"""

import argparse
import ctypes
import mmap
import sys
from contextlib import ExitStack

import numpy as np

from compare import compare
from random_cases import RANDOM, spec_of
from random_problems import CHOSEN, arrays_in, draw, emulated_tiles, ladder_of, pairs, vectors_of
from tilewright.hardware.cpu import cpu
from tilewright.ops.core.ladder import using
from tilewright.ops.core.launch import threads

PAGE = mmap.PAGESIZE
NOBODY = 0  # mprotect's PROT_NONE
SIDES = ("start", "end")  # of a page run: where an array lies


def pages(count: int, side: str) -> np.ndarray:
    """uint8 (count,): memory that begins, or ends, at a page that nobody may read or write."""
    inside = -(-max(count, 1) // PAGE) * PAGE
    memory = mmap.mmap(-1, inside + 2 * PAGE)
    whole = np.frombuffer(memory, np.uint8)
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    for first in (0, inside + PAGE):
        if protect(whole.ctypes.data + first, PAGE, NOBODY):
            raise OSError(ctypes.get_errno(), "mprotect refuses")
    first = PAGE if side == "start" else PAGE + inside - count
    return whole[first : first + count]


def fenced(array: np.ndarray, side: str) -> np.ndarray:
    """A copy with the same strides, its first or its last byte beside a guard page."""
    if not array.size:
        return array
    low, high = np.lib.array_utils.byte_bounds(array)
    memory = pages(high - low, side)
    start = array.__array_interface__["data"][0] - low
    copy = np.ndarray(array.shape, array.dtype, memory, start, array.strides)
    copy[...] = array
    return copy


def moved(value, side: str):
    """An argument with its arrays beside guard pages."""
    if isinstance(value, np.ndarray):
        return fenced(value, side)
    return type(value)(moved(part, side) for part in value) if type(value) in (list, tuple) else value


def check(op: str, rung: str, seed: int, side: str) -> None:
    """Raise AssertionError where the result is wrong; the process ends where a guard page is touched."""
    case, rng = draw(op, rung, seed)
    spec, ladder = spec_of(op), ladder_of(op)
    plain = spec.make(case, rng)
    inputs = {name: moved(value, side) for name, value in plain.items()}
    reference = spec.reference(case, plain)
    constant = (ladder.choose(case.problem) if rung == CHOSEN else ladder.rungs[rung]).c
    out = fenced(np.full(reference.shape, np.nan, np.float32), side)
    with using(**({} if rung == CHOSEN else {op: rung})), threads(1 + seed % 3):
        spec.bind(case, inputs)(out=out)
    compare(np.ascontiguousarray(out), reference, spec.bound(case, plain, reference, constant))
    assert [a.tobytes() for a in arrays_in(inputs)] == [a.tobytes() for a in arrays_in(plain)], "an input was written"


def main() -> None:
    """Run what the arguments name; each problem's command is printed before it runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("op", nargs="?", choices=RANDOM)
    parser.add_argument("rung", nargs="?")
    parser.add_argument("--seed", type=int, help="this problem alone")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--lanes", type=int, choices=(4, 8, 16), default=cpu().lanes, help=f"{cpu().lanes} here")
    asked = parser.parse_args()
    every = [
        pair for pair in pairs(asked.lanes) if pair[0] == (asked.op or pair[0]) and pair[1] == (asked.rung or pair[1])
    ]
    seeds = range(asked.count) if asked.seed is None else [asked.seed]
    with ExitStack() as stack:
        stack.enter_context(vectors_of(asked.lanes))
        stack.enter_context(emulated_tiles())
        for op, rung in every:
            for seed in seeds:
                print(f"python tests/guard_pages.py {op} {rung} --seed {seed} --lanes {asked.lanes}", flush=True)
                for side in SIDES:
                    check(op, rung, seed, side)
    print(f"{len(every) * len(seeds) * len(SIDES)} problems of {len(every)} rungs beside guard pages, 0 findings")


if __name__ == "__main__":
    sys.exit(main())
