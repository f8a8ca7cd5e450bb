"""Random valid problems for every operation and rung, each against float64 with the operation's own bound.

    python tests/random_problems.py                                   # every operation, every rung, 200 problems each
    python tests/random_problems.py conv_transpose2d cpu.columns --count 5000 --lanes 8
    python tests/random_problems.py matmul cpu.packed --seed 17       # one problem again, as a failure prints it

`ops/test_random_problems.py` runs hundreds in `make test` and thousands in `make test-long`. An output starts as NaN
between guard zones, and each problem runs on one thread and on several.
"""

import argparse
import dataclasses
import importlib
import sys
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np

from compare import Guarded, compare, frozen
from ops.cases import cases_of
from random_cases import RANDOM, spec_of
from tilewright.errors import TilewrightError
from tilewright.hardware.cpu import CPU, cpu
from tilewright.ops.core.ladder import using
from tilewright.ops.core.launch import threads
from tilewright.ops.core.needs import amx_tiles
from tilewright.simd import amx

TILE_LANES = 16  # what kernels on AMX tiles need; kernels of 16 lanes run on any CPU
TRIES = 4000  # problems drawn until a rung takes one
EMULATED = (
    "gemm.cpu.amx.multiply",
    "matmul_argmax.cpu.fused.best",
    "logprob.cpu.fused.run",
    "conv_transpose2d.cpu.amx.convolve",
)
CHOSEN = "chosen"  # in place of a rung's name: the one that the ladder chooses


class NoProblemError(AssertionError):
    """No problem that was drawn is one that the rung takes."""


def ladder_of(op: str):
    """The ladder of an operation."""
    return importlib.import_module(f"tilewright.ops.{op}").ladder


def classes(op: str) -> tuple[str, ...]:
    """The accuracy classes that a problem of this operation may have on a CPU."""
    return tuple(dict.fromkeys(case.dtype for case in cases_of(op)))


def reproducer(op: str, rung: str, seed: int, lanes: int | None = None) -> str:
    """The command that runs one problem again."""
    width = f" --lanes {lanes}" if lanes else ""
    return f"python tests/random_problems.py {op} {rung} --seed {seed}{width}"


@contextmanager
def vectors_of(lanes: int | None) -> Iterator[None]:
    """Kernels for vectors of `lanes` float32; None: this machine's. Also a decorator of tests."""
    ladders = [ladder_of(op) for op in RANDOM]
    kept = vars(CPU)["lanes"]
    if lanes:
        CPU.lanes = lanes
    for ladder in ladders:
        ladder._chosen.cache_clear()
    try:
        yield
    finally:
        CPU.lanes = kept
        for ladder in ladders:
            ladder._chosen.cache_clear()


def slow_to_compile(test):
    """A test of kernels of 16 lanes: long where vectors are narrower, as LLVM takes a minute to split them."""
    import pytest  # this file also runs as a program

    return pytest.mark.long(test) if cpu().lanes < TILE_LANES else test


@contextmanager
def emulated_tiles() -> Iterator[None]:
    """The rungs on AMX tiles run on emulated ones; on a CPU that has tiles they run on those.

    Such a CPU has vectors of 16 lanes: where vectors are narrower, those rungs refuse.
    """
    if amx.available() or cpu().lanes < TILE_LANES:
        yield
        return
    functions = []
    for path in EMULATED:
        module, _, name = path.rpartition(".")
        functions.append(getattr(importlib.import_module(f"tilewright.ops.{module}"), name))
    ladders, hardware = [ladder_of(op) for op in RANDOM], amx.Hardware
    kept = [dict(ladder.rungs) for ladder in ladders]
    try:
        amx.Hardware = amx.Emulated
        for function in functions:
            function.__kwdefaults__ = {"emulated": True}
        for ladder in ladders:
            for name, rung in ladder.rungs.items():
                needs = tuple(need for need in rung.needs if need is not amx_tiles)
                ladder.rungs[name] = dataclasses.replace(rung, needs=needs)
            ladder._chosen.cache_clear()
        yield
    finally:
        amx.Hardware = hardware
        for function in functions:
            function.__kwdefaults__ = {"emulated": False}
        for ladder, rungs in zip(ladders, kept, strict=True):
            ladder.rungs.update(rungs)
            ladder._chosen.cache_clear()


def pairs(lanes: int | None = None) -> list[tuple[str, str]]:
    """(operation, rung) of all on a CPU that can run here, and the chosen one of each operation."""
    with vectors_of(lanes), emulated_tiles():
        return list(_pairs())


def _pairs() -> Iterator[tuple[str, str]]:
    for op in RANDOM:
        ladder = ladder_of(op)
        for rung in ladder.rungs.values():
            reasons = [rung.refuses(case.problem) for case in cases_of(op)]
            if rung.name.startswith("cpu.") and not any("this CPU" in why for one in reasons for why in one):
                yield op, rung.name
        yield op, CHOSEN


def draw(op: str, rung: str, seed: int, device: str = "cpu", dtypes: tuple[str, ...] = ()):
    """(case, generator) of the problem number `seed` that the rung takes; `reproducer` names it."""
    rng = np.random.default_rng([zlib.crc32(f"{op} {rung}".encode()), seed])
    dtypes = dtypes or classes(op)
    for _ in range(TRIES):
        case = RANDOM[op](rng, dtypes[int(rng.integers(len(dtypes)))])
        if device != "cpu":
            case = dataclasses.replace(case, device=device)
        if rung == CHOSEN or not ladder_of(op).rungs[rung].refuses(case.problem):
            return case, rng
    raise NoProblemError(f"{op}.{rung} took none of {TRIES} random problems")


def check(op: str, rung: str, seed: int) -> None:
    """Raise AssertionError unless the rung's result is right, whole, beside nothing, and the same on any threads."""
    case, rng = draw(op, rung, seed)
    spec, ladder = spec_of(op), ladder_of(op)
    inputs = frozen(spec.make(case, rng))
    before = [array.tobytes() for array in arrays_in(inputs)]
    reference = spec.reference(case, inputs)
    constant = (ladder.choose(case.problem) if rung == CHOSEN else ladder.rungs[rung]).c
    bound = spec.bound(case, inputs, reference, constant)
    first, second = Guarded(reference.shape), Guarded(reference.shape)
    with using(**({} if rung == CHOSEN else {op: rung})):
        call = spec.bind(case, inputs)
        with threads(1):
            call(out=first.array)
        with threads(int(rng.integers(2, 6))):
            call(out=second.array)
            whole = np.asarray(call())  # without gaps, as a guarded one never is
    try:
        first.check()
        second.check()
        compare(np.ascontiguousarray(first.array), reference, bound)
        assert first.array.tobytes() == second.array.tobytes(), "another number of threads gives other bits"
        assert whole.tobytes() == first.array.tobytes(), "an output without gaps gets other bits"
        assert before == [array.tobytes() for array in arrays_in(inputs)], "an input was written"
    except AssertionError as error:
        raise AssertionError(f"{case.name}: {error}") from None


def arrays_in(inputs: dict) -> list[np.ndarray]:
    """Every array of a problem, also those in lists and tuples."""
    values = [v for value in inputs.values() for v in (value if isinstance(value, list | tuple) else [value])]
    return [value for value in values if isinstance(value, np.ndarray)]


def failures(op: str, rung: str, seeds, lanes: int | None = None) -> list[str]:
    """What went wrong, a line a problem: the command that shows it again, and how."""
    found = []
    with ExitStack() as stack:
        stack.enter_context(vectors_of(lanes))
        stack.enter_context(emulated_tiles())
        for seed in seeds:
            try:
                check(op, rung, seed)
            except (AssertionError, TilewrightError, ArithmeticError, LookupError, TypeError, ValueError) as error:
                found.append(f"{reproducer(op, rung, seed, lanes)}    # {type(error).__name__}: {error}")
    return found


def main() -> int:
    """Run what the arguments name; the exit code is 1 if a problem went wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("op", nargs="?", choices=RANDOM)
    parser.add_argument("rung", nargs="?")
    parser.add_argument("--seed", type=int, help="this problem alone")
    parser.add_argument("--first", type=int, default=0, help="the first problem's number")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--lanes", type=int, choices=(4, 8, 16), help=f"{cpu().lanes} here")
    asked = parser.parse_args()
    seeds = range(asked.first, asked.first + asked.count) if asked.seed is None else [asked.seed]
    every = [
        pair for pair in pairs(asked.lanes) if pair[0] == (asked.op or pair[0]) and pair[1] == (asked.rung or pair[1])
    ]
    wrong = 0
    for op, rung in every:
        found = failures(op, rung, seeds, asked.lanes)
        wrong += len(found)
        print(f"{op} {rung}: {len(seeds)} problems, {len(found)} wrong", *found[:10], sep="\n    ", flush=True)
    print(f"{len(every) * len(seeds)} problems of {len(every)} rungs, {wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
