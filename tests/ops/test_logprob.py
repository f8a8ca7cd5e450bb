"""logprob: values and greedy flags, ties, rows alone and together, logits that are not finite, refused arguments."""

import tracemalloc

import numpy as np
import pytest

from random_problems import TILE_LANES, vectors_of
from tilewright.errors import UsageError
from tilewright.ops.core.ladder import using
from tilewright.ops.core.launch import threads
from tilewright.ops.logprob import ladder, logprob, prepare
from tilewright.ops.logprob.cpu import fused
from tilewright.ops.logprob.operands import Prepared, Results
from tilewright.ops.logprob.problem import Case
from tilewright.ops.logprob.reference import logprob as reference
from tilewright.ops.matmul import prepare as prepare_matrix

RUNGS = [name for name, rung in ladder.rungs.items() if not rung.refuses(Case(1, 1, 16).problem)]


def columns(rng, N: int, K: int) -> np.ndarray:
    """float32 (K, N), the transpose of a row-major matrix."""
    return rng.standard_normal((N, K), dtype=np.float32).T


@pytest.mark.parametrize("rung", RUNGS)
def test_values_and_flags_are_those_of_the_reference(rung, rng):
    a, b, bias = rng.standard_normal((40, 48), dtype=np.float32), columns(rng, 2500, 48), np.zeros(2500, np.float32)
    bias[1900:] = 3
    exact = a.astype(np.float64) @ b + bias
    targets = np.where(np.arange(40) % 2, exact.argmax(axis=1), rng.integers(0, 2500, 40))
    with using(logprob=rung), threads(2):
        value, greedy = logprob(a, prepare(b, bias=bias), targets)
    wanted, flags = reference(a, b, targets, bias)
    assert value.dtype == np.float32 and greedy.dtype == bool
    assert np.abs(value - wanted).max() <= 1e-4 and greedy.tolist() == flags.tolist()


@pytest.mark.parametrize("rung", RUNGS)
def test_of_equal_columns_the_first_is_greedy(rung, rng):
    b = np.ascontiguousarray(columns(rng, 2300, 32).T)
    a = rng.standard_normal((9, 32), dtype=np.float32)
    best = (a @ b.T).argmax(axis=1)
    b[(best + 1300) % 2300] = b[best]
    exact = a.astype(np.float64) @ b.T.astype(np.float64)
    both = [np.flatnonzero(row == row.max()) for row in exact]
    with using(logprob=rung):
        first, last = (logprob(a, prepare(b.T), [int(at[i]) for at in both])[1] for i in (0, -1))
    assert first.all() and not last.any()


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_row_does_not_depend_on_the_others(rung, dtype, rng):
    if ladder.rungs[rung].refuses(Case(1, 1, 16, dtype).problem):
        pytest.skip(f"{rung} does not take {dtype}")
    a, b, targets = rng.standard_normal((50, 48), dtype=np.float32), columns(rng, 4200, 48), rng.integers(0, 4200, 50)
    with using(logprob=rung):
        prepared = prepare(b, dtype=dtype)
        with threads(2):
            together = logprob(a, prepared, targets)
        with threads(1):
            alone = [logprob(a[i : i + 1], prepared, targets[i : i + 1]) for i in range(50)]
            some = logprob(a[7:30], prepared, targets[7:30])
    assert b"".join(value.tobytes() for value, _ in alone) == together[0].tobytes()
    assert [bool(greedy[0]) for _, greedy in alone] == together[1].tolist()
    assert some[0].tobytes() == together[0][7:30].tobytes()


def test_no_array_has_the_size_of_the_logits(rng):
    a, b = rng.standard_normal((1500, 16), dtype=np.float32), columns(rng, 9000, 16)
    prepared, targets = prepare(b), rng.integers(0, 9000, 1500)
    logprob(a[:2], prepared, targets[:2])
    for rung in RUNGS[1:]:
        with using(logprob=rung):
            prepared = prepare(b)
            tracemalloc.start()
            logprob(a, prepared, targets)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert peak < 18 << 20 < a.shape[0] * b.shape[1] * 4, rung


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_says_so_and_spoils_no_other(rung, wrong, rng):
    a, b, targets = rng.standard_normal((3, 32), dtype=np.float32), columns(rng, 300, 32), [5, 6, 7]
    with using(logprob=rung):
        prepared = prepare(b)
        right = logprob(a, prepared, targets)[0].tobytes()
        a[1, 3] = wrong
        value, _ = logprob(a, prepared, targets)
        assert not np.isfinite(value[1]) and value[[0, 2]].tobytes() == np.frombuffer(right, "f4")[[0, 2]].tobytes()


@pytest.mark.long
@pytest.mark.parametrize(("dtype", "finishers"), [
    ("float32", (fused.running_sum,)), ("bfloat16", (fused.running_sum,)),
    ("bfloat16", (fused.largest_only, fused.sum_only)),
])  # fmt: skip
@vectors_of(TILE_LANES)
def test_tiles_end_in_the_same_sums(dtype, finishers, rng):
    """The AMX kernels on emulated tiles: of float32 in two limbs, or of bfloat16."""
    from tilewright.ops.gemm.cpu import words

    a, b, targets = rng.standard_normal((19, 40), dtype=np.float32), columns(rng, 175, 40), rng.integers(0, 175, 19)
    pack = words.pack_limbs if dtype == "float32" else words.pack_words
    weights = pack(b, "cpu.limbs" if dtype == "float32" else "cpu.amx")
    found = Results(np.empty(19, np.float32), np.empty(19, np.int64))
    prepared = Prepared("cpu.online", weights, rng.standard_normal(175, dtype=np.float32))
    fused.run(a, prepared, targets, found, finishers, emulated=True)
    wanted, _ = reference(a, b, targets, prepared.bias)
    assert np.abs(found.value - wanted).max() <= (1e-3 if dtype == "float32" else 0.2)


def test_what_does_not_fit_is_refused(rng):
    b = columns(rng, 20, 16)
    prepared, a = prepare(b), np.zeros((2, 16), np.float32)
    for call, says in (
        (lambda: logprob(a[:, :15], prepared, [0, 1]), "a is (2, 15); (M, 16) is wanted"),
        (lambda: logprob(a, prepared, [0]), "targets is int64 (1,); integers (2,) are wanted"),
        (lambda: logprob(a, prepared, [0.0, 1.0]), "targets is float64 (2,); integers (2,) are wanted"),
        (lambda: logprob(a, prepared, [0, 20]), "targets has 20; columns are 0 to 19"),
        (lambda: logprob(a, prepared, [-1, 2]), "targets has -1; columns are 0 to 19"),
        (lambda: prepare(b[:0]), "b has shape (0, 20)"),
        (lambda: prepare(b, bias=np.zeros(3, np.float32)), "bias is (3,); finite (20,) is wanted"),
        (lambda: prepare(b, bias=np.full(20, -np.inf, np.float32)), "bias is (20,), with an element that is not"),
        (lambda: prepare(b, weights=prepare_matrix(b[:8])), "weights are (8, 20) float32, b is (16, 20) float32"),
    ):
        with pytest.raises(UsageError) as error:
            call()
        assert says in str(error.value)
    value, greedy = logprob(a[:0], prepared, [])
    assert len(value) == len(greedy) == 0
    with using(logprob="cpu.pieces"), pytest.raises(UsageError, match="prepared for rung cpu"):
        logprob(a, prepared, [0, 1])
