"""conv1d's and embedding_conv1d's rungs for GPUs: with TILEWRIGHT_GPU=1 (`make test-gpu`) on a GPU, on every case; else
in numba-cuda's simulator and Triton's interpreter, which run kernels as Python, on tiny ones."""

import importlib
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

from compare import compare
from gpu import ON_GPU, PLACE, widen_bfloat16
from ops.cases import cases_of
from tilewright.bench.sizes import conv1d as conv1d_spec
from tilewright.bench.sizes import embedding_conv1d as table_spec
from tilewright.errors import Refused, ResourceError, UsageError
from tilewright.ops.core.ladder import forcing

torch = pytest.importorskip("torch")
conv1d = pytest.importorskip("tilewright.ops.conv1d")
sentences = pytest.importorskip("tilewright.ops.embedding_conv1d")
pytestmark = pytest.mark.usefixtures("simulated_gpu")

DTYPES = ("float32", "bfloat16", "float16", "tf32")
OPS = {"conv1d": (conv1d, conv1d_spec), "embedding_conv1d": (sentences, table_spec)}
Conv, Table = conv1d_spec.Case, table_spec.Case
TINY = {
    "conv1d": [
        Conv(1, 49, 3, 4, 1, stride=4, dtype="float32"),  # one tap: too long a row for the registers
        Conv(0, 9, 5, 3, 3),
        Conv(2, 7, 3, 2, 3, stride=2, padding=2, dilation=2, bias=True, activation="relu", layout="F"),
        Conv(1, 19, 2, 2, 2, bias=True, activation="relu", pool="max"),
        Conv(5, 4, 3, 3, 2, pool="max"),
        Conv(2, 40, 18, 7, 5, bias=True, pool="max"),  # three tiles of positions, of depth, two of filters
    ],
    "embedding_conv1d": [
        Table(0, 4, 5, 6, 7, (2,)),
        Table(1, 1, 1, 1, 1, (1,)),
        Table(3, 5, 9, 6, 33, (1, 3)),
        Table(2, 7, 9, 6, 70, (2, 3)),
    ],
}
DEEP = 400  # channels: with two taps as many as limbs want


@pytest.fixture(autouse=True)
def bfloat16_is_multiplied(monkeypatch):
    widen_bfloat16(monkeypatch)


@contextmanager
def forced(op: str, rung: str, dtype: str):
    """The rung, and in the simulator a product that takes no seconds."""
    products = {} if ON_GPU or dtype != "float32" else {"matmul": "simt.register"}
    with forcing(**{op: rung}, **products):
        yield


def every():
    """A parameter for each operation, rung, class and case; one skip, with its reason, for what cannot run here."""
    for op in OPS:
        for rung in importlib.import_module(f"tilewright.ops.{op}").ladder.rungs.values():
            if rung.name.startswith("cpu."):
                continue
            for dtype in DTYPES:
                cases = [case for case in cases_of(op) if case.dtype == "float32"] if ON_GPU else TINY[op]
                if ON_GPU and op == "conv1d" and rung.name.startswith("tile."):
                    cases = cases[:: 6 if dtype == "bfloat16" else 12]  # each compiles products of its own sizes
                cases = [replace(case, dtype=dtype, device="cuda") for case in cases]
                if rung.name == "tile.limbs":
                    cases = [replace(case, C=max(case.C, 2 * DEEP // case.K + 1)) for case in cases]
                runs = [case for case in cases if not rung.refuses(case.problem)]
                if runs:
                    for case in runs:
                        yield pytest.param(op, rung, case, id=f"{op}-{rung.name}-{case.name}")
                elif not any("dtype is" in why or "C * K" in why for why in rung.refuses(cases[0].problem)):
                    why = f"{op}.{rung.name}: {'; '.join(rung.refuses(cases[0].problem))}"
                    yield pytest.param(op, rung, None, marks=pytest.mark.skip(reason=why))


@pytest.mark.parametrize(("op", "rung", "case"), list(every()))
def test_rung(op, rung, case, rng):
    _, spec = OPS[op]
    inputs = spec.make(case, rng)
    reference = spec.reference(case, inputs)
    bound = spec.bound(case, inputs, reference, rung.c)
    with forced(op, rung.name, case.dtype):
        try:
            call = spec.bind_tensors(case, inputs, PLACE)
        except ResourceError:
            assert case.memory, "a table without a limit has room"
            pytest.skip(f"{op}.{rung.name} keeps all rows of a token: {case.memory} bytes hold too few")
        outs = [torch.full(reference.shape, torch.nan, device=PLACE) for _ in range(2)]
        for out in outs:
            call(out=out)
    compare(outs[0].cpu().numpy(), reference, bound)
    assert torch.equal(outs[0], outs[1]), "two runs give different bits"


def rungs(op: str, *few: str):
    """(rung, class) of those that run here: every rung on a GPU, else `few` of them."""
    for rung in importlib.import_module(f"tilewright.ops.{op}").ladder.rungs.values():
        for dtype in DTYPES:
            case = replace(TINY[op][1], dtype=dtype, device="cuda", C=DEEP if ON_GPU else 5)
            case = replace(case, kernels=(2, 3)) if op == "embedding_conv1d" else case
            if not rung.refuses(case.problem) and (ON_GPU or rung.name in few):
                yield pytest.param(rung, case, id=f"{rung.name}-{dtype}")


@pytest.mark.parametrize(("rung", "case"), list(rungs("conv1d", "simt.naive", "simt.fused", "simt.rows")))
def test_a_samples_bits_do_not_depend_on_its_batch(rung, case, rng):
    sizes = (1, 2, 5, 33, 200) if ON_GPU else (1, 6)
    case = replace(case, B=max(sizes), L=17, O=40 if ON_GPU else 3, K=3, pool="max", stride=1, dilation=1, padding=0)
    inputs, bits = conv1d_spec.make(case, rng), set()
    with forced("conv1d", rung.name, case.dtype):
        for size in sizes:
            for at in {0, size - 1}:
                x = rng.standard_normal((size, *inputs["x"].shape[1:]), dtype=np.float32)
                x[at] = inputs["x"][0]
                bits.add(
                    conv1d_spec.bind_tensors(replace(case, B=size), {**inputs, "x": x}, PLACE)()[at]
                    .cpu()
                    .numpy()
                    .tobytes()
                )
    assert len(bits) == 1


@pytest.mark.parametrize(("rung", "case"), list(rungs("embedding_conv1d", "simt.quads", "tile.gather_add")))
def test_a_sentences_bits_do_not_depend_on_its_batch_or_the_table(rung, case, rng):
    """Alone, among others, and where rows are dropped and computed again."""
    sizes = (1, 2, 17, 100, 300) if ON_GPU else (1, 7)
    V = 50 if ON_GPU else 12
    case = replace(case, B=max(sizes), L=4, V=V, O=70 if ON_GPU else 5)
    inputs, bits = table_spec.make(case, rng), set()
    first, memory = inputs["ids"][0], None
    with forced("embedding_conv1d", rung.name, case.dtype):
        for _ in ("all tokens have room", "six have"):
            operands = [torch.from_numpy(inputs["table"]).to(PLACE)]
            operands += [[torch.from_numpy(x).to(PLACE) for x in inputs[name]] for name in ("weights", "biases")]
            prepared = sentences.prepare(*operands, length=4, dtype=case.dtype, memory=memory)
            for size in sizes:
                ids = rng.integers(0, V, (size, 4)).astype(np.int32)
                ids[-1] = first
                out = sentences.embedding_conv1d(ids, prepared)
                bits.add(out[-1].cpu().numpy().tobytes())
            if memory:
                assert prepared.state.built > prepared.state.capacity == 6, "this test wants rows to be dropped"
            memory = 6 * getattr(prepared.state, "token_bytes", 0)
    assert len(bits) == 1


@pytest.mark.parametrize(("rung", "case"), list(rungs("embedding_conv1d", "simt.quads", "tile.gather_add")))
def test_a_poisoned_token_stays_in_its_sentences(rung, case, rng):
    case = replace(case, B=5, L=4, V=9)
    inputs = table_spec.make(case, rng)
    inputs["ids"] = np.array([[1, 2, 3, 4], [1, 2, 3, 0], [4, 5, 6, 7], [8, 0, 8, 8], [1, 1, 1, 1]], np.int32)
    with forced("embedding_conv1d", rung.name, case.dtype):
        clean = table_spec.bind_tensors(case, inputs, PLACE)()
        inputs["table"][0] = np.nan
        dirty = table_spec.bind_tensors(case, inputs, PLACE)()
    assert torch.equal(clean[[0, 2, 4]], dirty[[0, 2, 4]])
    assert torch.isnan(dirty[[1, 3]]).all()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bit_features_are_the_rounded_ones(dtype, rng):
    if dtype == "bfloat16" and not ON_GPU:
        pytest.skip("Triton's interpreter truncates where the GPU rounds to bfloat16")
    case = Table(3, 5, 9, 6, 33, (1, 3), dtype, device="cuda")
    with forced("embedding_conv1d", "tile.gather_add", dtype):
        call = table_spec.bind_tensors(case, table_spec.make(case, rng), PLACE)
        out = torch.empty(3, 66, dtype=getattr(torch, dtype), device=PLACE)
        assert torch.equal(call(out=out), call().to(out.dtype))


def test_what_does_not_fit_is_named():
    x, weight, bias = (torch.ones(shape, device=PLACE) for shape in ((2, 3, 4), (5, 3, 2), (5,)))
    table, ids = torch.ones(6, 3, device=PLACE), np.zeros((2, 4), np.int32)
    with forced("embedding_conv1d", "simt.quads", "float32"):
        prepared = sentences.prepare(table, [weight], [bias], length=4)
        for words, call in {
            "ids[1, 2] is 6; the table has rows 0 to 5": lambda: sentences.embedding_conv1d(with_id(ids, 6), prepared),
            "ids is float32; integers": lambda: sentences.embedding_conv1d(ids.astype(np.float32), prepared),
            "(B, L) with L at least 2": lambda: sentences.embedding_conv1d(ids[:, :1], prepared),
            "out is float32 (2, 4)": lambda: sentences.embedding_conv1d(ids, prepared, out=x[0, :2]),
            "table is int32": lambda: sentences.prepare(ids, [weight], [bias], length=4),
            "weights[0] is on a GPU": lambda: sentences.prepare(ids.astype("f"), [weight], [bias], length=4),
            "weights[0] is a ndarray": lambda: sentences.prepare(table, [np.ones((5, 3, 2))], [bias], length=4),
            "weights[0] is float16": lambda: sentences.prepare(table, [weight.half()], [bias], length=4),
            "K at most the length 1": lambda: sentences.prepare(table, [weight], [bias], length=1),
            "one value per filter": lambda: sentences.prepare(table, [weight], [bias[:4]], length=4),
            "allow at least 256 bytes": lambda: sentences.prepare(table, [weight], [bias], length=4, memory=40),
        }.items():
            with pytest.raises((UsageError, ResourceError)) as error:
                call()
            assert words.lower() in str(error.value).lower()
    with forcing(conv1d="simt.naive"):
        for words, call in {
            "x must be (B, C, L) with C = 3": lambda: conv1d.conv1d(x[0], weight),
            "5 taps": lambda: conv1d.conv1d(x, torch.ones(5, 3, 5, device=PLACE)),
            "bias has shape (4,)": lambda: conv1d.conv1d(x, weight, bias=bias[:4]),
            "pool": lambda: conv1d.conv1d(x, weight, pool="mean"),
            "out is float32 (2, 5, 4)": lambda: conv1d.conv1d(x, weight, out=torch.ones(2, 5, 4, device=PLACE)),
            "weight is a ndarray": lambda: conv1d.conv1d(x, np.ones((5, 3, 2), np.float32)),
            "(O, C, K) is wanted": lambda: conv1d.prepare(bias),
            "dtype is bfloat16": lambda: conv1d.prepare(weight, dtype="bfloat16"),
        }.items():
            with pytest.raises((UsageError, Refused)) as error:
                call()
            assert words in str(error.value)


def with_id(ids, wrong):
    ids = ids.copy()
    ids[1, 2] = wrong
    return ids


def test_gpu_rungs_refuse_the_cpus_arrays_and_the_other_way_round():
    for op in OPS:
        ladder = importlib.import_module(f"tilewright.ops.{op}").ladder
        here = cases_of(op)[0].problem
        for name, rung in ladder.rungs.items():
            why = "; ".join(rung.refuses(replace(here, device="cuda") if name.startswith("cpu.") else here))
            assert "it takes" in why and "on cuda" in why and "on cpu" in why, name
