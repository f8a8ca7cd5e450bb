"""The bytes that rungs declare are those of the arrays that they make."""

import dataclasses
import importlib

import numpy as np
import pytest

from gpu import PLACE
from ops.cases import cases_of
from tilewright.ops.core import launch
from tilewright.ops.core.ladder import Ladder, Memory, Rung, operations, using

TABLES = 16 << 10  # bytes of index tables beside the weights, which are not declared


def prepared_bytes(prepared, seen: set[int]) -> int:
    """Bytes of all arrays and tensors in a record, each memory once."""
    if isinstance(prepared, np.ndarray):
        owner = prepared
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        new = id(owner) not in seen
        seen.add(id(owner))
        return prepared.nbytes * new
    if hasattr(prepared, "data_ptr"):
        new = prepared.data_ptr() not in seen
        seen.add(prepared.data_ptr())
        return prepared.nbytes * new
    if dataclasses.is_dataclass(prepared):
        prepared = [getattr(prepared, field.name) for field in dataclasses.fields(prepared)]
    if isinstance(prepared, dict):
        prepared = list(prepared.values())
    return sum(prepared_bytes(part, seen) for part in prepared) if isinstance(prepared, list | tuple) else 0


def prepare(op: str, case):
    """What the operation's `prepare` makes of a case's weights, without the caller's own arrays."""
    module = importlib.import_module(f"tilewright.ops.{op}")
    values = np.random.default_rng(0).standard_normal
    if op == "conv_transpose2d":
        weights = values((*case.K, case.O, case.C), dtype=np.float32)
        return module.prepare(weights, stride=case.stride, padding=case.padding, dtype=case.dtype)
    if op == "conv1d":
        return module.prepare(values((case.O, case.C, case.K), dtype=np.float32), dtype=case.dtype)
    b = values((case.N, case.K), dtype=np.float32).T
    if op == "matmul_argmax":
        screen = module.prepare(b, dtype=case.dtype).screen
        return screen and dataclasses.replace(screen, rows=b[:0, :0])  # its rows are b itself
    return module.prepare(b, dtype=case.dtype)


def declaring(device: str) -> list[tuple[str, str]]:
    """(operation, rung) of all that declare bytes on a device."""
    ladders = {op: importlib.import_module(f"tilewright.ops.{op}.ladder").ladder for op in operations()}
    return [
        (op, rung.name)
        for op, ladder in ladders.items()
        for rung in ladder.rungs.values()
        if rung.memory and rung.name.startswith("cpu.") == (device == "cpu")
    ]


@pytest.mark.parametrize(("op", "rung"), declaring("cpu"))
def test_a_rung_takes_the_bytes_that_it_declares(op, rung):
    ladder = importlib.import_module(f"tilewright.ops.{op}.ladder").ladder
    problems = {}
    for case in cases_of(op):
        if getattr(case, "device", "cpu") == "cpu" and 0 not in (case.problem.__dict__.values()):
            problems.setdefault(case.problem, case)
    taken = {problem: case for problem, case in problems.items() if not ladder.rungs[rung].refuses(problem)}
    if problems and not taken:
        pytest.skip(f"no case for {op}.{rung}: {ladder.rungs[rung].refuses(next(iter(problems)))}")
    assert taken
    with using(**{op: rung}):
        for problem, case in taken.items():
            declared = ladder.rungs[rung].memory_for(problem).prepared
            made = prepare(op, case)
            if made is not None:
                assert declared <= prepared_bytes(made, set()) <= declared + TABLES, problem


@pytest.mark.usefixtures("simulated_gpu")
@pytest.mark.parametrize(("op", "rung"), [pair for pair in declaring("cuda") if pair[0] == "matmul"])
def test_a_rung_for_gpus_takes_the_bytes_that_it_declares(op, rung):
    torch = pytest.importorskip("torch")
    from tilewright.ops.matmul import Problem, ladder, prepare

    for K, N in ((200, 5), (768, 96), (1000, 7), (193, 1), (256, 300)):
        for dtype in ("float32", "bfloat16", "float16", "tf32"):
            problem = Problem(N, K, dtype, "cuda")
            if ladder.rungs[rung].refuses(problem):
                continue
            with using(matmul=rung):
                made = prepare(torch.zeros(K, N, device=PLACE), dtype=dtype)
            assert made.data.nbytes == ladder.rungs[rung].memory_for(problem).prepared, problem


def test_every_rung_that_a_job_may_choose_declares_its_bytes():
    for op in ("matmul", "matmul_argmax", "conv_transpose2d", "conv1d"):
        for rung in importlib.import_module(f"tilewright.ops.{op}.ladder").ladder.rungs.values():
            if rung.prepare and rung.chosen and rung.name.startswith("cpu."):
                assert rung.memory, f"{op}.{rung.name} prepares weights and declares no bytes"


def test_a_rung_that_prepares_nothing_takes_nothing():
    assert Ladder("x", Rung("cpu.plain", idea="", kernel="softmax.cpu.naive:normalise")).rungs["cpu.plain"].memory_for(
        None
    ) == Memory(0, 0)


@pytest.mark.parametrize("op", operations())
def test_no_thread_has_more_scratch_than_is_declared(op, monkeypatch):
    most, run = [0], launch.run_on_threads

    def measured(kernel, *args, tasks, words):
        most[0] = max(most[0], 4 * words)
        run(kernel, *args, tasks=tasks, words=words)

    monkeypatch.setattr(launch, "run_on_threads", measured)
    spec = importlib.import_module(f"tilewright.bench.sizes.{op}")
    for case in spec.sizes():
        few = spec.with_rows(case, min(2, spec.rows(case)))
        if spec.cost(few)[1] < 64 << 20:
            spec.bind(few, spec.make(few, np.random.default_rng(0)))()
    assert most[0] <= launch.SCRATCH_BYTES
