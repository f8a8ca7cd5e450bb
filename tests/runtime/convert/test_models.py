"""Models from a seed, and conversion there and back, bit for bit."""

import math
import os

import numpy as np
import pytest
import safetensors.numpy

from tilewright.errors import InputError, ResourceError, UsageError
from tilewright.formats import files
from tilewright.formats.models import COURSE_CONFIG, COURSE_CONFIGS
from tilewright.models import initial
from tilewright.models.initial import random_blocks, random_textcnn, textcnn_scale
from tilewright.models.textcnn import TextCNNConfig
from tilewright.runtime.convert.models import convert, init_textcnn
from tilewright.runtime.load import config_of

SIZES = {"vocab_size": 30, "sequence_length": 5, "hidden_size": 64, "num_filters": 16, "num_labels": 3}
LAYERS = {"kernel_sizes": (2, 3), "hidden_sizes": (8, 4)}


@pytest.fixture
def small_course(monkeypatch):
    """The course's model, but small: 801 MB would take seconds."""
    sizes = {**SIZES, "num_labels": 2, **LAYERS}
    for name, value in sizes.items():
        monkeypatch.setitem(COURSE_CONFIG, name, value)
    shapes = TextCNNConfig(**sizes).tensor_shapes().values()
    monkeypatch.setitem(COURSE_CONFIGS, 4 * sum(math.prod(shape) for shape in shapes), COURSE_CONFIG)
    return sizes


def weights(path):
    return safetensors.numpy.load_file(f"{path}/model.safetensors")


def test_init(tmp_path):
    written = init_textcnn(str(tmp_path / "m"), 5, **SIZES, **LAYERS)
    found = weights(tmp_path / "m")
    assert {name: array.shape for name, array in found.items()} == config_of(tmp_path / "m").tensor_shapes()
    assert written == sum(array.nbytes for array in found.values()) and config_of(tmp_path / "m").id2label == {}
    init_textcnn(str(tmp_path / "again"), 5, **SIZES, **LAYERS)
    init_textcnn(str(tmp_path / "other"), 6, **SIZES, **LAYERS)
    raw = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("m", "again", "other")]
    assert raw[0] == raw[1] != raw[2]


def test_random_blocks_are_scaled_and_independent(monkeypatch):
    names, shape = ("embedding.weight", "convs.0.weight", "convs.1.weight"), (64, 32, 8)
    draws = [np.concatenate(list(random_blocks(shape, 1, t, *textcnn_scale(names[t], shape)))) for t in range(3)]
    assert draws[0].std() == pytest.approx(1, rel=0.02) and draws[1].std() == pytest.approx(1 / 16, rel=0.02)
    assert abs(np.corrcoef(draws[1], draws[2])[0, 1]) < 0.03 and draws[0].dtype == np.float32
    monkeypatch.setattr(initial, "BLOCK_BYTES", 400)
    assert np.concatenate(list(random_blocks((64, 32, 8), 1, 0))).tobytes() == draws[0].tobytes()


@pytest.mark.parametrize(
    "sizes", [{"kernel_sizes": (9,)}, {"kernel_sizes": ()}, {"hidden_sizes": (0,)}, {"num_labels": 0}]
)
def test_init_refuses_sizes(tmp_path, sizes):
    with pytest.raises(UsageError):
        init_textcnn(str(tmp_path / "m"), 0, **{**SIZES, **LAYERS, **sizes})
    assert os.listdir(tmp_path) == []


def test_convert_there_and_back(tmp_path, small_course):
    init_textcnn(str(tmp_path / "p.bin"), 7, **small_course)
    raw = (tmp_path / "p.bin").read_bytes()
    assert convert(str(tmp_path / "p.bin"), str(tmp_path / "m")) == len(raw)
    assert (
        b"".join(weights(tmp_path / "m")[name].tobytes() for name in config_of(tmp_path / "m").tensor_shapes()) == raw
    )
    convert(str(tmp_path / "m"), str(tmp_path / "back.bin"))
    assert (tmp_path / "back.bin").read_bytes() == raw
    init_textcnn(str(tmp_path / "direct"), 7, **small_course)
    assert (tmp_path / "direct" / "model.safetensors").read_bytes() == (
        tmp_path / "m" / "model.safetensors"
    ).read_bytes()


def test_convert_refuses(tmp_path, small_course):
    init_textcnn(str(tmp_path / "m"), 7, **SIZES, **LAYERS)
    with pytest.raises(InputError, match="num_labels is 3 and the course's model has 2"):
        convert(str(tmp_path / "m"), str(tmp_path / "p.bin"))
    with pytest.raises(InputError, match="no such model"):
        convert(str(tmp_path / "gone"), str(tmp_path / "x"))
    (tmp_path / "p.bin").write_bytes(bytes(12))
    with pytest.raises(InputError, match="12 bytes; the course's model takes exactly"):
        convert(str(tmp_path / "p.bin"), str(tmp_path / "x"))
    init_textcnn(str(tmp_path / "p.bin"), 7, force=True, **small_course)
    with pytest.raises(ResourceError, match="there is no directory"):
        convert(str(tmp_path / "p.bin"), str(tmp_path / "no" / "x"))
    with pytest.raises(ResourceError, match="is a file"):
        convert(str(tmp_path / "p.bin"), str(tmp_path / "p.bin"))
    assert sorted(os.listdir(tmp_path)) == ["m", "p.bin"]


def test_random_weights_in_memory_are_those_on_the_disk(tmp_path):
    init_textcnn(str(tmp_path / "m"), 5, **SIZES, **LAYERS)
    found, shapes = weights(tmp_path / "m"), config_of(tmp_path / "m").tensor_shapes()
    for name, array in random_textcnn(shapes, 5).items():
        assert array.shape == shapes[name] and array.tobytes() == found[name].tobytes()


def test_another_file_is_not_replaced(tmp_path, small_course):
    """Headerless weights look like any others, and may have taken days."""
    mine = tmp_path / "thesis.bin"
    mine.write_bytes(b"mine")
    init_textcnn(str(tmp_path / "m"), 7, **small_course)
    calls = (
        lambda **force: init_textcnn(str(mine), 7, **small_course, **force),
        lambda **force: convert(str(tmp_path / "m"), str(mine), **force),
    )
    for call in calls:
        mine.write_bytes(b"mine")
        with pytest.raises(
            UsageError, match=r"the file exists and has 4 bytes, which may be weights.*give --force to replace it"
        ):
            call()
        assert mine.read_bytes() == b"mine"
        call(force=True)
        with pytest.raises(UsageError, match="which may be weights"):
            call()
        mine.write_bytes(b"")
        call()  # over an empty file, as of mktemp
        assert mine.stat().st_size > 1000


def test_another_directory_is_not_replaced(tmp_path, small_course):
    """Neither by a model from a seed nor by a converted one; an empty one is."""
    init_textcnn(str(tmp_path / "p.bin"), 7, **small_course)
    init_textcnn(str(tmp_path / "m"), 8, **SIZES, **LAYERS)
    before = weights(tmp_path / "m")
    with pytest.raises(UsageError, match="the directory exists and is not empty"):
        convert(str(tmp_path / "p.bin"), str(tmp_path / "m"))
    assert {name: x.tobytes() for name, x in weights(tmp_path / "m").items()} == {
        name: x.tobytes() for name, x in before.items()
    }
    convert(str(tmp_path / "p.bin"), str(tmp_path / "m"), force=True)
    (tmp_path / "empty").mkdir()
    convert(str(tmp_path / "p.bin"), str(tmp_path / "empty"))
    assert weights(tmp_path / "m").keys() == weights(tmp_path / "empty").keys()


def test_nan_is_not_converted(tmp_path, small_course):
    init_textcnn(str(tmp_path / "p.bin"), 7, **small_course)
    with open(tmp_path / "p.bin", "r+b") as file:
        file.seek(4 * 70)
        file.write(np.array([np.nan], "<f4").tobytes())
    with pytest.raises(InputError, match=r"embedding\.weight holds nan at \[1, 6\]"):
        convert(str(tmp_path / "p.bin"), str(tmp_path / "m"))


def test_blocks_bound_the_memory():
    assert max(block.nbytes for block in random_blocks((3, 1 << 20), 0, 0)) == files.BLOCK_BYTES
