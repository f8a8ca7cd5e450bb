"""Equal calls of conv3d run a recorded launch: the same bits for other arrays, and every other call is prepared."""

import copy
import dataclasses
import os
import pickle
import threading

import numpy as np
import pytest

from tilewright.errors import UsageError
from tilewright.ops.conv3d import conv3d, prepare, prepare_separable
from tilewright.ops.conv3d.cpu.tiles import STREAMED
from tilewright.ops.conv3d.memo import LARGEST
from tilewright.ops.core.ladder import using
from tilewright.ops.core.launch import threads

SHAPE = 20, 33, 40


def normal(rng, *shape) -> np.ndarray:
    return rng.standard_normal(shape, dtype=np.float32)


def packed_of(kind: str, rng):
    """Weights for the rung `rows`, `folded` or `separable`."""
    if kind == "separable":
        return prepare_separable(tuple(normal(rng, 3) for _ in range(3)))
    weights = normal(rng, 3, 3, 3)
    return prepare(weights + weights[::-1] if kind == "folded" else weights)


def recorded(packed, x, **options):
    """Three calls. The second is recorded, the third repeats it. Returns the first result."""
    first, second, third = (conv3d(x, packed, **options) for _ in range(3))
    assert packed.memo.last[1] is not None
    assert first.tobytes() == second.tobytes() == third.tobytes()
    return first


@pytest.mark.parametrize("kind", ["rows", "folded", "separable"])
@pytest.mark.parametrize("count", [1, 2])
def test_other_arrays_of_the_same_shapes(kind, count, rng):
    packed = packed_of(kind, rng)
    with threads(count):
        recorded(packed, normal(rng, *SHAPE), mode="reflect")
        launch = packed.memo.last[1]
        for _ in range(3):
            x, out = normal(rng, *SHAPE), np.full(SHAPE, np.nan, np.float32)
            with using(conv3d=f"cpu.{kind}"):
                wanted = conv3d(x, packed, mode="reflect")
            assert conv3d(x, packed, mode="reflect", out=out) is out
            assert packed.memo.last[1] is launch
            assert out.tobytes() == wanted.tobytes()


def test_what_differs_is_prepared(rng):
    """Each call differs from the recorded one in one point, and has the bits of a call with new weights."""
    weights, x = normal(rng, 3, 3, 3), normal(rng, *SHAPE)
    wide = normal(rng, SHAPE[0], SHAPE[1], 2 * SHAPE[2])
    packed = prepare(weights)
    for array, options in [
        (x[:, :30], {}), (x[::-1], {}), (wide[:, :, ::2], {}), (wide[:, :, : SHAPE[2]], {}), (x, {"mode": "wrap"}),
        (x, {"mode": "valid"}), (x, {"cval": -0.0}), (x, {"cval": np.float32(2)}), (x, {"origin": 1}),
        (x, {"origin": (0, 1, 0)}), (x, {"origin": np.array([0, 1, 0])}), (x.tolist(), {}),
    ]:  # fmt: skip
        recorded(packed, x)
        if isinstance(array, list):
            with pytest.raises(UsageError, match="float64"):
                conv3d(array, packed)
            continue
        wanted = conv3d(np.array(array), prepare(weights), **options)
        assert conv3d(array, packed, **options).tobytes() == wanted.tobytes()


def test_the_sign_of_a_zero_border(rng):
    """0.0 equals -0.0, but these borders give different bits."""
    weights, x = np.ones((3, 1, 1), np.float32), np.full(SHAPE, -0.0, np.float32)
    packed = prepare(weights)
    for cval in (0.0, -0.0, -0.0, -0.0, 0.0, 0.0, 0.0):
        assert conv3d(x, packed, cval=cval).tobytes() == conv3d(x, prepare(weights), cval=cval).tobytes()


def test_a_border_value_beyond_float32_gives_no_warning(rng):
    """It is rounded to infinity, as in a call with new weights."""
    weights, x = np.ones((3, 1, 1), np.float32), normal(rng, *SHAPE)
    recorded(packed := prepare(weights), x, cval=1e300)
    assert conv3d(x, packed, cval=1e300).tobytes() == conv3d(x, prepare(weights), cval=np.inf).tobytes()


def test_copies_of_weights_have_memos_of_their_own(rng):
    """A recording holds addresses."""
    x, packed = normal(rng, *SHAPE), prepare(normal(rng, 3, 3, 3))
    wanted = recorded(packed, x)
    for other in (copy.deepcopy(packed), pickle.loads(pickle.dumps(packed)), dataclasses.replace(packed)):
        assert other.memo.last is None
        assert recorded(other, x).tobytes() == wanted.tobytes()


def test_a_border_value_that_changes(rng):
    x, weights = normal(rng, *SHAPE), normal(rng, 3, 3, 3)
    packed, border = prepare(weights), np.array(0.0, np.float32)
    for value in (0.0, 0.0, 5.0, 5.0):
        border[...] = value
        assert conv3d(x, packed, cval=border).tobytes() == conv3d(x, prepare(weights), cval=value).tobytes()


def test_equal_border_values_are_repeated(rng):
    """Each is an object of its own."""
    x, packed = normal(rng, *SHAPE), prepare(normal(rng, 3, 3, 3))
    conv3d(x, packed, cval=float("2.5"))
    conv3d(x, packed, cval=float("2.5"))
    launch = packed.memo.last[1]
    conv3d(x, packed, cval=float("2.5"))
    assert launch is not None and packed.memo.last[1] is launch


def test_a_launch_of_the_largest_result_does_not_depend_on_its_address():
    assert LARGEST < STREAMED


def test_an_out_that_a_kernel_cannot_write(rng):
    weights, x = normal(rng, 3, 3, 3), normal(rng, *SHAPE)
    packed = prepare(weights)
    wanted = recorded(packed, x)
    fixed = np.zeros(SHAPE, np.float32)
    fixed.flags.writeable = False
    with pytest.raises(UsageError, match="writeable"):
        conv3d(x, packed, out=fixed)
    with pytest.raises(UsageError, match="out is float64"):
        conv3d(x, packed, out=np.zeros(SHAPE))
    misaligned = np.zeros(wanted.nbytes + 1, np.uint8)[1:].view(np.float32).reshape(SHAPE)
    assert conv3d(x, packed, out=misaligned).tobytes() == wanted.tobytes()
    columns = np.zeros((SHAPE[0], SHAPE[2], SHAPE[1]), np.float32).swapaxes(1, 2)
    assert conv3d(x, packed, out=columns).tobytes() == wanted.tobytes()


def test_an_out_that_overlaps(rng):
    """It is the volume itself, or the next plane of the same memory."""
    weights, memory = normal(rng, 3, 3, 3), normal(rng, SHAPE[0] + 1, *SHAPE[1:])
    packed = prepare(weights)
    for out in (memory[:-1], memory[1:]):
        recorded(packed, normal(rng, *SHAPE))
        wanted = conv3d(memory[:-1].copy(), prepare(weights))
        assert conv3d(memory[:-1], packed, out=out).tobytes() == wanted.tobytes()


def test_another_thread_another_count_and_a_forced_rung(rng):
    weights, x = normal(rng, 3, 3, 3), normal(rng, *SHAPE)
    packed = prepare(weights)
    wanted = recorded(packed, x).tobytes()
    found: list[bytes] = []
    caller = threading.Thread(target=lambda: found.append(conv3d(x, packed).tobytes()))
    caller.start()
    caller.join()
    with threads(3):
        found.append(conv3d(x, packed).tobytes())
    assert found == [wanted, wanted]
    recorded(packed, x)
    with using(conv3d="cpu.naive"), pytest.raises(UsageError, match=r"cpu\.naive is chosen now"):
        conv3d(x, packed)


def test_a_rung_that_copies_the_volume_is_never_recorded(rng):
    from tilewright.ops.core.repeat import record

    x, out = normal(rng, *SHAPE), np.zeros(SHAPE, np.float32)
    with using(conv3d="cpu.vectors"):
        packed = prepare(normal(rng, 3, 3, 3))
        assert record(lambda: conv3d(x, packed, out=out), x, out) is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_repeats_with_helpers_of_its_own(rng):
    packed, x = packed_of("rows", rng), normal(rng, 64, 64, 64)
    with threads(2):
        wanted = recorded(packed, x).tobytes()
        child = os.fork()
        if child == 0:
            try:
                os._exit(0 if conv3d(x, packed).tobytes() == wanted else 1)
            finally:
                os._exit(99)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
