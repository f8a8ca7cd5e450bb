"""The rung that a caller forces wins over the one that an operation prefers for an operation beneath it."""

import ast
import dataclasses
import importlib
from pathlib import Path

import numpy as np
import pytest

import tilewright
from gpu import ON_GPU, PLACE
from tilewright.errors import Refused
from tilewright.ops.conv_transpose2d.problem import Case as Image
from tilewright.ops.core.ladder import forced, preferring, using
from tilewright.ops.embedding_conv1d.problem import Case as Sentences

IMAGE = Image(1, 2, 2, 3, 2, (3, 3), device="cuda")
SENTENCES = Sentences(2, 4, 5, 3, 2, (1, 3), device="cuda")
# operation, rung, its problem, the operation beneath, a rung of that which is not preferred
BENEATH = [
    ("conv_transpose2d", "simt.zero_inserted", IMAGE, "matmul", "simt.memory"),
    ("conv_transpose2d", "simt.phases", IMAGE, "matmul", "simt.memory"),
    ("embedding_conv1d", "simt.gather", SENTENCES, "conv1d", "simt.naive"),
]
ROOT = Path(tilewright.__file__).parent
pytestmark = pytest.mark.usefixtures("simulated_gpu")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Where kernels are simulated: preferred products without barriers, which take a second each."""
    if not ON_GPU:
        monkeypatch.setattr("tilewright.ops.conv_transpose2d.simt.matrices.PRODUCT", "simt.register", raising=False)


def bound(op: str, case):
    """The case's call, its operands on the device."""
    pytest.importorskip("torch")
    spec = importlib.import_module(f"tilewright.bench.sizes.{op}")
    return spec.bind_tensors(case, spec.make(case, np.random.default_rng(1)), PLACE)


def watch(monkeypatch, op: str) -> list[str]:
    """Names of the rungs of an operation that run, as they run."""
    ladder, ran = importlib.import_module(f"tilewright.ops.{op}").ladder, []

    def watched(rung):
        copy = dataclasses.replace(rung)
        copy.__dict__["run"] = lambda *given: (ran.append(rung.name), rung.run(*given))
        return copy

    for name, rung in list(ladder.rungs.items()):
        monkeypatch.setitem(ladder.rungs, name, watched(rung))
    monkeypatch.setattr(ladder, "_chosen", ladder._choose)
    return ran


def skip_what_cannot_run(op: str, rung: str, case) -> None:
    if why := importlib.import_module(f"tilewright.ops.{op}").ladder.rungs[rung].refuses(case.problem):
        pytest.skip("; ".join(why))


@pytest.mark.parametrize(("op", "rung", "case", "beneath", "other"), BENEATH)
def test_a_forced_rung_runs_beneath_another_operation(op, rung, case, beneath, other, monkeypatch):
    skip_what_cannot_run(op, rung, case)
    ran = watch(monkeypatch, beneath)
    with using(**{op: rung}):
        bound(op, case)()
    preferred = set(ran)
    assert preferred and other not in preferred
    ran.clear()
    with using(**{op: rung, beneath: other}):
        bound(op, case)()
    assert set(ran) == {other}


@pytest.mark.parametrize(("op", "rung", "case", "beneath", "other"), BENEATH)
def test_a_forced_rung_that_cannot_run_beneath_is_refused(op, rung, case, beneath, other):
    skip_what_cannot_run(op, rung, case)
    impossible = {"matmul": "cpu.packed", "conv1d": "cpu.naive"}[beneath]
    with using(**{op: rung, beneath: impossible}), pytest.raises(Refused, match=f"{beneath}.{impossible}"):
        bound(op, case)()


def test_preferring_leaves_what_is_forced():
    with preferring(matmul="cpu.packed"):
        assert forced() == {"matmul": "cpu.packed"}
    with using(matmul="cpu.vectors"), preferring(matmul="cpu.packed", conv1d="cpu.naive"):
        assert forced() == {"matmul": "cpu.vectors", "conv1d": "cpu.naive"}
    assert forced() == {}


@pytest.mark.parametrize("part", ["ops", "models", "ndimage", "simd"])
def test_no_operation_or_model_overrides_its_caller(part):
    """`using` and `forcing` are for callers: what lies beneath one says `preferring`."""
    offenders = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sorted((ROOT / part).rglob("*.py"))
        if path != ROOT / "ops/core/ladder.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("using", "forcing")
    ]
    assert not offenders
