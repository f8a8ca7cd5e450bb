"""conv_transpose2d's rungs for GPUs: with TILEWRIGHT_GPU=1 (`make test-gpu`) on a GPU, on every case; else in
numba-cuda's simulator and Triton's interpreter, which run kernels as Python, on tiny ones."""

from dataclasses import replace

import numpy as np
import pytest

import gpu
from gpu import ON_GPU, PLACE, widen_bfloat16
from ops.cases import cases_of
from tilewright.backends.footprint import chosen
from tilewright.bench.sizes import conv_transpose2d as spec
from tilewright.errors import Refused, UsageError
from tilewright.hardware import gpus
from tilewright.ops.conv_transpose2d import conv_transpose2d, ladder, prepare
from tilewright.ops.conv_transpose2d.ladder import LIMB_DEPTH, LIMBED
from tilewright.ops.conv_transpose2d.problem import Case
from tilewright.ops.core.ladder import using
from tilewright.ops.matmul.problem import DEVICE_DTYPES

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("simulated_gpu")

NONE = ((0, 0), (0, 0))
DEEP = 64  # channels that every rung takes, at 5 x 5 and stride 2
CASES = cases_of("conv_transpose2d")
TINY = [
    Case(2, 1, 2, 3, 4, bias=True, activation="relu"),
    Case(1, 1, 1, 1, 1, (1, 1), (1, 1), NONE, bias=True, activation="gelu"),
    Case(1, 2, 2, 3, 2, (3, 3), (4, 7), NONE, bias=True, activation="tanh"),
    Case(1, 3, 2, 4, 5, (3, 4), (1, 3), ((1, 1), (0, 2)), activation="gelu_tanh"),
    Case(0, 3, 4, 2, 3),
    Case(1, 2, 2, 5, 3, layout="F"),
]
WIDE = [Case(1, 1, 3, 16, 130), Case(2, 8, 9, 16, 10, (2, 2))]  # several tiles of channels, of positions
WIDE += [Case(1, 1, 140, 8, 3, (2, 5), (2, 2), ((0, 0), (1, 2)), bias=True)]  # rows longer than a tile
DEEPER = [Case(1, 2, 3, 96, 3)]  # one and a half LINEs of channels: weights are deeper than x
WIDE += [Case(1, 4, 2, 16, 3, bias=True, activation="tanh"), Case(2, 2, 6, 16, 1, (4, 3), (3, 2), ((2, 1), (0, 1)))]
ROLLING = [  # for `tile.rolling`: strips that end inside, several strips down, blocks and images past the end
    Case(9, 5, 34, 64, 3, bias=True, activation="tanh"),
    Case(2, 70, 6, 128, 3, bias=True),
    Case(3, 4, 8, 64, 1, (5, 6), (2, 2), ((3, 0), (2, 1)), activation="relu"),
    Case(1, 3, 2, 64, 4, (4, 4), (2, 2), ((1, 1), (1, 1)), bias=True, activation="gelu"),
    Case(1, 3, 5, 64, 3),  # rows of an odd length: loaded by pointers
    Case(2, 2, 4, 64, 2, (1, 3), (2, 2), NONE, bias=True),
    Case(9, 40, 4, 96, 3, (3, 3), (2, 2), NONE),
]


@pytest.fixture(autouse=True)
def quick_and_right(monkeypatch):
    """Where kernels are simulated: products by a rung without barriers, which take a second each."""
    if ON_GPU:
        return
    monkeypatch.setattr("tilewright.ops.conv_transpose2d.simt.matrices.PRODUCT", "simt.register", raising=False)
    widen_bfloat16(monkeypatch)


def problem(dtype: str, C: int = DEEP):
    return Case(1, 2, 2, C, 3, dtype=dtype, device="cuda").problem


def cases(rung, dtype):
    """(case, whether only `make test-long` runs it). On a GPU compiling takes most of the time, and the other classes
    have the kernels of float16."""
    few = TINY[:2] + TINY[3:5] if "limbs" in rung.name else TINY
    if not ON_GPU:
        if rung.name.startswith("tile") and dtype == "float16":
            few = few + WIDE[:2] + (WIDE[2:] if "blocks" in rung.name else [])
        if rung.name == "tile.limbs":
            few = few + DEEPER
        yield from ((case, False) for case in (few if dtype in ("float16", "float32") else few[:2]))
        return
    often = dtype in ("float16", "float32")
    if "rolling" in rung.name:
        yield from ((case, False) for case in ROLLING)
    yield from ((case, not often and i % 3 > 0) for i, case in enumerate(TINY + WIDE + DEEPER))
    yield from ((case, not often or i % 12 > 0) for i, case in enumerate(CASES) if case.dtype == "float32")


def fitting(rung, dtype):
    """`cases`, with as many channels as the rung needs."""
    for case, rarely in cases(rung, dtype):
        case = replace(case, dtype=dtype, device="cuda")
        if "limbs" in rung.name and rung.refuses(case.problem):
            taps = np.prod([-(-K // s) for K, s in zip(case.K, case.stride, strict=True)])
            case = replace(case, C=max(-(-LIMB_DEPTH // int(taps)), 40 if "specialized" in rung.name else 0))
        elif rung.name in ("tile.boxes", "tile.blocks"):
            case = replace(case, C=-(-case.C // 8) * 8)
        yield case, rarely


@pytest.mark.parametrize(("rung", "case"), list(gpu.every(ladder, problem, DEVICE_DTYPES, fitting)))
def test_rung(rung, case, rng):
    gpu.check("conv_transpose2d", rung, case, rng)


def accepted(*few: str, dtypes=DEVICE_DTYPES):
    """(rung, class) that run here: every rung on a GPU, otherwise `few` of them."""
    return list(gpu.accepted(ladder, problem, dtypes, *few))


@pytest.mark.parametrize(("rung", "dtype"), accepted("simt.coalesced"))  # interpreted tiles are BLAS's
def test_an_images_bits_do_not_depend_on_its_batch(rung, dtype, rng):
    sizes = (1, 2, 7, 33, 200) if ON_GPU else (1, 3)
    case = Case(max(sizes), 3, 6, 96 if ON_GPU else 6, 3, dtype=dtype, bias=True, activation="tanh", device="cuda")
    if rung.refuses(case.problem):
        case = replace(case, C=DEEP)
    if "rolling" in rung.name:  # which cuts images of more than 16 rows into strips, by the batch
        case = replace(case, H=40, C=64)
    inputs = spec.make(case, rng)
    bits = set()
    with using(conv_transpose2d=rung.name):
        for size in sizes:
            for at in {0, size - 1}:
                x = rng.standard_normal((size, *inputs["x"].shape[1:]), dtype=np.float32)
                x[at] = inputs["x"][0]
                out = spec.bind_tensors(replace(case, B=size), {**inputs, "x": x}, PLACE)()
                bits.add(out[at].cpu().numpy().tobytes())
    assert len(bits) == 1


@pytest.mark.parametrize(("rung", "dtype"), accepted("simt.gather", "tile.phases"))
def test_a_poisoned_image_stays_alone(rung, dtype, rng):
    case = Case(6, 1, 2, DEEP if ON_GPU else 8, 3, dtype=dtype, device="cuda")
    inputs = spec.make(case, rng)
    with using(conv_transpose2d=rung.name):
        clean = spec.bind_tensors(case, inputs, PLACE)()
        inputs["x"][2] = np.nan
        dirty = spec.bind_tensors(case, inputs, PLACE)()
    assert torch.equal(clean[[0, 1, 3, 4, 5]], dirty[[0, 1, 3, 4, 5]])
    assert torch.isnan(dirty[2]).all()


@pytest.mark.parametrize(
    ("rung", "dtype"), accepted("tile.phases", "tile.columns", "tile.blocks", dtypes=("bfloat16", "float16"))
)
def test_a_16_bit_result_is_the_rounded_one(rung, dtype, rng):
    if dtype == "bfloat16" and not ON_GPU:
        pytest.skip("Triton's interpreter truncates where the GPU rounds to bfloat16")
    case = Case(3, 4, 6, 24, 12, dtype=dtype, bias=True, activation="relu", device="cuda")
    if rung.refuses(case.problem):
        case = replace(case, C=DEEP, O=3)  # few columns
    with using(conv_transpose2d=rung.name):
        call = spec.bind_tensors(case, spec.make(case, rng), PLACE)
        out = torch.empty(call().shape, dtype=getattr(torch, dtype), device=PLACE)
        assert torch.equal(call(out=out), call().to(out.dtype))


def split(x):
    """The limbs (..., 2, C) of a float32 tensor (..., C), made by the kernel that makes them for the rungs."""
    from tilewright.ops.gemm.tile import product

    limbs = torch.empty(*x.shape[:-1], 2, x.shape[-1], dtype=torch.bfloat16, device=x.device)
    product.split[(x.numel() // x.shape[-1], 1)](x, limbs, (x.shape[-1],) * 2, 1024)
    return limbs


CHAINED = [
    Case(1, 4, 4, 64, 4, bias=True, activation="relu"),
    Case(1, 3, 2, 32, 3, padding=((1, 1), (0, 2)), bias=True, activation="gelu"),
    Case(1, 3, 5, 64, 3, bias=True, activation="tanh"),
    Case(1, 2, 2, 256, 1, (3, 3), (4, 4), NONE),  # phases without a tap
    Case(9, 4, 6, 128, 16, bias=True, activation="gelu_tanh"),  # a result is a product: its limbs are of what is stored
    Case(3, 6, 4, 128, 64, bias=True),  # boxes: two phases side by side
    Case(2, 2, 3, 128, 130, (2, 3)),
]


@pytest.mark.parametrize("case", CHAINED if ON_GPU else CHAINED[:4], ids=lambda case: case.name)
@pytest.mark.parametrize("rung", LIMBED)
def test_limbs_of_x_and_of_the_result_have_the_same_bits(rung, case, rng):
    case = replace(case, device="cuda")
    if why := ladder.rungs[rung].refuses(case.problem):
        pytest.skip("; ".join(why))
    inputs = spec.make(case, rng)
    x, weights = (torch.from_numpy(inputs[name]).to(PLACE) for name in ("x", "weights"))
    bias = torch.from_numpy(inputs["bias"]).to(PLACE) if case.bias else None
    with using(conv_transpose2d=rung):
        packed = prepare(weights, stride=case.stride, padding=case.padding)
        assert packed.takes_limbs and packed.writes_limbs
        whole = conv_transpose2d(x, packed, bias=bias, activation=case.activation)
        assert torch.equal(conv_transpose2d(split(x), packed, bias=bias, activation=case.activation), whole)
        out = torch.empty(*whole.shape[:3], 2, case.O, dtype=torch.bfloat16, device=PLACE)
        assert conv_transpose2d(x, packed, bias=bias, activation=case.activation, out=out) is out
    assert torch.equal(out, split(whole))


def test_limbs_are_refused_where_a_rung_does_not_take_them():
    x, weights = tensors((1, 2, 2, 2, 60), (5, 5, 3, 60))
    if why := ladder.rungs["tile.columns_limbs"].refuses(problem("float32", 60)):
        pytest.skip("; ".join(why))
    packed = prepare(weights, stride=2)
    assert packed.writes_limbs and not packed.takes_limbs  # its weights are 64 deep
    rounded = x.bfloat16()
    for words, call in {
        "x is bfloat16 (1, 2, 2, 2, 60), limbs": lambda: conv_transpose2d(rounded, packed),
        "x is float32 (1, 2, 2, 2, 60), limbs": lambda: conv_transpose2d(x, packed),
        "prepared for rung simt.gather": lambda: forced("simt.gather", rounded, weights),
        "x must be (B, H, W, C)": lambda: conv_transpose2d(rounded[..., :3], packed),
        "a bfloat16 tensor of shape (1, 7, 7, 2, 3)": lambda: conv_transpose2d(
            x[..., 0, :], packed, out=torch.empty(1, 7, 7, 2, 3, device=PLACE)
        ),
    }.items():
        with pytest.raises(UsageError) as error:
            call()
        assert words in str(error.value)


def tensors(*shapes):
    return [torch.ones(shape, device=PLACE) for shape in shapes]


@pytest.fixture
def simple():
    """The simplest rung, where it can run."""
    if why := ladder.rungs["simt.gather"].refuses(problem("float32")):
        pytest.skip("; ".join(why))
    with using(conv_transpose2d="simt.gather"):
        yield


@pytest.mark.usefixtures("simple")
def test_the_public_functions_take_tensors_and_write_to_out(rng):
    x, weights = (
        torch.from_numpy(rng.standard_normal(s, dtype=np.float32)).to(PLACE) for s in ((2, 2, 3, 4), (3, 3, 2, 4))
    )
    packed = prepare(weights, stride=2, padding=((0, 1), (1, 0)))
    whole = conv_transpose2d(x, packed)
    assert whole.shape == (2, 4, 6, 2) and whole.device == x.device
    wide = torch.zeros(2, 4, 6, 5, device=PLACE)
    conv_transpose2d(x, weights, stride=2, padding=((0, 1), (1, 0)), out=wide[..., 1:3])
    assert torch.equal(wide[..., 1:3], whole) and wide[..., [0, 3, 4]].abs().sum() == 0
    square = torch.from_numpy(rng.standard_normal((1, 3, 3, 4), dtype=np.float32)).to(PLACE)
    kernel = torch.from_numpy(rng.standard_normal((3, 3, 4, 4), dtype=np.float32)).to(PLACE)
    wanted = conv_transpose2d(square, kernel, padding=1)
    assert torch.equal(conv_transpose2d(square, kernel, padding=1, out=square), wanted)
    assert square is not wanted and torch.equal(square, wanted)


@pytest.mark.usefixtures("simple")
def test_what_does_not_fit_is_named():
    x, weights, bias = tensors((1, 2, 2, 4), (3, 3, 5, 4), (5,))
    packed = prepare(weights, stride=2)
    for words, call in {
        "x must be (B, H, W, C) with C = 4": lambda: conv_transpose2d(x[..., :3], weights),
        "bias has shape (4,); (5,) is wanted": lambda: conv_transpose2d(x, weights, bias=bias[:4]),
        "weights is a ndarray; a torch tensor": lambda: conv_transpose2d(x, np.ones((3, 3, 5, 4), np.float32)),
        "weights has shape (3, 3, 5)": lambda: prepare(weights[..., 0]),
        "x is int64; float32, bfloat16": lambda: conv_transpose2d(x.long(), weights),
        "out is float32 (1, 2, 2, 4)": lambda: conv_transpose2d(x, weights, out=x),
        "out is float16": lambda: conv_transpose2d(x, weights, out=tensors((1, 4, 4, 5))[0].half()),
        "dtype is 'float64'": lambda: prepare(weights, dtype="float64"),
        "activation is 'swish'": lambda: conv_transpose2d(x, weights, activation="swish"),
        "crops all of the full result": lambda: conv_transpose2d(x, weights, padding=2),
        "was prepared for a stride of (2, 2)": lambda: conv_transpose2d(x, packed, stride=1),
        "was prepared for float32": lambda: conv_transpose2d(x, packed, dtype="bfloat16"),
        "it has cpu.scatter": lambda: forced("simt.fast", x, weights),
        "was prepared for rung simt.gather": lambda: forced("simt.gather_tested", x, packed),
        "images has shape (3, 3, 5)": lambda: pixels(weights[..., 0]),
        "out is torch.float32": lambda: pixels(x, out=x),
    }.items():
        with pytest.raises((UsageError, Refused)) as error:
            call()
        assert words in str(error.value)


def pixels(*arguments, **options):
    from tilewright.ops.conv_transpose2d.tile.pixels import pixels

    return pixels(*arguments, **options)


def forced(name, x, weights):
    with using(conv_transpose2d=name):
        return conv_transpose2d(x, weights)


def test_a_gpu_rung_refuses_the_cpus_arrays_and_the_other_way_round():
    here = Case(1, 4, 4, DEEP, 3)
    for name, rung in ladder.rungs.items():
        place = "cuda" if name.startswith("cpu.") else "cpu"
        why = "; ".join(rung.refuses(replace(here, device=place).problem))
        assert f"on {place}, it takes" in why, name


def test_a_ladder_ends_in_a_rung_that_takes_everything():
    for case in [replace(case, dtype=dtype, device="cuda") for case in CASES for dtype in DEVICE_DTYPES]:
        reasons = {name: ladder.rungs[name].refuses(case.problem) for name in ladder.prefer if "cpu." not in name}
        missing = ("No module", "driver", "GPU")
        assert any(not why or any(word in "".join(why) for word in missing) for why in reasons.values()), reasons


@pytest.mark.parametrize(
    ("O", "C", "dtype", "rung", "on_hopper"),
    [
        (3, 16, "float32", "simt.phases", None),  # 144 products an output: too few for limbs
        (3, 32, "float32", "tile.columns_limbs", "tile.rolling_limbs"),
        (5, 64, "float16", "tile.boxes", None),
        (3, 64, "float32", "tile.blocks_limbs", "tile.rolling_limbs"),
        (3, 128, "float32", "tile.blocks_limbs", "tile.rolling_limbs"),
        (3, 256, "float32", "tile.blocks_limbs", None),
        (8, 128, "float32", "tile.columns_limbs", None),
        (16, 512, "float32", "tile.columns_limbs", None),
        (17, 48, "float32", "tile.boxes_limbs", "tile.specialized_limbs"),
        (17, 32, "float32", "tile.boxes_limbs", None),
        (3, 64, "float16", "tile.blocks", "tile.rolling"),
        (3, 72, "float16", "tile.blocks", None),
        (8, 64, "float16", "tile.boxes", None),
    ],
)
def test_which_rung_runs_follows_from_the_channels(O, C, dtype, rung, on_hopper):
    """As measured on an H100; see docs/lab/conv_transpose2d.md."""
    if on_hopper and any(gpu.capability == (9, 0) for gpu in gpus()):
        rung = on_hopper
    assert chosen(ladder, Case(1, 2, 2, C, O, dtype=dtype, device="cuda").problem).name == rung


def test_pixels_are_those_of_the_host(rng):
    from tilewright.formats.images import pixels as on_the_host

    images = np.tanh(rng.standard_normal((3, 5, 7, 3), dtype=np.float32) * 3)
    images[0, 0, 0] = [-1, 1, 0]
    images[2] = 0.25
    images[2, 4, 6, 2] = np.nan
    own, invalid = pixels(torch.from_numpy(images).to(PLACE))
    assert np.array_equal(own[:2].cpu().numpy(), on_the_host(images[:2]))
    assert invalid.tolist() == [0, 0, 1] and own[2, 4, 6, 2] == 0
