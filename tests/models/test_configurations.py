"""config.json as transformers reads it: its defaults, its other names of fields, and fields that a family lacks."""

import json

import msgspec
import numpy as np
import pytest
import torch
import transformers

from bert_models import saved
from gpt2_models import peer
from tilewright.errors import InputError
from tilewright.runtime.load import config_of, load, parse_config

FAMILIES = ("bert", "roberta", "distilbert", "gpt2", "opt", "gpt_neox")
OTHER_FORMS = ("architectures", "id2label", "rope_parameters", "rope_scaling", "word_embed_proj_dim")


def changed(folder, drop=(), **fields):
    """Change config.json: leave fields out, and add others."""
    path = folder / "config.json"
    values = {name: value for name, value in json.loads(path.read_text()).items() if name not in drop}
    path.write_text(json.dumps(values | fields))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_field_that_is_not_given_has_transformers_value(family):
    """RoBERTa's layer_norm_eps was another one."""
    theirs, ours = transformers.AutoConfig.for_model(family), parse_config({"model_type": family}, "config.json")
    fields = [field for field in msgspec.structs.fields(ours)
              if hasattr(theirs, field.encode_name) and field.encode_name not in OTHER_FORMS]  # fmt: skip
    assert len(fields) > 8
    assert {field.name: getattr(ours, field.name) for field in fields} == {
        field.name: getattr(theirs, field.encode_name) for field in fields
    }


def test_a_distilbert_has_one_epsilon_whatever_the_file_says(tmp_path):
    theirs, _ = saved("distilbert", 0, tmp_path)
    texts = [np.array([2, 7, 9, 3]), np.array([2, 3])]
    changed(tmp_path, layer_norm_eps=0.5)
    with torch.no_grad():
        wanted = np.concatenate([theirs(torch.from_numpy(ids)[None]).logits.numpy() for ids in texts])
    assert np.abs(load(tmp_path, device="cpu").logits(texts) - wanted).max() < 2e-6 * np.abs(wanted).max()


def test_transformers_other_names_of_fields_count(tmp_path):
    """The number of heads shows in no tensor: with the default of 12 another model would run."""
    sizes = {"vocab_size": 97, "n_positions": 40, "n_embd": 48, "n_layer": 2, "n_head": 3}
    peer(**sizes).save_pretrained(tmp_path / "gpt2")
    changed(tmp_path / "gpt2", ("n_head", "n_layer"), num_attention_heads=3, num_hidden_layers=2)
    saved("distilbert", 4, tmp_path / "distilbert")
    heads = config_of(tmp_path / "distilbert").num_attention_heads
    changed(tmp_path / "distilbert", ("n_heads",), num_attention_heads=heads)
    assert config_of(tmp_path / "distilbert").num_attention_heads == heads
    for folder, expected in (("gpt2", 3), ("distilbert", heads)):
        theirs = transformers.AutoConfig.from_pretrained(tmp_path / folder)
        ours = config_of(tmp_path / folder)
        assert theirs.num_attention_heads == getattr(ours, "n_head" if folder == "gpt2" else "num_attention_heads")
        assert theirs.num_attention_heads == expected
    changed(tmp_path / "gpt2", n_head=12)
    with pytest.raises(InputError, match="num_attention_heads is 3 and n_head 12: the two are names of one field"):
        config_of(tmp_path / "gpt2")


def test_an_unknown_problem_type_is_refused():
    with pytest.raises(InputError, match="problem_type is 'multi_label'; single_label_classification, multi_label_cl"):
        parse_config({"model_type": "bert", "problem_type": "multi_label"}, "config.json")
