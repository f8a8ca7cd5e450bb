"""matmul_argmax's rungs for GPUs: with TILEWRIGHT_GPU=1 (`make test-gpu`) on a GPU, on every case; else in numba-cuda's
simulator and Triton's interpreter, which run kernels as Python, on tiny ones."""

from dataclasses import replace

import numpy as np
import pytest

from compare import compare
from gpu import ON_GPU, PLACE, widen_bfloat16
from ops.cases import cases_of
from tilewright.bench.sizes import matmul_argmax as spec
from tilewright.errors import UsageError
from tilewright.ops.core.ladder import using
from tilewright.ops.matmul import Problem as Product
from tilewright.ops.matmul import ladder as matrix_ladder
from tilewright.ops.matmul.problem import DEVICE_DTYPES
from tilewright.ops.matmul_argmax import ladder, matmul_argmax, prepare
from tilewright.ops.matmul_argmax.problem import Case

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("simulated_gpu")

RUNGS = [rung for name, rung in ladder.rungs.items() if not name.startswith("cpu.")]
DEEP = 770  # K that rungs with limbs take
FLOAT32 = [case for case in cases_of("matmul_argmax") if case.dtype == "float32"]
TINY = [Case(1, 1, 16), Case(3, 40, 9), Case(7, 100, 9)]
ONE_LIMB = [Case(3, 140, DEEP)]  # two tiles of 128


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch):
    """Triton's interpreter reduces by a function of ours one element at a time; here it reduces by `larger` at once."""
    if ON_GPU or matrix_ladder.rungs["tile.persistent"].refuses(Product(8, 8, "bfloat16", "cuda")):
        return
    from triton.runtime.interpreter import ReduceOps

    from tilewright.ops.matmul_argmax.tile import best

    reduce = ReduceOps.apply_impl

    def apply(self, input):
        return self.min_max(input[0], np.max) if self.combine_fn is best.larger else reduce(self, input)

    widen_bfloat16(monkeypatch)
    monkeypatch.setattr(ReduceOps, "apply_impl", apply)


def classes(rung) -> list[str]:
    """The accuracy classes that a rung takes, whatever is installed here."""
    problem = Case(9, 40, DEEP, device="cuda").problem
    found = [(dtype, rung.refuses(replace(problem, dtype=dtype))) for dtype in DEVICE_DTYPES]
    return [dtype for dtype, why in found if "dtype is" not in "".join(why)]


def accepted(cases=None):
    """A parameter for each rung, class and case; one skip, with its reason, for what cannot run here."""
    for rung in RUNGS:
        for dtype in classes(rung):
            if not ON_GPU and rung.name.startswith("simt.") and dtype in ("float16", "tf32"):
                continue  # matmul's own tests cover these
            case = Case(9, 40, DEEP, dtype, device="cuda")
            if why := rung.refuses(case.problem):
                mark = pytest.mark.skip(reason=f"{rung.name}: {'; '.join(why)}")
                yield pytest.param(rung, None, id=f"{rung.name}-{dtype}", marks=mark)
                continue
            slow = dtype == "float32" and rung.name.startswith("simt.")  # a product of 128 x 128 in the simulator
            own = [*FLOAT32, Case(300, 700, 1537)] if ON_GPU else TINY
            if "limbs" in rung.name or slow:
                deep = [replace(c, K=c.K + DEEP) for c in own]
                own = deep if ON_GPU else deep[1:] if slow else ONE_LIMB
            for case in cases or own:
                case = replace(case, dtype=dtype, device="cuda")
                if not rung.refuses(case.problem):
                    yield pytest.param(rung, case, id=f"{rung.name}-{case.name}")


@pytest.mark.parametrize(("rung", "case"), list(accepted()))
def test_rung(rung, case, rng):
    inputs = spec.make(case, rng)
    exact = inputs["a"].astype(np.float64) @ inputs["b"].astype(np.float64)
    reference = spec.reference(case, inputs)
    bound = spec.bound(case, inputs, reference, rung.c)
    a, prepared = placed(rung, case, inputs)
    results = [empty(case.M) for _ in range(2)]
    with using(matmul_argmax=rung.name):
        for result in results:
            matmul_argmax(a, prepared, result)
    index, value = (x.cpu().numpy() for x in results[0])
    compare(value, reference, bound)
    assert (exact.max(axis=1) - exact[np.arange(case.M), index] <= 2 * bound).all()
    for first, second in zip(*results, strict=True):
        assert torch.equal(first, second), "two runs give different bits"


def placed(rung, case: Case, inputs: dict):
    """(a, prepared b) on the device."""
    b = torch.from_numpy(inputs["b"]).to(PLACE)
    a = torch.from_numpy(inputs["a"]).to(PLACE)
    if case.dtype.endswith("16"):
        a = a.to(getattr(torch, case.dtype))
    with using(matmul_argmax=rung.name):
        return a, prepare(b, dtype=case.dtype)


def empty(M: int):
    """Arrays for results, filled with NaN and a column that does not exist."""
    return torch.full((M,), -7, device=PLACE), torch.full((M,), torch.nan, device=PLACE)


FEW = Case(5, 40, DEEP)


@pytest.mark.parametrize(("rung", "case"), list(accepted([FEW])))
def test_of_equal_columns_the_first_is_taken_and_a_poisoned_row_stays_alone(rung, case, rng):
    """Small integers: sums are exact, and equal ones are many."""
    inputs = {
        x: np.float32(rng.integers(-1, 2, size)) for x, size in (("a", (case.M, case.K)), ("b", (case.K, case.N)))
    }
    inputs["b"][:, case.N // 2 :] = inputs["b"][:, : -(-case.N // 2)]
    wanted = (inputs["a"] @ inputs["b"]).argmax(axis=1)
    inputs["a"][3] = np.nan
    a, prepared = placed(rung, case, inputs)
    with using(matmul_argmax=rung.name):
        index, value = (x.cpu() for x in matmul_argmax(a, prepared))
    assert [index[i] for i in (0, 1, 2, 4)] == [wanted[i] for i in (0, 1, 2, 4)]
    assert value.isnan().tolist() == [False, False, False, True, False]
    assert 0 <= int(index[3]) < case.N


@pytest.mark.parametrize(("rung", "case"), list(accepted([Case(1000 if ON_GPU else 3, 300 if ON_GPU else 40, 801)])))
def test_a_rows_bits_do_not_depend_on_its_batch(rung, case, rng):
    if not ON_GPU and rung.name.startswith("tile.") and case.dtype not in ("float32", "float16"):
        pytest.skip("one class is enough where a run takes a second")
    inputs = spec.make(case, rng)
    found = set()
    for size in (1, 2, 65, 129, 300, 1000) if ON_GPU else (1, 3):
        a, prepared = placed(rung, case, {**inputs, "a": np.roll(inputs["a"], size - 1, axis=0)[:size]})
        with using(matmul_argmax=rung.name):
            index, value = matmul_argmax(a, prepared)
        found.add((int(index[size - 1]), value[size - 1].cpu().numpy().tobytes()))
    assert len(found) == 1


def test_how_a_product_is_cut_does_not_show(rng):
    """The shape of tiles depends on the number of rows; the bits must not."""
    if not ON_GPU:
        pytest.skip("Triton's interpreter multiplies tiles by BLAS, whose sums follow their shape")
    from tilewright.ops.matmul_argmax.tile import launch

    for rung in (r for r in RUNGS if r.name.startswith("tile.")):
        for dtype in classes(rung):
            case = Case(300, 1000, 1537, dtype, device="cuda")
            if rung.refuses(case.problem):
                continue
            a, prepared = placed(rung, case, spec.make(case, rng))
            kind = {"limbs": dtype == "float32", "specialized": rung.options.get("specialized", False)}
            depth, found = 128 // prepared.weights.data.element_size(), set()
            own = launch.shape_for(depth, case.N, case.M, **kind)
            tiles = [(128, 64), (128, 128), *([(64, 64)] if "specialized" in rung.name else [])]
            for rows, columns in tiles:
                result = empty(case.M)
                shape = replace(own, BM=rows, BN=columns, stages=3, group=1)
                launch.search(a, prepared, *result, **rung.options, shape=shape)
                found.add(b"".join(x.cpu().numpy().tobytes() for x in result))
            assert len(found) == 1, (rung.name, dtype)


def test_what_does_not_fit_is_named():
    b = torch.ones(16, 20, device=PLACE)
    if why := ladder.rungs["simt.row"].refuses(Case(2, 20, 16, device="cuda").problem):
        pytest.skip("; ".join(why))
    prepared, a = prepare(b), torch.ones(2, 16, device=PLACE)
    good = empty(2)
    for words, call in {
        "a is (2, 15); (M, 16) is wanted": lambda: matmul_argmax(a[:, :15], prepared),
        "a is on the CPU and b on a GPU": lambda: matmul_argmax(np.ones((2, 16), np.float32), prepared),
        "at least one column": lambda: prepare(b[:, :0]),
        "dtype is 'float64'": lambda: prepare(b, dtype="float64"),
        "weights are (16, 20) float32, b is (16, 20) bfloat16": lambda: prepare(
            b, dtype="bfloat16", weights=prepared.weights
        ),
        "out's index is int32": lambda: matmul_argmax(a, prepared, (good[0].int(), good[1])),
        "out's value is float32 (1,)": lambda: matmul_argmax(a, prepared, (good[0], good[1][:1])),
    }.items():
        with pytest.raises(UsageError) as error:
            call()
        assert words in str(error.value)
    assert [len(x) for x in matmul_argmax(a[:0], prepared)] == [0, 0]


def test_a_bound_case_gives_values_in_what_it_is_handed(rng):
    case = Case(3, 40, 9, "float16", device="cuda")
    if why := ladder.rungs["tile.fused"].refuses(case.problem):
        pytest.skip("; ".join(why))
    inputs = spec.make(case, rng)
    with using(matmul_argmax="tile.fused"):
        call = spec.bind_tensors(case, inputs, PLACE)
        values, short = call(), call(out=torch.empty(3, dtype=torch.float16, device=PLACE))
        whole = call(out=torch.empty(3, device=PLACE))
    assert torch.equal(values, whole) and torch.equal(short, whole.half())


def test_a_gpu_rung_refuses_the_cpus_arrays_and_the_other_way_round():
    on_cpu, on_gpu = Case(2, 20, 16).problem, replace(Case(2, 20, 16).problem, device="cuda")
    for name, rung in ladder.rungs.items():
        why = "; ".join(rung.refuses(on_cpu if not name.startswith("cpu.") else on_gpu))
        assert "it takes" in why and "on cuda" in why and "on cpu" in why, name
