"""Models on disk: what is wrong with one is named with its tensor, its shapes and its file."""

import json
import math
import os

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from tilewright.errors import InputError, ResourceError
from tilewright.formats import course, models
from tilewright.formats.blocks import blocks_of, check_finite
from tilewright.formats.files import InputFile
from tilewright.formats.models import read_config, read_model, write_model

SHAPES = {"embedding.weight": (6, 4), "convs.0.weight": (3, 4, 2), "convs.0.bias": (3,)}
CONFIG = {"model_type": "textcnn", "vocab_size": 6}


def shapes_of(config):
    return SHAPES


@pytest.fixture
def weights(rng):
    return {name: rng.standard_normal(shape, np.float32) for name, shape in SHAPES.items()}


def save(path, weights, config=CONFIG):
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    safetensors.numpy.save_file(weights, path / "model.safetensors")


def as_blocks(weights):
    return [(name, array.shape, blocks_of(array)) for name, array in weights.items()]


def test_round_trip(tmp_path, weights):
    write_model(tmp_path / "m", CONFIG, as_blocks(weights))
    config, found = read_model(tmp_path / "m", shapes_of)
    assert config == CONFIG and list(found) == list(SHAPES)
    assert all(found[name].tobytes() == weights[name].tobytes() for name in SHAPES)
    write_model(tmp_path / "m", {**CONFIG, "x": 1}, as_blocks(weights))
    assert read_model(tmp_path / "m", shapes_of)[0]["x"] == 1
    assert sorted(file.name for file in (tmp_path / "m").iterdir()) == ["config.json", "model.safetensors"]


def test_views_follow_the_expected_order_and_share_the_file(tmp_path, weights):
    save(tmp_path / "m", dict(reversed(weights.items())))
    _, found = read_model(tmp_path / "m", shapes_of)
    assert list(found) == list(SHAPES)
    assert all(not array.flags.owndata and not array.flags.writeable for array in found.values())


def test_half_precision(tmp_path, weights):
    half = {n: a.astype(ml_dtypes.bfloat16 if a.ndim == 2 else np.float16) for n, a in weights.items()}
    save(tmp_path / "m", half)
    _, found = read_model(tmp_path / "m", shapes_of)
    assert found["embedding.weight"].dtype == ml_dtypes.bfloat16 and found["convs.0.bias"].dtype == np.float32
    assert all((found[name].astype(np.float32) == half[name].astype(np.float32)).all() for name in SHAPES)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop("convs.0.bias"), r"tensor convs\.0\.bias \(3,\) is missing"),
        (lambda w: w.update(extra=np.zeros(2, np.float32)), r"'extra' \(2,\) is not part"),
        (
            lambda w: w.update({"convs.0.bias": np.zeros(4, np.float32)}),
            r"convs\.0\.bias is \(4,\); the configuration requires \(3,\)",
        ),
        (lambda w: w.update({"convs.0.bias": np.zeros(3)}), r"convs\.0\.bias is float64"),
        (lambda w: w.update({"convs.0.bias": np.zeros(3, np.int32)}), r"convs\.0\.bias is int32"),
        (lambda w: [w.clear(), w.update(other=np.zeros(1, np.float32))], "the file has no tensor of such a model"),
    ],
)
def test_wrong_tensors(tmp_path, weights, change, message):
    change(weights)
    save(tmp_path / "m", weights)
    with pytest.raises(InputError, match=message) as caught:
        read_model(tmp_path / "m", shapes_of)
    assert caught.value.path == str(tmp_path / "m" / "model.safetensors")


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"{", b"\xff{}", b'{"a":' * 10**5, b'"x"', b"nan", b"{}" + b" " * (2 << 20)]
)
def test_bad_configurations(tmp_path, weights, text):
    save(tmp_path / "m", weights)
    (tmp_path / "m" / "config.json").write_bytes(text)
    with pytest.raises(InputError, match="configuration"):
        read_model(tmp_path / "m", shapes_of)


@pytest.mark.parametrize(
    ("gone", "message"),
    [
        (
            "config.json",
            r"m/config\.json: no such model's .* Get the config\.json that .*: the directory holds model\.safetensors",
        ),
        ("model.safetensors", r"m: holds no weights: there is no model\.safetensors\. Download"),
    ],
)
def test_missing_files(tmp_path, weights, gone, message):
    save(tmp_path / "m", weights)
    (tmp_path / "m" / gone).unlink()
    with pytest.raises(InputError, match=message):
        read_model(tmp_path / "m", shapes_of)


@pytest.fixture
def small_course(monkeypatch):
    """A course model of 204 bytes."""
    monkeypatch.setitem(models.COURSE_CONFIGS, 4 * sum(map(math.prod, SHAPES.values())), {"model_type": "small"})


def test_headerless_file(tmp_path, weights, small_course):
    raw = b"".join(array.tobytes() for array in weights.values())
    (tmp_path / "p.bin").write_bytes(raw)
    config, found = read_model(tmp_path / "p.bin", shapes_of)
    assert config == {"model_type": "small"} and list(found) == list(SHAPES)
    assert all(found[name].tobytes() == weights[name].tobytes() for name in SHAPES)
    assert not any(array.flags.owndata or array.flags.writeable for array in found.values())


@pytest.mark.parametrize(("delta", "message"), [(-4, "4 missing"), (4, "4 too many"), (-204, "204 missing")])
def test_headerless_file_of_the_wrong_size(tmp_path, delta, message):
    expected = 4 * sum(math.prod(shape) for shape in SHAPES.values())
    (tmp_path / "p.bin").write_bytes(bytes(expected + delta))
    with pytest.raises(InputError, match=message), InputFile(tmp_path / "p.bin", "model") as file:
        course.map_weights(file, SHAPES)


@pytest.mark.parametrize(("size", "kind"), [(801_196_040, "textcnn"), (497_759_232, "gpt2"), (497_759_236, None)])
def test_the_size_of_a_file_says_which_model_it_is(tmp_path, size, kind):
    (tmp_path / "p.bin").touch()
    os.truncate(tmp_path / "p.bin", size)
    if kind:
        assert read_config(tmp_path / "p.bin") == {"model_type": kind}
        return
    message = r"497,759,236 bytes; .* exactly 801,196,040 \(textcnn\) or 497,759,232 \(gpt2\)"
    with pytest.raises(InputError, match=message):
        read_config(tmp_path / "p.bin")


def test_no_model(tmp_path):
    with pytest.raises(InputError, match="no such model"):
        read_model(tmp_path / "nothing", shapes_of)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no such model's configuration"):
        read_model(tmp_path / "empty", shapes_of)


def test_a_failed_write_keeps_the_earlier_model(tmp_path, weights):
    write_model(tmp_path / "m", CONFIG, as_blocks(weights))
    short = [(name, (99,), blocks_of(array)) for name, array in weights.items()]
    with pytest.raises(ValueError, match="99"):
        write_model(tmp_path / "m", CONFIG, short)
    assert read_model(tmp_path / "m", shapes_of)[0] == CONFIG
    assert [file.name for file in tmp_path.iterdir()] == ["m"]


def test_a_directory_of_something_else_is_not_replaced(tmp_path, weights):
    save(tmp_path / "m", weights)
    (tmp_path / "m" / "notes.md").write_text("mine")
    with pytest.raises(ResourceError, match="notes"):
        write_model(tmp_path / "m", CONFIG, as_blocks(weights))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 2**21 + 5, -1])
def test_check_finite(dtype, value, place):
    array = np.ones((3, 2**20 + 1), np.float32).astype(dtype)
    check_finite("w", array)
    array.reshape(-1)[place] = value
    index = [int(i) for i in np.unravel_index(place % array.size, array.shape)]
    with pytest.raises(InputError) as caught:
        check_finite("w", array, "p.bin")
    assert f"tensor w holds {value} at {index}" in str(caught.value)


def test_check_finite_takes_the_largest_numbers():
    check_finite("w", np.full(4, np.finfo(np.float32).max))
    check_finite("w", np.zeros((0, 3), np.float32))
    check_finite("w", np.array([1], np.int32))
