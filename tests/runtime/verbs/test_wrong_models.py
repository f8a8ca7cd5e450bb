"""Every wrong kind of model, given to every verb: the message names the file and what is wrong, and says what to do."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from gpt2_models import save
from tilewright.errors import InputError, TilewrightError, UsageError
from tilewright.generation.sampling import SamplingParams
from tilewright.runtime.convert.models import convert, init_dcgan, init_gpt2, init_textcnn
from tilewright.runtime.load import load, mapped_weights, read_weights
from tilewright.runtime.verbs.classify import ClassifyJob, classify
from tilewright.runtime.verbs.draw import DrawJob, draw
from tilewright.runtime.verbs.generate import GenerateJob, generate

GPT2 = {"vocab_size": 300, "n_positions": 32, "n_embd": 16, "n_layer": 1, "n_head": 2}
TEXTCNN = {"vocab_size": 50, "sequence_length": 9, "hidden_size": 8, "num_filters": 4, "hidden_sizes": (),
           "kernel_sizes": (3, 5)}  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Directories of small models: g (GPT-2), t (TextCNN), d (DCGAN)."""
    folder = tmp_path_factory.mktemp("made")
    init_gpt2(str(folder / "g"), 1, **GPT2)
    init_textcnn(str(folder / "t"), 1, **TEXTCNN)
    init_dcgan(str(folder / "d"), 1, channels=(8, 4, 3))
    return folder


@pytest.fixture
def here(tmp_path, made, monkeypatch):
    shutil.copytree(made, tmp_path / "models")
    monkeypatch.chdir(tmp_path / "models")
    Path("ids.jsonl").write_text('{"prompt_token_ids": [1, 2]}\n')
    Path("tokens.jsonl").write_text('{"tokens": [1, 2, 3, 4, 5, 6, 7, 8, 9]}\n')
    return tmp_path / "models"


def changed(**fields):
    """Changes config.json of g."""
    config = json.loads(Path("g/config.json").read_text())
    Path("g/config.json").write_text(json.dumps(config | fields))
    return "g"


def with_tensors(change, **fields):
    tensors = load_file("g/model.safetensors")
    save_file(change(tensors), "g/model.safetensors")
    return changed(**fields)


def as_pickle(name, keep_config=True, inside=False):
    """g, with PyTorch's file of that name in place of the weights."""
    tensors = {f"transformer.{n}": torch.from_numpy(a.copy()) for n, a in load_file("g/model.safetensors").items()}
    tensors["lm_head.weight"] = tensors["transformer.wte.weight"]
    tensors["transformer.h.0.attn.bias"] = torch.ones(1, 1, 32, 32, dtype=torch.bool)
    torch.save(tensors, f"g/{name}")
    os.remove("g/model.safetensors")
    if not keep_config:
        os.remove("g/config.json")
    return f"g/{name}" if inside else "g"


def only(name, content=b"x" * 100, config=True):
    """A directory with a file of that name in place of the weights."""
    os.remove("g/model.safetensors")
    Path("g", name).write_bytes(content)
    if not config:
        os.remove("g/config.json")
    return "g"


def file(name, content):
    Path(name).write_bytes(content)
    return name


def own_textcnn(beside=None, last="fc"):
    """A TextCNN's state dict, as its author may have named the tensors."""
    Path("own").mkdir()
    shapes = {"embedding.weight": (50, 8), "convs.0.weight": (4, 8, 3), "convs.0.bias": (4,),
              "convs.1.weight": (4, 8, 5), "convs.1.bias": (4,),
              f"{last}.weight": (2, 8), f"{last}.bias": (2,)}  # fmt: skip
    torch.save({name: torch.ones(shape) for name, shape in shapes.items()}, "own/net.pt")
    if beside is not None:
        Path("own/config.json").write_text(json.dumps({"model_type": "textcnn", **TEXTCNN, **beside}))
    return "own/net.pt"


def index_of(*shards):
    os.rename("g/model.safetensors", "g/model-00001-of-00002.safetensors")
    weight_map = {name: shards[i % 2] for i, name in enumerate(load_file("g/model-00001-of-00002.safetensors"))}
    Path("g/model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return "g"


SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
UNTIED = lambda tensors: tensors | {"lm_head.weight": tensors["wte.weight"] + 1}  # noqa: E731
ANY = ("generate", "classify", "draw", "convert")
# verbs, the model, parts of the message in their order
WRONG = {
    "an output matrix of its own": (("generate", "convert"), lambda: with_tensors(UNTIED, tie_word_embeddings=False), (
        "g/model.safetensors: tensor lm_head.weight (300, 16) differs from wte.weight (300, 16): a separate output",
        "tie_word_embeddings true")),
    "one that is missing": (("generate", "convert"), lambda: changed(tie_word_embeddings=False), (
        "g: tensor lm_head.weight is missing, and tie_word_embeddings is false", "Get all weights")),
    "cross attention": (ANY, lambda: changed(add_cross_attention=True), (
        "g/config.json", "add_cross_attention is true")),
    "pytorch_model.bin": (("generate", "convert"), lambda: as_pickle("pytorch_model.bin"), (
        "g: holds no model.safetensors, but pytorch_model.bin", "tilewright convert g/pytorch_model.bin NEW")),
    "another pickle": (("generate",), lambda: as_pickle("weights.pth"), ("but weights.pth", "convert g/weights.pth")),
    "parts of a pickle": (("generate",), lambda: only("pytorch_model-00001-of-00002.bin"), (
        "g: holds no model.safetensors, but 1 parts of a PyTorch", "save_pretrained()")),
    "a pickle itself": (("generate", "classify", "draw"), lambda: as_pickle("pytorch_model.bin", inside=True), (
        "is a PyTorch checkpoint", "tilewright convert g/pytorch_model.bin NEW_DIRECTORY")),
    "a pickle without config.json": (("convert",), lambda: f"{as_pickle('m.bin', False)}/m.bin", (
        "g/m.bin: is a state dict of a gpt2 without a config.json beside it", "n_head", "Put g/config.json")),
    "weights of another name": (("generate",), lambda: only("weights.safetensors"), (
        "g: holds no model.safetensors and no", "but weights.safetensors", "Rename")),
    "a Flax checkpoint": (("generate",), lambda: only("flax_model.msgpack"), (
        "flax_model.msgpack, a Flax", "save_pretrained()")),
    "no weights": (("generate", "convert"), lambda: only("notes.txt"), ("g: holds no weights", "Download")),
    "no config.json": (ANY, lambda: only("x.safetensors", config=False), (
        "g/config.json: no such model's configuration. Get the config.json that came with these", "x.safetensors")),
    "an empty directory": (ANY, lambda: os.mkdir("e") or "e", ("e/config.json: no such", "this one is empty")),
    "the directory above": (ANY, lambda: ".", ("config.json: no such", "Give ./d, which has one")),
    "a missing part": (("generate", "convert"), lambda: index_of(*SHARDS), (
        f"g: 1 of the 2 files that model.safetensors.index.json lists are missing: {SHARDS[1]}. Download",)),
    "quantised": (("generate", "convert"), lambda: with_tensors(
        lambda t: {f"{n}.qweight" if n.endswith("c_fc.weight") else n: a for n, a in t.items()},
        quantization_config={"quant_method": "gptq", "bits": 4}), (
        "tensor h.0.mlp.c_fc.weight (16, 64) is missing", "the weights are quantised (gptq), which is not supported")),
    **{name: (ANY, lambda name=name: changed(model_type=name), (
        f"g/config.json: model_type is '{name}'; textcnn, gpt2, opt, gpt_neox, dcgan, bert, roberta, distilbert can",))
       for name in ("llama", "deberta", "phi")},
    "GGUF": (ANY, lambda: file("m.gguf", b"GGUF" + bytes(99)), ("m.gguf: is a GGUF file", "save_pretrained()")),
    "GGUF of another name": (("generate",), lambda: file("m.bin", b"GGUF" + bytes(99)), ("m.bin: is a GGUF file",)),
    "ONNX": (ANY, lambda: file("m.onnx", bytes(99)), ("m.onnx: is an ONNX graph", "save_pretrained()")),
    "safetensors alone": (("generate", "classify", "draw"), lambda: "g/model.safetensors", (
        "g/model.safetensors: is the weights of a model without its configuration", "Give the directory")),
    "no known file": (ANY, lambda: file("x.bin", b"what is this"), ("x.bin: the weights have 12 bytes", "801,196,040")),
    "a GPT-2": (("classify", "draw"), lambda: "g", ("g: the model is a gpt2", "Use `tilewright generate` for a gpt2")),
    "a TextCNN": (("generate", "draw"), lambda: "t", ("t: the model is a textcnn", "Use `tilewright classify` for a")),
    "a DCGAN": (("generate", "classify"), lambda: "d", ("d: the model is a dcgan", "`tilewright draw` for a")),
    "one's own TextCNN": (("convert",), own_textcnn, (
        "own/net.pt: is a state dict of a textcnn without a config.json beside it", "sequence_length",
        "A textcnn has embedding.weight (V, C), convs.0.weight (O, C, K)", "linears.0.weight",
        "this file has convs.0.bias (4,), convs.0.weight (4, 8, 3)", "fc.weight (2, 8)", "init textcnn")),
    "one's own TextCNN, other names": (("convert",), lambda: own_textcnn({}), (
        "own/net.pt: tensor linears.0.weight (2, 8) is missing",
        "Rename its tensors: config.json describes embedding.weight (50, 8)", "this file has", "fc.weight (2, 8)")),
    "one's own TextCNN, other sizes": (("convert",), lambda: own_textcnn({"vocab_size": 60}, "linears.0"), (
        "own/net.pt: tensor embedding.weight is (50, 8); the configuration requires (60, 8)",)),
}  # fmt: skip


def run(verb, model):
    if verb == "generate":
        generate(GenerateJob(model, "ids.jsonl", "out.jsonl"))
    elif verb == "classify":
        classify(ClassifyJob(model, "tokens.jsonl", "out.jsonl"))
    elif verb == "draw":
        draw(DrawJob(model, None, "out.npy", count=1))
    else:
        convert(model, "converted")


@pytest.mark.parametrize(("name", "verb"), [(name, verb) for name, (verbs, _, _) in WRONG.items() for verb in verbs])
def test_a_wrong_model_is_named(here, name, verb):
    _, make, parts = WRONG[name]
    model = make()
    with pytest.raises(TilewrightError) as caught:
        run(verb, model)
    text = str(caught.value)
    places = [text.find(part) for part in parts]
    assert -1 not in places and places == sorted(places), text
    assert caught.value.exit_code in (2, 3) and "\n" not in text and len(text) < 1200
    assert not os.path.exists("converted") and not os.path.exists("out.jsonl")


def test_an_output_matrix_that_equals_the_embedding_is_fine(here):
    before = read_weights("g")[1]
    model = with_tensors(lambda t: t | {"lm_head.weight": t["wte.weight"].copy()}, tie_word_embeddings=False)
    config, weights = read_weights(model)
    assert config.tie_word_embeddings and weights.keys() == before.keys()
    assert all(np.array_equal(weights[name], before[name]) for name in before)
    assert mapped_weights(model)[0] == config


@pytest.mark.parametrize(
    "name", ["pytorch_model.bin", *(pytest.param(n, marks=pytest.mark.long) for n in ("model.pt", "last.ckpt"))]
)
def test_a_gpt2_that_pytorch_saved_is_converted(here, name):
    before = read_weights("g")[1]
    as_pickle(name)
    Path("g/merges.txt").write_text("#version: 0.2\n")
    assert convert(f"g/{name}", "new") > 0
    assert sorted(os.listdir("new")) == ["config.json", "merges.txt", "model.safetensors"]
    config, weights = read_weights("new")
    assert config.n_head == 2
    assert weights.keys() == before.keys() and all(np.array_equal(weights[n], before[n]) for n in before)


def test_ones_own_textcnn_with_its_configuration_is_converted(here):
    convert(own_textcnn({}, "linears.0"), "new")
    assert load("new").logits(np.zeros((1, 9), np.int32)).shape == (1, 2)


@pytest.mark.parametrize(
    ("verb", "name", "text"),
    [
        ("generate", "in.txt", "a prompt\n"),
        ("generate", "in.jsonl", '{"id": 1, "prompt": "a"}\n\n{"prompt": "b"}\n'),
        ("generate", "in.jsonl", '{"custom_id": "x", "body": {"prompt": "a"}}\n'),
        ("generate", "in.jsonl", '{"prompt": "a"}\n' * 10_000),
        ("classify", "in.txt", "a sentence\n"),
        ("classify", "in.jsonl", '{"text": "a"}\n'),
    ],
)
def test_text_for_a_model_without_a_tokenizer_is_refused_once(here, verb, name, text):
    Path(name).write_text(text)
    with pytest.raises(UsageError, match=rf"^{name}: the input is text, and the model . has no tokenizer\.json\. Put"):
        if verb == "generate":
            generate(GenerateJob("g", name, "out.jsonl"))
        else:
            classify(ClassifyJob("t", name, "out.jsonl"))
    assert not os.path.exists("out.jsonl.job")


def test_text_out_without_a_tokenizer_names_the_input_first(here):
    """It said to write and to stop at token ids, which no input of text allows."""
    Path("in.txt").write_text("a prompt\n")
    with pytest.raises(UsageError, match=r"^in\.txt: the input is text, and the model g has no tokenizer\.json\. Put"):
        generate(GenerateJob("g", "in.txt", "out.txt"))
    Path("in.jsonl").write_text('{"prompt_token_ids": [1, 2]}\n')
    with pytest.raises(UsageError, match=r"^g: the output is text, .*\. Add .* or name the output \.jsonl"):
        generate(GenerateJob("g", "in.jsonl", "out.txt"))
    with pytest.raises(UsageError, match=r"^g: --stop has text, .* or give --stop-id ID in place of"):
        generate(GenerateJob("g", "in.jsonl", "out.jsonl", SamplingParams(stop=("x",))))


def test_a_tokenizer_of_another_model_is_refused_once(here):
    """497 of 500 records were bad, and the exit code was 0."""
    save(here / "small", vocab_size=200, eos_token_id=None)
    Path("in.txt").write_text("a prompt\n")
    what = (
        r"small/tokenizer\.json: the tokenizer has 257 tokens and the model 200: the model lacks 56 ids from 200 to 255"
    )
    with pytest.raises(InputError, match=what):
        generate(GenerateJob("small", "in.txt", "out.jsonl"))
    assert not os.path.exists("out.jsonl.job")
    Path("in.jsonl").write_text('{"prompt_token_ids": [1, 2]}\n')
    assert generate(GenerateJob("small", "in.jsonl", "out.jsonl")).errors == 0


def test_an_added_special_token_that_the_model_lacks_is_no_reason(here):
    save(here / "small", vocab_size=256, eos_token_id=None)
    Path("in.txt").write_text("a prompt\n")
    assert generate(GenerateJob("small", "in.txt", "out.jsonl")).errors == 0


def test_a_line_of_text_among_ids_is_an_error_of_its_own(here):
    Path("in.jsonl").write_text('{"prompt": "a"}\n{"prompt_token_ids": [1, 2]}\n')
    report = generate(GenerateJob("g", "in.jsonl", "out.jsonl"))
    assert (report.records, report.errors) == (2, 1)


@pytest.mark.parametrize("gone", ["vocab.json", "merges.txt"])
def test_half_a_tokenizer(here, gone):
    Path("g/merges.txt" if gone == "vocab.json" else "g/vocab.json").write_text("{}")
    with pytest.raises(
        InputError, match=rf"^g: {gone} is missing: vocab\.json and merges\.txt make a tokenizer only together"
    ):
        load("g")
