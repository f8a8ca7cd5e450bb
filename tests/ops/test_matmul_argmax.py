"""matmul_argmax: index and value, ties, the bounds of screening, refused arguments."""

import numpy as np
import pytest

from random_problems import TILE_LANES, slow_to_compile, vectors_of
from tilewright.errors import UsageError
from tilewright.hardware import cpu
from tilewright.ops.core.arrays import rounded
from tilewright.ops.core.ladder import using
from tilewright.ops.core.launch import threads
from tilewright.ops.matmul import prepare as prepare_matrix
from tilewright.ops.matmul_argmax import ladder, matmul_argmax, prepare
from tilewright.ops.matmul_argmax.cpu import fused, screened
from tilewright.ops.matmul_argmax.problem import Case
from tilewright.ops.matmul_argmax.reference import matmul_argmax as reference

RUNGS = [
    name
    for name in ladder.rungs
    if not any("this CPU" in why or "on cuda" in why for why in ladder.rungs[name].refuses(Case(1, 1, 16).problem))
]
screening = pytest.mark.skipif(not cpu().multiplies_bytes, reason="this CPU multiplies no bytes faster than float32")
LAYOUTS = [("cpu.packed", "float32"), ("cpu.widened", "bfloat16")]
LAYOUTS += [("cpu.dot_pairs", "bfloat16")] if cpu().has("avx512bf16") else []


def columns(rng, N: int, K: int) -> np.ndarray:
    """float32 (K, N), the transpose of a row-major matrix."""
    return rng.standard_normal((N, K), dtype=np.float32).T


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize(("M", "N", "K"), [(1, 1, 16), (37, 3001, 96), (200, 33, 16)])
def test_the_index_is_that_of_the_largest(rung, M, N, K, rng):
    a, b = rng.standard_normal((M, K), dtype=np.float32), columns(rng, N, K)
    with using(matmul_argmax=rung):
        index, value = matmul_argmax(a, prepare(b))
    exact = a.astype(np.float64) @ b.astype(np.float64)
    assert index.dtype == np.int64 and value.dtype == np.float32
    assert (exact.max(axis=1) - exact[np.arange(M), index] <= 1e-5 * K).all()
    assert np.abs(value - reference(a, b)[1]).max() <= 1e-5 * K


@pytest.mark.parametrize("rung", RUNGS)
def test_of_equal_columns_the_first_is_taken(rung, rng):
    b = np.ascontiguousarray(columns(rng, 700, 32).T)
    a = rng.standard_normal((9, 32), dtype=np.float32)
    best = (a @ b.T).argmax(axis=1)
    for copy in (best + 1) % 700, (best + 311) % 700, (best + 650) % 700:
        b[copy] = b[best]
    exact = a.astype(np.float64) @ b.T.astype(np.float64)
    with using(matmul_argmax=rung), threads(2):
        index, _ = matmul_argmax(a, prepare(b.T))
    assert index.tolist() == [int(np.flatnonzero(row == row.max())[0]) for row in exact]


@screening
@pytest.mark.parametrize("K", [64, 80])  # 80: half of the last vector of bfloat16 pairs is zeros
@pytest.mark.parametrize(("layout", "dtype"), LAYOUTS)
def test_screening_gives_the_bits_of_the_fused_sum(layout, dtype, K, rng):
    a, b = rng.standard_normal((60, K), dtype=np.float32), columns(rng, 5000, K)
    answers = []
    for rung in ("cpu.fused", "cpu.screened"):
        with using(matmul=layout, matmul_argmax=rung):
            prepared = prepare(b, dtype=dtype)
            answers.append([x.tobytes() for x in matmul_argmax(a, prepared)])
    assert answers[0] == answers[1]
    assert (screened.best(a, prepared)[0] >= 0).all(), "all rows are meant to be decided by few columns"


def share_of_bound(a, prepared) -> float:
    """The largest error of the products in 8 bits, as a share of its bound. a: rounded as the class says."""
    row, column, N = screened.FOUND, screened.ROW, len(prepared.screen.rows)
    exact = rounded(prepared.screen.rows) if prepared.kind != "float32" else prepared.screen.rows
    (q, of_a), (r, _) = (screened.quantised(np.ascontiguousarray(x), 0) for x in (a, exact))
    dots = q.view(np.int8).astype(np.int64) @ r.view(np.int8).T.astype(np.int64)
    columns = prepared.screen.columns[:, :N]
    middle = dots * of_a[:, [row.step]].astype(np.float64) * columns[column.step]
    reach = of_a[:, [row.norm]].astype(np.float64) * columns[column.loss]
    reach += of_a[:, [row.loss]].astype(np.float64) * columns[column.norm]
    return float(np.max(np.abs(a.astype(np.float64) @ exact.T.astype(np.float64) - middle) / reach))


@screening
@pytest.mark.parametrize(("layout", "dtype"), LAYOUTS)
def test_the_bound_is_tight_and_needs_each_of_its_terms(layout, dtype):
    """The product of rows with two elements is all that rounding to levels loses. 0.251 is 0.4 % larger in bfloat16."""
    long, short = np.zeros((4, 16), np.float32), np.zeros((6, 16), np.float32)
    long[:, 0], short[:, 0], short[:, 2] = 127, 0.251, 127
    with using(matmul=layout, matmul_argmax="cpu.screened"):
        left = rounded(short) if dtype == "bfloat16" else short
        for a, b, term in ((long, short, screened.ROW.loss), (left, long, screened.ROW.norm)):
            prepared = prepare(b.T, dtype=dtype)
            assert 0.99 < share_of_bound(a, prepared) <= 1
            prepared.screen.columns[term] *= np.float32(0.99)
            assert share_of_bound(a, prepared) > 1


@screening
@pytest.mark.parametrize(("layout", "dtype"), LAYOUTS)
@pytest.mark.parametrize(
    ("size", "least"), [(1.1e-15, 1e-22), (1.1e-15, 1e-24), (1e-6, 1e-34), (1e-3, 1e-35), (1e14, 1e-39)]
)
def test_products_that_are_rounded_to_zero_are_bounded_too(layout, dtype, size, least, rng):
    """The first column is long, with negative products. The largest is among tiny ones."""
    a, b = np.abs(rng.standard_normal((20, 64))), np.abs(rng.standard_normal((600, 64)))
    a *= size / np.linalg.norm(a, axis=1, keepdims=True)
    b *= least / np.linalg.norm(b, axis=1, keepdims=True) * (1 + 0.3 * rng.random((600, 1)))
    b[0] = -1
    answers = []
    for rung in ("cpu.fused", "cpu.screened"):
        with using(matmul=layout, matmul_argmax=rung):
            found = matmul_argmax(a.astype(np.float32), prepare(b.astype(np.float32).T, dtype=dtype))
            answers.append([x.tobytes() for x in found])
    assert answers[0] == answers[1]


@screening
def test_rows_are_not_screened_if_products_of_norms_may_leave_the_range(rng):
    a, b = rng.standard_normal((5, 64), dtype=np.float32), columns(rng, 500, 64)
    a *= np.array([1, 1e-18, 1e16, np.nan, 1], np.float32)[:, None]
    with using(matmul="cpu.packed", matmul_argmax="cpu.screened"):
        decided = screened.best(a, prepare(b))[0] >= 0
        assert decided.tolist() == [True, False, False, False, True]
        assert prepare(b * np.float32(1e-18)).screen is None and prepare(b * np.float32(1e16)).screen is None


@screening
def test_a_sum_that_is_too_long_for_its_memory_is_refused():
    with using(matmul_argmax="cpu.screened"), pytest.raises(UsageError, match="K is 8208"):
        prepare(np.zeros((8208, 4), np.float32))


@screening
@pytest.mark.parametrize(("layout", "dtype"), LAYOUTS)
def test_undecided_rows_have_the_bits_of_the_others(layout, dtype, rng):
    """With growing columns, the candidates depend on rows and threads. K is longer than a block of matmul."""
    K, N = 2048, 3000
    a, growing = np.abs(rng.standard_normal((200, K), dtype=np.float32)), np.linspace(1, 1.2, N, dtype=np.float32)
    b = (np.abs(columns(rng, N, K)) * 0.05 + growing).astype(np.float32)
    seen = set()
    with using(matmul=layout, matmul_argmax="cpu.screened"):
        prepared = prepare(b, dtype=dtype)
        for count, rows in ((1, 1), (2, 1), (2, 200)):
            with threads(count):
                seen.add(tuple(x[:1].tobytes() for x in matmul_argmax(a[:rows], prepared)))
    with using(matmul=layout, matmul_argmax="cpu.fused"):
        seen.add(tuple(x.tobytes() for x in matmul_argmax(a[:1], prepare(b, dtype=dtype))))
    assert len(seen) == 1


@screening
def test_rows_that_screening_cannot_decide_are_computed_in_full(rng):
    b = (columns(rng, 4000, 32) * np.float32(1e-4) + rng.standard_normal((32, 1), dtype=np.float32)).T
    b = np.ascontiguousarray(b).T
    a = rng.standard_normal((5, 32), dtype=np.float32)
    with using(matmul="cpu.packed", matmul_argmax="cpu.screened"):
        prepared = prepare(b)
        undecided, _ = screened.best(a, prepared)
        index, _ = matmul_argmax(a, prepared)
    assert (undecided == -1).any(), "the case is meant to have more candidates than fit"
    exact = a.astype(np.float64) @ b.astype(np.float64)
    assert (exact.max(axis=1) - exact[np.arange(5), index] <= 1e-5).all()


@screening
@pytest.mark.parametrize("size", [1e-30, 1.0, 1e15])
def test_the_bound_holds_whatever_the_size_of_numbers(size, rng):
    """A few outliers, as in trained models, and columns of very different norms."""
    a = rng.standard_normal((40, 64), dtype=np.float32)
    a[:, 7] *= 300
    b = np.ascontiguousarray(columns(rng, 3000, 64).T) * rng.lognormal(0, 2, (3000, 1)).astype(np.float32)
    a, b = a * np.float32(size), b * np.float32(size)
    with using(matmul="cpu.packed", matmul_argmax="cpu.screened"):
        found, _ = matmul_argmax(a, prepare(b.T))
    with using(matmul="cpu.packed", matmul_argmax="cpu.logits"):
        wanted, _ = matmul_argmax(a, prepare(b.T))
    assert (found == wanted).all()


@screening
def test_sums_of_the_largest_bytes_do_not_overflow(rng):
    """Every level is 127 or -127. In the first column all products have one sign."""
    b = rng.choice(np.array([-1, 1], np.float32), (3000, 256))
    b[0] = 1
    a = np.stack([b[0], -b[0], *b[5:9]])
    with using(matmul="cpu.packed", matmul_argmax="cpu.screened"):
        prepared = prepare(b.T)
        column, value = screened.best(a, prepared)
    products = a.astype(np.int64) @ b.T.astype(np.int64)
    assert column.tolist() == products.argmax(axis=1).tolist()
    assert value.tolist() == products.max(axis=1).tolist()


@screening
def test_a_bound_that_is_too_small_is_noticed(rng, monkeypatch):
    """The saboteur: without the loss of the columns the largest is missed."""
    a, b = rng.standard_normal((300, 64), dtype=np.float32), columns(rng, 5000, 64)
    with using(matmul="cpu.packed", matmul_argmax="cpu.screened"):
        prepared = prepare(b)
        wanted, _ = matmul_argmax(a, prepared)
        prepared.screen.columns[[screened.ROW.norm, screened.ROW.loss]] = 0
        found, _ = matmul_argmax(a, prepared)
    assert (found != wanted).any()


@slow_to_compile
@vectors_of(TILE_LANES)
def test_tiles_end_in_the_same_comparison(rng):
    """The AMX kernel on emulated tiles."""
    a, b = rng.standard_normal((19, 40), dtype=np.float32), columns(rng, 75, 40)
    with using(matmul="cpu.widened"):
        weights = prepare_matrix(b, dtype="bfloat16")
    index, value = fused.best("amx", a, weights, emulated=True)
    wanted = fused.best("widen_b", a, weights)
    assert index.tolist() == wanted[0].tolist()
    assert np.abs(value - wanted[1]).max() <= 1e-4


@pytest.mark.parametrize("rung", RUNGS)
def test_a_row_does_not_depend_on_the_others(rung, rng):
    a, b = rng.standard_normal((50, 48), dtype=np.float32), columns(rng, 900, 48)
    with using(matmul_argmax=rung):
        prepared = prepare(b)
        with threads(2):
            together = matmul_argmax(a, prepared)
        with threads(1):
            alone = [matmul_argmax(row[None], prepared) for row in a]
    assert [int(i[0]) for i, _ in alone] == together[0].tolist()
    assert b"".join(v.tobytes() for _, v in alone) == together[1].tobytes()


def test_what_does_not_fit_is_refused(rng):
    b = columns(rng, 20, 16)
    prepared = prepare(b)
    with pytest.raises(UsageError, match=r"a is \(2, 15\); \(M, 16\) is wanted"):
        matmul_argmax(np.zeros((2, 15), np.float32), prepared)
    with pytest.raises(UsageError, match="at least one column"):
        prepare(np.zeros((16, 0), np.float32))
    with pytest.raises(UsageError, match="weights are"):
        prepare(b, weights=prepare_matrix(b[:, :5]))
    assert [len(x) for x in matmul_argmax(np.zeros((0, 16), np.float32), prepared)] == [0, 0]


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("size", [1e-24, 1e-30, 1e18])
def test_sizes_at_the_ends_of_float32_lose_nothing(rung, size, rng):
    a, b = rng.standard_normal((300, 64), dtype=np.float32) * np.float32(size), columns(rng, 2000, 64)
    with using(matmul="cpu.packed", matmul_argmax=rung):
        index, _ = matmul_argmax(a, prepare(b))
    exact = a.astype(np.float64) @ b.astype(np.float64)
    assert (exact.max(axis=1) - exact[np.arange(300), index] <= 1e-4 * size).all()


@screening
def test_an_infinite_column_is_found_by_screening_too(rng):
    a, b = np.abs(rng.standard_normal((7, 64), dtype=np.float32)), np.ascontiguousarray(columns(rng, 500, 64))
    b[0, 5] = np.inf
    with using(matmul="cpu.packed", matmul_argmax="cpu.screened"):
        index, value = matmul_argmax(a, prepare(b))
    assert (index == 5).all() and np.isinf(value).all()
