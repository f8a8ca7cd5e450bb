"""matmul: arguments, outputs, bits and refusals, and the AMX kernels on emulated tiles."""

import dataclasses
import inspect

import numpy as np
import pytest
from numba import typeof, types

import tilewright as tw
import tilewright.ops.matmul as matmul_module
from compare import Guarded, compare
from random_problems import TILE_LANES, slow_to_compile, vectors_of
from tilewright import simd
from tilewright.bench.sizes import matmul as spec
from tilewright.errors import Refused, UsageError
from tilewright.hardware import cpu
from tilewright.ops.core import needs
from tilewright.ops.core.arrays import BFLOAT16, target_for
from tilewright.ops.core.ladder import Ladder, using
from tilewright.ops.core.launch import scratch
from tilewright.ops.gemm.cpu import amx, loops
from tilewright.ops.gemm.cpu.epilogue import Target
from tilewright.ops.gemm.cpu.pack import Source
from tilewright.ops.gemm.cpu.words import pack_limbs, pack_words
from tilewright.ops.gemm.operands import Epilogue, Rows
from tilewright.ops.matmul import Problem, ladder, matmul, prepare
from tilewright.simd import amx as simd_amx


# two limbs are slow to compile, as `slow_to_compile` says
@pytest.mark.parametrize("limbs", [1, pytest.param(2, marks=[pytest.mark.long] * (cpu().lanes < TILE_LANES))])
@pytest.mark.parametrize(("M", "N", "K"), [(37, 50, 40), (32, 32, 32), (3, 70, 1600)])
@vectors_of(TILE_LANES)
def test_amx_kernels_on_emulated_tiles(limbs, M, N, K, rng):
    """Packing, edges, blocks of K, residual and epilogue of the tile kernels, where the CPU has no tiles."""
    dtype = "bfloat16" if limbs == 1 else "float32"
    case = spec.Case(M, N, K, dtype, bias=True, residual=True, activation="relu")
    inputs = spec.make(case, rng)
    reference = spec.reference(case, inputs)
    out = Guarded((M, N))
    weights = {1: pack_words, 2: pack_limbs}[limbs](inputs["b"], "emulated")
    epilogue = Epilogue(inputs["bias"], inputs["residual"], "relu")
    amx.multiply(Rows(inputs["a"], None), weights, out.array, epilogue, emulated=True)
    out.check()
    # two limbs are off by up to 96 eps32 per product at any K; the float32 bound allows that from K = 768 on
    c = 1.0 if limbs == 1 else max(4.0, 100 / np.sqrt(K))
    compare(np.ascontiguousarray(out.array), reference, spec.bound(case, inputs, reference, c))


def rounded_alike(found: np.ndarray, wanted: np.ndarray) -> bool:
    """True if bfloat16 arrays are nearly always equal, else off by one unit: GELU is computed to 14 bits. Elements
    below 4e-38 may be 0."""
    found, wanted = (np.where(np.abs(x.astype(np.float32)) < 4e-38, 0, x.astype(np.float32)) for x in (found, wanted))
    apart = np.abs(found - wanted)
    return bool((apart <= np.abs(wanted) / 128).all() and (apart > 0).mean() < 0.01)


@pytest.mark.parametrize(("M", "N", "K"), [(37, 50, 64), (64, 130, 32), (3, 70, 1536)])
@slow_to_compile
@vectors_of(TILE_LANES)
def test_amx_kernels_read_and_write_bfloat16(M, N, K, rng):
    """The bits of the float32 operands' result, rounded."""
    a, b = rng.standard_normal((M, K), dtype=np.float32).astype(BFLOAT16), rng.standard_normal((K, N), dtype=np.float32)
    weights = pack_words(b, "emulated")
    epilogue = Epilogue(rng.standard_normal(N, dtype=np.float32), np.empty((0, 0), np.float32), "gelu_tanh")
    wanted, out = np.empty((M, N), np.float32), Guarded((M, N))
    amx.multiply(Rows(a.astype(np.float32), None), weights, wanted, epilogue, emulated=True)
    amx.multiply(Rows(a, None), weights, out.array, epilogue, emulated=True)
    out.check()
    assert out.array.tobytes() == wanted.tobytes()
    rounded = np.zeros((M, N + 1), BFLOAT16)
    amx.multiply(Rows(a, None), weights, rounded[:, :N], epilogue, emulated=True)
    assert rounded_alike(rounded[:, :N], wanted.astype(BFLOAT16)) and not rounded[:, N].any()


@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_tiles_need_the_panels_of_wide_vectors(lanes, monkeypatch):
    """A virtual machine may offer AMX and hide AVX-512. Panels are narrower then than the tiles' 32 columns."""
    monkeypatch.setattr(simd_amx, "available", lambda: True)
    with vectors_of(lanes):
        for name, dtype in (("cpu.amx", "bfloat16"), ("cpu.limbs", "float32")):
            why = ladder.rungs[name].refuses(Problem(64, 1024, dtype))
            assert not why if lanes == 16 else f"vectors of {lanes} lanes" in why[0]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("M", "N", "K"), [(5, 40, 64), (200, 130, 768), (33, 70, 1536), (7, 45, 50), (13, 50, 1600), (12, 33, 0)]
)
def test_bfloat16_operands_and_results(M, N, K, dtype, rng):
    """A bfloat16 a gives the bits of the same elements in float32, with any strides; a bfloat16 out these bits,
    rounded."""
    wide = rng.standard_normal((M, 2 * K), dtype=np.float32).astype(BFLOAT16)
    b = rng.standard_normal((K, N), dtype=np.float32)
    rest = {"bias": rng.standard_normal(N, dtype=np.float32), "activation": "gelu_tanh", "dtype": dtype}
    rest["residual"] = rng.standard_normal((M, N), dtype=np.float32)
    for a in (wide[:, :K], wide[:, 1 : K + 1] if K else wide, wide[:, ::2], np.ascontiguousarray(wide[:, :K])):
        wanted = matmul(a.astype(np.float32), b, **rest)
        assert matmul(a, b, **rest).tobytes() == wanted.tobytes()
        for out in (np.empty((M, N), BFLOAT16), np.empty((M, 2 * N + 1), BFLOAT16)[:, 1::2]):
            assert matmul(a, b, out=out, **rest) is out
            assert rounded_alike(out, wanted.astype(BFLOAT16))
    picked = rng.integers(0, M, 9)
    wanted = matmul(wide[:, :K].astype(np.float32), b, rows=picked, dtype=dtype)
    assert matmul(wide[:, :K], b, rows=picked, dtype=dtype).tobytes() == wanted.tobytes()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_prepared_weights_and_scratch_begin_on_cache_lines(dtype, rng):
    """A vector across two cache lines costs two loads, an AMX tile sixteen times that."""
    b = rng.standard_normal((100, 70), dtype=np.float32)
    for array in (prepare(b, dtype=dtype).data, scratch(1 << 20), matmul(b.T, b, dtype=dtype)):
        assert array.__array_interface__["data"][0] % 64 == 0


def test_limbs_wait_for_a_depth_that_holds_the_bound():
    refusal = ladder.rungs["cpu.limbs"].refuses(Problem(N=64, K=767))
    assert any("K is 767" in why for why in refusal)
    assert 4 * np.sqrt(768) > 96  # the worst that dropping lo * lo' and third limbs can do, in eps32


def test_the_number_of_rows_is_not_part_of_a_problem():
    assert set(Problem.__dataclass_fields__) == {"N", "K", "dtype", "device"}


@pytest.mark.parametrize("rung", [None, "cpu.memory", "cpu.register", "cpu.reordered", "cpu.blocked", "cpu.vectors"])
def test_out_may_be_the_residual(rung, rng):
    a, b = rng.standard_normal((40, 1000), dtype=np.float32), rng.standard_normal((1000, 33), dtype=np.float32)
    x = rng.standard_normal((40, 33), dtype=np.float32)
    with using(**({"matmul": rung} if rung else {})):
        expected = matmul(a, b, residual=x)
        assert matmul(a, b, residual=x, out=x) is x
    assert x.tobytes() == expected.tobytes()


@pytest.mark.parametrize("rung", ["cpu.memory", "cpu.reordered", "cpu.vectors", "cpu.packed"])
def test_out_may_share_memory_with_any_operand(rung, rng):
    """All matrices are square, so every operand may be out; a kernel without a copy would read its own results."""
    a, b, o = (rng.standard_normal((48, 48), dtype=np.float32) for _ in range(3))
    calls = {
        "a": lambda o, out: matmul(o, b, out=out(o)),
        "b": lambda o, out: matmul(a, o, out=out(o)),
        "bias": lambda o, out: matmul(a, b, bias=o[0], out=out(o)),
        "bias and residual": lambda o, out: matmul(a, b, bias=o[0], residual=o, out=out(o)),
        "a reversed residual": lambda o, out: matmul(a, b, residual=o[::-1], out=out(o)),
        "a transposed residual": lambda o, out: matmul(a, b, residual=o.T, out=out(o)),
        "a batch of a": lambda o, out: matmul(o.reshape(2, 24, 48), np.stack([b, b]), out=out(o.reshape(2, 24, 48))),
    }
    with using(matmul=rung):
        for name, call in calls.items():
            expected, shared = call(o, lambda out: None), o.copy()
            result = call(shared, lambda out: out)
            assert np.shares_memory(result, shared)
            assert result.tobytes() == expected.tobytes(), name


def odd_views(shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    """float32 arrays of this shape whose elements are not at multiples of 4 bytes from each other or from 0."""
    tagged = [("tag", "u1"), ("value", "<f4", shape[-1:]), ("end", "u1")]
    record = np.zeros(shape[:-1], tagged)  # rows of whole elements, a row 2 bytes longer than they are
    memory = np.zeros(int(np.prod(shape)) * 4 + 1, np.uint8)
    return {"a field of rows": record["value"], "misaligned": memory[1:].view(np.float32).reshape(shape)}


@pytest.mark.parametrize("kind", ["a field of rows", "misaligned"])
def test_out_may_lie_between_elements(kind, rng):
    a, b = rng.standard_normal((40, 20), dtype=np.float32), rng.standard_normal((20, 33), dtype=np.float32)
    out = odd_views((40, 33))[kind]
    assert matmul(a, b, out=out) is out
    assert np.array_equal(out, matmul(a, b))
    around = out.base if kind == "a field of rows" else None
    assert around is None or not (around["tag"].any() or around["end"].any()), "a neighbour was written"
    assert target_for(out, a, b) is not out
    stacked = odd_views((2, 40, 33))[kind]
    matmul(np.stack([a, a]), b, out=stacked)
    assert np.array_equal(stacked[1], matmul(a, b))


def test_the_residual_itself_costs_no_copy(rng, monkeypatch):
    a, b, x = (rng.standard_normal((16, 16), dtype=np.float32) for _ in range(3))
    expected = matmul(a, b, residual=x)
    monkeypatch.setattr("tilewright.ops.core.arrays.np.empty", lambda *shape: pytest.fail("an array was made"))
    assert target_for(x, a, b, residual=x) is x
    assert target_for(x, a, b, residual=x.view()) is x
    monkeypatch.undo()
    assert target_for(x, a, b, residual=x[::-1]) is not x
    assert matmul(a, b, residual=x, out=x).tobytes() == expected.tobytes()


@pytest.mark.parametrize(("shape", "made"), [((8, 9), 1), ((3, 1, 8, 9), 3), ((1, 2, 8, 9), 2), ((3, 2, 8, 9), 6)])
def test_a_matrix_of_a_batch_is_prepared_once(shape, made, rng, monkeypatch):
    a, b = rng.standard_normal((3, 2, 5, 8), dtype=np.float32), rng.standard_normal(shape, dtype=np.float32)
    expected = np.stack([[matmul(a[i, j], np.broadcast_to(b, (3, 2, 8, 9))[i, j]) for j in (0, 1)] for i in range(3)])
    prepared, real = [], matmul_module.prepare
    monkeypatch.setattr(matmul_module, "prepare", lambda b, **options: prepared.append(1) or real(b, **options))
    assert np.array_equal(matmul(a, np.broadcast_to(b, (3, 2, 8, 9))), expected)
    assert len(prepared) == made


def test_torch_tensors_come_back_as_tensors(rng):
    torch = pytest.importorskip("torch", reason="torch is in the test extras")
    a, b = torch.randn(5, 7), torch.randn(7, 3)
    result = tw.matmul(a, b)
    assert isinstance(result, torch.Tensor)
    compare(result.numpy(), (a.double() @ b.double()).numpy(), 1e-5)


def test_prepared_weights_belong_to_a_rung(rng):
    b = rng.standard_normal((8, 8), dtype=np.float32)
    with using(matmul="cpu.vectors"):
        packed = prepare(b)
    with pytest.raises(UsageError, match=r"prepared for rung cpu\.vectors, and cpu\.\w+ is chosen now"):
        matmul(b, packed)


BAD_CALLS = [
    (lambda a, b: matmul(a, b.T), r"a is \(4, 6\) and b is \(5, 6\): a has 6 columns, b has 5 rows$"),
    (lambda a, b: matmul(a.astype(np.float64), b), "a is float64"),
    (lambda a, b: matmul(a, b, bias=np.zeros(4, np.float32)), r"bias has shape \(4,\)"),
    (lambda a, b: matmul(a, b, residual=np.zeros((4, 4), np.float32)), r"residual has shape \(4, 4\)"),
    (lambda a, b: matmul(a, b, activation="swish"), "activation is 'swish'"),
    (lambda a, b: matmul(a, b, bias=np.zeros(0, np.float32)), r"bias has shape \(0,\); \(5,\) is wanted"),
    (lambda a, b: matmul(a, b, residual=np.zeros((0, 0), np.float32)), r"residual has shape \(0, 0\)"),
    (lambda a, b: matmul(a, np.stack([b, b]), rows=[0, 1]), r"b has shape \(2, 6, 5\); rows needs a matrix"),
    (lambda a, b: matmul(a, b, dtype="int8"), "dtype is 'int8'"),
    (lambda a, b: matmul(a, b, rows=[0, 4]), "rows holds 0 to 4; a has rows 0 to 3"),
    (lambda a, b: matmul(a, b, out=np.zeros((4, 4), np.float32)), r"out is float32 \(4, 4\)"),
    (lambda a, b: matmul(a, b, out=[0]), r"out is list; a writeable float32 or bfloat16 NumPy array of shape \(4, 5\)"),
    (lambda a, b: matmul(a[0], b), r"a is \(6,\) and b is \(6, 5\); a has to be \(M, K\)"),
    (lambda a, b: matmul("abc", b), "a is"),
]


@pytest.mark.parametrize(("call", "message"), BAD_CALLS)
def test_a_call_that_does_not_fit_is_refused(call, message):
    with pytest.raises(UsageError, match=message):
        call(np.ones((4, 6), np.float32), np.ones((6, 5), np.float32))


def test_a_forced_rung_never_falls_back(rng):
    a = rng.standard_normal((4, 4), dtype=np.float32)
    with (
        using(matmul="cpu.widened"),
        pytest.raises(Refused, match=r"matmul\.cpu\.widened refuses [^\n]*\n.*dtype is float32"),
    ):
        matmul(a, a)
    with pytest.raises(Refused, match=r"no rung 'cpu\.fastest'.*; it has cpu\.memory"):
        using(matmul="cpu.fastest").__enter__()


def test_explain_says_why(rng):
    text = ladder.explain(Problem(N=32, K=32, dtype="bfloat16"))
    assert "cpu.packed: refused - dtype is bfloat16, it takes float32" in text
    assert text.count("->") == 1


@pytest.mark.parametrize(("name", "chosen"), [("Intel Xeon", "cpu.widened"), ("AMD EPYC", "cpu.dot_pairs")])
def test_pairs_are_multiplied_where_that_is_faster(name, chosen, monkeypatch):
    """A slow rung is passed over, and can be forced."""
    features = frozenset({"avx512f", "avx512vl", "avx512bf16"})
    machine = dataclasses.replace(cpu(), name=name, features=features)
    monkeypatch.setattr(needs, "cpu", lambda: machine)
    fresh = Ladder(
        "matmul", *(rung for name, rung in ladder.rungs.items() if name != "cpu.amx" and rung.after != "cpu.amx")
    )
    fresh.rungs = ladder.rungs
    problem = Problem(N=32, K=64, dtype="bfloat16")
    assert fresh._choose(problem, None).name == chosen
    assert fresh._choose(problem, "cpu.dot_pairs").name == "cpu.dot_pairs"


def test_using_knows_the_operations():
    with pytest.raises(UsageError, match=r"matmull \(did you mean matmul\?\); the operations are .*conv1d, .*matmul"):
        using(matmull="cpu.packed").__enter__()


@pytest.mark.parametrize("rung", [name for name in ladder.rungs if name.startswith("cpu.")])
def test_subnormal_operands_of_bfloat16_count_or_are_0(rung, rng):
    """As documented: no rung makes anything else of them, and normal ones beside them count."""
    problem = Problem(16, 8, "bfloat16")
    if why := ladder.rungs[rung].refuses(problem):
        pytest.skip("; ".join(why))
    a, b = np.full((3, 8), 2.0**-130, np.float32), np.full((8, 16), 2.0**10, np.float32)
    a[1, 0] = 1.0
    with using(matmul=rung):
        for found in (matmul(a, b, dtype="bfloat16"), matmul(b.T, a.T.copy(), dtype="bfloat16").T):
            assert set(found[0].tolist()) <= {0.0, 2.0**-117}
        assert (matmul(a, b, dtype="bfloat16")[1] == 2.0**10).all()


def test_no_loop_compiles_its_functions_for_a_literal():
    """In `at = TILE; while ...: f(at); at += n` Numba first takes `at` for a literal and compiles f for it, in vain."""
    lanes, flat, matrix = 8, np.zeros(8, np.float32), np.zeros((2, 2), np.float32)
    pack = loops.block_packer("float32", False, lanes), (Source(flat, np.zeros(2, np.int64), 1, 2), 0, 2, 0, 2, flat)
    piece = loops.Piece(loops.Block(2, True, True), 2, 2, 0)
    down = loops.panel_multiplier("float32", lanes, lambda _: simd.inline(lambda *arguments: None))
    multiply = down, (loops.Operands(flat, flat), 0, Target(matrix, matrix, flat), 0, 2, 0, piece)
    for (function, arguments), called, name in ((pack, "pack_rows", "at"), (multiply, "across", "a_at")):
        function.compile(tuple(map(typeof, arguments)))
        inner = inspect.getclosurevars(function.py_func).nonlocals[called]
        at = list(inspect.signature(inner.py_func).parameters).index(name)
        assert inner.signatures and {signature[at] for signature in inner.signatures} == {types.int64}
