"""The rungs for GPUs of the operations on rows, softmax, layernorm, batchnorm, elementwise, embedding: with
TILEWRIGHT_GPU=1 (`make test-gpu`) on a GPU, on every case; else in numba-cuda's simulator and Triton's interpreter,
which run kernels as Python, on tiny ones."""

import ast
import importlib
import math
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from compare import compare
from gpu import ON_GPU, PLACE, round_fma_once
from ops.cases import cases_of
from tilewright.errors import UsageError
from tilewright.ops.core import ladder as dispatch
from tilewright.ops.core.ladder import using
from tilewright.ops.elementwise.problem import DEVICE_DTYPES
from tilewright.ops.elementwise.reference import FUNCTIONS

torch = pytest.importorskip("torch")

OPS = ("softmax", "layernorm", "batchnorm", "elementwise", "embedding")
WARPS = 8  # of a block of the kernels that process one row per warp
SMALL = 600  # numbers of a case in Triton's interpreter
WIDTH = 768 if ON_GPU else 24  # of a row, where a test needs no particular one
# (rows, width): rows of several chunks of 32, 128, 256, 1024, 4096 and 16384 elements, the last one partial, and more
# rows than a block has warps, or the interpreter programs; the first two where no element depends on another
CHUNKED = ((2, 300), (9, 132), (1, 2348), (4, 33_000))
AFFORDED = 2400  # numbers of such a case in the simulator: 256 threads take some two seconds

pytestmark = [
    pytest.mark.usefixtures("simulated_gpu"),
    pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning"),  # NumPy's, where a GPU computes NaN in silence
    pytest.mark.filterwarnings("ignore:divide by zero:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning"),
]


@pytest.fixture(autouse=True)
def fused_multiply_adds(monkeypatch):
    round_fma_once(monkeypatch)


def parts(op: str):
    """(spec, module of the ladder, package) of an operation."""
    names = f"tilewright.bench.sizes.{op}", f"tilewright.ops.{op}.ladder", f"tilewright.ops.{op}"
    return (importlib.import_module(name) for name in names)


def rungs(op: str):
    _, module, _ = parts(op)
    return [rung for name, rung in module.ladder.rungs.items() if not name.startswith("cpu.")]


@cache
def names_in(kernel: str) -> frozenset[str]:
    """The names in the source of a rung's kernel, "softmax.simt.rows:shared", and of all that it calls in its module;
    what the module imports from another, with the path of that."""
    module, function = kernel.split(":")
    path = Path(dispatch.__file__).parents[1] / f"{module.replace('.', '/')}.py"
    uses: dict[str, set[str]] = {}
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom):
            uses |= {alias.name: {f"{node.module}.{alias.name}"} for alias in node.names}
            continue
        names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
        names |= {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)}
        targets = [target.id for target in getattr(node, "targets", ()) if isinstance(target, ast.Name)]
        uses |= dict.fromkeys([node.name] if isinstance(node, ast.FunctionDef) else targets, names)
    found, todo = set(), {function}
    while todo:
        new = uses.get(todo.pop(), set()) - found
        found |= new
        todo |= new
    return frozenset(found)


def waits(rung) -> bool:
    """True for a SIMT kernel whose threads wait for each other, also in a shuffle: the simulator takes a second for 256
    of them."""
    if not rung.name.startswith("simt."):
        return False
    path, names = "tilewright.ops.core.gpu.warp.", names_in(rung.kernel)
    return "syncthreads" in names or any(name.startswith(path) and name.islower() for name in names)


def numbers(case) -> int:
    return int(np.prod(case.shape)) * getattr(case, "C", 1)


def rows_of(case) -> int:
    return numbers(case) // getattr(case, "C", case.shape[-1] or 1)


def one(op: str, rows: int, dtype: str = "float32", width: int = WIDTH):
    """A case of so many rows, `width` numbers each, and where its rows are among its inputs."""
    spec, _, _ = parts(op)
    if op == "embedding":
        return spec.Case((rows,), 50, width, dtype=dtype, positions=9, device="cuda"), ("ids", "positions")
    if op == "elementwise":
        return spec.Case("gelu_tanh", (rows, width), dtype=dtype, device="cuda"), ("x",)
    return spec.Case((rows, width), dtype=dtype, device="cuda"), ("x",)


def chosen(op: str, rung, dtype: str):
    """The cases on which a rung is tried in a class: all of them on a GPU, in float32; elsewhere what takes no time."""
    cases = [replace(case, dtype=dtype, device="cuda") for case in cases_of(op)]
    cases = [case for case in cases if not rung.refuses(case.problem)]
    if ON_GPU:
        return cases if dtype == "float32" else [case for case in cases if numbers(case) <= SMALL]
    if waits(rung):
        most = 1 if "blockIdx" in names_in(rung.kernel) else WARPS  # rows of a block of threads
        cases = [case for case in cases if rows_of(case) <= most]
        tiny = sorted((case for case in cases if numbers(case) <= 64), key=numbers)[-1:]
        return tiny + [case for case in chunked(op, rung, dtype) if rows_of(case) <= 2 * most]
    few = [case for case in cases if numbers(case) <= (90 if rung.name.startswith("simt.") else SMALL)]
    return (few if dtype == "float32" else few[-3:]) + chunked(op, rung, dtype)


def chunked(op: str, rung, dtype: str):
    """Cases in which loops over chunks run twice or more, and several warps have elements; in one class only."""
    most = AFFORDED if rung.name.startswith("simt.") else math.inf
    sizes = CHUNKED if op in ("softmax", "layernorm") else CHUNKED[:2]
    cases = [one(op, rows, dtype, width)[0] for rows, width in sizes if rows * width <= most]
    return [case for case in cases if dtype == "float32" and not rung.refuses(case.problem)]


def every():
    """A parameter for each operation, rung, class and case; one skip, with its reason, for what cannot run here."""
    for op in OPS:
        for rung in rungs(op):
            for dtype in DEVICE_DTYPES:
                cases = chosen(op, rung, dtype)
                why = rung.refuses(replace(cases_of(op)[4], dtype=dtype, device="cuda").problem)
                if why and not any(words in "; ".join(why) for words in ("it takes", "it needs a multiple")):
                    mark = pytest.mark.skip(reason=f"{op}.{rung.name}: {'; '.join(why)}")
                    yield pytest.param(op, rung, None, id=f"{op}-{rung.name}-{dtype}", marks=mark)
                for case in cases:
                    yield pytest.param(op, rung, case, id=f"{op}-{rung.name}-{case.name}")


@pytest.mark.parametrize(("op", "rung", "case"), list(every()))
def test_rung(op, rung, case, rng):
    spec, _, _ = parts(op)
    inputs = spec.make(case, rng)
    reference = spec.reference(case, inputs)
    bound = spec.bound(case, inputs, reference, rung.c)
    runs = 1 if waits(rung) and not ON_GPU else 2
    with using(**{op: rung.name}):
        call = spec.bind_tensors(case, inputs, PLACE)
        outs = [torch.full(reference.shape, torch.nan, device=PLACE) for _ in range(runs)]
        for out in outs:
            assert call(out=out) is out
    compare(outs[0].cpu().numpy(), reference, bound)
    assert outs[0].cpu().numpy().tobytes() == outs[-1].cpu().numpy().tobytes(), "two runs give different bits"


def test_a_thread_that_loads_four_numbers_at_once_misses_none(rng):
    spec, module, package = parts("softmax")
    if why := module.ladder.rungs["simt.online"].refuses(spec.Case((1, 1030), device="cuda").problem):
        pytest.skip("; ".join(why))
    x = rng.standard_normal((1, 1030), dtype=np.float32)
    x[0, rng.random(1030) < 0.7] = -np.inf
    x[0, 5::256] = -np.inf
    with using(softmax="simt.online"):
        exact = spec.reference(None, {"x": x})
        out = package.softmax(torch.from_numpy(x).to(PLACE)).cpu().numpy()
        assert np.abs(out - exact).max() < 1e-7
        x[0, 5 + 256] = np.nan  # a thread's other numbers are all -inf
        assert np.isnan(package.softmax(torch.from_numpy(x).to(PLACE)).cpu().numpy()).all()


@pytest.mark.parametrize("rung", rungs("softmax"), ids=lambda rung: rung.name)
def test_the_largest_element_of_a_row_may_be_its_last_or_its_first(rung):
    """Elements 200 apart: exp overflows if the largest of some chunks is taken for the largest of the row."""
    C = 300 if rung.name.startswith("simt.") else 33_000
    case = one("softmax", 2, width=C)[0]
    if why := [why for why in rung.refuses(case.problem) if "it takes up to" not in why]:
        pytest.skip("; ".join(why))
    C = 300 if rung.refuses(case.problem) else C
    x = np.float32(200) * np.stack([np.arange(C), np.arange(C)[::-1]]).astype(np.float32)
    with using(softmax=rung.name):
        _, _, package = parts("softmax")
        found = package.softmax(torch.from_numpy(x).to(PLACE)).cpu().numpy()
    assert (found == (x == x.max())).all()


def runnable(op: str):
    """The rungs of an operation that run here: every one on a GPU, else all that take no time."""
    for rung in rungs(op):
        problem = replace(cases_of(op)[0], device="cuda").problem
        hardware = [why for why in rung.refuses(problem) if "needs a multiple" not in why]
        if not hardware and (ON_GPU or not waits(rung)):
            yield rung


ROWWISE = [(op, rung) for op in OPS for rung in runnable(op)]


@pytest.mark.parametrize(("op", "rung"), ROWWISE, ids=lambda value: getattr(value, "name", value))
def test_a_rows_bits_do_not_depend_on_its_batch(op, rung, rng):
    spec, _, _ = parts(op)
    sizes = (1, 2, 65, 129, 1000) if ON_GPU else (1, 2, 5)
    first, names = one(op, max(sizes))
    inputs, bits = spec.make(first, rng), set()
    with using(**{op: rung.name}):
        for size in sizes:
            for at in {0, size // 2, size - 1}:
                case, _ = one(op, size)
                fresh = spec.make(case, rng)
                mixed = inputs | {name: fresh[name] for name in names}
                for name in names:
                    mixed[name][at] = inputs[name][0]
                bits.add(spec.bind_tensors(case, mixed, PLACE)()[at].cpu().numpy().tobytes())
    assert len(bits) == 1


@pytest.mark.parametrize(("op", "rung"), ROWWISE, ids=lambda value: getattr(value, "name", value))
def test_a_poisoned_row_stays_alone(op, rung, rng):
    spec, _, _ = parts(op)
    case, names = one(op, 6)
    inputs = spec.make(case, rng)
    with using(**{op: rung.name}):
        clean = spec.bind_tensors(case, inputs, PLACE)()
        inputs[names[0]][2] = -1 if op == "embedding" else np.nan
        dirty = spec.bind_tensors(case, inputs, PLACE)()
    assert torch.equal(clean[[0, 1, 3, 4, 5]], dirty[[0, 1, 3, 4, 5]])
    assert torch.isnan(dirty[2]).all()


TILES = [(op, rung) for op, rung in ROWWISE if rung.name.startswith("tile.")]


@pytest.mark.parametrize(("op", "rung"), TILES, ids=lambda value: getattr(value, "name", value))
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_16_bit_result_is_the_rounded_one(op, rung, dtype, rng):
    if dtype == "bfloat16" and not ON_GPU:
        pytest.skip("Triton's interpreter truncates where the GPU rounds to bfloat16")
    spec, _, _ = parts(op)
    case, _ = one(op, 5, dtype)
    with using(**{op: rung.name}):
        call = spec.bind_tensors(case, spec.make(case, rng), PLACE)
        out = torch.full((5, WIDTH), torch.nan, dtype=getattr(torch, dtype), device=PLACE)
        difference = (call(out=out).double() - call().double()).abs()
    worst = (call().double().abs() * torch.finfo(out.dtype).eps / 2 + 2.0**-25) * 1.01
    assert (difference <= worst).all()


@pytest.mark.parametrize(("op", "rung"), TILES, ids=lambda value: getattr(value, "name", value))
def test_where_inputs_and_outputs_may_lie(op, rung, rng):
    """Not aligned, not contiguous, or over the input itself: the same bits, and nothing else is written."""
    spec, _, package = parts(op)
    case, names = one(op, 4)
    inputs = spec.make(case, rng)
    with using(**{op: rung.name}):
        wanted = spec.bind_tensors(case, inputs, PLACE)()
        wide = torch.zeros(5, 2 * WIDTH + 3, device=PLACE)
        for out in (wide[1:, 1 : WIDTH + 1], wide[:4, ::2][:, :WIDTH]):
            wide.zero_()
            spec.bind_tensors(case, inputs, PLACE)(out=out)
            assert torch.equal(out, wanted)
            out.zero_()
            assert not wide.any()
        shifted = torch.zeros(4 * WIDTH + 1, device=PLACE)[1:].view(4, WIDTH)
        assert torch.equal(spec.bind_tensors(case, inputs, PLACE)(out=shifted), wanted)
        if "x" in names:
            call = getattr(package, "gelu" if op == "elementwise" else op)
            rest = {name: torch.from_numpy(v).to(PLACE) for name, v in inputs.items() if hasattr(v, "shape")}
            x = rest.pop("x")
            shifted.copy_(x)
            assert torch.equal(call(shifted, **rest), wanted)
            assert torch.equal(call(x, **rest, out=x), wanted)
            both = torch.zeros(5, WIDTH, device=PLACE)
            both[:4].copy_(shifted)
            assert torch.equal(call(both[:4], **rest, out=both[1:]), wanted)


@pytest.mark.parametrize("rung", list(runnable("embedding")), ids=lambda r: r.name)
def test_ids_and_positions_that_a_table_does_not_have_make_rows_nan(rung):
    from tilewright.ops.embedding import embedding

    table = torch.arange(16, dtype=torch.float32, device=PLACE).view(4, 4)
    ids, places = torch.tensor([0, 4, -1, 3, 2**40, 1]), torch.tensor([0, 0, 1, 2, 1, -5])
    with using(embedding=rung.name):
        out = embedding(ids.to(PLACE), table)
        assert out.isnan().all(1).tolist() == [False, True, True, False, True, False]
        added = embedding(ids.to(PLACE), table, positions=places.to(PLACE), position_table=table[:2].contiguous())
    assert added.isnan().all(1).tolist() == [False, True, True, True, True, True]
    assert added[0].tolist() == [0, 2, 4, 6] and out[3].tolist() == [12, 13, 14, 15]


def test_what_does_not_fit_is_named():
    from tilewright.ops.batchnorm import batchnorm
    from tilewright.ops.elementwise import gelu
    from tilewright.ops.embedding import embedding
    from tilewright.ops.layernorm import layernorm
    from tilewright.ops.softmax import softmax

    x, c = torch.ones(2, 4, device=PLACE), torch.ones(4, device=PLACE)
    ids, table = torch.zeros(3, dtype=torch.int64, device=PLACE), torch.ones(5, 4, device=PLACE)
    for words, call in {
        "softmax: x is a single number": lambda: softmax(x[0, 0]),
        "softmax: x is int64": lambda: softmax(ids),
        "softmax: out is float32 (4,)": lambda: softmax(x, out=c),
        "layernorm: weight has shape (3,); (4,)": lambda: layernorm(x, c[:3], c),
        "layernorm: bias is a ndarray": lambda: layernorm(x, c, np.ones(4, np.float32)),
        "layernorm: eps is -1": lambda: layernorm(x, c, c, eps=-1),
        "batchnorm: variance has shape (2, 4)": lambda: batchnorm(x, c, c, c, x),
        "batchnorm: activation is 'swish'": lambda: batchnorm(x, c, c, c, c, activation="swish"),
        "gelu: approximate is 'fast'": lambda: gelu(x, approximate="fast"),
        "embedding: ids is float32": lambda: embedding(x, table),
        "embedding: table has shape (4,)": lambda: embedding(ids, c),
        "embedding: position_table is missing": lambda: embedding(ids, table, positions=ids),
        "embedding: positions has shape (2,)": lambda: embedding(ids, table, positions=ids[:2], position_table=table),
        "embedding: position_table has shape (5, 2)": lambda: embedding(
            ids, table, positions=ids, position_table=table[:, :2]
        ),
        "embedding: out is float64": lambda: embedding(ids, table, out=torch.ones(3, 4, device=PLACE).double()),
    }.items():
        with pytest.raises(UsageError) as error:
            call()
        assert words in str(error.value)


def test_a_gpu_rung_refuses_the_cpus_arrays_and_the_other_way_round():
    for op in OPS:
        _, module, _ = parts(op)
        on_cpu = cases_of(op)[0].problem
        for name, rung in module.ladder.rungs.items():
            problem = replace(on_cpu, device="cuda") if name.startswith("cpu.") else on_cpu
            assert "it takes" in "; ".join(rung.refuses(problem)), f"{op}.{name}"


@pytest.mark.parametrize("function", ["relu", "tanh", "gelu", "gelu_tanh"])
def test_the_error_over_all_of_float32(function):
    """Every bit pattern so many apart, both signs and every exponent: within the rung's share of `WORST_ULP`."""
    spec, _, package = parts("elementwise")
    for rung in runnable("elementwise"):
        apart = 4099 if ON_GPU else 4_000_037 if rung.name.startswith("simt.") else 400_009
        patterns = np.arange(0, 2**32, apart).astype(np.uint32).view(np.float32)
        x = patterns[~np.isnan(patterns)]
        reference = FUNCTIONS[function](x)
        with using(elementwise=rung.name):
            actual = package.apply(function, torch.from_numpy(x).to(PLACE), None).cpu().numpy()
        finite = np.isfinite(reference)
        assert (actual[~finite] == reference[~finite]).all()
        bound = spec.bound(spec.Case(function, x.shape), {"x": x}, reference[finite], rung.c)
        compare(actual[finite], reference[finite], bound)
        nan = package.apply(function, torch.full((5,), torch.nan, device=PLACE), None)
        assert torch.isnan(nan).all()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("function", ["relu", "tanh", "gelu", "gelu_tanh"])
def test_the_error_of_16_bits_over_all_of_float32(function, dtype):
    """As above for 16-bit outputs, down to their smallest: the float32 bound, and one rounding."""
    if dtype == "bfloat16" and not ON_GPU:
        pytest.skip("Triton's interpreter converts subnormal numbers wrongly to bfloat16")
    spec, _, package = parts("elementwise")
    numbers = torch.finfo(getattr(torch, dtype))
    for rung in [rung for rung in runnable("elementwise") if rung.name.startswith("tile.")]:
        patterns = np.arange(0, 2**32, 4099 if ON_GPU else 100_003).astype(np.uint32).view(np.float32)
        x = patterns[~np.isnan(patterns)]
        reference = FUNCTIONS[function](x)
        out = torch.full(x.shape, torch.nan, dtype=getattr(torch, dtype), device=PLACE)
        with using(elementwise=rung.name):
            package.apply(function, torch.from_numpy(x).to(PLACE), out)
        inside = np.abs(reference) < numbers.max
        bound = spec.bound(spec.Case(function, x.shape), {"x": x}, reference[inside], rung.c)
        bound += (np.abs(reference[inside]) + bound) * numbers.eps + numbers.smallest_normal * numbers.eps
        compare(out.float().cpu().numpy()[inside], reference[inside], bound)


def test_layernorm_passes_an_integer_eps_as_a_float(monkeypatch):
    """Triton would compile the value 1 into the kernel, and later calls with another eps would run it."""
    registers = pytest.importorskip("tilewright.ops.layernorm.tile.registers")
    found = []
    monkeypatch.setattr(registers, "start", lambda kernel, key, grid, arguments, **options: found.append(arguments[5]))
    x, vector = torch.ones(2, 8), torch.ones(8)
    for eps in (1, 1e-5):
        registers.run(x, vector, vector, eps, x)
    assert found == [1.0, 1e-5] and type(found[0]) is float
