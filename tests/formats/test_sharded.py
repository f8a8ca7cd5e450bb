"""Directories as `transformers` writes them: shards, prefixes, causal masks, a head that is the embedding once more."""

import json

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from tilewright.errors import InputError
from tilewright.formats import models
from tilewright.formats.models import eos_token_ids, read_model

SHAPES = {"wte.weight": (6, 4), "h.0.attn.c_attn.bias": (12,), "ln_f.weight": (4,)}
TIES = (("lm_head.weight", "wte.weight"),)


def rename(name):
    name = name.removeprefix("transformer.")
    return None if name == "h.0.attn.bias" else name


def read(path):
    return read_model(path, lambda config: SHAPES, rename, TIES)[1]


@pytest.fixture
def weights(rng):
    return {name: rng.standard_normal(shape, np.float32) for name, shape in SHAPES.items()}


def save(path, tensors, shards=None):
    """shards: file -> names; None: one file."""
    path.mkdir()
    (path / "config.json").write_text("{}")
    if shards is None:
        safetensors.numpy.save_file(tensors, path / "model.safetensors")
        return
    for shard, names in shards.items():
        safetensors.numpy.save_file({name: tensors[name] for name in names}, path / shard)
    index(path, {name: shard for shard, names in shards.items() for name in names})


def index(path, weight_map):
    text = json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map})
    (path / "model.safetensors.index.json").write_text(text)


def equal(found, weights):
    return list(found) == list(weights) and all(found[n].tobytes() == weights[n].tobytes() for n in weights)


@pytest.mark.parametrize("prefix", ["", "transformer."])
@pytest.mark.parametrize("extra", [(), ("h.0.attn.bias",), ("lm_head.weight",), ("lm_head.weight", "h.0.attn.bias")])
def test_names(tmp_path, weights, prefix, extra):
    tensors = {prefix + name: array for name, array in weights.items()}
    if "h.0.attn.bias" in extra:
        tensors[f"{prefix}h.0.attn.bias"] = np.tril(np.ones((1, 1, 5, 5), bool))
    if "lm_head.weight" in extra:
        tensors["lm_head.weight"] = weights["wte.weight"].copy()
    save(tmp_path / "m", tensors)
    found = read(tmp_path / "m")
    assert equal(found, weights) and not any(array.flags.owndata for array in found.values())


@pytest.mark.parametrize(
    "change",
    [
        lambda w: np.nextafter(w, np.float32(9)),
        lambda w: np.concatenate([w[:-1], w[-1:] + 1]),
        lambda w: np.concatenate([w[:1] + 1, w[1:]]),
        lambda w: w.view(np.int32),
        lambda w: w.astype(ml_dtypes.bfloat16),
        lambda w: w[:-1],
        lambda w: w.reshape(4, 6),
    ],
)
def test_a_head_that_is_not_tied(tmp_path, weights, change, monkeypatch):
    monkeypatch.setattr(models, "BLOCK_BYTES", 20)
    save(tmp_path / "m", {**weights, "lm_head.weight": change(weights["wte.weight"])})
    with pytest.raises(InputError, match=r"lm_head\.weight .* differs from wte\.weight"):
        read(tmp_path / "m")


def test_wrong_names(tmp_path, weights):
    save(tmp_path / "twice", {**weights, "transformer.ln_f.weight": weights["ln_f.weight"]})
    with pytest.raises(InputError, match=r"is another name of ln_f\.weight, which is given twice"):
        read(tmp_path / "twice")
    save(tmp_path / "more", {**weights, "transformer.ln_g.weight": weights["ln_f.weight"]})
    with pytest.raises(InputError, match=r"ln_g\.weight' \(4,\) is not part"):
        read(tmp_path / "more")
    save(tmp_path / "head", {"lm_head.weight": weights["wte.weight"], "ln_f.weight": weights["ln_f.weight"]})
    with pytest.raises(InputError, match=r"tensor wte\.weight \(6, 4\) is missing"):
        read(tmp_path / "head")


A, B = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
SHARDS = {A: ["wte.weight"], B: ["ln_f.weight", "h.0.attn.c_attn.bias"]}


def test_shards(tmp_path, weights):
    save(tmp_path / "m", weights, SHARDS)
    found = read(tmp_path / "m")
    assert equal(found, weights) and not any(array.flags.owndata for array in found.values())


def test_a_head_in_another_shard(tmp_path, weights):
    weights["lm_head.weight"] = weights["wte.weight"]
    save(tmp_path / "m", weights, {**SHARDS, "c.safetensors": ["lm_head.weight"]})
    assert equal(read(tmp_path / "m"), {name: weights[name] for name in SHAPES})


GOOD = {name: shard for shard, names in SHARDS.items() for name in names}


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        ({**GOOD, "wte.weight": B}, f"'wte.weight' is not in {B}"),
        ({k: v for k, v in GOOD.items() if k != "ln_f.weight"}, "holds tensor 'ln_f.weight', which .* has nowhere"),
        ({**GOOD, "ln_g.weight": B}, f"'ln_g.weight' is not in {B}"),
        ({**GOOD, "ln_f.weight": A}, f"holds tensor 'ln_f.weight', which .* has in {A}"),
        (
            {**GOOD, "x": "gone.safetensors"},
            "1 of the 3 files that .* lists are missing: gone.safetensors",
        ),
        ({**GOOD, "x": f"../m/{A}"}, "no .safetensors file of this directory"),
        ({**GOOD, "x": f"/{A}"}, "no .safetensors file of this directory"),
        ({**GOOD, "x": "..safetensors"}, "no .safetensors file of this directory"),
        ({**GOOD, "x": "a\0.safetensors"}, "no .safetensors file of this directory"),
        ({**GOOD, "x": "pytorch_model.bin"}, "no .safetensors file of this directory"),
        ({**GOOD, "x": 5}, "no valid index"),
        ([], "no valid index"),
        ({}, "is missing"),
    ],
)
def test_an_index_that_lies(tmp_path, weights, weight_map, message):
    save(tmp_path / "m", weights, SHARDS)
    index(tmp_path / "m", weight_map)
    with pytest.raises(InputError, match=message):
        read(tmp_path / "m")


@pytest.mark.parametrize("text", [b"", b"{", b"\xff", b'{"weight_map":' * 10**5, b"{}"])
def test_an_index_that_is_none(tmp_path, weights, text):
    save(tmp_path / "m", weights, SHARDS)
    (tmp_path / "m" / "model.safetensors.index.json").write_bytes(text)
    with pytest.raises(InputError, match=r"index\.json(, field .*)?: no valid index"):
        read(tmp_path / "m")


def test_a_key_that_occurs_twice(tmp_path, weights):
    save(tmp_path / "m", weights, {"a.safetensors": list(weights)})
    (tmp_path / "m/model.safetensors.index.json").write_text(
        '{"weight_map": {"a": "x.safetensors", "a": "a.safetensors"}}'
    )
    with pytest.raises(InputError, match="the key 'a' occurs twice") as refused:
        read(tmp_path / "m")
    assert "weight_map.a" in str(refused.value)
    (tmp_path / "m" / "config.json").write_text('{"n_head": 2, "n_head": 4}')
    with pytest.raises(InputError, match="the key 'n_head' occurs twice"):
        read(tmp_path / "m")


def test_half_an_index(tmp_path, weights):
    save(tmp_path / "m", weights, SHARDS)
    (tmp_path / "m" / "model.safetensors.index.json").write_bytes(b'{"weight_map":')
    with pytest.raises(InputError, match="no valid index of the weights: the JSON is not whole, it ends at byte 14"):
        read(tmp_path / "m")


@pytest.mark.parametrize(
    ("generation", "config", "ids"),
    [
        (None, {}, ()),
        (None, {"eos_token_id": 7}, (7,)),
        ({}, {"eos_token_id": 7}, (7,)),
        ({"eos_token_id": None}, {"eos_token_id": 7}, (7,)),
        ({"eos_token_id": 5, "temperature": 0.1}, {"eos_token_id": 7}, (5,)),
        ({"eos_token_id": [5, 6]}, {}, (5, 6)),
        ({"eos_token_id": [5, "6"]}, {}, None),
        ({"eos_token_id": -1}, {}, None),
        ({"eos_token_id": True}, {}, None),
        ({"eos_token_id": 2**40}, {}, None),
        ([], {}, None),
    ],
)
def test_end_of_text(tmp_path, generation, config, ids):
    (tmp_path / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    if ids is not None:
        assert eos_token_ids(tmp_path) == ids
        return
    with pytest.raises(InputError, match=r"generation_config\.json(, field eos_token_id.*)?: no valid"):
        eos_token_ids(tmp_path)


def test_a_file_has_no_end_of_text(tmp_path):
    (tmp_path / "p.bin").touch()
    assert eos_token_ids(tmp_path / "p.bin") == ()
