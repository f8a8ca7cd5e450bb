"""The rungs of pool for GPUs: on a GPU, or in numba-cuda's simulator and Triton's interpreter, on tiny cases."""

from dataclasses import replace

import pytest

from compare import compare
from gpu import ON_GPU, PLACE
from ops.cases import cases_of
from tilewright.bench.sizes import pool as spec
from tilewright.errors import UsageError
from tilewright.ops.core.ladder import using
from tilewright.ops.pool import ladder, pool

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("simulated_gpu")
SMALL = 400  # elements of a case's result in the interpreter
RUNGS = [rung for name, rung in ladder.rungs.items() if not name.startswith("cpu.")]


def every():
    """A parameter for each rung and case; one skip, with its reason, for a rung that cannot run here."""
    for rung in RUNGS:
        cases = [replace(case, device="cuda") for case in cases_of("pool")]
        cases = [case for case in cases if ON_GPU or case.texts * case.C * case.longest <= SMALL]
        if why := rung.refuses(cases[0].problem):
            yield pytest.param(rung, None, marks=pytest.mark.skip(reason=f"pool.{rung.name}: {'; '.join(why)}"))
            continue
        yield from (pytest.param(rung, case, id=f"{rung.name}-{case.name}") for case in cases)


@pytest.mark.parametrize(("rung", "case"), list(every()))
def test_rung(rung, case, rng):
    inputs = spec.make(case, rng)
    reference = spec.reference(case, inputs)
    with using(pool=rung.name):
        call = spec.bind_tensors(case, inputs, PLACE)
        out = torch.full(reference.shape, torch.nan, device=PLACE)
        assert call(out=out) is out
        again = call().cpu().numpy()
    compare(out.cpu().numpy(), reference, spec.bound(case, inputs, reference, rung.c))
    assert again.tobytes() == out.cpu().numpy().tobytes()


def runnable():
    case = replace(cases_of("pool")[0], device="cuda")
    return [rung for rung in RUNGS if not rung.refuses(case.problem)]


@pytest.mark.parametrize("rung", runnable(), ids=lambda rung: rung.name)
def test_a_text_in_any_company_and_ranges_outside(rung, rng):
    wide = torch.from_numpy(rng.standard_normal((40, 7)).astype("float32")).to(PLACE)
    x, ranges = wide[:, :5], torch.tensor([[0, 3], [3, 38], [38, 40], [-1, 2], [4, 4], [39, 41]], device=PLACE)
    out = torch.zeros(6, 9, device=PLACE)
    with using(pool=rung.name):
        found = pool(x, ranges[:, 0], ranges[:, 1], out=out[:, 2:7])
        alone = pool(x[3:38].contiguous(), *(torch.tensor([at], device=PLACE) for at in (0, 35)))
    assert torch.equal(alone[0], found[1]) and not out[:, :2].any() and not out[:, 7:].any()
    assert found.isnan().all(1).tolist() == [False, False, False, True, True, True]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bits(dtype, rng):
    case = spec.Case(3, 5, 6, dtype=dtype, device="cuda")
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
    x, at = torch.ones(4, 3, device=PLACE), torch.zeros(2, dtype=torch.int64, device=PLACE)
    for words, call in {
        "pool: x is float32 (3,)": lambda: pool(x[0], at, at),
        "pool: begin is float32": lambda: pool(x, x[0], at),
        "pool: end is int64 (2, 1)": lambda: pool(x, at, at[:, None]),
        "pool: begin has 2 elements, end 1": lambda: pool(x, at, at[:1]),
        "pool: out is float32 (2, 2)": lambda: pool(x, at, at + 1, out=x[:2, :2]),
    }.items():
        with pytest.raises(UsageError) as error:
            call()
        assert words in str(error.value)
