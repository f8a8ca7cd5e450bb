"""What tells kernels apart whose source is in no hash: their code, and all values and functions that they take."""

import math
import os
import subprocess
import sys
from types import ModuleType, SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest

from tilewright import simd
from tilewright.simd.own_code import digest_of

FACTOR = 3


def plain(x):
    return x * 2


def made(taken):
    """A kernel's function that takes `taken` from its factory."""

    def run(x):
        return x + taken

    return run


def calling(inner):
    """A kernel's function that calls `inner`."""

    def run(x):
        return inner(x) + math.floor(x)

    return run


class Job(NamedTuple):
    """The sizes of a kernel."""

    rows: int
    columns: int


def test_kernels_of_the_package_have_no_digest():
    from tilewright.ops.softmax.cpu.naive import normalise

    assert digest_of(normalise.function) == ""


def test_equal_functions_of_two_names():
    def other(x):
        return x * 2

    assert digest_of(plain) == digest_of(other)
    assert len(digest_of(plain)) == 64


@pytest.mark.parametrize(
    ("one", "other"),
    [(1, 2), (1, 1.0), ((1, 2), (1, 3)), ([1], (1,)), (np.arange(3), np.arange(3) + 1), (np.float32, np.float64),
     (Job(1, 2), Job(2, 2)), (np.dtype("f4"), np.dtype("f8")), (np.sin, np.cos), (math.sin, math.cos)],
)  # fmt: skip
def test_values_of_a_factory(one, other):
    assert digest_of(made(one)) == digest_of(made(one))
    assert digest_of(made(one)) != digest_of(made(other))


def test_functions_that_are_compiled_into_it():
    def triple(x):
        return x * 3

    for wrap in (lambda function: function, simd.inline):
        assert digest_of(calling(wrap(plain))) != digest_of(calling(wrap(triple)))
        assert digest_of(calling(wrap(made(1)))) != digest_of(calling(wrap(made(2))))
    assert digest_of(calling(simd.fma)) != digest_of(calling(simd.load))


def test_values_of_its_module(monkeypatch):
    def run(x):
        return x * FACTOR

    before = digest_of(run)
    monkeypatch.setitem(globals(), "FACTOR", 4)
    assert digest_of(run) != before


def test_values_of_a_module_that_it_names():
    module = ModuleType("sizes")
    module.ROWS, module.UNUSED = 4, object()

    def run(x):
        return x * module.ROWS

    before = digest_of(run)
    module.ROWS = 5
    assert len(before) == 64 and digest_of(run) not in (before, None)


def test_functions_that_call_each_other():
    def even(x):
        return x == 0 or odd(x - 1)

    def odd(x):
        return x != 0 and even(x - 1)

    assert len(digest_of(even)) == 64


def test_a_value_of_an_unknown_type():
    assert digest_of(made(SimpleNamespace(a=object()))) is None
    assert digest_of(made(object())) is None


def test_digests_are_those_of_other_processes():
    """The order of a set of texts is not."""
    program = "from tilewright.simd.own_code import digest_of; print(digest_of(lambda x: x in {'a', 'b', 'c', 'd'}))"

    def answer(seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", program]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    assert answer("1") == answer("2") == f"{digest_of(lambda x: x in {'a', 'b', 'c', 'd'})}\n"
