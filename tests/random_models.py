"""Random odd models from file to file: a directory with a configuration and random weights, run by the command line,
against PyTorch and transformers in float64.

    python tests/random_models.py                           # 100 models of each kind
    python tests/random_models.py dcgan --count 1000
    python tests/random_models.py textcnn --seed 17         # one again, as a failure prints it

Each model runs twice: by the job of its verb, from a file of inputs to a file of answers, and as `tilewright.load`
gives it, with the same bits.
"""

import argparse
import contextlib
import io
import json
import sys
import tempfile
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np

import tilewright as tw
from compare import compare
from gpt2_models import divergences
from model_references import alone, dcgan_images, gpt2_logits, textcnn_logits
from random_cases import extent, maybe, pick
from tilewright.cli import main as command_line
from tilewright.errors import TilewrightError
from tilewright.models.activations import ACTIVATIONS
from tilewright.models.dcgan import DCGANConfig, DCGANLayer
from tilewright.models.gpt2 import GPT2Config
from tilewright.models.textcnn import TextCNNConfig

STORED = ("float32", "float32", "bfloat16", "float16")  # types of the weights on disk
MOST_PIXELS = 60  # a side of an image
MOST_TOKENS = 5  # new ones a prompt
GPT2_TOLERANCE = {"float32": 1e-4, "bfloat16": 0.1}  # of the logits' scale; `test_gpt2.py` has the first one


class Model(NamedTuple):
    """A model on disk. weights: by the names in the file, float32 arrays of what is stored there. dtype: of the job."""

    path: Path
    config: dict
    weights: dict[str, np.ndarray]
    dtype: str


def gpt2(rng) -> dict:
    """Heads of any width and number, vocabularies and contexts from the smallest, every activation and scaling."""
    heads = int(rng.integers(1, 6))
    width = heads * pick(rng, (extent(rng, 40), 1, 16, 32, 64))
    return {
        "model_type": "gpt2",
        "vocab_size": extent(rng, 300),
        "n_positions": extent(rng, 70, 2),
        "n_embd": width,
        "n_layer": int(rng.integers(1, 4)),
        "n_head": heads,
        "n_inner": extent(rng, 90) if maybe(rng) else None,
        "activation_function": pick(rng, tuple(ACTIVATIONS)),
        "layer_norm_epsilon": pick(rng, (1e-5, 1e-5, 1e-3, 0.1)),
        "scale_attn_weights": maybe(rng, 0.8),
        "scale_attn_by_inverse_layer_idx": maybe(rng, 0.3),
        "eos_token_id": None,
        "n_ctx": 1024, "resid_pdrop": 0.1, "summary_type": "cls_index",  # fields that change nothing
    }  # fmt: skip


def textcnn(rng) -> dict:
    """Kernels of 1 to 7 in any order and number, channels of all remainders, from no linear layer before the last."""
    kernels = [int(K) for K in rng.integers(1, 8, rng.integers(1, 5))]
    labels, vocabulary = extent(rng, 20), extent(rng, 90)
    named = {str(i): f"class {i}" for i in range(labels) if maybe(rng)}
    return {
        "model_type": "textcnn",
        "vocab_size": vocabulary,
        "sequence_length": max(kernels) + extent(rng, 12) - 1,
        "hidden_size": extent(rng, 70),
        "num_filters": extent(rng, 70),
        "kernel_sizes": kernels,
        "hidden_sizes": [extent(rng, 40) for _ in range(int(rng.integers(0, 4)))],
        "num_labels": labels,
        "id2label": named,
        **({"pad_token_id": int(rng.integers(vocabulary))} if maybe(rng) else {}),
    }


def dcgan(rng) -> dict:
    """Layers of kernels 1 to 7, strides 1 to 4 and beyond the kernel, crops of every kind, channels of all
    remainders."""
    while True:
        layers = []
        for _ in range(int(rng.integers(1, 5))):
            kernel = int(rng.integers(1, 8))
            crops = [int(n) for n in rng.integers(0, kernel + 3, 2)] if maybe(rng) else [0, 0]
            stride = pick(rng, (1, 1, 2, 2, 3, 4, 9))
            layers.append({"channels": extent(rng, 40), "kernel": kernel, "stride": stride, "padding": crops})
        size, pixels = int(rng.integers(1, 7)), []
        for layer in layers:
            pixels.append(DCGANLayer(**layer).size(pixels[-1] if pixels else size))
        if min(pixels) >= 1 and max(pixels) <= MOST_PIXELS:
            break
    first = {"z_size": extent(rng, 60), "size": size, "channels": extent(rng, 40)}
    options = {"batch_norm_eps": pick(rng, (1e-5, 1e-3, 0.1)), "bias": maybe(rng)}
    return {"model_type": "dcgan", **first, "layers": layers, **options}


def stored(array: np.ndarray, dtype: str):
    """A tensor of PyTorch, as it goes into a file."""
    import torch

    return torch.from_numpy(np.ascontiguousarray(array, np.float32)).to(getattr(torch, dtype))


def write(path: Path, config: dict, shapes: dict, rng) -> dict[str, np.ndarray]:
    """A model directory with random weights; returns them as they are stored, in float32, by the model's names."""
    from safetensors.torch import save_file

    weights = {}
    for name, shape in shapes.items():
        if name.endswith("running_var"):
            weights[name] = stored(rng.uniform(0.5, 1.5, shape), "float32")
        elif len(shape) == 1:
            ones = "ln_" in name or name.startswith("norms")
            weights[name] = stored(rng.normal(ones and name.endswith(".weight"), 0.2, shape), pick(rng, STORED))
        else:
            inputs = {"w": 4, "c": np.prod(shape[1:]), "h": shape[0], "p": shape[0], "l": shape[1]}.get(name[0], 1)
            weights[name] = stored(rng.normal(0, inputs**-0.5, shape), pick(rng, STORED))
    prefix = "transformer." if config["model_type"] == "gpt2" and maybe(rng) else ""
    tensors = {prefix + name: tensor for name, tensor in weights.items()}
    if prefix and maybe(rng):
        tensors["lm_head.weight"] = weights["wte.weight"].clone()
    path.mkdir()
    save_file(tensors, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(config))
    return {name: tensor.float().numpy() for name, tensor in weights.items()}


def made(kind: str, seed: int, folder: Path) -> tuple[Model, np.random.Generator]:
    """The model of that number in `folder`, and the generator for its inputs."""
    rng = np.random.default_rng([zlib.crc32(kind.encode()), seed])
    config = RANDOM[kind](rng)
    shapes = CONFIGS[kind](**_read(config)).tensor_shapes()
    path = folder / "model"
    return Model(path, config, write(path, config, shapes, rng), pick(rng, ("float32", "float32", "bfloat16"))), rng


def _read(config: dict) -> dict:
    """The fields that a configuration takes, of the types that it takes."""
    known = CONFIGS[config["model_type"]].__struct_fields__
    values = {name: value for name, value in config.items() if name in known}
    if "layers" in values:
        values["layers"] = tuple(
            DCGANLayer(**{**layer, "padding": tuple(layer["padding"])}) for layer in values["layers"]
        )
    if "id2label" in values:
        values["id2label"] = {int(i): name for i, name in values["id2label"].items()}
    return values


def in_process(*arguments: str) -> None:
    """The command line in this process, silent. Raises AssertionError with what it said if it does not end well."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            command_line(list(arguments))
            code = 0
        except SystemExit as end:
            code = end.code or 0
    assert code == 0, f"exit {code}: {said.getvalue()[-2000:]}"


def check_textcnn(model: Model, rng, run=in_process) -> None:
    """Logits from token ids to a binary file, or to JSON lines with labels."""
    config, folder, dtype = model.config, model.path.parent, model.dtype
    ids = rng.integers(0, config["vocab_size"], (extent(rng, 20), config["sequence_length"]), np.int32)
    wanted, bound = textcnn_logits(config, model.weights, ids, dtype)
    lines = maybe(rng)
    source, target = folder / f"in.{'jsonl' if lines else 'bin'}", folder / f"out.{'jsonl' if lines else 'bin'}"
    if lines:
        source.write_text("".join(json.dumps({"id": i, "tokens": row}) + "\n" for i, row in enumerate(ids.tolist())))
    else:
        ids.tofile(source)
    run("classify", "-p", str(model.path), "-i", str(source), "-o", str(target), "--dtype", dtype)
    loaded = tw.load(model.path, dtype=dtype)
    if not lines:
        logits = np.fromfile(target, np.float32).reshape(len(ids), -1)
        assert loaded.logits(ids).tobytes() == logits.tobytes(), "tw.load gives other bits than the job"
    else:
        answers = [json.loads(line) for line in target.read_text().splitlines()]
        logits = np.array([answer["logits"] for answer in answers], np.float32)
        for i, (answer, row) in enumerate(zip(answers, logits, strict=True)):
            best = int(np.argmax(row))
            assert answer["id"] == i and answer["label"] == config["id2label"].get(str(best), f"LABEL_{best}")
        expected = [{**one, "logits": None} for one in loaded.classify(ids.tolist())]
        found = [{"label": a["label"], "score": a["score"], "logits": None} for a in answers]
        assert [one["label"] for one in found] == [one["label"] for one in expected]
    compare(logits, wanted, bound)


def check_dcgan(model: Model, rng, run=in_process) -> None:
    """Images from noise, as .npy."""
    config, folder, dtype = model.config, model.path.parent, model.dtype
    z = rng.standard_normal((extent(rng, 9), config["z_size"]), dtype=np.float32)
    wanted, bound = dcgan_images(config, model.weights, z, dtype)
    np.save(folder / "in.npy", z)
    target = folder / "out.npy"
    run("draw", "-p", str(model.path), "-i", str(folder / "in.npy"), "-o", str(target), "--dtype", dtype)
    images = np.load(target)
    assert tw.load(model.path, dtype=dtype).generate(z).tobytes() == images.tobytes(), "tw.load gives other bits"
    compare(images, wanted, bound)


def check_gpt2(model: Model, rng, run=in_process) -> None:
    """Greedy tokens and log-probabilities of prompts of every length that the context takes."""
    config, folder, dtype = model.config, model.path.parent, model.dtype
    longest, V = config["n_positions"] - 1, config["vocab_size"]
    lengths = [1, longest, *(int(n) for n in rng.integers(1, longest + 1, int(rng.integers(0, 6))))]
    prompts = [rng.integers(0, V, n).tolist() for n in lengths]
    source, target, best = folder / "in.jsonl", folder / "out.jsonl", int(rng.integers(0, min(V, 20) + 1))
    source.write_text("".join(json.dumps({"id": i, "input_ids": row}) + "\n" for i, row in enumerate(prompts)))
    asked = ["--temperature", "0", "--max-tokens", str(MOST_TOKENS)]
    asked += ["--logprobs", str(best)] if maybe(rng, 0.7) else []
    run("generate", "-p", str(model.path), "-i", str(source), "-o", str(target), "--dtype", dtype, *asked)
    answers = [json.loads(line) for line in target.read_text().splitlines()]
    assert [answer["id"] for answer in answers] == list(range(len(prompts)))
    loaded = tw.load(model.path, dtype=dtype)
    again = loaded.generate(prompts, tw.SamplingParams(temperature=0, max_tokens=MOST_TOKENS))
    reference = gpt2_logits(config, model.weights)
    for prompt, answer, other in zip(prompts, answers, again, strict=True):
        tokens = answer["token_ids"]
        assert tokens == other.outputs[0].token_ids, "tw.load gives other tokens than the job"
        assert len(tokens) == min(MOST_TOKENS, longest + 1 - len(prompt))
        logits = reference([*prompt, *tokens[:-1]])[len(prompt) - 1 :]
        tolerance = GPT2_TOLERANCE[dtype] * float(np.abs(logits).max())
        divergences(tokens, logits, tolerance)
        if "logprobs" in answer:
            logarithms = logits - np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1, keepdims=True))
            logarithms -= logits.max(1, keepdims=True)
            for token, row, found in zip(tokens, logarithms, answer["logprobs"], strict=True):
                assert str(token) in found and len(found) in (best, best + 1)
                chosen = row[[int(id) for id in found]]
                compare(np.array([*found.values()]), chosen, 2 * tolerance, dtype=np.float64)


RANDOM = {"gpt2": gpt2, "textcnn": textcnn, "dcgan": dcgan}
CONFIGS = {"gpt2": GPT2Config, "textcnn": TextCNNConfig, "dcgan": DCGANConfig}
CHECKS = {"gpt2": check_gpt2, "textcnn": check_textcnn, "dcgan": check_dcgan}


def failures(kind: str, seeds, run=in_process) -> list[str]:
    """What went wrong, a line a model: the command that shows it again, and how."""
    found = []
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder, alone():
            model, rng = made(kind, seed, Path(folder))
            try:
                CHECKS[kind](model, rng, run)
            except (AssertionError, TilewrightError, ArithmeticError, LookupError, TypeError, ValueError) as error:
                command = f"python tests/random_models.py {kind} --seed {seed}"
                found.append(
                    f"{command}    # {type(error).__name__}: {error}; {model.dtype} {json.dumps(model.config)}"
                )
    return found


def main() -> int:
    """Run what the arguments name; the exit code is 1 if a model went wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", nargs="?", choices=RANDOM)
    parser.add_argument("--seed", type=int, help="this model alone")
    parser.add_argument("--first", type=int, default=0, help="the first model's number")
    parser.add_argument("--count", type=int, default=100)
    asked = parser.parse_args()
    seeds = range(asked.first, asked.first + asked.count) if asked.seed is None else [asked.seed]
    wrong = 0
    for kind in [asked.kind] if asked.kind else RANDOM:
        found = failures(kind, seeds)
        wrong += len(found)
        print(f"{kind}: {len(seeds)} models, {len(found)} wrong", *found[:10], sep="\n    ", flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
