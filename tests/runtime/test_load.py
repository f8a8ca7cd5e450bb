"""Configurations that make no model are refused, naming file and field."""

import json

import ml_dtypes  # noqa: F401 - NumPy learns of bfloat16
import pytest
from safetensors.numpy import load_file, save_file

from gpt2_models import save
from tilewright.errors import InputError, ResourceError, UsageError
from tilewright.models.textcnn import TextCNN
from tilewright.runtime.load import config_of, load


def change_config(model, **fields):
    path = f"{model}/config.json"
    with open(path) as file:
        config = json.load(file)
    config.update(fields)
    with open(path, "w") as file:
        json.dump(config, file)


def test_load(model, sentences):
    found = load(model)
    assert isinstance(found, TextCNN) and found.logits(sentences).shape == (40, 2)
    assert found.config == config_of(model) and found.config.id2label == {0: "negative", 1: "positive"}


def test_the_device_is_the_one_that_is_there(model, sentences, monkeypatch):
    monkeypatch.setattr("tilewright.runtime.devices.no_gpu", lambda: "the driver shows no GPU")
    wanted = load(model).logits(sentences)
    assert load(model, device="auto").logits(sentences).tobytes() == wanted.tobytes()
    with pytest.raises(ResourceError, match="the driver shows no GPU"):
        load(model, device="cuda")
    with pytest.raises(UsageError, match="device is 'tpu'"):
        load(model, device="tpu")


@pytest.mark.parametrize(("stored", "wanted"), [("float32",) * 2, ("bfloat16",) * 2, ("float16", "float32")])
def test_dtype_auto_is_that_of_the_checkpoint(tmp_path, stored, wanted):
    save(tmp_path / "m")
    weights = load_file(tmp_path / "m" / "model.safetensors")
    save_file({name: array.astype(stored) for name, array in weights.items()}, tmp_path / "m" / "model.safetensors")
    assert load(tmp_path / "m", dtype="auto", device="cpu").dtype == wanted
    assert load(tmp_path / "m", device="cpu").dtype == "float32"


@pytest.mark.parametrize(
    "fields",
    [
        {"model_type": "gpt9"},
        {"model_type": None},
        {"model_type": [1]},
        {"vocab_size": 0},
        {"vocab_size": "50"},
        {"vocab_size": 2**63},
        {"vocab_size": 1.5},
        {"hidden_size": -1},
        {"kernel_sizes": []},
        {"kernel_sizes": [7]},
        {"kernel_sizes": "35"},
        {"num_labels": None},
        {"id2label": {"x": "y"}},
        {"id2label": {"5": "y"}},
        {"surprise": 1},
    ],
)
def test_bad_configurations(model, fields):
    change_config(model, **fields)
    with pytest.raises(InputError) as caught:
        load(model)
    assert caught.value.path == f"{model}/config.json" and next(iter(fields)) in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"vocab_size": "50"}, "config.json, field vocab_size: no valid configuration: expected int, got str"),
        ({"kernel_sizes": [2, 3.5]}, "config.json, field kernel_sizes[1]: no valid configuration: expected int, got"),
        ({"surprise": 1}, "config.json: no valid configuration: Object contains unknown field surprise"),
        ({"vocab_size": 0}, "config.json: no valid configuration: vocab_size is 0; at least 1"),
    ],
)
def test_a_bad_field_is_told_without_the_words_of_a_library(model, fields, message):
    change_config(model, **fields)
    with pytest.raises(InputError) as caught:
        load(model)
    assert message in str(caught.value) and "`" not in str(caught.value) and "$" not in str(caught.value)


def test_sizes_that_do_not_match_the_weights(model):
    change_config(model, vocab_size=51)
    with pytest.raises(InputError, match=r"embedding\.weight is \(50, 8\); the configuration requires \(51, 8\)"):
        load(model)
