"""The rungs of rope for GPUs: on a GPU, or in numba-cuda's simulator and Triton's interpreter, on tiny cases."""

from dataclasses import replace

import numpy as np
import pytest

from compare import compare
from gpu import ON_GPU, PLACE, round_fma_once
from ops.cases import cases_of
from tilewright.bench.sizes import rope as spec
from tilewright.errors import UsageError
from tilewright.ops.core.ladder import using
from tilewright.ops.rope import inverse_frequencies, ladder, prepare, rope

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("simulated_gpu")
SMALL = 600  # elements of a case in the interpreter
RUNGS = [rung for name, rung in ladder.rungs.items() if not name.startswith("cpu.")]


@pytest.fixture(autouse=True)
def fused_multiply_adds(monkeypatch):
    round_fma_once(monkeypatch)


def every():
    """A parameter for each rung and case; one skip, with its reason, for a rung that cannot run here."""
    for rung in RUNGS:
        cases = [replace(case, device="cuda", layout="C") for case in cases_of("rope") if case.dtype == "float32"]
        cases = list(dict.fromkeys(case for case in cases if ON_GPU or case.rows * case.heads * case.D <= SMALL))
        if why := rung.refuses(cases[0].problem):
            yield pytest.param(rung, None, marks=pytest.mark.skip(reason=f"rope.{rung.name}: {'; '.join(why)}"))
            continue
        yield from (pytest.param(rung, case, id=f"{rung.name}-{case.name}") for case in cases)


@pytest.mark.parametrize(("rung", "case"), list(every()))
def test_rung(rung, case, rng):
    inputs = spec.make(case, rng)
    reference = spec.reference(case, inputs)
    with using(rope=rung.name):
        call = spec.bind_tensors(case, inputs, PLACE)
        out = torch.full(reference.shape, torch.nan, device=PLACE)
        assert call(out=out) is out
        again = call().cpu().numpy()
    compare(out.cpu().numpy(), reference, spec.bound(case, inputs, reference, rung.c))
    assert again.tobytes() == out.cpu().numpy().tobytes()


def runnable():
    case = replace(cases_of("rope")[0], device="cuda")
    return [rung for rung in RUNGS if not rung.refuses(case.problem)]


@pytest.mark.parametrize("rung", runnable(), ids=lambda rung: rung.name)
def test_rows_that_lie_apart_in_place_and_in_any_batch(rung, rng):
    heads, F, D = 3, 4, 11
    rotation = prepare(inverse_frequencies(2 * F, 100.0), length=9, like=torch.zeros(1, device=PLACE))
    x = torch.from_numpy(rng.standard_normal((5, heads * D), dtype=np.float32)).to(PLACE)
    positions = torch.tensor([3, 0, 8, 8, 1], device=PLACE)
    with using(rope=rung.name):
        wanted = rope(x, positions, rotation, heads=heads)
        wide = torch.full((5, heads * D + 7), 2.0, device=PLACE)
        part = wide[:, : heads * D]
        part.copy_(x)
        assert rope(part, positions.int(), rotation, heads=heads, out=part) is part
        for row in range(5):
            alone = rope(x[row : row + 1], positions[row : row + 1], rotation, heads=heads)
            assert torch.equal(alone[0], wanted[row])
        absent = rope(x, torch.tensor([3, 9, -1, 8, 2**40], device=PLACE), rotation, heads=heads)
    assert torch.equal(part, wanted) and (wide[:, heads * D :] == 2).all()
    assert absent.isnan().all(1).tolist() == [False, True, True, False, True]
    assert torch.equal(absent[0], wanted[0])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bits(dtype, rng):
    case = spec.Case(4, 2, 8, 3, dtype=dtype, device="cuda")
    if why := ladder.rungs["tile.rows"].refuses(case.problem):
        pytest.skip("; ".join(why))
    inputs = spec.make(case, rng)
    call = spec.bind_tensors(case, inputs, PLACE)
    wide, short = call(), torch.empty(case.shape, dtype=getattr(torch, dtype), device=PLACE)
    reference = spec.reference(case, inputs)
    compare(wide.cpu().numpy(), reference, spec.bound(case, inputs, reference))
    call(out=short)
    worst = wide.double().abs() * torch.finfo(short.dtype).eps + 2.0**-24  # the interpreter truncates
    assert ((short.double() - wide.double()).abs() <= worst).all()


def test_what_does_not_fit_is_named():
    x, at = torch.ones(2, 12, device=PLACE), torch.zeros(2, dtype=torch.int64, device=PLACE)
    turns = prepare(inverse_frequencies(4, 100.0), length=9, like=x)
    for words, call in {
        "rope: x is float32 (2, 12), and heads 5": lambda: rope(x, at, turns, heads=5),
        "rope: x is float32 (2, 12), and heads 4": lambda: rope(x, at, turns, heads=4),
        "rope: x is int64": lambda: rope(at[:, None], at, turns, heads=1),
        "rope: positions is float32": lambda: rope(x, x[:, 0], turns, heads=2),
        "rope: positions has shape (1,); (2,)": lambda: rope(x, at[:1], turns, heads=2),
        "rope: out is float32 (2, 2)": lambda: rope(x, at, turns, heads=2, out=x[:, :2]),
        "rope: length is 0": lambda: prepare(inverse_frequencies(4, 100.0), length=0),
        "rope: frequencies is float64 (2,)": lambda: prepare(np.ones(2), length=3),
    }.items():
        with pytest.raises(UsageError) as error:
            call()
        assert words in str(error.value)
