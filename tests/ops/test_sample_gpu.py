"""Tokens that a GPU draws against a full sort: with TILEWRIGHT_GPU=1 (`make test-gpu`) on a GPU, on every case; else in
Triton's interpreter, on small ones."""

from dataclasses import replace

import numpy as np
import pytest

from gpu import ON_GPU, PLACE, every
from ops.cases import cases_of
from ops.test_sample import SURE, some_rows, some_rules
from tilewright.bench.sizes import sample as spec
from tilewright.errors import UsageError
from tilewright.ops.core.ladder import using
from tilewright.ops.sample import PEAK, draw, ladder, peaks_of, rules, sample
from tilewright.ops.sample.operands import FLOAT, INTEGER, Rules
from tilewright.ops.sample.reference import sample as reference

torch = pytest.importorskip("torch")
SMALL = 10_000  # numbers of a case in the interpreter

pytestmark = [
    pytest.mark.usefixtures("simulated_gpu"),
    pytest.mark.filterwarnings("ignore:divide by zero:RuntimeWarning"),  # NumPy's, where a GPU computes in silence
    pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning"),
]


def cases(rung, dtype):
    """In the interpreter each rung has every second case, and so each case one of two rungs; the others are long."""
    small = [case for case in cases_of("sample") if case.M and (ON_GPU or case.M * case.V <= SMALL)]
    number = [name for name in ladder.rungs if not name.startswith("cpu.")].index(rung.name)
    return [(replace(case, device="cuda"), not ON_GPU and (n + number) % 2 == 1) for n, case in enumerate(small)]


def sampled(logits, given):
    return sample(torch.from_numpy(logits).to(PLACE), given)


@pytest.mark.parametrize(
    ("rung", "case"), list(every(ladder, lambda dtype: spec.Problem(9, dtype, "cuda"), ["float32"], cases))
)
def test_tokens_are_those_of_a_full_sort(rung, case, rng):
    inputs = spec.make(case, rng)
    wanted, margins = reference(**inputs)
    with using(sample=rung.name):
        found = sampled(inputs["logits"], Rules(**{name: inputs[name] for name in Rules._fields})).tokens
    assert ((found == wanted) | (margins < SURE)).all()
    assert (found != wanted).sum() <= 1


@pytest.mark.parametrize(
    ("n", "V"), [(40, 1), (60 if ON_GPU else 30, 257), (40 if ON_GPU else 12, 4000), *([(30, 50257)] if ON_GPU else [])]
)
def test_rows_of_every_kind(n, V, rng):
    """Ties, levels, one-hot rows, bad ones; every limit; and as the CPU draws them."""
    logits, given = some_rows(rng, n, V), some_rules(rng, n, V)
    found, (wanted, margins) = sampled(logits, given).tokens, reference(logits, *given)
    other = np.flatnonzero(found != wanted)
    assert (margins[other] < SURE).all(), (other, found[other], wanted[other], margins[other])
    assert len(other) <= 1
    here = sample(logits, given).tokens
    assert ((found == here) | (margins < SURE)).all()


@pytest.fixture
def small_capacity(monkeypatch):
    """Rows of more than 64 tokens are long ones."""
    from tilewright.ops.sample.tile import narrow

    monkeypatch.setattr(narrow, "SHORT_ROW", 64)
    monkeypatch.setattr(narrow, "CAPACITY", 64)


@pytest.mark.parametrize("V", [65, 700, 9000])  # 9000: more than two chunks of each loop
def test_long_rows_are_narrowed_to_the_capacity(V, rng, small_capacity):
    """A capacity of 64 tokens: of most rows some are gathered, and of those with more equal scores none."""
    n = 60 if ON_GPU else 25 if V < 700 else 10
    logits, given = some_rows(rng, n, V), some_rules(rng, n, V)
    logits[:3] = 0.25
    logits[3:6, : V - 5] = -1.5
    found, (wanted, margins) = sampled(logits, given).tokens, reference(logits, *given)
    other = np.flatnonzero(found != wanted)
    assert (margins[other] < SURE).all() and ((found >= 0) == (wanted >= 0)).all(), (other, found[other], wanted[other])
    assert len(other) <= 1


@pytest.mark.parametrize(("most", "V"), [(4, 300), (60, 900)])
def test_long_rows_whose_scores_are_neighbours(most, V, rng, small_capacity):
    """Ranges of few keys. With up to 4, most are not gathered; with up to 60, tokens lie exactly at both ends of what
    is gathered."""
    low = rng.normal(0, 2, (16, 1)).astype(np.float32)
    logits = (low.view(np.int32) + rng.integers(0, rng.integers(1, most + 1, (16, 1)), (16, V), np.int32)).view(
        np.float32
    )
    given = rules(rng.random(16))
    wanted, margins = reference(logits, *given)
    found = sampled(logits, given).tokens
    assert ((found == wanted) | ((margins < SURE) & (found >= 0))).all()


def test_long_rows_of_one_score_and_fewer_tokens_than_top_k(small_capacity):
    logits, given = np.full((2, 65), 0.25, np.float32), rules([0.3, 0.9], (64, 1.0, 0.0), banned=[np.arange(17)] * 2)
    assert sampled(logits, given).tokens.tolist() == reference(logits, *given)[0].tolist() == [31, 60]


def test_a_target_that_rounding_leaves_out_of_reach_gives_a_token(rng, small_capacity):
    n = 60 if ON_GPU else 20
    logits = (rng.normal(0, 1, (n, 65)) * rng.choice([0.3, 3, 10], (n, 1))).astype(np.float32)
    given = rules(np.full(n, 1 - 2.0**-53))
    wanted, margins = reference(logits, *given)
    found = sampled(logits, given).tokens
    assert ((found == wanted) | ((margins < SURE) & (found >= 0))).all()


@pytest.mark.parametrize("V", [60, 700])
def test_the_number_0_takes_the_best_token(V, rng, small_capacity):
    logits = rng.standard_normal((9, V), np.float32)
    assert sampled(logits, rules(np.zeros(9))).tokens.tolist() == logits.argmax(1).tolist()


@pytest.mark.parametrize("V", [700, 9000])  # 9000: columns of three tokens, padded to four
def test_a_small_top_k_is_drawn_from_the_best_columns(V, rng, small_capacity, monkeypatch):
    """Other rows wait for `narrow`: those with another top_k or greedy ones, and those in which too many columns have
    the same best score, or too few a finite one."""
    from tilewright.ops.sample.tile import columns, narrow

    n, seen, draw = 12, [], narrow.run_waiting
    monkeypatch.setattr(narrow, "run_waiting", lambda *given: (seen.append(given[-1].tolist()), draw(*given)))
    logits = rng.normal(0, 3, (n, V)).astype(np.float32)
    logits[3, [5, V - 1]] = 30.0  # the last token may be of a column with another one
    logits[4], logits[5, : V - 70], logits[6, 9] = 0.5, 40.0, np.nan
    top_ks = np.array([1, 5, 64, 20, 20, 20, 20, 20, 0, 65, 20, 700])
    logits[1, np.argsort(-logits[1], kind="stable")[3:6]] = np.sort(logits[1])[-4]  # ties around the fifth
    temperature = np.where(np.arange(n) == 10, 0.0, 0.7)
    banned = [np.arange(7, V) if i == 7 else () for i in range(n)]
    given = rules(rng.random(n), (top_ks, 0.95, 0.001), temperature=temperature, banned=banned)
    wanted, margins = reference(logits, *given)
    with using(sample="tile.columns"):
        found = sampled(logits, given).tokens
    (before,) = seen
    assert [i for i, token in enumerate(before) if token == columns.WAITS.value] == [4, 5, 7, 8, 9, 10, 11]
    assert before[6] == -1
    assert ((found == wanted) | ((margins < SURE) & (found >= 0))).all()


def with_gaps(logits, gap):
    """(the logits in rows that begin at multiples of 128 bytes, with `gap` between them; their peaks)."""
    n, V = logits.shape
    groups = peaks_of(V)
    wide = np.full((n, groups * PEAK), -np.inf, np.float32)
    wide[:, :V] = logits
    with np.errstate(invalid="ignore"):
        peaks = (wide + np.where(np.arange(groups * PEAK) < V, wide * 0, 0)).reshape(n, groups, PEAK).max(2)
    peaks[:, -(-V // PEAK) :] = np.nan  # undefined
    wide[:, V:] = gap
    return torch.from_numpy(wide).to(PLACE)[:, :V], torch.from_numpy(peaks).to(PLACE)


@pytest.mark.parametrize("rung", [name for name in ladder.rungs if name.startswith("tile.")])
@pytest.mark.parametrize("gap", [np.nan, pytest.param(np.inf, marks=[] if ON_GPU else pytest.mark.long), 1e30])
def test_what_is_between_rows_is_not_read(rung, gap, rng, small_capacity):
    n, V = 6, 711
    logits, given = some_rows(rng, n, V), rules(rng.random(n), (np.array([0, 1, 5, 50, 50, 300]), 0.9, 0.0))
    wanted = sampled(logits, given).tokens
    floats, integers = (torch.from_numpy(part).to(PLACE) for part in given[:2])
    wide, peaks = with_gaps(logits, gap)
    for best in (None, peaks):
        tokens = torch.full((n,), -9, dtype=torch.int64, device=PLACE)
        with using(sample=rung):
            draw(wide, floats, integers, tokens, peaks=best)
        assert tokens.tolist() == wanted.tolist()


@pytest.mark.parametrize("V", [3001, *([50257] if ON_GPU else [])])
def test_a_small_top_k_is_drawn_from_the_highest_peaks(V, rng, small_capacity, monkeypatch):
    """Other rows wait for `narrow`: those with another top_k, and those in which too many tokens are alike."""
    from tilewright.ops.sample.tile import narrow, peaks

    seen, waiting = [], narrow.run_waiting
    monkeypatch.setattr(narrow, "run_waiting", lambda *given: (seen.append(given[-1].tolist()), waiting(*given)))
    n = 12
    logits = rng.normal(0, 3, (n, V)).astype(np.float32)
    logits[3], logits[4] = 0.5, np.sort(logits[4])  # one score; the best ones lie in few groups
    logits[5, [7, V - 1]] = 30.0
    logits[6, 9], logits[7, 11], logits[8, V - 1] = np.nan, np.inf, -np.inf
    logits[1, np.argsort(-logits[1], kind="stable")[3:6]] = np.sort(logits[1])[-4]  # ties around the fifth
    top_ks = np.array([1, 5, 64, 20, 20, 20, 20, 20, 20, 0, 80, 300])
    given = rules(rng.random(n), (top_ks, 0.95, 0.001), temperature=np.where(np.arange(n) == 2, 0.0, 0.7))
    wanted, margins = reference(logits, *given)
    wide, best = with_gaps(logits, np.nan)
    found = torch.full((n,), -9, dtype=torch.int64, device=PLACE)
    with using(sample="tile.columns"):
        draw(wide, *(torch.from_numpy(part).to(PLACE) for part in given[:2]), found, peaks=best)
    (before,) = seen
    assert [i for i, token in enumerate(before) if token == peaks.WAITS.value] == [2, 3, 4, 9, 11]
    found = found.cpu().numpy()
    assert ((found == wanted) | ((margins < SURE) & (found >= 0))).all() and found[6:9].tolist() == [-1, -1, -1]


@pytest.mark.skipif(not ON_GPU, reason="it takes a GPU: in the interpreter so many groups take a minute")
def test_the_peaks_of_a_product_are_in_the_order_that_the_sampler_expects(rng, monkeypatch):
    """With fewer groups than the sampler reads at a time, it reads all, in any order."""
    from tilewright.ops.matmul import matmul_peaks, prepare
    from tilewright.ops.sample.tile import peaks as rung

    n, V, drawn, run = 6, 50257, [], rung.run
    monkeypatch.setattr(rung, "run", lambda *given: drawn.append(run(*given)))
    a, b = (torch.from_numpy(rng.standard_normal(shape, np.float32)).to(PLACE) for shape in ((n, 40), (40, V)))
    wide, peaks = (torch.full((n, m), torch.nan, device=PLACE) for m in (peaks_of(V) * PEAK, peaks_of(V)))
    logits, given, found = wide[:, :V], rules(rng.random(n), (20, 0.95, 0.0)), []
    assert matmul_peaks(a, prepare(b, dtype="bfloat16"), out=logits, peaks=peaks) is peaks
    for best in (None, peaks):
        tokens = torch.full((n,), -9, dtype=torch.int64, device=PLACE)
        draw(logits, *(torch.from_numpy(part).to(PLACE) for part in given[:2]), tokens, peaks=best)
        found.append(tokens.tolist())
    assert found[0] == found[1] and min(found[0]) >= 0 and len(drawn) == 1


def test_logits_and_peaks_that_do_not_fit_are_refused():
    logits, floats, integers = torch.ones(2, 70, device=PLACE), torch.ones(2, 5).double(), torch.zeros(2, 5).long()
    tokens = torch.zeros(2, dtype=torch.int64, device=PLACE)
    with pytest.raises(UsageError, match=r"strides \[\(1, 70\)\]; equal ones are wanted, 1 along a row"):
        draw(torch.ones(70, 70, device=PLACE).T[:2], floats, integers, tokens)
    with pytest.raises(UsageError, match=r"strides \[\(70, 1\), \(71, 1\)\]"):
        draw(logits, floats, integers, tokens, torch.ones(2, 71, device=PLACE)[:, :70])
    gaps, halves = torch.ones(2, 16, device=PLACE)[:, :8], torch.ones(2, 8, device=PLACE, dtype=torch.float16)
    for peaks in (torch.ones(2, 2, device=PLACE), gaps, halves):
        with pytest.raises(
            UsageError, match=r"peaks is float.* with strides .*; float32 \(2, 8\) without gaps is wanted"
        ):
            draw(logits, floats, integers, tokens, peaks=peaks)


@pytest.mark.parametrize("place", ["around zero", "far apart", "two groups"])
def test_scores_that_are_not_normally_distributed_are_found_too(place, rng, small_capacity):
    """The keys of the first passes enclose a guess, which is wrong for them."""
    x = rng.standard_normal((12, 900))
    wide = {
        "around zero": np.sign(x) * 10.0 ** (-40 * np.abs(x)),
        "far apart": np.sinh(9 * x),
        "two groups": x + 9 * (x > 1),
    }
    logits, given = wide[place].astype(np.float32), rules(rng.random(12), temperature=rng.choice([0.5, 1, 40], 12))
    wanted, margins = reference(logits, *given)
    found = sampled(logits, given).tokens
    assert ((found == wanted) | ((margins < SURE) & (found >= 0))).all()


def test_a_row_is_the_same_in_any_company(rng):
    logits, given = some_rows(rng, 20, 300), some_rules(rng, 20, 300)
    whole = sampled(logits, given).tokens
    some = rng.permutation(20)[:7]
    ends = given.ends[some] if len(given.ends) else given.ends
    few = given._replace(floats=given.floats[some], integers=given.integers[some], ends=ends)
    assert np.array_equal(sampled(logits[some], few).tokens, whole[some])


def test_the_best_and_the_logarithm(rng):
    logits = some_rows(rng, 30, 200)
    given = rules(rng.random(30), best=rng.integers(-1, 9, 30))
    found, here = sampled(logits, given), sample(logits, given)
    for i in np.flatnonzero(here.tokens >= 0):
        asked = int(given.integers[i, INTEGER.best])
        assert found.best[i, : max(asked, 0)].tolist() == here.best[i, : max(asked, 0)].tolist()
        assert asked < 0 or np.isclose(found.logarithms[i], here.logarithms[i], rtol=1e-12, atol=1e-10)


@pytest.mark.parametrize("limits", [(0, 1.0, 0.0), (50, 0.9, 0.0), (0, 1.0, 0.05), (50, 1.0, 0.05)])
@pytest.mark.parametrize("beyond", [0.0, 1e-9])
def test_the_largest_random_number_takes_the_last_token_that_is_kept(limits, beyond, rng, request):
    """However the sums were rounded, there is a token. beyond: what rounding would leave a target above its sum by."""
    n, V = (4000, 4097) if ON_GPU else (8, 300)
    if not ON_GPU:
        request.getfixturevalue("small_capacity")
    logits, given = rng.standard_normal((n, V), np.float32), rules(np.full(n, 1 - 2**-53), limits, temperature=0.3)
    wanted, margins = reference(logits, *given)
    given.floats[:, FLOAT.u] += beyond
    found = sampled(logits, given).tokens
    assert (found >= 0).all() and ((found == wanted) | (margins < SURE)).all()
