"""What `@kernel` promises: one signature, no GIL, errors that arrive."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from numba import types

from tilewright import simd
from tilewright.errors import UsageError


@simd.kernel(types.void(simd.INPUT, simd.OUTPUT), name="test.copy")
def copy(source, target):
    for i in range(source.size):
        target[i] = source[i]


def test_a_wrong_dtype_is_an_error_and_no_second_compilation():
    with pytest.raises(TypeError):
        copy(np.zeros(3), np.zeros(3, np.float32))
    assert len(copy.compiled().signatures) == 1


def test_read_only_arrays_are_inputs_and_never_outputs():
    source, target = np.arange(3, dtype=np.float32), np.zeros(3, np.float32)
    source.flags.writeable = False
    copy(source, target)
    assert list(target) == [0, 1, 2]
    target.flags.writeable = False
    with pytest.raises(TypeError):
        copy(source, target)


def test_two_kernels_of_one_name_are_refused():
    with pytest.raises(UsageError, match=r"two kernels are called 'test\.copy'"):
        simd.kernel(types.void(simd.INPUT), name="test.copy")(lambda x: None)


def test_an_inline_function_is_called_by_kernels_alone():
    """Without Numba's wrappers a call from Python would crash the process."""
    twice = simd.inline(lambda x: 2 * x)
    with pytest.raises(TypeError, match=r"is compiled into kernels alone: call .*py_func"):
        twice(3)
    assert twice.py_func(3) == 6


@simd.inline
def some_of(arrays, i):
    first, second = arrays
    return first[i : i + 4].reshape(2, 2)[1, 1] + second[i]


def test_no_references_are_counted(monkeypatch):
    """With counts, threads that share an array would wait for each other at each call with it."""

    def add(a, b):
        for i in range(4):
            a[i] = some_of((a, b), i) if b[i] > 0 else some_of((b, a), i)

    monkeypatch.setenv("TILEWRIGHT_CACHE", "off")  # a kernel from a file has no LLVM source
    kernel = simd.kernel(types.void(simd.OUTPUT, simd.OUTPUT), name="test.counts")(add)
    (code,) = kernel.compiled().inspect_llvm().values()
    assert "define" in code and "NRT_" not in code


@simd.kernel(types.int64(simd.COUNTERS, types.int64), name="test.meet")
def meet(arrived, patience):
    """Arrive, then poll until two threads have arrived: at least 0 only if both run at the same time."""
    simd.fetch_add(arrived, 0, 1)
    for poll in range(patience):
        if simd.fetch_add(arrived, 0, 0) == 2:
            return poll
    return -1


def test_kernels_run_side_by_side():
    meet(np.zeros(1, np.int64), 1)
    arrived, polls = np.zeros(1, np.int64), []
    workers = [threading.Thread(target=lambda: polls.append(meet(arrived, 2_000_000_000))) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert min(polls) >= 0


@simd.kernel(types.int64(types.int64), name="test.divide")
def divide_ten(by):
    return 10 // by


def test_an_error_inside_arrives():
    assert divide_ten(5) == 2
    with pytest.raises(ZeroDivisionError):
        divide_ten(0)


@simd.inline
def seven_by(by):
    return 7 // by


@simd.kernel(types.int64(types.int64), name="test.divide_inside")
def divide_seven(by):
    return 1 + seven_by(by)


def test_an_error_inside_an_inline_function_arrives():
    assert divide_seven(2) == 4
    with pytest.raises(ZeroDivisionError):
        divide_seven(0)


@simd.inline
def shown(number):
    print("number", number)
    return number


def show_and_add(number):
    return shown(number) + seven_by(number)


def test_an_inline_function_has_no_machine_code_of_its_own(monkeypatch):
    """Making it took a quarter of a kernel's compile time."""
    monkeypatch.setenv("TILEWRIGHT_CACHE", "off")  # a kernel from a file has no inline functions
    kernel = simd.kernel(types.int64(types.int64), name="test.no_code")(show_and_add)
    kernel.compiled()
    for inlined in (shown, seven_by):
        (result,) = inlined.overloads.values()
        engine = result.target_context.codegen()._engine
        assert not engine.is_symbol_defined(result.fndesc.llvm_func_name)
    (result,) = kernel.compiled().overloads.values()
    assert engine.is_symbol_defined(result.fndesc.llvm_func_name)


def test_an_inline_function_prints(monkeypatch, capfd):
    """`print` finds its texts in the function's environment, which the kernel's machine code must know."""
    monkeypatch.setenv("TILEWRIGHT_CACHE", "off")
    kernel = simd.kernel(types.int64(types.int64), name="test.prints")(show_and_add)
    assert kernel(2) == 5
    sys.stdout.flush()
    assert capfd.readouterr().out == "number 2\n"


NAMESAKES = """if True:
    import sys
    import numpy as np
    from numba import types
    from tilewright import simd
    from tilewright.ops.core.launch import run_on_threads, threads

    def made(number):
        @simd.kernel(types.void(simd.COUNTERS, simd.OUTPUT), name=f"namesake.{number}")
        def write(plan, scratch):
            plan[0] = number
        return write

    kernels = {number: made(number) for number in map(int, sys.argv[1:])}
    for write in kernels.values():
        write.compiled()
    for number, write in kernels.items():
        plan = np.zeros(1, np.int64)
        with threads(2):
            run_on_threads(write, plan, tasks=2, words=1, drawn=False)
        assert plan[0] == number, (number, plan[0])
"""


def test_kernels_of_one_factory_that_two_processes_compiled(tmp_path):
    """A third process loads both, and each runs its own code, on several threads too."""
    for numbers in (["1"], ["2"], ["1", "2"]):
        environment = {**os.environ, "TILEWRIGHT_CACHE": str(tmp_path / "cache")}
        command = [sys.executable, "-c", NAMESAKES, *numbers]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
