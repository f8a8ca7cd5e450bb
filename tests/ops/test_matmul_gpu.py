"""matmul's rungs for GPUs: with TILEWRIGHT_GPU=1 (`make test-gpu`) on a GPU, on every case; else in numba-cuda's
simulator and Triton's interpreter, which run kernels as Python, on tiny ones."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

import gpu
from compare import compare
from gpu import ON_GPU, PLACE, widen_bfloat16
from ops.cases import cases_of
from tilewright.bench.sizes import matmul as spec
from tilewright.errors import Refused, UsageError
from tilewright.ops.core.ladder import using
from tilewright.ops.matmul import PEAK, Problem, ladder, matmul, matmul_peaks, peaks_of, prepare
from tilewright.ops.matmul.ladder import TILE_LIMB_DEPTH
from tilewright.ops.matmul.problem import DEVICE_DTYPES, Case

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("simulated_gpu")

TINY = [
    Case(3, 5, 0, bias=True, activation="relu"),
    Case(2, 3, 7),
    Case(11, 13, 9, bias=True, residual=True, activation="gelu"),
    Case(3, 5, 70, activation="gelu_tanh"),  # three tiles of K for every rung, the last one not full
    Case(3, 8, 16, bias=True, residual=True, activation="tanh"),
    Case(5, 9, 17, layout="F"),
]
DEEP = 770  # K that rungs with limbs take, no multiple of a tile
FEW = TINY[:1] + TINY[2:4]  # for rungs with barriers or a large K, whose cases take seconds here
NARROW = Case(5, 2, 70, bias=True, activation="relu")
WIDE = Case(9, 131, 20, bias=True, residual=True, activation="relu")  # two tiles of 128
TALL = Case(1300, 9, 17, bias=True)  # eleven, more than a group of eight
WHOLE = Case(300, 392, 136, bias=True, residual=True, activation="gelu_tanh")  # rows for bulk copies


@pytest.fixture(autouse=True)
def bfloat16_is_multiplied(monkeypatch):
    widen_bfloat16(monkeypatch)


def problem(dtype: str) -> Problem:
    return Problem(9, DEEP, dtype, "cuda")


def cases(rung, dtype):
    """Cases of an accuracy class that a rung takes, with a K that rungs with limbs take."""
    slow = rung.name.startswith(
        ("simt.registers", "simt.s", "simt.u", "simt.v", "simt.w", "simt.b", "simt.n", "tile.limbs")
    )
    few = [replace(FEW[1], N=3), NARROW] if rung.name == "simt.narrow" else FEW if slow else TINY
    wide = [WIDE] if rung.name in ("simt.buffered", "tile.persistent") else []
    tall = [TALL] if rung.name.startswith("tile.p") or ON_GPU else []
    large = [case for case in cases_of("matmul") if case.dtype == "float32"] + [NARROW, WHOLE]
    for case in (large if ON_GPU else few + wide) + tall:
        case = replace(case, dtype=dtype, device="cuda")
        if "limbs" in rung.name and case.K < DEEP:
            case = replace(case, K=case.K + (DEEP if case.N % 2 else TILE_LIMB_DEPTH))
        yield case


@pytest.mark.parametrize(("rung", "case"), list(gpu.every(ladder, problem, DEVICE_DTYPES, cases)))
def test_rung(rung, case, rng):
    gpu.check("matmul", rung, case, rng)


def accepted(*few: str, dtypes=DEVICE_DTYPES):
    """(rung, class) that run here: every rung on a GPU, else `few` of them."""
    return list(gpu.accepted(ladder, problem, dtypes, *few))


def one_class_quickly(*few: str):
    """The same, but in the interpreter `make test` runs one class alone: only the dtype of the operands differs."""
    for found in accepted(*few):
        marks = [] if ON_GPU or found.values[1] == "bfloat16" else [pytest.mark.long]
        yield pytest.param(*found.values, id=found.id, marks=[*found.marks, *marks])


@pytest.mark.parametrize(("rung", "dtype"), accepted("simt.buffered", "simt.narrow", "tile.persistent"))
def test_a_rows_bits_do_not_depend_on_its_batch(rung, dtype, rng):
    sizes = (1, 2, 7, 8, 9, 16, 17, 31, 33, 64, 65, 129, 300, 1000) if ON_GPU else (1, 3)
    N, K = (300, 1537) if ON_GPU else (7, DEEP if "limbs" in rung.name else 33)
    N = 7 if rung.name == "simt.narrow" else N
    case = Case(max(sizes), N, K, dtype, bias=True, activation="gelu", device="cuda")
    inputs = spec.make(case, rng)
    bits = set()
    with using(matmul=rung.name):
        for size in sizes:
            for at in {0, size - 1}:
                a = rng.standard_normal((size, K), dtype=np.float32)
                a[at] = inputs["a"][0]
                out = spec.bind_tensors(replace(case, M=size), {**inputs, "a": a}, PLACE)()
                bits.add(out[at].cpu().numpy().tobytes())
    assert len(bits) == 1


@pytest.mark.parametrize(("rung", "dtype"), accepted("tile.persistent", dtypes=("bfloat16", "float16")))
def test_a_16_bit_result_is_the_rounded_one(rung, dtype, rng):
    if dtype == "bfloat16" and not ON_GPU:
        pytest.skip("Triton's interpreter truncates where the GPU rounds to bfloat16")
    M = 300 if ON_GPU else 5
    for N in (16, 13, 392) if ON_GPU else (16, 13):  # rows of 32 bytes, rows without bulk copies, tiles
        case = Case(M, N, 40, dtype, bias=True, residual=True, activation="gelu_tanh", device="cuda")
        with using(matmul=rung.name):
            call = spec.bind_tensors(case, spec.make(case, rng), PLACE)
            out = torch.empty(M, N, dtype=getattr(torch, dtype), device=PLACE)
            assert torch.equal(call(out=out), call().to(out.dtype))


def test_out_may_be_the_residual(rng):
    a, b, x = (torch.from_numpy(rng.standard_normal(s, dtype=np.float32)).to(PLACE) for s in ((3, 5), (5, 4), (3, 4)))
    with using(matmul="simt.memory"):
        expected = matmul(a, b, residual=x)
        assert torch.equal(matmul(a, b, residual=x, out=x), expected)


@pytest.mark.parametrize(("rung", "dtype"), accepted("tile.persistent", dtypes=("bfloat16", "float16", "tf32")))
def test_a_float32_residual_is_replaced_by_the_result(rung, dtype, rng):
    for M, N in ((300, 392), (1300, 64), (3, 4)) if ON_GPU else ((3, 12),):
        case = Case(M, N, 40, dtype, bias=True, residual=True, activation="relu", device="cuda")
        inputs = spec.make(case, rng)
        reference = spec.reference(case, inputs)
        tensors = {name: torch.from_numpy(x).to(PLACE) for name, x in inputs.items() if name != "activation"}
        with using(matmul=rung.name):
            packed = prepare(tensors["b"], dtype=dtype)
            residual = tensors["residual"]
            a = tensors["a"] if dtype == "tf32" else tensors["a"].to(getattr(torch, dtype))
            matmul(a, packed, bias=tensors["bias"], residual=residual, activation="relu", out=residual)
        compare(residual.cpu().numpy(), reference, spec.bound(case, inputs, reference, rung.c))


@pytest.mark.parametrize(("rung", "dtype"), accepted("simt.register", "tile.persistent"))
def test_rows_of_out_may_have_a_stride(rung, dtype, rng):
    """Same bits; what is between the rows stays as it was. Bulk copies write the rows of the even N with the first
    stride, with a residual or as 16-bit results."""
    big = ON_GPU and rung.name != "simt.narrow"
    kinds = ["float32", dtype] if ON_GPU and rung.name.startswith("tile.") and dtype != "tf32" else ["float32"]
    for N, residual, kind in product((521, 392) if big else (13, 12), (False, True), dict.fromkeys(kinds)):
        M = 300 if big else 5
        case = Case(M, N, DEEP if "limbs" in rung.name else 40, dtype, bias=True, residual=residual, device="cuda")
        with using(matmul=rung.name):
            call = spec.bind_tensors(case, spec.make(case, rng), PLACE)
            wanted = call(out=torch.empty(M, N, dtype=getattr(torch, kind), device=PLACE))
            for stride in (-(-N // 32) * 32, N + 1):
                wide = torch.full((M, stride), torch.nan, dtype=wanted.dtype, device=PLACE)
                assert torch.equal(call(out=wide[:, :N]), wanted)
                assert wide[:, N:].isnan().all()


@pytest.mark.parametrize(("rung", "dtype"), list(one_class_quickly("tile.persistent")))
def test_peaks_do_not_depend_on_the_width_of_tiles(rung, dtype, rng):
    """A product of 1,024 rows of GPT-2's logits has tiles of 256 columns, smaller ones have others."""
    if not rung.name.startswith("tile."):
        pytest.skip(f"{rung.name} stores no peaks")
    from tilewright.ops.gemm.operands import Epilogue, Rows
    from tilewright.ops.gemm.tile import launch

    M, N, K = (130, 700, 768) if ON_GPU else (3, 300, 40)
    a, b = (torch.from_numpy(rng.standard_normal(s, np.float32)).to(PLACE) for s in ((M, K), (K, N)))
    with using(matmul=rung.name):
        weights = prepare(b, dtype=dtype)
    kind = {"limbs": dtype == "float32", "specialized": rung.options.get("specialized", False)}
    large = launch.shape_for(launch.LINE // weights.data.element_size(), 2**16, 2**16, K, **kind, narrow=True)
    none = torch.empty(0, device=PLACE)
    tiles = [(128, 64), (128, 128)]
    if "specialized" in rung.name:
        tiles += [(8, 64), (32, 64)] + ([(128, 256)] if dtype != "float32" else [])
    for rows, columns in tiles:
        out, peaks = (torch.full((M, n), torch.nan, device=PLACE) for n in (N, peaks_of(N)))
        depth = 2 * launch.LINE // weights.data.element_size() if rows < 64 else large.BK
        shape = replace(large, BM=rows, BN=columns, BK=depth, stages=3, group=1)
        launch.multiply(Rows(a, None), weights, out, Epilogue(none, none, None, peaks), **rung.options, shape=shape)
        wide = torch.full((M, -(-N // PEAK) * PEAK), -torch.inf, device=PLACE)
        wide[:, :N] = out
        assert torch.equal(peaks[:, : wide.shape[1] // PEAK], wide.view(M, -1, PEAK).amax(2))


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # NumPy's, where a GPU computes in silence
@pytest.mark.parametrize(("rung", "dtype"), accepted("tile.persistent"))
def test_peaks_are_the_largest_of_each_group_of_columns(rung, dtype, rng):
    if not rung.name.startswith("tile."):
        pytest.skip(f"{rung.name} stores no peaks")
    K = DEEP if "limbs" in rung.name else 40
    for M, N in ((1, 300), (300, 5321)) if ON_GPU else ((3, 139),):
        a, b = (torch.from_numpy(rng.standard_normal(s, np.float32)).to(PLACE) for s in ((M, K), (K, N)))
        groups, row = -(-N // PEAK), M // 2
        a[row, 3] = torch.inf
        wide, peaks = (torch.full((M, n), torch.nan, device=PLACE) for n in (groups * PEAK, peaks_of(N)))
        with using(matmul=rung.name):
            packed = prepare(b, dtype=dtype)
            assert matmul_peaks(a, packed, out=wide[:, :N], peaks=peaks) is peaks
            assert torch.equal(wide[:, :N].nan_to_num(), matmul(a, packed).nan_to_num())
        assert wide[:, N:].isnan().all() and peaks[row, :groups].isnan().all()
        wide[:, N:], wide[row], peaks[row] = -torch.inf, 0, 0
        assert torch.equal(peaks[:, :groups], wide.view(M, groups, PEAK).amax(2))


@pytest.mark.parametrize(("rung", "dtype"), accepted("simt.register", "tile.persistent"))
def test_a_poisoned_row_stays_alone(rung, dtype, rng):
    case = Case(6, 9, DEEP if "limbs" in rung.name else 24, dtype, device="cuda")
    inputs = spec.make(case, rng)
    with using(matmul=rung.name):
        clean = spec.bind_tensors(case, inputs, PLACE)()
        inputs["a"][2] = np.nan
        dirty = spec.bind_tensors(case, inputs, PLACE)()
    assert torch.equal(clean[[0, 1, 3, 4, 5]], dirty[[0, 1, 3, 4, 5]])
    assert torch.isnan(dirty[2]).all()


@pytest.mark.parametrize(("rung", "dtype"), accepted("tile.persistent"))
def test_how_a_product_is_cut_does_not_show(rung, dtype, rng):
    """The shape of tiles depends on the number of rows; the bits must not."""
    if not ON_GPU:
        pytest.skip("Triton's interpreter multiplies tiles by BLAS, whose sums follow their shape")
    if rung.name.startswith("simt."):
        pytest.skip(f"{rung.name} has one shape of tiles")
    from tilewright.ops.gemm.operands import Epilogue, Rows
    from tilewright.ops.gemm.tile import launch

    M, N, K = 300, 520, 1537
    case = Case(M, N, K, dtype, device="cuda")
    inputs = {name: torch.from_numpy(x).to(PLACE) for name, x in spec.make(case, rng).items() if name in "ab"}
    with using(matmul=rung.name):
        weights = prepare(inputs["b"], dtype=dtype)
    none = torch.empty(0, device=PLACE)
    kind = {"limbs": dtype == "float32", "specialized": rung.options.get("specialized", False)}
    own = launch.shape_for(launch.LINE // weights.data.element_size(), N, M, K, **kind, narrow=True)
    bits = set()
    tiles = [(128, 64, 1), (128, 128, 1)]
    if "specialized" in rung.name:
        tiles += [(64, 64, 1), (64, 128, 1), (8, 64, 2), (16, 64, 2), (32, 64, 2)]
        tiles += [] if dtype == "float32" else [(64, 64, 2), (64, 128, 2), (128, 64, 2), (128, 256, 1)]
    shared = [(16, 64, 2, parts) for parts in (2, 3, 5)] if "specialized" in rung.name and dtype == "float32" else []
    for rows, columns, lines, parts in [(*tile, 1) for tile in tiles] + shared:
        out = torch.full((M, N), torch.nan, device=PLACE)
        depth = lines * launch.LINE // weights.data.element_size()
        depth = depth if "specialized" in rung.name else own.BK
        shape = replace(own, BM=rows, BN=columns, BK=depth, stages=3, group=1, parts=parts)
        launch.multiply(Rows(inputs["a"], None), weights, out, Epilogue(none, none, None), **rung.options, shape=shape)
        bits.add(out.cpu().numpy().tobytes())
    assert len(bits) == 1


@pytest.mark.parametrize(("rung", "dtype"), accepted("tile.limbs", dtypes=("float32",)))
@pytest.mark.parametrize("K", [192, 768, 4100] if ON_GPU else [192])
def test_the_bound_holds_for_the_operands_with_the_largest_error(rung, dtype, K, rng):
    """Three products of 1 + 2^-8 + 2^-17 miss 255 eps32, four of 1 + 2^-9 + 2^-17 miss 128, all of one sign."""
    if "limbs" not in rung.name:
        pytest.skip(f"{rung.name} does not split operands")
    case, worst = Case(3, 17, K, device="cuda"), np.float32(1 + 2.0 ** (-8 if K >= 768 else -9) + 2.0**-17)
    inputs = {"a": np.full((3, K), worst), "b": np.full((K, 17), worst), "activation": None}
    reference = spec.reference(case, inputs)
    with using(matmul=rung.name):
        out = spec.bind_tensors(case, inputs, PLACE)().cpu().numpy()
    compare(out, reference, spec.bound(case, inputs, reference, rung.c))


@pytest.mark.parametrize("limbs", [1, 2])
def test_tiles_fit_in_a_multiprocessors_shared_memory(limbs):
    """Stages of both operands, buffers for results, barriers: 227 KiB on Hopper."""
    launch = pytest.importorskip("tilewright.ops.gemm.tile.launch")
    kind = {"limbs": limbs == 2, "specialized": True}
    for M, N, word, residual in product(
        (1, 12, 32, 64, 300, 1024, 6400, 16384), (2, 64, 768, 3072, 50257), (2, 4), (0, 2, 4)
    ):
        if limbs == 2 and word == 2:
            continue  # a float32 class has float32 results
        out = torch.empty(1, N, dtype={2: torch.bfloat16, 4: torch.float32}[word])
        added = None if not residual else torch.empty(1, N, dtype={2: torch.bfloat16, 4: torch.float32}[residual])
        end = launch._end(out, added, **kind)
        shape = launch.shape_for(64, N, M, 768, **kind, narrow=word == 4 and end == "moving_warp")
        buffers = 0 if (end == "stores" and word == 4) or shape.BM < 64 else shape.BM * shape.BN * word
        stages = shape.stages * limbs * (shape.BM + shape.BN) * shape.BK * 2
        assert stages + buffers + 1024 <= 227 << 10, (M, N, word, residual, end, shape)


STRIDED = [
    torch.arange(40.0).view(5, 8)[:, :7], torch.arange(9.0)[1:].view(1, 8),
    torch.arange(24.0).view(2, 12)[:1, :8], torch.arange(8.0).expand(3, 8),
]  # fmt: skip


@pytest.mark.parametrize("a", STRIDED)
def test_operands_become_contiguous_and_padded(a):
    """Bulk copies read whole rows of a known stride, also where there is only one row."""
    launch = pytest.importorskip("tilewright.ops.gemm.tile.launch")
    found = launch.padded(a, torch.float32, 8)
    assert found.shape == (len(a), 8) and found.stride() == (8, 1) and found.data_ptr() % 16 == 0
    assert torch.equal(found[:, : a.shape[1]], a) and not found[:, a.shape[1] :].any()


@pytest.mark.parametrize(("K", "parts"), [(192, 1), (768, 3), (3072, 4), (8192, 4), (65536, 1)])
def test_few_programs_share_a_depth_that_is_neither_short_nor_very_long(K, parts, monkeypatch):
    """The loop that adds their sums is unrolled, so it takes minutes to compile for a very long depth."""
    launch = pytest.importorskip("tilewright.ops.gemm.tile.launch")
    monkeypatch.setattr(launch, "multiprocessors", lambda: 132)
    shape = launch.shape_for.__wrapped__(64, 768, 8, K, limbs=True, specialized=True, narrow=False)
    assert shape.BM == 8 and shape.parts == parts, shape


def tensors(*shapes):
    return [torch.ones(shape, device=PLACE) for shape in shapes]


@pytest.fixture
def simple():
    """The simplest rung, where it can run."""
    if why := ladder.rungs["simt.register"].refuses(Problem(5, 4, "float32", "cuda")):
        pytest.skip("; ".join(why))
    with using(matmul="simt.register"):
        yield


@pytest.mark.usefixtures("simple")
def test_batches_gathered_rows_and_outputs_that_are_inputs(rng):
    a, b = (torch.from_numpy(rng.standard_normal(s, dtype=np.float32)).to(PLACE) for s in ((2, 3, 4), (2, 4, 5)))
    bound = 1e-5
    wanted = (a.double() @ b.double()).cpu().numpy()
    compare(matmul(a, b).cpu().numpy(), wanted, bound)
    compare(matmul(a, b[0]).cpu().numpy(), (a.double() @ b[0].double()).cpu().numpy(), bound)
    rows = torch.tensor([2, 0, 2], device=PLACE)
    compare(matmul(a[0], b[0], rows=rows).cpu().numpy(), wanted[0][[2, 0, 2]], bound)
    square = torch.from_numpy(rng.standard_normal((4, 4), dtype=np.float32)).to(PLACE)
    wanted = (square.double() @ square.double() + square.double()).cpu().numpy()
    compare(matmul(square, square, residual=square, out=square).cpu().numpy(), wanted, bound)
    wide = torch.zeros(3, 8, device=PLACE)
    matmul(a[0], b[0], out=wide[:, 1:6])
    assert wide[:, 1:6].abs().sum() > 0 and wide[:, [0, 6, 7]].abs().sum() == 0


@pytest.mark.usefixtures("simple")
def test_what_does_not_fit_is_named():
    a, b, bias = tensors((2, 4), (4, 5), (5,))
    for words, call in {
        "a is (2, 4) and b is (5, 4): a has 4 columns, b has 5 rows": lambda: matmul(a, b.T.contiguous()),
        "a is (4,) and b is (4, 5); a has to be (M, K)": lambda: matmul(a[0], b),
        "bias has shape (4,); (5,) is wanted": lambda: matmul(a, b, bias=bias[:4]),
        "residual has shape (2, 4)": lambda: matmul(a, b, residual=a),
        "b is a ndarray; a torch tensor": lambda: matmul(a, np.ones((4, 5), np.float32)),
        "a is int64; float32, bfloat16": lambda: matmul(a.long(), b),
        "out is float32 (2, 4)": lambda: matmul(a, b, out=a),
        "out is float16": lambda: matmul(a, b, out=tensors((2, 5))[0].half()),
        "dtype is 'float64'": lambda: prepare(b, dtype="float64"),
        "do not broadcast": lambda: matmul(*tensors((2, 2, 4), (3, 4, 5))),
        "was prepared for bfloat16": lambda: matmul(a, other_class(b), dtype="float32"),
        "it has cpu.memory": lambda: forced("simt.fast", a, b),
        "rows is a list; a torch tensor": lambda: matmul(a, b, rows=[0]),
    }.items():
        with pytest.raises((UsageError, Refused)) as error:
            call()
        assert words in str(error.value)


def test_peaks_that_do_not_fit_are_refused():
    a, b, out, peaks = tensors((2, 4), (4, 40), (2, 40), (2, 1))
    with pytest.raises(UsageError, match=r"peaks is float32 \(2, 1\).*float32 \(2, 8\) without gaps is wanted"):
        matmul_peaks(a, prepare(b), out=out, peaks=peaks)
    with using(matmul="simt.register"):
        assert matmul_peaks(a, prepare(b), out=out, peaks=tensors((2, 8))[0]) is None
    assert (out == 4).all()


def other_class(b):
    from tilewright.ops.gemm.operands import Packed

    return Packed("tile.persistent", 4, 5, "bfloat16", b.T.contiguous())


def forced(name, a, b):
    with using(matmul=name):
        return matmul(a, b)


def test_a_gpu_rung_refuses_the_cpus_arrays_and_the_other_way_round():
    on_cpu, on_gpu = Problem(64, 1024), Problem(64, 1024, "float32", "cuda")
    for name, rung in ladder.rungs.items():
        why = "; ".join(rung.refuses(on_cpu if not name.startswith("cpu.") else on_gpu))
        assert "it takes" in why and ("on cuda" in why) and "on cpu" in why, name


def test_what_is_missing_is_said(monkeypatch):
    from tilewright.hardware import gpu

    monkeypatch.setattr(gpu, "missing", {"simt": "No module named 'numba_cuda'", "tile": None}.get)
    monkeypatch.setattr(gpu, "simulated", lambda engine: False)
    monkeypatch.setattr(gpu, "gpus", lambda: ())
    monkeypatch.setattr(gpu, "_driver", lambda: (None, "this machine has no NVIDIA driver (libcuda.so.1)"))
    problem = Problem(64, 1024, "float32", "cuda")
    assert ladder.rungs["simt.buffered"].refuses(problem) == ["No module named 'numba_cuda'"]
    assert ladder.rungs["tile.limbs"].refuses(problem) == ["this machine has no NVIDIA driver (libcuda.so.1)"]


def test_asking_about_gpus_is_harmless_without_one():
    from tilewright.hardware import gpu_name, gpus

    assert isinstance(gpus(), tuple)
    assert gpu_name() == "no-gpu" or gpus()
