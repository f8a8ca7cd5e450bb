"""GPT-2 in tilewright and in other libraries, behind one interface. Tokens are greedy, or drawn from the best ones. No
token ends a text early.

transformers runs in the requested dtype with its default attention. CTranslate2 runs its converted model in float32.
OpenVINO runs a stateful graph. All use as many threads as tilewright. On a GPU the engines are transformers, and
PyTorch with a static cache, torch.compile and CUDA graphs (`gpt2_torch`).
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.errors import UsageError
from tilewright.generation.sampling import SamplingParams
from tilewright.models.gpt2 import GPT2, GPT2Config
from tilewright.ops.attention import span
from tilewright.ops.core.launch import thread_count
from tilewright.switches import Without

Weights = Mapping[str, np.ndarray]
OURS = "tilewright"


@dataclass(frozen=True, eq=False)
class Engine:
    """generate: (prompts int (n, L), number of new tokens, batch, top_k) -> int64 (n, new tokens). tilewright ignores
    batch and chooses its own. top_k: a token is drawn from so many of the best, at temperature 1; 1 is greedy.

    logits: prompts int (n, L) -> float32 (n, V) after the last position; None if the engine does not give them. once_s:
    seconds of preparation from weights in memory, including kernels that are compiled or loaded. whole: the engine is
    fastest with all prompts in one batch.
    """

    name: str
    dtype: str
    once_s: float
    generate: Callable[[np.ndarray, int, int, int], np.ndarray]
    logits: Callable[[np.ndarray], np.ndarray] | None = None
    whole: bool = False

    @property
    def key(self) -> str:
        """The name and the dtype."""
        return f"{self.name} {self.dtype}"


def ours(
    config: GPT2Config, weights: Weights, dtype: str, device: str = "cpu", without: Without = frozenset()
) -> Engine:
    """tilewright. without: optimisations that are switched off."""
    start = time.perf_counter()
    model = GPT2(config, weights, dtype=dtype, device=device, without=without)

    def generate(prompts: np.ndarray, tokens: int, batch: int = 0, top_k: int = 1) -> np.ndarray:
        params = SamplingParams(temperature=float(top_k > 1), top_k=top_k, max_tokens=tokens, ignore_eos=True)
        return np.array([found.outputs[0].token_ids for found in model.generate(prompts, params)], np.int64)

    def logits(prompts: np.ndarray) -> np.ndarray:
        n, L = prompts.shape
        spans = np.array([span(i, 0, L, i * L) for i in range(n)], np.int64)
        ids, positions = prompts.reshape(-1).astype(np.int64), np.tile(np.arange(L), n)
        batch = model.attention.batch(ids, positions, model.attention.caches(n, L), spans)
        return model.backend.numpy(model.logits(model.forward(batch, model.backend.workspace())))

    generate(np.zeros((1, 1), np.int64), 2)
    return Engine(OURS, dtype, time.perf_counter() - start, generate, logits)


def transformers(config: GPT2Config, weights: Weights, dtype: str, device: str = "cpu") -> Engine:
    """Hugging Face's GPT2LMHeadModel. Raises ImportError if transformers or torch is missing."""
    import torch

    torch.set_num_threads(thread_count())
    start = time.perf_counter()
    model = torch_model(config, weights).to(device, getattr(torch, dtype))

    def generate(prompts: np.ndarray, tokens: int, batch: int, top_k: int = 1) -> np.ndarray:
        how, parts = {"do_sample": True, "top_k": top_k} if top_k > 1 else {"do_sample": False}, []
        for first in range(0, len(prompts), batch):
            ids = torch.from_numpy(prompts[first : first + batch].astype(np.int64)).to(device)
            found = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, **how)
            parts.append(found[:, prompts.shape[1] :].cpu().numpy())
        return np.concatenate(parts)

    def logits(prompts: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            found = model(torch.from_numpy(prompts.astype(np.int64)).to(device), logits_to_keep=1).logits
        return found[:, -1].float().cpu().numpy()

    generate(np.zeros((1, 1), np.int64), 2, 1)
    return Engine("transformers", dtype, time.perf_counter() - start, generate, logits)


def torch_model(config: GPT2Config, weights: Weights) -> Any:
    """A float32 model with copies of the tensors, in which no token ends a text."""
    import torch
    from transformers import GPT2Config as TheirConfig
    from transformers import GPT2LMHeadModel, logging

    logging.set_verbosity_error()  # the converter calls transformers in a way that it warns about
    fields = {name: getattr(config, name) for name in config.__struct_fields__ if name != "model_type"}
    fields |= {"bos_token_id": None, "eos_token_id": None}
    with torch.device("meta"):
        model = GPT2LMHeadModel(TheirConfig(**fields))
    tensors = {f"transformer.{name}": torch.from_numpy(np.array(w, np.float32)) for name, w in weights.items()}
    tensors["lm_head.weight"] = tensors["transformer.wte.weight"]
    model.load_state_dict(tensors, assign=True)
    model.tie_weights()
    model.generation_config.pad_token_id = 0
    return model.eval()


def ctranslate2(config: GPT2Config, weights: Weights, dtype: str = "float32", device: str = "cpu") -> Engine:
    """CTranslate2, with the model that its converter makes from a transformers model.

    Raises ImportError if it or transformers is missing, UsageError for a dtype that it does not support.
    """
    import ctranslate2 as library

    if dtype != "float32" or device != "cpu":
        raise UsageError(f"ctranslate2 has no {dtype} on this {'CPU' if device == 'cpu' else 'GPU'}")
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="tilewright-bench-") as folder:
        _convert(config, weights, folder)
        generator = library.Generator(
            folder, device="cpu", compute_type=dtype, inter_threads=1, intra_threads=thread_count()
        )

    def generate(prompts: np.ndarray, tokens: int, batch: int, top_k: int = 1) -> np.ndarray:
        words = [[f"<{token}>" for token in prompt] for prompt in prompts.tolist()]
        found = generator.generate_batch(
            words, max_batch_size=batch, beam_size=1, sampling_topk=top_k, include_prompt_in_result=False,
            max_length=tokens, min_length=tokens,
        )  # fmt: skip
        return np.array([one.sequences_ids[0] for one in found], np.int64)

    generate(np.zeros((1, 1), np.int64), 2, 1)
    return Engine("ctranslate2", dtype, time.perf_counter() - start, generate)


class _Words:
    """The tokenizer that the converter needs: token 7 is the word <7>."""

    def __init__(self, config: GPT2Config):
        self.size = config.vocab_size
        end = (*config.stop_ids, self.size - 1)[0]
        self.bos_token = self.eos_token = self.unk_token = f"<{end}>"

    def get_vocab(self) -> dict[str, int]:
        """Word -> token id."""
        return {f"<{token}>": token for token in range(self.size)}


def _convert(config: GPT2Config, weights: Weights, folder: str) -> None:
    from ctranslate2.converters import TransformersConverter

    model = torch_model(config, weights)

    class FromMemory(TransformersConverter):
        """The converter, for a model and a tokenizer that are already in memory."""

        def load_model(self, *args: Any, **options: Any) -> Any:
            return model

        def load_tokenizer(self, *args: Any, **options: Any) -> Any:
            return _Words(config)

    with tempfile.TemporaryDirectory(prefix="tilewright-bench-") as source:
        model.config.save_pretrained(source)
        FromMemory(source).convert(folder, force=True)


def torch_static(config: GPT2Config, weights: Weights, dtype: str, device: str = "cuda") -> Engine:
    """PyTorch with a static cache, on a GPU. It compiles for each new shape at the first call. Raises UsageError on a
    CPU."""
    if device == "cpu":
        raise UsageError("PyTorch with a static cache and CUDA graphs is a peer on a GPU")
    from tilewright.bench.workloads.gpt2_torch import StaticGPT2

    start = time.perf_counter()
    model = StaticGPT2(config, weights, dtype)
    return Engine("torch", dtype, time.perf_counter() - start, model.generate, whole=True)


def openvino(config: GPT2Config, weights: Weights, dtype: str, device: str = "cpu") -> Engine:
    """OpenVINO, which keeps keys and values itself. Raises ImportError if it is missing, UsageError on a GPU."""
    if device != "cpu":
        raise UsageError("openvino is a peer on a CPU")
    from tilewright.bench.workloads.gpt2_openvino import OpenVinoGPT2

    start = time.perf_counter()
    model = OpenVinoGPT2(config, weights, dtype)
    model.generate(np.zeros((1, 1), np.int64), 2, 1)
    return Engine("openvino", dtype, time.perf_counter() - start, model.generate, model.logits)


PEERS: dict[str, Callable[[GPT2Config, Weights, str, str], Engine]] = {
    "transformers": transformers,
    "ctranslate2": ctranslate2,
    "openvino": openvino,
    "torch": torch_static,
}
