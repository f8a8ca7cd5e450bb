"""GPT-2: text generation by a stack of causal transformer layers.

    x = wte[id] + wpe[position]
    a layer:  x += proj(attention(LN1(x)));  x += out(gelu(in(LN2(x))))
    logits = LN(x) @ wte.T

Rows of a batch are positions of sequences of any lengths, side by side without padding: `spans` says which rows belong
to which sequence, and the same code computes a prompt and a single new position. Source: Radford et al., "Language
Models are Unsupervised Multitask Learners", 2019.
"""

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import Any

import msgspec
import numpy as np

from tilewright.errors import InputError, UsageError
from tilewright.formats.records import Completion, Id
from tilewright.formats.tokenizer import Tokenizer
from tilewright.generation.arrays_cpu import BATCH_MEMORY as BATCH_MEMORY
from tilewright.generation.arrays_cpu import Host
from tilewright.generation.engine import Block, Generated, Generator, Request
from tilewright.generation.sampling import SamplingParams, failed
from tilewright.ops.embedding import embedding
from tilewright.ops.layernorm import layernorm
from tilewright.ops.matmul import matmul, prepare
from tilewright.ops.matmul_argmax import matmul_argmax
from tilewright.ops.matmul_argmax import prepare as prepare_argmax

MODEL_TYPE = "gpt2"
MAX_SIZE = 2**31
MAX_LAYERS = 4096  # names of tensors are made from it before a file is looked at
ACTIVATIONS = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu": "gelu",
    "relu": "relu",
    "tanh": "tanh",
}
BLOCK = 256  # prompts checked at a time
PREFIX = "transformer."
TIES = (
    ("lm_head.weight", "wte.weight"),
)  # the output matrix is the embedding's, whether a checkpoint repeats it or not
MASKS = (".attn.bias", ".attn.masked_bias")  # causal masks that old checkpoints carry


class GPT2Config(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of a GPT-2, by Hugging Face's names; the defaults are the 124M model. Fields that do not change what is
    computed are ignored. Raises ValueError for sizes that make no network and for variants that are not computed."""

    model_type: str = MODEL_TYPE
    vocab_size: int = 50257
    n_positions: int = 1024
    n_embd: int = 768
    n_layer: int = 12
    n_head: int = 12
    n_inner: int | None = None
    activation_function: str = "gelu_new"
    layer_norm_epsilon: float = 1e-5
    scale_attn_weights: bool = True
    scale_attn_by_inverse_layer_idx: bool = False
    add_cross_attention: bool = False
    tie_word_embeddings: bool = True
    eos_token_id: int | list[int] | None = 50256

    def __post_init__(self):
        if self.model_type != MODEL_TYPE:
            raise ValueError(f"model_type is {self.model_type!r}; {MODEL_TYPE!r} is wanted")
        for name in ("vocab_size", "n_positions", "n_embd", "n_layer", "n_head", "n_inner"):
            least = 2 if name == "n_positions" else 1  # a prompt and a new token
            most, size = MAX_LAYERS if name == "n_layer" else MAX_SIZE, getattr(self, name)
            if size is not None and not least <= size <= most:
                raise ValueError(f"{name} is {size}; at least {least} and at most {most} is wanted")
        if self.n_embd % self.n_head:
            raise ValueError(f"n_embd is {self.n_embd} and n_head {self.n_head}: heads must divide the width")
        if self.activation_function not in ACTIVATIONS:
            raise ValueError(f"activation_function is {self.activation_function!r}; {', '.join(ACTIVATIONS)} are known")
        if not 0 < self.layer_norm_epsilon < 1:
            raise ValueError(f"layer_norm_epsilon is {self.layer_norm_epsilon}; it must be between 0 and 1")
        if self.add_cross_attention:
            raise ValueError("add_cross_attention is true; cross attention is not GPT-2's and not computed")

    @property
    def width(self) -> int:
        """Of the feed-forward layer."""
        return 4 * self.n_embd if self.n_inner is None else self.n_inner

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Tokens that end a text."""
        ids = self.eos_token_id if isinstance(self.eos_token_id, list) else [self.eos_token_id]
        return tuple(token for token in ids if token is not None)

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every weight, in the order of the course's model_parameters.bin."""
        C, W = self.n_embd, self.width
        shapes: dict[str, tuple[int, ...]] = {}
        for i in sorted(range(self.n_layer), key=str):  # 0, 1, 10, 11, 2: that file orders layers as text
            shapes |= {
                f"h.{i}.attn.c_attn.bias": (3 * C,), f"h.{i}.attn.c_attn.weight": (C, 3 * C),
                f"h.{i}.attn.c_proj.bias": (C,), f"h.{i}.attn.c_proj.weight": (C, C),
                f"h.{i}.ln_1.bias": (C,), f"h.{i}.ln_1.weight": (C,),
                f"h.{i}.ln_2.bias": (C,), f"h.{i}.ln_2.weight": (C,),
                f"h.{i}.mlp.c_fc.bias": (W,), f"h.{i}.mlp.c_fc.weight": (C, W),
                f"h.{i}.mlp.c_proj.bias": (C,), f"h.{i}.mlp.c_proj.weight": (W, C),
            }  # fmt: skip
        shapes |= {"ln_f.bias": (C,), "ln_f.weight": (C,)}
        return shapes | {"wpe.weight": (self.n_positions, C), "wte.weight": (self.vocab_size, C)}


def own_name(name: str) -> str | None:
    """The name of a checkpoint's tensor here; None for one that holds no weights of its own."""
    name = name.removeprefix(PREFIX)
    return None if name.endswith(MASKS) else name


@dataclass(frozen=True, slots=True)
class Output:
    """A prompt's token ids and its n completions: `output.outputs[0].text`."""

    prompt_token_ids: list[int]
    outputs: list[Completion]


class Layer:
    """The weights of one layer, prepared. place: where they go."""

    def __init__(self, weights: Mapping[str, np.ndarray], i: int, dtype: str, place: Any):
        def vector(name: str):
            return place.vector(weights[f"h.{i}.{name}"])

        def matrix(name: str):
            return prepare(place.array(weights[f"h.{i}.{name}.weight"]), dtype=dtype), vector(f"{name}.bias")

        self.norm_1 = vector("ln_1.weight"), vector("ln_1.bias")
        self.norm_2 = vector("ln_2.weight"), vector("ln_2.bias")
        self.attn, self.attn_out = matrix("attn.c_attn"), matrix("attn.c_proj")
        self.mlp, self.mlp_out = matrix("mlp.c_fc"), matrix("mlp.c_proj")


class GPT2:
    """A GPT-2 ready to run on this machine's CPU or GPU.

    weights: float32 or bfloat16 arrays by the names of `config.tensor_shapes()`; they may be memory-mapped and
    read-only. dtype: accuracy class of the products, "float32" or "bfloat16", on a GPU "float16" too; keys and values
    are kept in it. device: "cpu" or "cuda", where the weights are copied once. Raises InputError if a tensor is
    missing, too many or of another shape, UsageError for another device or dtype.
    """

    def __init__(
        self, config: GPT2Config, weights: Mapping[str, np.ndarray], *, dtype: str = "float32", device: str = "cpu"
    ):
        shapes = config.tensor_shapes()
        for name in shapes.keys() | weights.keys():
            found = weights[name].shape if name in weights else None
            if found != shapes.get(name):
                wanted = shapes.get(name, "no such tensor")
                raise InputError(f"tensor {name} is {found or 'missing'}; {wanted} is wanted by the configuration")
        self.config, self.dtype, self.device = config, dtype, device
        self.place = place = place_of(device, dtype)
        self.keep = self.place.keep  # of caches that are free again
        self.wte, self.wpe = place.array(weights["wte.weight"]), place.vector(weights["wpe.weight"])
        self.layers = [Layer(weights, i, dtype, place) for i in range(config.n_layer)]
        self.norm = place.vector(weights["ln_f.weight"]), place.vector(weights["ln_f.bias"])
        self.head = prepare(self.wte.T, dtype=dtype)
        self.best_head = prepare_argmax(self.wte.T, dtype=dtype, weights=self.head)
        self.activation = ACTIVATIONS[config.activation_function]
        self.stop_ids = config.stop_ids
        self.tokenizer: Tokenizer | None = None

    def generate(
        self,
        prompts: Iterable[str | Sequence[int]],
        params: SamplingParams | None = None,
        *,
        ids: Iterable[Id] | None = None,
        seed: int = 0,
        max_batch_memory: int | None = None,
    ) -> Iterator[Output]:
        """The completions of each prompt, in their order; prompts are read as they are needed.

        prompts: texts, if the model has a tokenizer, or sequences of token ids. params: the same for all. ids: a name
        for each prompt, by which its random numbers are drawn; without them its place is its name, so that samples,
        unlike greedy tokens, change with the place. seed: of the random numbers, where params have none.
        max_batch_memory: bytes for keys and values; None: 1 GiB on a CPU, most of what is free on a GPU. Raises
        UsageError with the number of a prompt that cannot be continued, or whose logits are not finite.
        """
        params = SamplingParams() if params is None else params
        memory = self.place.memory if max_batch_memory is None else max_batch_memory
        for name, value, kind in (("params", params, SamplingParams), ("seed", seed, int),
                                  ("max_batch_memory", memory, int)):  # fmt: skip
            if not isinstance(value, kind) or isinstance(value, bool):
                raise UsageError(f"{name} is {value!r}; {kind.__name__} is wanted")
        if isinstance(prompts, str):
            raise UsageError("prompts is one text; a list of prompts is wanted")
        params.check_for(vocabulary=self.config.vocab_size, context=self.config.n_positions,
                         has_tokenizer=self.tokenizer is not None)  # fmt: skip
        return self._generated(prompts, params, ids, self.generator(seed=seed, memory=memory))

    def _generated(self, prompts, params: SamplingParams, ids, generator: Generator) -> Iterator[Output]:
        kept: deque[np.ndarray] = deque()

        def requests() -> Iterator[Request | Block]:
            named, first = zip(prompts, count() if ids is None else ids, strict=ids is not None), 0
            while block := list(islice(named, max(BLOCK // params.n, 1))):
                checked = self.checked_prompts([prompt for prompt, _ in block], first)
                kept.extend(checked)
                first += len(block)
                if generator.takes_blocks:
                    yield Block([id for _, id in block], checked, params)
                else:
                    yield from (Request(id, prompt, params) for (_, id), prompt in zip(block, checked, strict=True))

        for i, found in enumerate(generator.run(requests())):
            completions = []
            for one in found:
                if one.failed:
                    raise UsageError(f"prompt {i}: {failed(params)}")
                completions.append(self.completion(one))
            yield Output(kept.popleft().tolist(), completions)

    def generator(self, *, seed: int, memory: int) -> Generator:
        """An engine with keys, values and a workspace of its own."""
        return self.place.engine(
            self, context=self.config.n_positions, eos_token_ids=self.stop_ids, memory=memory, seed=seed,
            text_of=self.tokenizer.decode if self.tokenizer else None,
            tokens_of=self.tokenizer.encode_word if self.tokenizer else None,
        )  # fmt: skip

    def checked_prompts(self, prompts: list, first: int) -> list[np.ndarray]:
        """`checked_prompt` of each; first: the number of the first one, by which they are named."""
        if set(map(type, prompts)) == {np.ndarray} and {(p.ndim, p.dtype.kind) for p in prompts} <= {
            (1, "i"),
            (1, "u"),
        }:
            counts = list(map(len, prompts))
            flat = np.concatenate(prompts)  # looked at together: a call of NumPy takes as long as a prompt
            short = min(counts) > 0 and max(counts) < self.config.n_positions
            if short and flat.min() >= 0 and flat.max() < self.config.vocab_size:
                ends = np.cumsum(counts).tolist()
                flat = flat.astype(np.int64)
                return [flat[a:b] for a, b in zip([0, *ends], ends, strict=False)]
        return [self.checked_prompt(prompt, f"prompt {first + i}") for i, prompt in enumerate(prompts)]

    def checked_prompt(self, prompt: str | Sequence[int], name: str) -> np.ndarray:
        """Token ids int64 (n,). Raises UsageError unless there is at least one, each is in the vocabulary, and one more
        fits into the context."""
        if isinstance(prompt, str):
            if self.tokenizer is None:
                raise UsageError(f"{name} is text, and the model has no tokenizer.json", hint="give token ids")
            prompt = self._encoded(prompt, name)
        try:
            ids = np.asarray(prompt)
        except ValueError as error:
            raise UsageError(f"{name} is no list of token ids: {error}") from error
        if ids.ndim == 1 and ids.size == 0:
            raise UsageError(f"{name} is empty; at least one token id is wanted")
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            hint = "prompts is a list of prompts, each a list of token ids" if ids.ndim == 0 else None
            raise UsageError(
                f"{name} is {ids.dtype} of shape {ids.shape}; integer token ids (n,) are wanted", hint=hint
            )
        if not (ids.min() >= 0 and ids.max() < self.config.vocab_size):
            at = int(np.argmax((ids < 0) | (ids >= self.config.vocab_size)))
            raise UsageError(f"{name}: token id {ids[at]} at {at} is outside 0 to {self.config.vocab_size - 1}")
        if len(ids) >= self.config.n_positions:
            raise UsageError(
                f"{name} has {len(ids)} tokens; the context of {self.config.n_positions} must hold one more"
            )
        return ids.astype(np.int64)

    def _encoded(self, text: str, name: str) -> list[int]:
        assert self.tokenizer is not None
        try:
            text.encode()
            return self.tokenizer.encode(text)
        except UnicodeEncodeError as error:
            raise UsageError(f"{name} is no valid text: {error}") from error

    def completion(self, found: Generated) -> Completion:
        """With its text, if the model has a tokenizer."""
        text = self.tokenizer.decode(found.token_ids)[: found.text_end] if self.tokenizer else None
        return Completion(found.index, list(found.token_ids), text, found.finish_reason, found.logprobs)

    def workspace(self) -> Any:
        """For `hidden`; one a generator."""
        return self.place.workspace()

    def caches(self, slots: int, length: int) -> list[Any]:
        """Room for the keys and values of `slots` sequences of up to `length` positions: a Cache a layer."""
        heads, D = self.config.n_head, self.config.n_embd // self.config.n_head
        return [self.place.cache(slots, heads, length, D, self.dtype) for _ in self.layers]

    def cache_bytes(self, length: int) -> int:
        """Bytes that the keys and values of one sequence take in all layers."""
        heads, D = self.config.n_head, self.config.n_embd // self.config.n_head
        return self.config.n_layer * self.place.cache_bytes(heads, length, D, self.dtype)

    def hidden(self, ids: np.ndarray, positions: np.ndarray, caches: Sequence[Any], spans: np.ndarray, work: Any):
        """What the last row of each span becomes: (spans, C), after the last norm, float32 on a CPU.

        ids, positions: int64 (rows,), a row a token and its place in its sequence. spans: int64 (n, 5), see
        `ops.attention.span`; the rows' keys and values are added to the caches.
        """
        return self.through(self.batch(ids, positions, caches, spans), work)

    def batch(self, *rows: Any) -> Any:
        """The rows of a pass, as the place makes them; on a GPU those of prompts."""
        return self.place.batch(*rows)

    def through(self, rows: Any, work: Any):
        """`rows`, as the place makes them, through all layers."""
        out = work.take("x", len(rows.ids), self.config.n_embd)
        x = embedding(rows.ids, self.wte, positions=rows.positions, position_table=self.wpe, out=out)
        for i in range(len(self.layers)):
            x = self._layer(i, x, rows, work)
        return self.normed(x, self.norm, self.place.final(work, *x.shape))

    def _layer(self, i: int, x: Any, rows: Any, work: Any):
        """x (R, C) after layer i; of the last layer only the rows that something looks at."""
        layer, place, (R, C) = self.layers[i], self.place, x.shape
        h = self.normed(x, layer.norm_1, work.take("h", R, C, place.kind))
        qkv = matmul(h, layer.attn[0], bias=layer.attn[1], out=work.take("qkv", R, 3 * C, place.kind))
        x, y = rows.attended(i, x, qkv, self.scale(i), work)
        matmul(y, layer.attn_out[0], bias=layer.attn_out[1], residual=x, out=x)
        h = self.normed(x, layer.norm_2, work.take("h", len(x), C, place.kind))
        u = work.take("u", len(x), self.config.width, place.kind)
        matmul(h, layer.mlp[0], bias=layer.mlp[1], activation=self.activation, out=u)
        return matmul(u, layer.mlp_out[0], bias=layer.mlp_out[1], residual=x, out=x)

    def finite(self, hidden: Any) -> np.ndarray:
        """Which rows of `hidden` are: bool (n,)."""
        return self.place.finite(hidden)

    def logits(self, hidden: Any) -> np.ndarray:
        """float32 (n, vocab_size), of `hidden` (n, C)."""
        return self.place.numpy(matmul(hidden, self.head))

    def logits_on_device(self, hidden: Any, out: Any = None) -> Any:
        """As `logits`, on a GPU, where they stay."""
        return matmul(hidden, self.head, out=out)

    def best(self, hidden: Any) -> np.ndarray:
        """The token with the largest logit of each row, the lowest id on ties: int64 (n,); -1 if it is not finite."""
        token, logit = map(self.place.numpy, matmul_argmax(hidden, self.best_head))
        return np.where(np.isfinite(logit), token, -1)

    def best_on_device(self, hidden: Any, out: Any = None) -> tuple[Any, Any]:
        """(token int64 (n,), logit float32 (n,)) of the largest logit of each row, on a GPU, where they stay."""
        return matmul_argmax(hidden, self.best_head, out=out)

    def normed(self, x: Any, norm: tuple[Any, Any], out: Any = None):
        """LayerNorm with this model's epsilon."""
        return layernorm(x, *norm, eps=self.config.layer_norm_epsilon, out=out)

    def scale(self, i: int) -> float:
        """The factor of layer i's scores."""
        config = self.config
        scale = 1 / math.sqrt(config.n_embd // config.n_head) if config.scale_attn_weights else 1.0
        return scale / (i + 1) if config.scale_attn_by_inverse_layer_idx else scale


def place_of(device: str, dtype: str) -> Any:
    """Where a model's arrays live. Raises UsageError for another device."""
    if device == "cpu":
        return Host(dtype)
    if device != "cuda":
        raise UsageError(f"device is {device!r}; cpu, cuda are")
    from tilewright.generation.cuda.decode_state import Device

    return Device(dtype)
