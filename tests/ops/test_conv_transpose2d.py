"""conv_transpose2d beyond its values: an image does not depend on its batch, which rung is chosen, errors of tiles."""

import dataclasses
import itertools

import numpy as np
import pytest

from compare import Guarded, compare
from ops.cases import cases_of
from random_problems import vectors_of
from tilewright.bench.sizes import conv_transpose2d as spec
from tilewright.errors import Refused, UsageError
from tilewright.hardware.cpu import CPU, cpu
from tilewright.ops.conv_transpose2d import Packed, conv_transpose2d, ladder, prepare, tiles
from tilewright.ops.conv_transpose2d.cpu import amx as images
from tilewright.ops.conv_transpose2d.ladder import CHANNELS
from tilewright.ops.conv_transpose2d.operands import Axis, Epilogue
from tilewright.ops.conv_transpose2d.problem import OfTiles
from tilewright.ops.conv_transpose2d.reference import conv_transpose2d as truth
from tilewright.ops.core.ladder import using
from tilewright.ops.core.launch import threads
from tilewright.ops.core.needs import amx_tiles
from tilewright.ops.matmul.problem import DTYPES

NO_BIAS = np.empty(0, np.float32)
SAME = ((1, 2), (1, 2))  # TensorFlow's, for 5 x 5 at stride 2


def rungs():
    """(rung, accuracy class) of every CPU rung; those that this CPU lacks are skipped."""
    for name, dtype in itertools.product(ladder.rungs, DTYPES):
        why = ladder.rungs[name].refuses(spec.Case(1, 1, 1, 1, 1, dtype=dtype).problem)
        if not any("dtype" in one for one in why):
            marks = [pytest.mark.skip(reason=one) for one in why if "this CPU" in one]
            yield pytest.param(name, dtype, id=f"{name}-{dtype}", marks=marks)


RUNGS = list(rungs())


def normal(rng, *shape) -> np.ndarray:
    return rng.standard_normal(shape, dtype=np.float32)


def layer(rung: str, rng, C: int = 20, O: int = 18):
    """(C, weights) that a rung takes."""
    O = {"cpu.columns": 4, "cpu.pixels": cpu().lanes // 4}.get(rung, O)
    return C, normal(rng, 5, 5, O, C)


@pytest.mark.parametrize(("rung", "dtype"), RUNGS)
def test_an_image_does_not_depend_on_its_batch(rung, dtype, rng):
    C, weights = layer(rung, rng)
    images, bias = normal(rng, 40, 3, 5, C), normal(rng, weights.shape[2])
    with using(conv_transpose2d=rung):
        packed = prepare(weights, stride=2, padding=SAME, dtype=dtype)
        run = lambda x: conv_transpose2d(x, packed, bias=bias, activation="tanh")  # noqa: E731
        alone = [run(image[None])[0].tobytes() for image in images]
        for size, count in ((2, 1), (3, 2), (7, 2), (25, 1), (40, 2), (40, 3)):
            chosen = rng.permutation(40)[:size]
            with threads(count):
                batch = run(images[chosen])
            assert [y.tobytes() for y in batch] == [alone[i] for i in chosen]


@pytest.mark.parametrize(("rung", "dtype"), RUNGS)
def test_a_poisoned_image_stays_alone(rung, dtype, rng):
    C, weights = layer(rung, rng)
    images = normal(rng, 30, 2, 3, C)
    with using(conv_transpose2d=rung):
        packed = prepare(weights, stride=2, padding=SAME, dtype=dtype)
        clean = conv_transpose2d(images, packed)
        images[4], images[17, 1, 1, 2], images[20] = np.nan, np.inf, 1e38
        dirty = conv_transpose2d(images, packed)
    others = np.setdiff1d(np.arange(30), [4, 17, 20])
    assert clean[others].tobytes() == dirty[others].tobytes()
    assert np.isnan(dirty[4]).all()
    assert not np.isfinite(dirty[17]).all()


@pytest.mark.parametrize(("rung", "dtype"), RUNGS)
def test_wide_images_are_cut_without_a_seam(rung, dtype, rng):
    """A row of more positions than a task holds; an image in it equals the same columns of a narrower one."""
    C, weights = layer(rung, rng, C=16, O=16)
    x = normal(rng, 1, 2, 450, C)
    if rung == "cpu.zero_inserted":
        x = x[:, :, :60]
    with using(conv_transpose2d=rung):
        packed = prepare(weights, stride=2, padding=SAME, dtype=dtype)
        whole = conv_transpose2d(x, packed)
        part = conv_transpose2d(x[:, :, 20:60], packed)
    assert whole[:, :, 48:116].tobytes() == part[:, :, 8:76].tobytes()


@pytest.mark.parametrize("padding", [0, 1, 2])
@pytest.mark.parametrize(("K", "stride"), [(4, 2), (5, 2), (3, 1), (3, 3), (2, 4), (5, 3)])
def test_against_torch(K, stride, padding, rng):
    torch = pytest.importorskip("torch")
    x, weights, bias = normal(rng, 2, 4, 6, 17), normal(rng, K, K, 19, 17), normal(rng, 19)
    options = {"stride": stride, "padding": min(padding, (K - 1) // 2)}
    tensors = (torch.from_numpy(np.ascontiguousarray(a)) for a in (np.moveaxis(x, 3, 1), weights.transpose(3, 2, 0, 1)))
    y = torch.nn.functional.conv_transpose2d(*tensors, torch.from_numpy(bias), **options).movedim(1, 3).numpy()
    compare(conv_transpose2d(x, weights, bias=bias, **options), y.astype(np.float64), 1e-4)


def test_outputs_that_no_tap_reaches_hold_the_bias(rng):
    x, weights, bias = normal(rng, 2, 3, 2, 20), normal(rng, 2, 3, 24, 20), normal(rng, 24)
    for rung in ("cpu.phases", "cpu.images", "cpu.winograd"):
        with using(conv_transpose2d=rung):
            try:
                y = conv_transpose2d(x, weights, stride=(5, 7), bias=bias, activation="relu")
            except Refused:
                continue
        assert np.array_equal(y[:, 2:5], np.broadcast_to(np.maximum(bias, 0), y[:, 2:5].shape))


@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_what_the_dcgan_and_the_example_of_pytorch_run(lanes):
    """The choice follows from the shape of weights, stride, padding, dtype and the CPU's vectors. The DCGAN's last
    layer has 12 columns, those of its four phases together."""
    with vectors_of(lanes):
        check_choices()


def check_choices():
    for dtype in DTYPES:
        problems = [case.problem for case in spec.sizes() if case.dtype == dtype]
        tiled = dtype == "bfloat16" and amx_tiles(problems[0]) is None
        last = "cpu.pixels" if cpu().lanes == 16 else "cpu.columns"
        wanted = ["cpu.amx"] * 4 if tiled else ["cpu.winograd"] * 3 + [last]
        assert [ladder.choose(problem).name for problem in problems] == wanted
    window = {"K": (4, 4), "padding": ((1, 1), (1, 1))}
    assert ladder.choose(spec.Case(1, 4, 4, 512, 256, **window).problem).name == "cpu.winograd"
    large = spec.Case(1, 4, 4, 64, 64, K=(7, 7), padding=((3, 3), (3, 3)))
    assert ladder.choose(large.problem).name == "cpu.images"
    assert ladder.choose(dataclasses.replace(large, O=cpu().lanes // 4).problem).name == "cpu.pixels"
    assert ladder.choose(dataclasses.replace(large, O=cpu().lanes // 4 + 1).problem).name == "cpu.columns"
    single = spec.Case(1, 4, 4, 8, cpu().lanes // 2, K=(3, 3), stride=(1, 1), padding=((1, 1), (1, 1)))
    assert ladder.choose(single.problem).name == "cpu.pixels"
    assert "half full" in ladder.rungs["cpu.pixels"].refuses(dataclasses.replace(single, O=single.O + 1).problem)[0]


def test_a_tile_takes_49_products_for_100():
    axis = Axis(5, 2, 1, 2)
    taps = sum(len(axis.taps(i)) for i in axis.phases) * tiles.SIDE
    products = sum(len(tiles.products_of(axis, i)) for i in axis.phases)
    assert (taps**2, products**2) == (100, 49)


@pytest.mark.parametrize("window", [(5, 2, 1), (5, 2, 0), (4, 2, 1), (3, 1, 1), (6, 2, 2), (7, 3, 2), (2, 1, 0)])
def test_the_tiles_compute_the_phases(window, rng):
    """In float64 nothing but rounding remains: A ((B d) (G g)) is what the phases' taps sum."""
    axis = Axis(*window, 0)
    least, size = axis.window
    assert size <= 3
    d, g = rng.standard_normal(4), rng.standard_normal(axis.K)
    for phase in axis.phases:
        index = tiles.taps_of(axis, phase)
        factors = tiles.G @ np.where(index >= 0, g[index], 0)
        needed = tiles.products_of(axis, phase)
        products = (tiles.B @ d) * np.where(np.isin(range(4), needed), factors, 0)
        wanted = [sum(d[j + at - least] * g[k] for at, k in axis.taps(phase)) for j in range(2)]
        assert np.abs(tiles.A @ products - wanted).max() < 1e-12


CASES = cases_of("conv_transpose2d")
SMALL = [case for case in CASES if case.dtype == "bfloat16" and case.layout == "C" and case.C < 100]


def on_emulated_tiles(x, weights, axes, bias=NO_BIAS, activation=None, out=None) -> np.ndarray:
    """The AMX rung on emulated tiles."""
    data = images.pack_images(weights, *axes, "bfloat16")
    packed = Packed("cpu.amx", *weights.shape[2:], *axes, "bfloat16", data)
    shape = len(x), axes[0].size(x.shape[1]), axes[1].size(x.shape[2]), weights.shape[2]
    out = np.full(shape, np.nan, np.float32) if out is None else out
    images.convolve(x, packed, out, Epilogue(bias, activation), emulated=True)
    return out


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_the_amx_kernels_on_emulated_tiles(case, rng):
    """Taps, phases, bands, few channels and the epilogue; more than sixteen images, and none."""
    inputs = spec.make(case, rng)
    reference, out = spec.reference(case, inputs), Guarded(spec.reference(case, inputs).shape)
    if reference.size:
        bias = inputs["bias"] if case.bias else NO_BIAS
        on_emulated_tiles(inputs["x"], inputs["weights"], case.axes, bias, inputs["activation"], out.array)
        out.check()
        compare(out.array, reference, spec.bound(case, inputs, reference))


def test_an_image_in_a_tile_does_not_depend_on_the_others(rng):
    """Sixteen images are a tile, and two tiles a block: alone, in any row, next to values that are not finite."""
    axes = Axis(5, 2, 1, 2), Axis(5, 2, 1, 2)
    for O in (3, 34):
        x, weights, bias = normal(rng, 35, 3, 2, 40), normal(rng, 5, 5, O, 40), normal(rng, O)
        whole = on_emulated_tiles(x, weights, axes, bias, "tanh")
        for some in ([7], [34, 0], list(range(17)), list(range(34, -1, -1))):
            assert on_emulated_tiles(x[some], weights, axes, bias, "tanh").tobytes() == whole[some].tobytes()
        x[4], x[20, 1, 1, 2] = np.nan, np.inf
        dirty, others = on_emulated_tiles(x, weights, axes, bias, "tanh"), np.setdiff1d(np.arange(35), [4, 20])
        assert dirty[others].tobytes() == whole[others].tobytes() and np.isnan(dirty[4]).all()


def errors(rung: str, case: spec.Case, inputs: dict) -> np.ndarray:
    with using(conv_transpose2d=rung):
        return np.abs(spec.bind(case, inputs)() - spec.reference(case, inputs))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("H", "C", "O"), [(4, 512, 256), (8, 256, 128), (16, 128, 64), (32, 64, 3)])
def test_tiles_err_less_than_four_times_what_phases_do(H, C, O, dtype, rng):
    """The condition on which tiles are the default, on the DCGAN's layers with outputs of ReLU as x. bfloat16 does not
    hold the operands exactly, so that rounding counts. Few channels are as many as this CPU's tiles take."""
    O = O if O >= CHANNELS else min(O, cpu().lanes // 4)
    case = spec.Case(2, H, H, C, O, dtype=dtype)
    x, weights = np.maximum(normal(rng, 2, H, H, C), 0), normal(rng, 5, 5, O, C) * np.float32(0.02)
    inputs = {"x": x, "weights": weights, "stride": (2, 2), "padding": SAME, "activation": None}
    own, tiled = errors("cpu.images", case, inputs), errors("cpu.winograd", case, inputs)
    assert np.sqrt((tiled**2).mean()) < 4 * np.sqrt((own**2).mean())
    assert tiled.max() < 4 * own.max()


def test_the_bound_of_tiles_is_no_licence(rng):
    """A missing tap, channel or pixel exceeds it, in either class."""
    for dtype in DTYPES:
        case = spec.Case(1, 6, 6, 24, 20, dtype=dtype)
        inputs = spec.make(case, rng)
        reference = spec.reference(case, inputs)
        bound = spec.bound(case, inputs, reference, OfTiles(1.0))
        for name, at in (("weights", (0, 0)), ("weights", (4, 1)), ("x", (0, 2, 3)), ("x", (..., 5))):
            spoilt = {**inputs, name: inputs[name].copy()}
            spoilt[name][at] = 0
            assert (np.abs(spec.reference(case, spoilt) - reference) > bound).any(), (dtype, name, at)


@pytest.mark.parametrize(("rung", "dtype"), RUNGS)
def test_out_may_have_gaps_or_be_x(rung, dtype, rng):
    C, weights = layer(rung, rng, C=18)
    x = normal(rng, 2, 3, 4, C)
    with using(conv_transpose2d=rung):
        wanted = conv_transpose2d(x, weights, stride=2, dtype=dtype)
        B, H, W, O = wanted.shape
        wide = np.full((B, 2 * H, W, 3 * O), 7, np.float32)
        conv_transpose2d(x, weights, stride=2, dtype=dtype, out=wide[:, ::2, :, 1::3])
        assert wide[:, ::2, :, 1::3].tobytes() == wanted.tobytes()
        assert (wide[:, 1::2] == 7).all() and (wide[..., ::3] == 7).all()


@pytest.mark.parametrize("lanes", [pytest.param(4, marks=pytest.mark.long), 8])
@pytest.mark.parametrize(
    "rung",
    [
        "cpu.images",
        *(pytest.param(rung, marks=pytest.mark.long) for rung in ("cpu.columns", "cpu.pixels", "cpu.winograd")),
    ],
)
def test_narrower_vectors(rung, lanes, rng, monkeypatch):
    """The kernels for SSE's, NEON's and AVX2's widths, which any machine can run."""
    monkeypatch.setattr(CPU, "lanes", lanes)
    ladder._chosen.cache_clear()
    for case in CASES:
        if (
            case.layout == "C"
            and (case.dtype == "float32" or rung == "cpu.pixels")
            and not ladder.rungs[rung].refuses(case.problem)
        ):
            inputs = spec.make(case, rng)
            reference = spec.reference(case, inputs)
            guarded = Guarded(reference.shape)
            with using(conv_transpose2d=rung):
                spec.bind(case, inputs)(out=guarded.array)
            guarded.check()
            bound = spec.bound(case, inputs, reference, ladder.rungs[rung].c)
            compare(np.ascontiguousarray(guarded.array), reference, bound)
    ladder._chosen.cache_clear()


def test_out_over_its_own_x(rng):
    memory = normal(rng, 1, 8, 8, 18)
    x = memory[:, :4, :4]
    weights = normal(rng, 5, 5, 18, 18)
    wanted = conv_transpose2d(x.copy(), weights, stride=2, padding=SAME)
    conv_transpose2d(x, weights, stride=2, padding=SAME, out=memory)
    assert memory.tobytes() == wanted.tobytes()


def test_a_prepared_weight_remembers_its_window(rng):
    weights, x = normal(rng, 5, 5, 3, 4), normal(rng, 1, 2, 2, 4)
    packed = prepare(weights, stride=2, padding=SAME)
    wanted = conv_transpose2d(x, weights, stride=2, padding=SAME)
    assert conv_transpose2d(x, packed).tobytes() == wanted.tobytes()
    assert conv_transpose2d(x, packed, stride=(2, 2), padding=SAME, dtype="float32").tobytes() == wanted.tobytes()
    for options in ({"stride": 1}, {"padding": 1}, {"padding": ((1, 2), (2, 1))}):
        with pytest.raises(UsageError, match="prepared for a stride of"):
            conv_transpose2d(x, packed, **options)
    with pytest.raises(UsageError, match="prepared for float32"):
        conv_transpose2d(x, packed, dtype="bfloat16")
    with using(conv_transpose2d="cpu.scatter"), pytest.raises(UsageError, match="prepare it again"):
        conv_transpose2d(x, packed)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"x": np.ones((1, 2, 2, 5), np.float32)}, "x is (1, 2, 2, 5) and weights (5, 5, 3, 4)"),
        ({"x": np.ones((2, 2, 4), np.float32)}, "x must be (B, H, W, C)"),
        ({"x": np.ones((1, 0, 2, 4), np.float32)}, "at least one pixel"),
        ({"weights": np.ones((5, 5, 0, 4), np.float32)}, "at least one of each"),
        ({"weights": np.ones((5, 5, 3), np.float32)}, "(KH, KW, O, C) is wanted"),
        ({"bias": np.ones(4, np.float32)}, "bias has shape (4,); (3,) is wanted"),
        ({"stride": 0}, "stride is 0; 1 to"),
        ({"stride": (2, 2, 2)}, "stride is (2, 2, 2)"),
        ({"stride": 1.5}, "stride is 1.5; an integer is wanted"),
        ({"padding": -1}, "padding is -1"),
        ({"padding": 2**40}, "padding is 1099511627776"),
        ({"padding": (1, 2)}, "integer or ((top, bottom), (left, right))"),
        ({"padding": ((3, 3), (0, 0))}, "crops all of the full result of (6, 6)"),
        ({"activation": "sigmoid"}, "activation is 'sigmoid'"),
        ({"dtype": "float16"}, "dtype is 'float16'"),
        ({"out": np.ones((1, 6, 6, 4), np.float32)}, "out is float32 (1, 6, 6, 4)"),
    ],
)
def test_what_does_not_fit_is_named(changed, message):
    arguments = {"x": np.ones((1, 2, 2, 4), np.float32), "weights": np.ones((5, 5, 3, 4), np.float32), **changed}
    with pytest.raises(UsageError) as caught:
        conv_transpose2d(**arguments)
    assert message in str(caught.value)


def test_a_stride_beyond_any_image_is_a_stride(rng):
    """One pixel and a stride of two thousand million: the kernel itself."""
    weights = normal(rng, 3, 2, 5, 4)
    y = conv_transpose2d(np.ones((1, 1, 1, 4), np.float32), weights, stride=2**31 - 1)
    compare(y[0], weights.astype(np.float64).sum(axis=3), 1e-5)


def test_guards_hold_at_every_size(rng):
    """Small images of every size, with incomplete tasks and tiles: nothing outside `out` is written."""
    weights = normal(rng, 5, 5, 17, 16)
    for rung in ("cpu.images", "cpu.winograd"):
        with using(conv_transpose2d=rung):
            packed = prepare(weights, stride=2, padding=((1, 2), (0, 3)))
            for B, H, W in itertools.product((1, 2, 13), (1, 2, 5), (1, 3, 8)):
                x, guarded = normal(rng, B, H, W, 16), Guarded((B, 2 * H, 2 * W, 17))
                conv_transpose2d(x, packed, out=guarded.array)
                guarded.check()
                y = truth(x, weights, 2, ((1, 2), (0, 3)))
                compare(np.ascontiguousarray(guarded.array), y, 1e-4)
