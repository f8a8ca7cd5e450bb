"""logprob's rungs for GPUs: with TILEWRIGHT_GPU=1 (`make test-gpu`) on a GPU, on every case; else in Triton's
interpreter, on tiny ones."""

from dataclasses import replace

import numpy as np
import pytest

import gpu
from gpu import ON_GPU, PLACE, widen_bfloat16
from ops.cases import cases_of
from tilewright.errors import UsageError
from tilewright.ops.core.ladder import using
from tilewright.ops.logprob import Problem, ladder, logprob, prepare
from tilewright.ops.logprob.problem import Case
from tilewright.ops.logprob.tile import rows

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("simulated_gpu")

CLASSES = ("float32", "bfloat16", "float16")
K = 200  # of float32, from which matmul uses matrix units: its other kernels are slow in the simulator


@pytest.fixture(autouse=True)
def bfloat16_is_multiplied(monkeypatch):
    widen_bfloat16(monkeypatch)
    if not ON_GPU:
        monkeypatch.setattr(rows, "BN", 64)  # so that few columns are several blocks


def problem(dtype: str) -> Problem:
    return Problem(50, K, dtype, "tile.limbs", "cuda")


def cases(rung, dtype):
    few = [Case(3, 40, K), Case(2, 150, K, bias=True), Case(5, 70, K, spread=40.0)]
    whole = [case for case in cases_of("logprob") if case.dtype == "float32"]
    given = [*whole, *few, Case(2, 5000, K)] if ON_GPU else few[1:]
    rarely = not ON_GPU and dtype != "bfloat16"
    return [(replace(case, dtype=dtype, device="cuda"), rarely) for case in given]


@pytest.mark.parametrize(("rung", "case"), list(gpu.every(ladder, problem, CLASSES, cases)))
def test_rung(rung, case, rng):
    gpu.check("logprob", rung, case, rng)


def columns(rng, N: int):
    return torch.from_numpy(rng.standard_normal((N, K), dtype=np.float32)).to(PLACE).T


@pytest.mark.parametrize(("rung", "dtype"), list(gpu.accepted(ladder, problem, ("bfloat16",))))
def test_a_row_alone_and_among_others_ties_and_targets(rung, dtype, rng, monkeypatch):
    b, a = columns(rng, 60), torch.from_numpy(rng.standard_normal((9, K), dtype=np.float32)).to(PLACE)
    b[:, 17] = b[:, 5] = 10 * a[2]  # the largest of row 2, twice
    monkeypatch.setattr(rows, "LOGITS_BYTES", 4 * 60 * 4)  # four rows at a time
    targets = rng.integers(0, 60, 9)
    targets[2] = 5
    with using(logprob=rung.name):
        head = prepare(b, dtype=dtype)
        value, greedy = logprob(a, head, targets)
        assert greedy[2] and not logprob(a[2:3], head, [17])[1][0], "the lowest of equals"
        for i in range(9) if ON_GPU else (1, 8):
            alone, _ = logprob(a[i : i + 1], head, targets[i : i + 1])
            assert torch.equal(alone, value[i : i + 1])
        there = torch.from_numpy(targets.copy()).to(PLACE)
        assert torch.equal(logprob(a, head, there)[0], value)
        there[3] = 60
        assert logprob(a, head, there)[0].isnan().tolist() == [i == 3 for i in range(9)]
        a[4, 0] = torch.nan
        assert logprob(a, head, targets)[0].isnan().tolist() == [i == 4 for i in range(9)]
    with pytest.raises(UsageError, match="targets has 60; columns are 0 to 59"):
        logprob(a[:1], head, [60])
    with pytest.raises(UsageError, match="bias is"):
        prepare(b, bias=torch.zeros(3, device=PLACE))
