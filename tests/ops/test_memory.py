"""The bytes that rungs declare are those of the arrays that they make."""

import dataclasses
import importlib

import numpy as np
import pytest

from gpu import PLACE
from ops.cases import cases_of
from tilewright.ops.conv3d import problem as conv3d
from tilewright.ops.core import launch
from tilewright.ops.core.ladder import Ladder, Memory, Rung, operations, using
from tilewright.ops.matmul import problem as matmul

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


def on_host(array):
    """The array itself."""
    return array


def on_gpu(array):
    """A tensor where GPU kernels run."""
    import torch

    return torch.from_numpy(np.ascontiguousarray(array)).to(PLACE)


def prepare(op: str, case, send=on_host):
    """(what the operation's `prepare` makes of a case's weights, without the caller's own arrays, the table that the
    rung fills later, or None)."""
    module = importlib.import_module(f"tilewright.ops.{op}")
    inputs = importlib.import_module(f"tilewright.bench.sizes.{op}").make(case, np.random.default_rng(0))
    if op == "conv_transpose2d":
        options = {"stride": case.stride, "padding": case.padding, "dtype": case.dtype}
        return module.prepare(send(inputs["weights"]), **options), None
    if op == "conv1d":
        return module.prepare(send(inputs["weight"]), dtype=case.dtype), None
    if op == "conv3d":
        weights, device = inputs["weights"], None if send is on_host else PLACE
        pack = module.prepare_separable if isinstance(weights, tuple) else module.prepare
        return dataclasses.replace(pack(weights, device=device), weights=None, factors=None), None
    if op == "embedding_conv1d":
        arrays = send(inputs["table"]), *(list(map(send, inputs[name])) for name in ("weights", "biases"))
        state = module.prepare(*arrays, length=case.L, dtype=case.dtype, memory=1 << 20).state
        if isinstance(state, list):
            return [one for one in state if not any(one.data is own for own in arrays[1])], None
        return (state.packed, state.slices) if send is on_host else (state.weights, state.cache)
    if op == "logprob":
        return module.prepare(send(inputs["b"]), dtype=case.dtype).b, None
    if op == "matmul_argmax":
        b = send(inputs["b"].T).T
        screen = module.prepare(b, dtype=case.dtype).screen
        return screen and dataclasses.replace(screen, rows=b[:0, :0]), None  # its rows are b itself
    return module.prepare(send(inputs["b"]), dtype=case.dtype), None


def declaring(device: str) -> list[tuple[str, str]]:
    """(operation, rung) of all that declare bytes on a device."""
    ladders = {op: importlib.import_module(f"tilewright.ops.{op}.ladder").ladder for op in operations()}
    return [
        (op, rung.name)
        for op, ladder in ladders.items()
        for rung in ladder.rungs.values()
        if rung.memory and rung.name.startswith("cpu.") == (device == "cpu")
    ]


MORE = {  # cases that rungs for GPUs need besides the operation's own: deep sums, many channels
    "conv3d": [conv3d.Case(3, 3, 3, 3, 3, 3, O=5, C=12), conv3d.Case(3, 3, 3, 2, 3, 3, O=70, C=33)],
    "matmul": [matmul.Case(1, N, K) for K, N in ((200, 5), (768, 96), (1000, 7), (193, 1), (256, 300))],
}
CLASSES = ("float32", "bfloat16", "float16", "tf32")


def taken_by(op: str, rung, device: str) -> dict:
    """problem -> case of all that the rung takes; no size in them is 0."""
    cases = list(cases_of(op))
    if device == "cuda":
        cases = [dataclasses.replace(c, dtype=d, device=device) for c in cases + MORE.get(op, []) for d in CLASSES]
    found = {}
    for case in cases:
        sizes = [value for value in vars(case.problem).values() if not isinstance(value, bool)]
        if 0 not in sizes and not rung.refuses(case.problem):
            found.setdefault(case.problem, case)
    return found


def check(op: str, name: str, device: str) -> None:
    """What the rung makes of all its cases is as large as it declares, and so is an entry of its table."""
    rung = importlib.import_module(f"tilewright.ops.{op}.ladder").ladder.rungs[name]
    taken = taken_by(op, rung, device)
    if not taken:
        pytest.skip(f"no case for {op}.{name}")
    for problem, case in taken.items():
        with using(**{op: name}):
            made, table = prepare(op, case, on_host if device == "cpu" else on_gpu)
            declared = rung.memory_for(problem)
        if made is not None:
            assert declared.prepared <= prepared_bytes(made, set()) <= declared.prepared + TABLES, problem
        entries = 0 if table is None else table.shape[1]
        assert declared.entry * entries == (0 if table is None else table.nbytes), problem


@pytest.mark.parametrize(("op", "rung"), declaring("cpu"))
def test_a_rung_takes_the_bytes_that_it_declares(op, rung):
    check(op, rung, "cpu")


@pytest.mark.usefixtures("simulated_gpu")
@pytest.mark.parametrize(("op", "rung"), declaring("cuda"))
def test_a_rung_for_gpus_takes_the_bytes_that_it_declares(op, rung):
    pytest.importorskip("torch")
    check(op, rung, "cuda")


@pytest.mark.parametrize("op", operations())
def test_every_rung_that_prepares_weights_declares_their_bytes(op):
    for rung in importlib.import_module(f"tilewright.ops.{op}.ladder").ladder.rungs.values():
        assert bool(rung.prepare) == bool(rung.memory), f"{op}.{rung.name} prepares weights and declares no bytes"


def test_a_rung_that_prepares_nothing_takes_nothing():
    assert Ladder("x", Rung("cpu.plain", idea="", kernel="softmax.cpu.naive:normalise")).rungs["cpu.plain"].memory_for(
        None
    ) == Memory(0, 0)


@pytest.mark.parametrize("op", operations())
def test_no_thread_has_more_scratch_than_is_declared(op, monkeypatch):
    most, run = [0], launch.run_on_threads

    def measured(kernel, *args, words, **rest):
        most[0] = max(most[0], 4 * words)
        run(kernel, *args, words=words, **rest)

    monkeypatch.setattr(launch, "run_on_threads", measured)
    spec = importlib.import_module(f"tilewright.bench.sizes.{op}")
    for case in spec.sizes():
        few = spec.with_rows(case, min(2, spec.rows(case)))
        if spec.cost(few)[1] < 64 << 20:
            spec.bind(few, spec.make(few, np.random.default_rng(0)))()
    assert most[0] <= launch.SCRATCH_BYTES
