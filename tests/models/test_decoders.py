"""OPT and GPT-NeoX against transformers: ten random configurations of each family, as they were saved, and the job."""

import json
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from decoder_models import FAMILIES, GREEDY, SAVED, check, peer, ragged, save
from gpt2_models import logits_of, peer_logits
from tilewright.errors import InputError, UsageError
from tilewright.models.decoder import DecoderModel
from tilewright.models.gpt_neox import GPTNeoXConfig
from tilewright.models.opt import OPTConfig
from tilewright.runtime.load import config_of, load

SEEDS = range(10)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_saved_model_gives_transformers_logits_and_tokens(family, seed, tmp_path, rng):
    other = save(peer(family, seed), tmp_path / "m", SAVED[seed % len(SAVED)])
    model = load(tmp_path / "m", device="cpu")
    assert isinstance(model, DecoderModel) and model.config.model_type == family
    check(other, model, rng)


@pytest.mark.parametrize("family", FAMILIES)
def test_threads_and_bfloat16(family, tmp_path, rng):
    other, prompts = save(peer(family, 1), tmp_path / "m"), ragged(rng, 6)
    ids = rng.integers(0, 100, 20)
    wanted, near = peer_logits(other, ids), load(tmp_path / "m", device="cpu", dtype="bfloat16")
    error = np.abs(logits_of(near, ids) - wanted).max()
    assert 1e-4 * np.abs(wanted).max() < error < 0.1 * np.abs(wanted).max()
    for model in (load(tmp_path / "m", device="cpu"), near):
        with tw.threads(1):
            alone = [list(model.generate([prompt], GREEDY)) for prompt in prompts]
        with tw.threads(2):
            assert [[one] for one in model.generate(prompts, GREEDY)] == alone


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_declared_is_what_is_taken(family, tmp_path):
    for seed in range(4):
        save(peer(family, seed), tmp_path / str(seed))
        model = load(tmp_path / str(seed), device="cpu")
        declared, held = model.config.memory("float32").prepared, sum(_bytes(part) for part in _parts(model))
        assert held <= declared <= 1.2 * held + 4096  # the search of the best token keeps sums of the output matrix


def _parts(model):
    yield from (model.wpe, model.norm, model.head, model.project_in, model.project_out, model.rotation)
    for layer in model.layers:
        yield from (layer.norm_1, layer.norm_2, layer.attn, layer.attn_out, layer.mlp, layer.mlp_out)


def _bytes(part) -> int:
    if part is None:
        return 0
    if isinstance(part, tuple) and not hasattr(part, "data"):
        return sum(map(_bytes, part))
    return part.data.nbytes if hasattr(part, "rung") else part.nbytes


WRONG = {
    "opt": [
        ({"num_attention_heads": 7}, "hidden_size must be a multiple of num_attention_heads"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"num_hidden_layers": 3_000_000}, "num_hidden_layers is 3000000; at least 1 and at most 4096"),
        ({"max_position_embeddings": 1}, "max_position_embeddings is 1; at least 2"),
        ({"word_embed_proj_dim": 0}, "word_embed_proj_dim is 0"),
        ({"activation_function": "swish"}, "activation_function is 'swish'"),
        ({"do_layer_norm_before": True, "_remove_final_layer_norm": True}, "_remove_final_layer_norm is true"),
        ({"ffn_dim": 1.5}, "ffn_dim"),
    ],
    "gpt_neox": [
        ({"num_attention_heads": 7}, "hidden_size must be a multiple of num_attention_heads"),
        ({"num_hidden_layers": 3_000_000}, "num_hidden_layers is 3000000; at least 1 and at most 4096"),
        ({"hidden_act": "silu"}, "hidden_act is 'silu'"),
        ({"layer_norm_eps": 0.0}, "layer_norm_eps is 0"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2.0}}, "rope_parameters: rope_type is 'linear'"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_scaling: rope_type is 'dynamic'"),
        ({"rope_parameters": {"rope_theta": 1e4, "factor": 2.0}}, "rope_parameters: 'factor' is not known"),
        ({"rope_parameters": {"rope_theta": "big"}}, "rope_parameters: rope_theta is 'big'; a number"),
        ({"rotary_emb_base": 5.0}, "rotary_emb_base 5 and .* contradict each other"),
        ({"rotary_pct": 0.75}, "rotary_pct 0.75 and .* contradict each other"),
        ({"rope_parameters": None, "rotary_pct": 1.5}, "rotary_pct is 1.5"),
        ({"rope_parameters": None, "rotary_emb_base": 0}, "rotary_emb_base is 0.0"),
        ({"head_dim": 3}, "head_dim is 3"),
    ],
}


@pytest.mark.parametrize(
    ("family", "fields", "message"),
    [(family, *case) for family, cases in WRONG.items() for case in cases],
)
def test_a_configuration_that_is_not_computed_is_refused_by_its_field(family, fields, message, tmp_path):
    save(peer(family, 0), tmp_path / "m")
    path = tmp_path / "m" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    with pytest.raises(InputError, match=message):
        config_of(tmp_path / "m")


def test_an_output_matrix_that_is_missing_or_not_the_tokens(tmp_path):
    from safetensors.numpy import load_file, save_file

    save(peer("opt", 2), tmp_path / "own")  # untied
    weights = load_file(tmp_path / "own" / "model.safetensors")
    path = tmp_path / "own" / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"tie_word_embeddings": True}))
    with pytest.raises(InputError, match=r"differs from decoder\.embed_tokens\.weight"):
        load(tmp_path / "own", device="cpu")
    path.write_text(json.dumps(config))
    del weights["lm_head.weight"]
    save_file(weights, tmp_path / "own" / "model.safetensors")
    with pytest.raises(InputError, match=r"tensor lm_head.weight .* is missing"):
        load(tmp_path / "own", device="cpu")


def test_the_named_sizes_of_opt():
    """What the published checkpoints' configurations say: opt-125m, opt-350m, galactica-125m."""
    small = OPTConfig()
    assert sum(np.prod(shape) for shape in small.tensor_shapes().values()) == 125_239_296
    fields = {"hidden_size": 1024, "num_hidden_layers": 24, "ffn_dim": 4096, "num_attention_heads": 16}
    middle = OPTConfig(**fields, word_embed_proj_dim=512, do_layer_norm_before=False)
    assert sum(np.prod(shape) for shape in middle.tensor_shapes().values()) == 331_196_416
    plain = OPTConfig(enable_bias=False, layer_norm_elementwise_affine=False)
    assert not any(name.endswith("bias") or "norm" in name for name in plain.tensor_shapes())


def test_a_job_of_lines(tmp_path):
    from tilewright.runtime.verbs.generate import GenerateJob, generate

    save(peer("opt", 0), tmp_path / "m")
    lines = [json.dumps({"id": i, "prompt_token_ids": [5, 6, i]}) for i in range(5)]
    Path(tmp_path / "in.jsonl").write_text("\n".join(lines) + "\n")
    target = tmp_path / "out.jsonl"
    job = GenerateJob(model=str(tmp_path / "m"), input=str(tmp_path / "in.jsonl"), output=str(target), params=GREEDY)
    generate(job)
    found = [json.loads(line) for line in target.read_text().splitlines()]
    model = load(tmp_path / "m", device="cpu")
    wanted = [out.outputs[0].token_ids for out in model.generate([[5, 6, i] for i in range(5)], GREEDY)]
    assert [one["token_ids"] for one in found] == wanted


@pytest.mark.parametrize("family", FAMILIES)
def test_a_pickle_is_converted_by_the_command_that_the_message_says(family, tmp_path):
    import torch

    from tilewright.runtime.convert.models import convert

    other, folder = save(peer(family, 3), tmp_path / "m"), tmp_path / "m"
    wanted = load(folder, device="cpu")
    torch.save(other.state_dict(), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"Convert it first: tilewright convert \S+pytorch_model\.bin NEW_DIRECTORY"):
        load(folder, device="cpu")
    convert(str(folder / "pytorch_model.bin"), str(tmp_path / "new"))
    found = load(tmp_path / "new", device="cpu")
    ids = [3, 4, 5]
    assert logits_of(found, ids).tobytes() == logits_of(wanted, ids).tobytes()
    with pytest.raises(InputError, match=f"and this model is a {family}"):
        convert(str(tmp_path / "new"), str(tmp_path / "file.bin"))


def test_old_and_new_names_of_the_rotation_are_one():
    new = GPTNeoXConfig(rope_parameters={"rope_theta": 500.0, "partial_rotary_factor": 0.5, "rope_type": "default"})
    old = GPTNeoXConfig(rotary_emb_base=500, rotary_pct=0.5)
    both = GPTNeoXConfig(rotary_emb_base=500, rope_theta=500.0, rotary_pct=0.5, partial_rotary_factor=0.5)
    assert new.network == old.network == both.network and new.network.rotary == 48
    assert GPTNeoXConfig().network.rotary == 24 and GPTNeoXConfig().network.theta == 10000.0


def test_a_forced_rung_of_rope_runs_or_is_refused(tmp_path):
    from tilewright.runtime.verbs.generate.task import check_forced

    check_forced(GREEDY, {"rope": "cpu.table", "rope@2": "cpu.naive"}, "cpu", GPTNeoXConfig())
    with pytest.raises(UsageError, match="it has no effect in a model whose positions are a table"):
        check_forced(GREEDY, {"rope": "cpu.table"}, "cpu", OPTConfig())
    with pytest.raises(UsageError, match="generate has no such layer"):
        check_forced(GREEDY, {"rope@45": "cpu.table"}, "cpu", GPTNeoXConfig())


def test_the_frequencies_are_transformers():
    from tilewright.ops.rope import inverse_frequencies

    for rotary, theta in ((16, 10000.0), (24, 10000.0), (128, 500.0), (5, 1e6)):
        import torch

        wanted = 1.0 / (theta ** (torch.arange(0, rotary, 2, dtype=torch.float) / rotary))
        found = inverse_frequencies(rotary, theta)
        assert np.abs(found.view(np.int32) - wanted.numpy().view(np.int32)).max() <= 1


@pytest.mark.parametrize("kind", ["opt", "gpt_neox"])
def test_init_writes_a_model_that_runs(kind, tmp_path, capsys):
    from tilewright.cli import main

    sizes = ("--layers", "1", "--heads", "2", "--width", "16", "--context", "20", "--vocab-size", "40")
    with pytest.raises(SystemExit) as ended:
        main(["init", kind, str(tmp_path / "m"), *sizes])
    assert not ended.value.code, capsys.readouterr().err
    model = load(tmp_path / "m", device="cpu")
    assert model.network.inner == 64 and len(next(model.generate([[5]], GREEDY)).outputs[0].token_ids) >= 1
    assert np.ptp(logits_of(model, [3, 4])) > 0
