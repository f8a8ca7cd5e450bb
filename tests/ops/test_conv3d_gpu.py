"""conv3d's rungs for GPUs: with TILEWRIGHT_GPU=1 (`make test-gpu`) on a GPU, on every case; else in numba-cuda's
simulator and Triton's interpreter, which run kernels as Python, on tiny ones."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.ndimage

import gpu
from compare import compare
from gpu import ON_GPU, PLACE, widen_bfloat16
from ops.cases import cases_of
from tilewright.bench.sizes import conv3d as spec
from tilewright.errors import Refused, UsageError
from tilewright.ops.conv3d import Problem, conv3d, ladder, prepare, prepare_separable
from tilewright.ops.conv3d.problem import MODES, Case
from tilewright.ops.core.ladder import trying, using

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("simulated_gpu")

RUNGS = [rung for name, rung in ladder.rungs.items() if not name.startswith("cpu.")]
SMALL = Problem(1, 1, 3, 3, 3, separable=True, device="cuda")
TINY = [
    Case(2, 3, 8, 3, 3, 3),
    Case(3, 4, 5, 3, 2, 4, mode="mirror", origin=(1, -1, 1)),
    Case(2, 3, 7, 2, 3, 5, mode="constant", cval=1.5),
    Case(3, 3, 4, 3, 3, 3, mode="valid"),
    Case(2, 3, 4, 8, 1, 3, mode="wrap"),
]
SEPARABLE = [Case(3, 4, 8, 3, 3, 3, kind="factors", cval=0.5), Case(2, 3, 8, 2, 5, 3, kind="product", mode="wrap")]
SEPARABLE += [Case(2, 3, 4, KD, 3, 1, kind="factors", mode="mirror") for KD in (12, 18)]
DEEP = [Case(2, 3, 5, 2, 4, 4, O=3, C=9, mode=mode, cval=0.5) for mode in ("constant", "reflect")]
DEEP += [Case(3, 4, 34, 1, 3, 4, O=20, C=24, mode="valid"), Case(1, 2, 3, 1, 2, 2, O=70, C=70, mode="wrap")]
CHANNELS = Case(2, 3, 4, 2, 1, 3, O=2, C=2, mode="reflect")
WIDE = Case(2, 34, 68, 1, 3, 3, mode="nearest")  # four tiles of 32 x 64
# rows that quads fill, in tiles of 32 x 64 and in none: what stands beyond them is written by other means
EDGES = [Case(5, 40, 132, *sizes, mode=mode, cval=0.5) for sizes in ((5, 5, 5), (2, 3, 7)) for mode in MODES]
EDGES += [Case(3, 5, 4, 3, 6, 7, mode=mode, origin=(1, -1, 2), cval=0.5) for mode in MODES]
EDGES += [Case(6, 40, 132, 9, 17, 12, kind="factors", mode=mode, cval=0.5) for mode in MODES]
EDGES += [Case(70, 66, 200, 3, 3, 3, mode="mirror"), Case(64, 64, 64, 7, 7, 7, mode="wrap", origin=(3, -3, 3))]
EDGES += [Case(40, 64, 64, 33, 33, 33, kind="factors", mode="reflect"), Case(9, 40, 131, 5, 5, 5, mode="valid")]


def tiny(rung) -> list[Case]:
    """Cases for a simulator, in which a block whose threads wait for each other takes a second."""
    if rung.name in ("simt.separable", "tile.passes"):
        return SEPARABLE
    if rung.name == "tile.taps_limbs":
        return DEEP
    return [
        *TINY,
        CHANNELS,
        Case(2, 3, 4, 2, 3, 2, O=3, C=4, mode="constant", cval=0.5),
        *([WIDE] if rung.name == "simt.march" else []),
    ]


@pytest.fixture(autouse=True)
def bfloat16_is_multiplied(monkeypatch):
    widen_bfloat16(monkeypatch)


def small(rung) -> Problem:
    """One that the rung takes."""
    return replace(SMALL, O=3, C=10, separable=False) if rung.name == "tile.taps_limbs" else SMALL


def every():
    """A parameter for each rung and case; one skip, with its reason, for what cannot run here."""
    for rung in RUNGS:
        if why := rung.refuses(small(rung)):
            yield pytest.param(rung, None, id=rung.name, marks=pytest.mark.skip(reason=f"{rung.name}: {why}"))
            continue
        for case in [*cases_of("conv3d"), *EDGES, *DEEP] if ON_GPU else tiny(rung):
            case = replace(case, device="cuda")
            if not rung.refuses(case.problem):
                yield pytest.param(rung, case, id=f"{rung.name}-{case.name}")


@pytest.mark.parametrize(("rung", "case"), list(every()))
def test_rung(rung, case, rng):
    gpu.check("conv3d", rung, case, rng, runs=2 if ON_GPU else 1)


CUBES = ladder.rungs["simt.cubes"]


@pytest.mark.skipif(bool(CUBES.refuses(SMALL)), reason="; ".join(CUBES.refuses(SMALL)))
@pytest.mark.parametrize("tile", [tile for tile in CUBES.swept["tile"] if tile != CUBES.options["tile"]])
def test_a_cube_of_every_size_has_the_bits_of_the_naive_rung(tile, rng):
    x = made(rng, 2, 3, 4) if not ON_GPU else made(rng, 33, 40, 50)
    weights = rng.standard_normal((2, 3, 3), dtype=np.float32)
    with using(conv3d="simt.naive"):
        expected = conv3d(x, weights, mode="mirror")
    with trying("conv3d", CUBES.varied(tile=tile)):
        assert torch.equal(conv3d(x, weights, mode="mirror"), expected)


def test_a_cube_is_refused_by_its_own_tile():
    """K = 9 fits in a block with a tile of 1 or 2, though not with the default."""
    fits = {tile: not any("threads" in why for why in cubes_refuse(tile, K=9)) for tile in (1, 2, 3, 4)}
    assert fits == {1: True, 2: True, 3: False, 4: False}


def cubes_refuse(tile: int, K: int) -> list[str]:
    return CUBES.varied(tile=tile).refuses(replace(SMALL, KD=K, KH=K, KW=K))


@pytest.mark.skipif(bool(CUBES.refuses(SMALL)), reason="; ".join(CUBES.refuses(SMALL)))
def test_a_cube_of_one_takes_nine_taps(rng):
    x, weights = made(rng, 1, 1, 1), rng.standard_normal((9, 9, 9), dtype=np.float32)
    with using(conv3d="simt.naive"):
        expected = conv3d(x, weights)
    with trying("conv3d", CUBES.varied(tile=1)):
        assert torch.equal(conv3d(x, weights), expected)


@pytest.mark.skipif(bool(CUBES.refuses(SMALL)), reason="; ".join(CUBES.refuses(SMALL)))
@pytest.mark.parametrize(
    ("tile", "K", "words"),
    [
        (0, 3, "a tile of 0 has no output"),
        (5, 7, "a tile of 5 with its halo takes 11 x 11 x 11 = 1,331 threads; a block has up to 1,024"),
        (4, 9, "a tile of 4 with its halo takes 12 x 12 x 12 = 1,728 threads; a block has up to 1,024"),
    ],
)
def test_a_cube_that_does_not_fit_is_refused(tile, K, words):
    x, weights = torch.zeros(2, 3, 4, device=PLACE), np.zeros((K, K, K), np.float32)
    with trying("conv3d", CUBES.varied(tile=tile)), pytest.raises(Refused, match=words):
        conv3d(x, weights)


def accepted(*few: str):
    """The rungs that run here: every one on a GPU, else `few` of them."""
    for rung in RUNGS:
        if not rung.refuses(small(rung)) and (ON_GPU or rung.name in few):
            yield pytest.param(rung, id=rung.name)


def made(rng, *shape):
    return torch.from_numpy(rng.standard_normal(shape, dtype=np.float32)).to(PLACE)


LINES = ("simt.separable", "tile.passes")  # rungs for three vectors, which have no channels


def prepared(rung, lines):
    """f(x, ...): `conv3d` of x (C, D, H, W) with the kernel of three vectors; for rungs with channels all of
    them have it."""
    if rung.name not in LINES:
        shape = small(rung).O, small(rung).C, *(len(line) for line in lines)
        weights = prepare(np.broadcast_to(np.einsum("a,b,t->abt", *lines), shape), device=PLACE)
        return lambda x, **options: conv3d(x, weights, **options)
    weights = prepare_separable(lines, device=PLACE)

    def convolve(x, out=None, **options):
        return conv3d(x[0], weights, out=None if out is None else out[0], **options)[None]

    return convolve


ONES = (np.ones(3, np.float32),) * 3


@pytest.mark.parametrize("rung", list(accepted("simt.constant", "tile.march")))
def test_a_tile_has_the_bits_of_the_whole(rung, rng):
    """An output's bits depend on the numbers under its window and on the weights: not on place, size or border."""
    D, H, W = (40, 70, 131) if ON_GPU else (4, 6, 9)
    x, lines = made(rng, small(rung).C, D, H, W), tuple(rng.standard_normal((3, 3), dtype=np.float32))
    with using(conv3d=rung.name):
        conv3d = prepared(rung, lines)
        inner = conv3d(x, mode="valid")
        for mode in ("constant", "reflect", "wrap") if ON_GPU else ("constant",):
            assert torch.equal(conv3d(x, mode=mode)[:, 1:-1, 1:-1, 1:-1], inner)
        for z, y, at in ((1, 2, 3), (D // 2 - 2, 1, 5), (0, H // 2 - 2, W // 2)):
            part = conv3d(x[:, z:, y:, at : W - 1], mode="valid")
            assert torch.equal(part, inner[:, z:, y:, at : W - 3])


@pytest.mark.parametrize("rung", list(accepted("simt.naive", "tile.march", "tile.taps_limbs")))
def test_what_is_not_finite_stays_under_its_windows(rung, rng):
    x = made(rng, small(rung).C, 9, 10, 11)[:, :, :5, :6]
    x = x if ON_GPU else x[:, :4]
    with using(conv3d=rung.name):
        conv3d = prepared(rung, ONES)
        clean = conv3d(x)
        dirty = x.clone()
        dirty[0, 1, 2, 3] = torch.nan
        out = conv3d(dirty)
    near = torch.zeros_like(out, dtype=torch.bool)
    near[:, 0:3, 1:4, 2:5] = True
    assert torch.isnan(out[near]).all()
    assert torch.equal(out[~near], clean[~near])


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # the interpreter's, for limbs of infinity
@pytest.mark.parametrize("rung", list(accepted("tile.taps_limbs")))
def test_what_stands_around_may_be_infinite(rung, rng):
    x = made(rng, small(rung).C, 3, 3, 3)
    with using(conv3d=rung.name):
        out = prepared(rung, ONES)(x, cval=np.inf)
    assert torch.isfinite(out[:, 1, 1, 1]).all()
    assert not torch.isfinite(out[:, 0]).any()


@pytest.fixture
def simple():
    """The simplest rung, where it can run."""
    if why := ladder.rungs["simt.naive"].refuses(SMALL):
        pytest.skip("; ".join(why))
    with using(conv3d="simt.naive"):
        yield


@pytest.mark.usefixtures("simple")
def test_outputs_that_are_inputs_have_gaps_or_are_empty(rng):
    x, weights = made(rng, 3, 4, 5), rng.standard_normal((3, 3, 3), dtype=np.float32)
    wanted = conv3d(x, weights)
    wide = torch.zeros(3, 4, 8, device=PLACE)
    assert torch.equal(conv3d(x, weights, out=wide[:, :, 1:6])[:], wanted)
    assert torch.equal(wide[:, :, 1:6], wanted) and wide[:, :, [0, 6, 7]].abs().sum() == 0
    short = x.bfloat16()
    assert torch.equal(conv3d(short, weights), conv3d(short.float(), weights))
    assert torch.equal(conv3d(x, torch.from_numpy(weights).to(PLACE), out=x), wanted)
    assert conv3d(x[:, :0], weights).shape == (3, 0, 5)
    assert conv3d(x[:2], weights[:2], mode="valid").shape == (1, 2, 3)


@pytest.mark.usefixtures("simple")
def test_what_does_not_fit_is_named(rng):
    x, weights = made(rng, 3, 4, 5), np.ones((3, 3, 3), np.float32)
    for words, call in {
        "were prepared for rung simt.": lambda: conv3d(x.cpu().numpy(), prepare(weights, device=PLACE)),
        "x is int64; float32": lambda: conv3d(x.long(), weights),
        "x is (3, 4, 5) and weights are (1, 1, 3, 3, 3)": lambda: conv3d(x, weights[None, None]),
        "weights has shape (3, 3)": lambda: conv3d(x, weights[0]),
        "mode is 'edge'": lambda: conv3d(x, weights, mode="edge"),
        "cval is 'a'": lambda: conv3d(x, weights, cval="a"),
        "with 3 taps it goes from -1 to 1": lambda: conv3d(x, weights, origin=2),
        "mode 'valid' needs it inside x": lambda: conv3d(x[:2], weights, mode="valid"),
        "out is float32 (3, 4)": lambda: conv3d(x, weights, out=x[:, :, 0]),
        "out is float16": lambda: conv3d(x, weights, out=x.half()),
        "were prepared for rung cpu.": lambda: conv3d(x, on_cpu(weights)),
        "three vectors": lambda: prepare_separable((np.ones(3), np.ones(3)), device=PLACE),
        "it has cpu.naive": lambda: forced("simt.fast", x, weights),
        "352 taps, it takes up to 343": lambda: forced("simt.march", x, np.ones((1, 11, 32), np.float32)),
        "O is 2, it takes up to 1": lambda: forced("simt.march", x[None], np.ones((2, 1, 3, 3, 3), np.float32)),
        "no outer product of": lambda: forced("tile.passes", x, np.eye(9, dtype=np.float32).reshape(3, 9, 3)),
        "of shared memory": lambda: forced("simt.shared", x, np.ones((19, 19, 19), np.float32)),
    }.items():
        with pytest.raises((UsageError, Refused)) as error:
            call()
        assert words in str(error.value)


def on_cpu(weights):
    with using(conv3d="cpu.rows"):
        return prepare(weights)


def forced(name, x, weights):
    with using(conv3d=name):
        return conv3d(x, weights)


def test_a_gpu_rung_refuses_the_cpus_arrays_and_the_other_way_round():
    on_cpu = replace(SMALL, device="cpu")
    for name, rung in ladder.rungs.items():
        why = "; ".join(rung.refuses(on_cpu if not name.startswith("cpu.") else SMALL))
        assert "it takes" in why and ("on cuda" in why) and "on cpu" in why, name


def test_blocks_march_in_few_turns():
    from tilewright.ops.conv3d.operands import Window
    from tilewright.ops.conv3d.simt.launch import chunk, form_for

    form = form_for((5, 5, 5), Window((2, 2, 2), "constant", np.float32(0)))
    assert form.lead == 2 and form.quads == 3
    for tiles, planes in ((1, 1), (1, 200_000), (128, 512), (10_000, 100)):
        length = chunk(form, tiles, planes)
        assert 1 <= length <= planes and -(-planes // length) <= 65535


@pytest.mark.parametrize(
    ("K", "tiles", "planes", "length"),
    [(5, 16, 128, 8), (3, 32, 256, 16), (3, 2, 64, 1), (5, 256, 512, 256)],
)
def test_blocks_share_the_arithmetic_of_a_multiprocessor(monkeypatch, K, tiles, planes, length):
    """The fastest chunks of an H100, for tiles of 64 columns: half as many blocks if multiply-adds are the limit."""
    from tilewright.ops.conv3d.operands import Window
    from tilewright.ops.conv3d.simt import launch

    monkeypatch.setattr(launch, "multiprocessors", lambda: 132)
    form = launch.form_for((K, K, K), Window((K // 2,) * 3, "constant", np.float32(0)))
    assert launch.chunk(form, tiles, planes) == length


@pytest.mark.parametrize("KD", [1, 9, 10, 17])
def test_a_plane_of_every_separable_kernel_fits_in_shared_memory(KD):
    from tilewright.ops.conv3d.operands import Window
    from tilewright.ops.conv3d.simt.launch import separable_form
    from tilewright.ops.core.gpu.limits import SHARED_LIMIT

    for K in range(1, 34):
        for first in range(4):
            form = separable_form((KD, K, K), Window((0, 0, first), "constant", np.float32(0)))
            assert form.shared <= SHARED_LIMIT and form.across % 2 == 1


@pytest.mark.parametrize("rung", list(accepted("simt.naive")))
def test_an_output_may_lie_anywhere(rung, rng):
    x = made(rng, small(rung).C, 3, 4, 8)
    with using(conv3d=rung.name):
        conv3d = prepared(rung, ONES)
        wanted = conv3d(x)
        odd = torch.zeros(wanted.numel() + 1, device=PLACE)[1:].view(wanted.shape)
        assert torch.equal(conv3d(x, out=odd), wanted)


@pytest.mark.skipif(not ON_GPU, reason="a tensor on a GPU is needed")
def test_the_public_function_sends_tensors_on(rng):
    x, weights = made(rng, 6, 7, 8), rng.standard_normal((3, 3, 3), dtype=np.float32)
    expected = conv3d(x.cpu().numpy(), weights, mode="mirror")
    for given in (weights, torch.from_numpy(weights).cuda(), prepare(weights, device="cuda")):
        out = conv3d(x, given, mode="mirror")
        assert out.is_cuda
        compare(out.cpu().numpy(), expected, 1e-5)


@pytest.mark.usefixtures("simple")
def test_ndimage_filters_tensors(rng):
    from tilewright import ndimage
    from tilewright.ndimage._tensors import filter_tensor, turned_tensor

    x, weights = made(rng, 3, 4, 5), rng.standard_normal((3, 2, 3))
    correlated = scipy.ndimage.correlate(x.cpu().numpy(), weights, mode="grid-wrap", origin=(0, -1, 1))
    convolved = scipy.ndimage.convolve(x.cpu().numpy(), weights, cval=2.0, mode="constant")
    out = torch.full_like(x, torch.nan)
    if ON_GPU:
        assert ndimage.correlate(x, weights, out, mode="grid-wrap", origin=(0, -1, 1)) is out
        turned = ndimage.convolve(x, torch.from_numpy(weights).cuda(), mode="constant", cval=2.0)
    else:
        filter_tensor(x, weights, out, "grid-wrap", 0.0, (0, -1, 1), None)
        turned = filter_tensor(
            x, *turned_tensor(weights, 0)[:1], None, "constant", 2.0, turned_tensor(weights, 0)[1], None
        )
    compare(out.cpu().numpy(), correlated.astype(np.float64), 1e-5)
    compare(turned.cpu().numpy(), convolved.astype(np.float64), 1e-5)
    for words, given in {
        "float32 volumes (D, H, W)": (x[0], weights, None, "reflect", 0.0, 0, None),
        "float64 (3, 4, 5)": (x.double(), weights, None, "reflect", 0.0, 0, None),
        "along all axes": (x, weights, None, "reflect", 0.0, 0, (0, 1)),
        "weights has shape (2, 3)": (x, weights[0], None, "reflect", 0.0, 0, None),
        "a tensor on the GPU, or None": (x, weights, np.float32, "reflect", 0.0, 0, None),
        "boundary mode": (x, weights, None, "edge", 0.0, 0, None),
    }.items():
        with pytest.raises(RuntimeError) as error:
            filter_tensor(*given)
        assert words in str(error.value)


@pytest.mark.parametrize("case", [TINY[1], SEPARABLE[1], CHANNELS, Case(20, 3, 4, 5, 3, 3, cval=2.0)], ids=str)
def test_what_the_bench_compares_with_is_the_reference(case, rng):
    from tilewright.bench.peers import conv3d as beside

    inputs = spec.make(case, rng)
    weights = inputs["weights"]
    tensors = {"x": torch.from_numpy(inputs["x"])} | {"weights": torch.from_numpy(weights)}
    exact, allowed = beside.truth(case, tensors)
    reference = spec.reference(case, inputs)
    bound = spec.bound(case, inputs, reference, 2.0)
    compare(exact.numpy().astype(np.float32), reference[: len(exact)], 1e-5)
    assert np.allclose(allowed(2.0).numpy(), np.broadcast_to(bound, reference.shape)[: len(exact)], rtol=1e-6)
