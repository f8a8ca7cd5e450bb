"""tilewright.ndimage against scipy.ndimage: values, dtypes, exceptions; and what it promises beyond scipy."""

import subprocess
import sys
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
import scipy.ndimage

import tilewright.ndimage as ndi
from compare import compare
from scipy_cases import Call, difference, random_call
from tilewright.errors import UsageError
from tilewright.ops.core.launch import threads

MANY, ALL = 1500, 20_000


def check(numbers) -> None:
    """The random calls of these numbers give what scipy gives."""
    wrong = []
    for number in numbers:
        call = random_call(np.random.default_rng((2026, number)))
        if why := difference(call, *call.run(scipy.ndimage), *call.run(ndi)):
            wrong.append(f"call {number}: {why}\n    {call}")
    assert not wrong, f"{len(wrong)} of {len(numbers)} calls differ\n" + "\n".join(wrong[:5])


@pytest.mark.parametrize("part", range(10))
def test_random_calls(part):
    check(range(part, MANY, 10))


@pytest.mark.long
@pytest.mark.parametrize("part", range(10))
def test_many_random_calls(part):
    check(range(MANY + part, ALL, 10))


def test_random_calls_are_of_every_kind():
    calls = [random_call(np.random.default_rng((2026, number))) for number in range(MANY)]
    assert {call.function for call in calls} == set(ndi.__all__)
    assert {call.input.ndim for call in calls} == {1, 2, 3, 4}
    assert len({call.input.dtype.name for call in calls}) == 13
    assert {type(call.output) for call in calls} >= {type(None), tuple, str}
    assert any(call.input.size == 0 for call in calls)


def _unlike_scipy(**changes):
    """ndimage with a function that does something else."""
    names = {name: getattr(ndi, name) for name in ndi.__all__}
    return type("Saboteur", (), {name: staticmethod(changes.get(name, f)) for name, f in names.items()})


def test_the_comparison_can_fail():
    """A result off by one, by half a precision or by its dtype, a lost exception: each is seen."""
    x = np.random.default_rng(1).standard_normal((5, 6)).astype(np.float32)

    def verdict(call: Call, correlate1d):
        return difference(call, *call.run(scipy.ndimage), *call.run(_unlike_scipy(correlate1d=correlate1d)))

    call = Call("correlate1d", x, {"weights": [1.0, 2.5, 1.0]})
    whole = Call("correlate1d", (9 * x).astype(np.int16), {"weights": [1, 2, 1]})
    assert verdict(call, ndi.correlate1d) is None and verdict(whole, ndi.correlate1d) is None
    right = ndi.correlate1d
    assert "exact" in verdict(whole, lambda *a, **k: right(*a, **k) + np.int16(1))
    assert "bound" in verdict(call, lambda *a, **k: (right(*a, **k).astype(np.float16)).astype(np.float32))
    assert "bound" in verdict(call, lambda *a, **k: right(*a, **k) * np.float32(np.nan))
    assert "float64" in verdict(call, lambda *a, **k: right(*a, **k).astype(np.float64))
    assert "shape" in verdict(call, lambda *a, **k: right(*a, **k)[1:])
    assert "bound" in verdict(call, lambda x, weights: right(x, weights, mode="mirror"))
    broken = Call("correlate1d", x, {"weights": [1.0], "origin": 3})
    assert verdict(broken, ndi.correlate1d) is None
    assert "raises" in verdict(broken, lambda x, weights, origin: x)
    assert "raises" in verdict(call, lambda x, weights: np.empty(3)[7])


X = np.arange(12.0).reshape(3, 4)
BAD = [
    ("correlate", {"weights": [[1, 2, 1]], "mode": "around"}),
    ("correlate", {"weights": [[1, 2, 1]], "mode": ["reflect", "wrap"]}),
    ("correlate", {"weights": [[1, 2, 1]], "mode": 3}),
    ("correlate", {"weights": [1, 2, 1]}),
    ("correlate", {"weights": np.ones((0, 3))}),
    ("correlate", {"weights": [["a"]]}),
    ("correlate", {"weights": [[1, 2, 1]], "origin": 2}),
    ("correlate", {"weights": [[1, 2, 1]], "origin": [0, 1, 0]}),
    ("correlate", {"weights": [[1, 2, 1]], "origin": [0, 0.5]}),
    ("correlate", {"weights": [[1, 2]], "origin": [0, 1]}),
    ("convolve", {"weights": [[1, 2]], "origin": [0, 1]}),
    ("convolve", {"weights": [[1, 2, 1]], "axes": (0, 0)}),
    ("convolve", {"weights": [1, 2, 1], "axes": (2,)}),
    ("convolve", {"weights": [1, 2, 1], "axes": 2}),
    ("convolve", {"weights": [1, 2, 1], "axes": 1.5}),
    ("convolve", {"weights": [1, 2, 1], "axes": "0"}),
    ("correlate", {"weights": [[1, 2, 1]], "cval": 1j}),
    ("correlate", {"weights": [[1, 2j, 1]], "cval": 1j}),
    ("correlate", {"weights": [[1, 2, 1]], "cval": "2"}),
    ("correlate", {"weights": [[1, 2, 1]], "cval": None}),
    ("correlate", {"weights": [[1, 2, 1]], "output": np.zeros((4, 3))}),
    ("correlate", {"weights": [[1, 2, 1]], "output": np.zeros((3, 4), np.float16)}),
    ("correlate", {"weights": [[1, 2, 1]], "output": complex}),
    ("correlate", {"weights": [[1, 2j, 1]], "output": "float32"}),
    ("correlate", {"weights": [[1, 2j, 1]], "output": np.zeros((3, 4))}),
    ("correlate", {"weights": [[1, 2, 1]], "output": "U3"}),
    ("correlate", {"weights": [[1, 2, 1]], "output": "float7"}),
    ("correlate", {"weights": [[1, 2, 1]], "output": np.broadcast_to(np.zeros(4), (3, 4))}),
    ("correlate1d", {"weights": []}),
    ("correlate1d", {"weights": [[1, 2]]}),
    ("correlate1d", {"weights": [1, 2, 1], "axis": 2}),
    ("correlate1d", {"weights": [1, 2, 1], "axis": 0.5}),
    ("correlate1d", {"weights": [1, 2, 1], "origin": -2}),
    ("correlate1d", {"weights": [1, 2, 1], "origin": [1]}),
    ("correlate1d", {"weights": [1, 2, 1], "mode": ["wrap"]}),
    ("convolve1d", {"weights": 3.0}),
    ("convolve1d", {"weights": [1, 2], "origin": "1"}),
    ("gaussian_filter", {"sigma": [1.0]}),
    ("gaussian_filter", {"sigma": 1.0, "mode": ["wrap"] * 3}),
    ("gaussian_filter", {"sigma": 1.0, "order": -1}),
    ("gaussian_filter", {"sigma": 1.0, "radius": 1.5}),
    ("gaussian_filter", {"sigma": 1.0, "radius": -1}),
    ("gaussian_filter1d", {"sigma": 0.0}),
    ("gaussian_filter1d", {"sigma": "1.5"}),
    ("uniform_filter", {"size": 3, "origin": 2}),
    ("uniform_filter1d", {"size": 0}),
    ("uniform_filter1d", {"size": 2.5}),
    ("uniform_filter1d", {"size": 3, "origin": 0.5}),
    ("sobel", {"axis": 2}),
    ("laplace", {"mode": ["wrap"]}),
]


@pytest.mark.parametrize(("function", "arguments"), BAD, ids=[f"{f}-{n}" for n, (f, _) in enumerate(BAD)])
def test_bad_arguments_raise_what_scipy_raises(function, arguments):
    call = Call(function, X, arguments)
    result, error = call.run(scipy.ndimage)
    assert error is not None, f"scipy gives {result}"
    assert difference(call, result, error, *call.run(ndi)) is None


@pytest.mark.parametrize("kind", ["float16", "longdouble", "object", "datetime64[s]", "S3", "clongdouble"])
@pytest.mark.parametrize("function", ["correlate1d", "correlate", "gaussian_filter", "uniform_filter"])
def test_dtypes_that_scipy_refuses(kind, function):
    given = {
        "correlate1d": {"weights": [1, 2, 1]},
        "correlate": {"weights": [1, 2, 1]},
        "gaussian_filter": {"sigma": 1},
    }
    call = Call(function, np.zeros(5, kind), given.get(function, {}))
    result, error = call.run(scipy.ndimage)
    assert error is not None and difference(call, result, error, *call.run(ndi)) is None


def test_a_promoted_dtype_is_warned_of():
    with pytest.warns(UserWarning, match="promoting specified output dtype to complex"):
        assert ndi.correlate1d(X + 1j, [1, 2, 1], output=np.float32).dtype == np.complex64


@pytest.mark.parametrize("kind", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool"])
@pytest.mark.parametrize("function", ["correlate", "correlate1d"])
def test_sums_that_no_integer_holds(kind, function):
    """Truncated, wrapped, out of range, infinite, NaN: the same integer as scipy's."""
    x = np.array(
        [0.999, -0.999, 127.9, 128, 255.9, 256, -129, 32768, 65536, -70000, 3e9, 5e9, -3e9, -5e9, 9.2e18, 9.3e18]
    )
    x = np.concatenate([x, -x, [1.8e19, 1.9e19, -1.8e19, 1e30, -1e30, np.inf, -np.inf, np.nan]])
    for weights in ([1.0], [0.5]):
        wanted = getattr(scipy.ndimage, function)(x, weights, output=kind if kind != "bool" else bool)
        result = getattr(ndi, function)(x, weights, output=kind if kind != "bool" else bool)
        assert np.array_equal(result, wanted), (x[result != wanted], result[result != wanted], wanted[result != wanted])


@pytest.mark.parametrize("function", ["gaussian_filter", "uniform_filter", "sobel", "laplace", "correlate", "convolve"])
@pytest.mark.parametrize(
    ("shape", "kind"), [((70, 65, 80), np.int16), ((40, 90, 33), np.float64), ((300, 517), np.uint8)]
)
def test_arrays_of_many_tiles(function, shape, kind, rng):
    x = (100 * rng.standard_normal(shape)).astype(kind)
    weights = rng.standard_normal((3,) * len(shape))
    given = {"gaussian_filter": {"sigma": 2.0}, "uniform_filter": {"size": 7}}
    given = {"correlate": {"weights": weights}, "convolve": {"weights": weights}, **given}
    call = Call(function, x, {"mode": "mirror", **given.get(function, {})})
    with threads(2):
        result = call.run(ndi)
    assert difference(call, *call.run(scipy.ndimage), *result) is None
    with threads(1):
        assert call.run(ndi)[0].tobytes() == result[0].tobytes()


def test_an_output_may_overlap_in_any_way(rng):
    x = rng.standard_normal((40, 50))
    weights = rng.standard_normal((3, 3))
    wanted = [ndi.correlate(x[:-1], weights), ndi.gaussian_filter(x[:-1], 2), ndi.laplace(x), ndi.uniform_filter(x, 5)]
    for index, filter in enumerate(
        [lambda a, b: ndi.correlate(a, weights, b), lambda a, b: ndi.gaussian_filter(a, 2, 0, b)]
    ):
        shared = x.copy()
        filter(shared[:-1], shared[1:])
        assert shared[1:].tobytes() == wanted[index].tobytes()
    place = x.copy()
    assert ndi.laplace(place, place) is place and place.tobytes() == wanted[2].tobytes()
    turned = x.copy()
    ndi.uniform_filter(turned, 5, output=turned)
    assert turned.tobytes() == wanted[3].tobytes()


def test_small_weights_count(rng):
    """scipy.ndimage takes weights below 2.2e-16 for zeros, and differences below it for symmetry."""
    x, weights = rng.standard_normal(50), np.array([1.0, -3.0, 2.0])
    for function in (ndi.correlate, ndi.correlate1d):
        small, plain = function(x, 1e-18 * weights), function(x, weights)
        compare(small, 1e-18 * plain, 1e-32, dtype=np.float64)


def test_a_mean_of_one_number_is_that_number(rng):
    x = rng.standard_normal((5, 300))
    assert np.array_equal(ndi.uniform_filter1d(x, 1), x)


def test_long_lines_have_small_errors(rng):
    """A running sum in one go would carry the first numbers' rounding to the end."""
    x = rng.standard_normal(200_000)
    x[:100] *= 1e12
    compare(
        ndi.uniform_filter1d(x, 50)[190_000:199_000],
        np.convolve(x, np.full(50, 0.02))[190_024:199_024],
        1e-14,
        dtype=np.float64,
    )


FLOAT32 = [
    ("correlate", {"weights": np.arange(27.0).reshape(3, 3, 3) % 3}),
    ("convolve", {"weights": np.arange(12.0).reshape(2, 3, 2) - 5, "mode": "wrap", "origin": [0, 1, 0]}),
    ("gaussian_filter", {"sigma": 1.5}),
    ("gaussian_filter", {"sigma": [0.0, 2.0, 1.0], "order": [0, 1, 2], "mode": "constant"}),
    ("sobel", {"axis": 1, "mode": "nearest"}),
    ("prewitt", {"axis": 0}),
    ("laplace", {"mode": "constant", "cval": 2.0}),
    ("laplace", {"axes": (0, 2)}),
    ("gaussian_laplace", {"sigma": 1.0}),
]


@pytest.mark.parametrize(("function", "arguments"), FLOAT32, ids=[f"{f}-{n}" for n, (f, _) in enumerate(FLOAT32)])
def test_float32_volumes_go_to_conv3d(function, arguments, rng, monkeypatch):
    """They are within the bound, in place too, and have bits of their own."""
    import tilewright.ops.conv3d as conv3d

    ran = []
    original = conv3d.conv3d
    monkeypatch.setattr(conv3d, "conv3d", lambda *a, **k: (ran.append(1), original(*a, **k))[1])
    x = rng.standard_normal((30, 41, 52)).astype(np.float32)
    for output in (None, "input") if "laplace" not in function else (None,):
        call = Call(function, x, arguments, output)
        assert difference(call, *call.run(scipy.ndimage), *call.run(ndi)) is None
    assert ran


@pytest.mark.parametrize(("function", "arguments"), FLOAT32, ids=[f"{f}-{n}" for n, (f, _) in enumerate(FLOAT32)])
def test_what_float32_does_not_hold(function, arguments, rng):
    """Infinities, NaN and sums that overflow on their way: what scipy gives, and the other numbers' bits stay."""
    x = rng.standard_normal((20, 31, 42)).astype(np.float32)
    clean = getattr(ndi, function)(x, **arguments)
    x[10, 15, 20], x[3, 30, 41], x[19, 0, 0], x[0, 0, 7] = np.inf, np.nan, -np.inf, np.finfo(np.float32).max
    with np.errstate(invalid="ignore", over="ignore"):
        result, wanted = getattr(ndi, function)(x, **arguments), getattr(scipy.ndimage, function)(x, **arguments)
    known = np.isfinite(wanted)
    assert np.array_equal(np.isfinite(result), known)
    assert np.array_equal(result[~known], wanted[~known], equal_nan=True)
    same = clean == result
    assert same[12:17, 3:8, 29:34].all() and not same.all()


@pytest.mark.parametrize(
    ("function", "arguments"), [("sobel", {}), ("prewitt", {}), ("gaussian_filter", {"sigma": 1.0})]
)
def test_a_border_lies_around_the_result_of_each_pass(function, arguments, rng):
    """Not around the volume alone, as in one pass with the kernels' product."""
    call = Call(
        function, rng.standard_normal((9, 8, 7)).astype(np.float32), {"mode": "constant", "cval": 3.0, **arguments}
    )
    assert difference(call, *call.run(scipy.ndimage), *call.run(ndi)) is None


@pytest.mark.parametrize("scale", [1e-45, 1e-30, 1e30, 1e38])
def test_weights_that_float32_does_not_hold(scale, rng):
    x = rng.standard_normal((9, 10, 11)).astype(np.float32)
    weights = rng.standard_normal((3, 3, 3))
    result = ndi.correlate(x / np.float32(scale) if scale > 1 else x, scale * weights)
    plain = scipy.ndimage.correlate(np.float64(x / np.float32(scale) if scale > 1 else x), weights) * scale
    compare(result, plain, 1e-5 * max(1e-40, np.abs(plain).max()))


def test_five_dimensions(rng):
    x = rng.standard_normal((2, 3, 2, 4, 5))
    assert np.array_equal(ndi.gaussian_filter(x, 1.0), scipy.ndimage.gaussian_filter(x, 1.0))
    weights = rng.standard_normal((3, 3))
    wanted = scipy.ndimage.correlate(x, weights, axes=(1, 3))
    assert np.array_equal(ndi.correlate(x, weights, axes=(1, 3)), wanted)


OPTIONS = {
    "gaussian_filter": {"sigma": 1.0}, "gaussian_filter1d": {"sigma": 1.0}, "gaussian_laplace": {"sigma": 1.0},
    "uniform_filter1d": {"size": 3},
}  # fmt: skip


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("function", ndi.__all__)
def test_bfloat16_counts_as_float32(function, library, rng):
    """Of the input and of the weights; an output of it, which float32 does not fit into, is refused."""
    call, rounded = getattr(ndi, function), rng.standard_normal((20, 17, 18)).astype(ml_dtypes.bfloat16)

    def arguments(kind, weights):
        """In NumPy's float32, or in `kind`'s bfloat16."""
        if not function.startswith(("correlate", "convolve")):
            return OPTIONS.get(function, {})
        return {"weights": kind(weights[:3] if function.endswith("1d") else weights.reshape(3, 3, 3))}

    def as_torch(array):
        torch = pytest.importorskip("torch")
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)

    kind = as_torch if library == "torch" else np.asarray
    weights = rng.standard_normal(27).astype(ml_dtypes.bfloat16)
    wanted = call(rounded.astype(np.float32), **arguments(lambda array: array.astype(np.float32), weights))
    found = call(kind(rounded), **arguments(kind, weights))
    assert isinstance(found, np.ndarray) and found.dtype == np.float32 and found.tobytes() == wanted.tobytes()
    with pytest.raises(RuntimeError, match=r"bfloat16.* not supported"):
        call(kind(rounded), **arguments(kind, weights), output=kind(np.zeros_like(rounded)))


@pytest.mark.parametrize("library", ["torch", "another"])
@pytest.mark.parametrize("function", ndi.__all__)
def test_arrays_on_a_gpu_are_refused_by_name(function, library):
    """Where a filter has no GPU kernels, and where one argument of a filter on the CPU is on a GPU."""
    gpu = SimpleNamespace(is_cuda=True) if library == "torch" else SimpleNamespace(__dlpack_device__=lambda: (2, 0))
    call, has_weights = getattr(ndi, function), function.startswith(("correlate", "convolve"))
    volume = np.zeros((3, 4, 5), np.float32)
    weights = np.ones(3 if function.endswith("1d") else (3, 3, 3))
    options = {"weights": weights} if has_weights else OPTIONS.get(function, {})
    if function not in ("correlate", "convolve"):
        with pytest.raises(UsageError, match=r"input is on a GPU; .*[Cc]opy it to the CPU"):
            call(gpu, **options)
    if has_weights:
        with pytest.raises(UsageError, match="weights is on a GPU"):
            call(volume, gpu)
    with pytest.raises(UsageError, match="output is on a GPU"):
        call(volume, **options, output=gpu)


def test_importing_compiles_nothing():
    code = (
        "import sys, tilewright.ndimage; assert not {'numba', 'scipy', 'torch'} & set(sys.modules), sorted(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_dir_lists_the_public_names():
    assert dir(ndi) == sorted(ndi.__all__)
