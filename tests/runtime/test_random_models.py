"""Random odd models from file to file against PyTorch and transformers: dozens in `make test`, hundreds in
`make test-long`. What makes no model is refused by the name of its field.

TILEWRIGHT_MODELS sets how many of each kind the long test runs.
"""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest

import random_models
from model_references import textcnn_logits
from random_models import RANDOM, failures, in_process, made

FEW = 3  # of a kind, in `make test`
MANY = int(os.environ.get("TILEWRIGHT_MODELS", "300"))
HUGE = 2**31 + 1
NO_INTEGER = [0, -1, -(2**70), HUGE, 10**30, 2.5, "7", None, [3]]
NO_SIZE = {
    "gpt2": ["vocab_size", "n_positions", "n_embd", "n_layer", "n_head"],
    "textcnn": ["vocab_size", "sequence_length", "hidden_size", "num_filters", "num_labels"],
    "dcgan": ["z_size", "size", "channels"],
}
WRONG = {  # of a kind: a field, and values that it cannot have
    "gpt2": {
        "n_inner": [0, -4, HUGE, 1.5, "7"], "activation_function": ["swish", "", 3, None],
        "layer_norm_epsilon": [0, -1e-5, 1, "small", None], "scale_attn_weights": [1, "yes", None],
        "scale_attn_by_inverse_layer_idx": [1, "yes"], "add_cross_attention": [True, 1],
        "n_positions": [1, *NO_INTEGER], "eos_token_id": [-1, 2**31, "</s>", [1.5], {}],
        "model_type": ["gpt_neo", "llama", "", None, 7],
        "tie_word_embeddings": [1, "yes", False],
    },
    "textcnn": {
        "kernel_sizes": [[], [0], [-3], [10**6], 3, ["3"], None], "hidden_sizes": [[0], [HUGE], ["3"], 4, None],
        "pad_token_id": [-1, 10**6, "pad", 1.5], "id2label": [{"999": "x"}, {"-1": "x"}, {"a": "x"}, {"0": 1}, [], "x"],
        "model_type": ["gpt_neo", "", None, 7], "dropout": [0.5],
    },
    "dcgan": {
        "layers": [[], 3, None, [{}], [{"channels": 0}], [{"channels": 3, "kernel": 0}],
                   [{"channels": 3, "stride": 0}], [{"channels": 39, "kernel": 7, "stride": 2**31, "padding": [0, 0]}],
                   [{"channels": 3, "padding": [-1, 0]}],
                   [{"channels": 3, "padding": [1]}], [{"channels": 3, "padding": 1}],
                   [{"channels": 3, "padding": [2**20, 0]}], [{"channels": 3, "stride": 10**6}] * 3,
                   [{"channels": 3, "output_padding": 1}], [{"channels": 3, "padding": [0, 0]}] * 65],
        "batch_norm_eps": [0, 1, -1e-5, "small", None], "bias": [1, "yes", None], "model_type": ["gan", "", None],
        "activation": ["relu"],
    },
}  # fmt: skip
BASE = 26  # the model whose fields are changed; of the generators one that makes a single pixel at first
JOBS = {
    "gpt2": ("generate", "out.jsonl"),
    "textcnn": ("classify", "out.jsonl"),
    "dcgan": ("draw", "-n", "2", "out.npy"),
}
CASES = [
    (kind, field, value)
    for kind in RANDOM
    for field, values in {**dict.fromkeys(NO_SIZE[kind], NO_INTEGER), **WRONG[kind]}.items()
    for value in values
]


def command(*arguments: str) -> None:
    """The command line in a process of its own."""
    done = subprocess.run([sys.executable, "-m", "tilewright", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, f"exit {done.returncode}: {done.stderr[-2000:]}"


@pytest.mark.parametrize(
    "part", [0, 1, pytest.param(2, marks=pytest.mark.long), pytest.param(3, marks=pytest.mark.long)]
)
@pytest.mark.parametrize("kind", RANDOM)
def test_a_few_models(kind, part):
    """The numbers below 4 * FEW: the same in every run."""
    found = failures(kind, range(part * FEW, (part + 1) * FEW))
    assert not found, "\n".join(found)


def test_a_model_whose_pixels_share_their_error():
    """bfloat16 in tiles of outputs: a pixel of few products is as far off as its neighbours of many."""
    assert not failures("dcgan", [100_086])


@pytest.mark.parametrize("kind", RANDOM)
def test_models_by_the_command_line_itself(kind):
    found = failures(kind, range(100_000, 100_001), command)
    assert not found, "\n".join(found)


@pytest.mark.long
@pytest.mark.parametrize("kind", RANDOM)
def test_many_models(kind):
    found = failures(kind, range(4 * FEW, MANY))
    assert not found, "\n".join(found)


@pytest.mark.parametrize(("kind", "field", "value"), CASES, ids=[f"{k}-{f}-{v!r:.30}" for k, f, v in CASES])
def test_a_configuration_that_makes_no_model_is_refused_by_its_field(kind, field, value, tmp_path):
    model, _ = made(kind, BASE, tmp_path)
    (model.path / "config.json").write_text(json.dumps({**model.config, field: value}))
    verb, *given, name = JOBS[kind]
    source, target = tmp_path / "in.jsonl", tmp_path / name
    source.write_text('{"id": 1, "input_ids": [0], "tokens": [0]}\n')
    inputs = [] if given else ["-i", str(source)]
    with pytest.raises(AssertionError) as caught:
        in_process(verb, "-p", str(model.path), *inputs, *given, "-o", str(target))
    said = str(caught.value).replace(str(tmp_path), "")
    assert "Loading weights" not in said, "the weights are read before the configuration is refused"
    assert said.startswith("exit 3") and re.search(rf"\b{field}\b", said) and "Traceback" not in said, said
    assert not target.exists()


def test_a_wrong_weight_is_reported_with_its_command(monkeypatch):
    """The saboteur: a bias of the reference is 1 larger."""

    def sabotaged(config, weights, *rest):
        return textcnn_logits(config, {**weights, "linears.0.bias": weights["linears.0.bias"] + np.float32(1)}, *rest)

    monkeypatch.setattr(random_models, "textcnn_logits", sabotaged)
    found = failures("textcnn", range(2))
    assert [line.partition("    # AssertionError: ")[0] for line in found] == [
        f"python tests/random_models.py textcnn --seed {seed}" for seed in range(2)
    ]
