"""GPT-2: text generation by a stack of causal transformer layers.

    x = wte[id] + wpe[position]
    a layer:  x += proj(attention(LN1(x)));  x += out(gelu(in(LN2(x))))
    logits = LN(x) @ wte.T

Rows of a batch are positions of sequences of any lengths, without padding. The batch knows which rows belong to which
sequence, so the same code computes prompts and single new positions. Source: Radford et al., "Language
Models are Unsupervised Multitask Learners", 2019.
"""

import math
from collections.abc import Mapping

import msgspec
import numpy as np

from tilewright.backends import footprint
from tilewright.backends.protocol import Array, Backend, Workspace
from tilewright.errors import InputError
from tilewright.generation.decoder import Batch, Sizes
from tilewright.generation.language_model import LanguageModel
from tilewright.generation.memory import Prompts
from tilewright.models.activations import ACTIVATIONS
from tilewright.ops.core.ladder import Memory, check_layers
from tilewright.ops.core.layers import layer as layer_of
from tilewright.ops.embedding import embedding
from tilewright.ops.layernorm import layernorm
from tilewright.ops.matmul import Problem as Product
from tilewright.ops.matmul import ladder as matmul_ladder
from tilewright.ops.matmul import matmul, prepare
from tilewright.ops.matmul_argmax import Problem as Search
from tilewright.ops.matmul_argmax import ladder as argmax_ladder
from tilewright.ops.matmul_argmax import matmul_argmax
from tilewright.ops.matmul_argmax import prepare as prepare_argmax
from tilewright.switches import Without

MODEL_TYPE = "gpt2"
MAX_SIZE = 2**31
MAX_LAYERS = 4096  # names of tensors are made from it before a file is read
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
            raise ValueError(f"n_embd is {self.n_embd} and n_head {self.n_head}: n_embd must be a multiple of n_head")
        if self.activation_function not in ACTIVATIONS:
            raise ValueError(f"activation_function is {self.activation_function!r}; {', '.join(ACTIVATIONS)} are known")
        if not 0 < self.layer_norm_epsilon < 1:
            raise ValueError(f"layer_norm_epsilon is {self.layer_norm_epsilon}; it must be between 0 and 1")
        if self.add_cross_attention:
            raise ValueError("add_cross_attention is true; cross attention is not supported")

    @property
    def width(self) -> int:
        """Width of the feed-forward layer."""
        return 4 * self.n_embd if self.n_inner is None else self.n_inner

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Tokens that end a text."""
        ids = self.eos_token_id if isinstance(self.eos_token_id, list) else [self.eos_token_id]
        return tuple(token for token in ids if token is not None)

    @property
    def sizes(self) -> Sizes:
        """What the engine knows of the network."""
        head_size = self.n_embd // self.n_head
        return Sizes(self.n_positions, self.vocab_size, self.n_embd, self.n_layer, self.n_head, head_size)

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

    def memory(self, dtype: str, device: str = "cpu") -> Memory:
        """Bytes of the weights on a device, without the embedding's table, which the CPU maps."""
        C, V, W = self.n_embd, self.vocab_size, self.width
        vectors = self.n_layer * (4 * C + 3 * C + 2 * C + W) + 2 * C + self.n_positions * C
        layers = []
        for i, sizes in enumerate(self.n_layer * ((C, 3 * C), (C, C), (C, W), (W, C)), start=1):
            with layer_of(matmul=i):
                layers.append(footprint.matrix(*sizes, dtype, device))
        with self.head:
            head, problem = footprint.matrix(C, V, dtype, device), self.search(dtype, device)
            screen = footprint.weights(argmax_ladder, problem)
        return footprint.total([Memory(4 * vectors), *layers, head, screen])

    @property
    def calls(self) -> dict[str, int]:
        """How often a forward pass calls each operation, for rungs that are forced for one layer."""
        L = self.n_layer
        return {"embedding": 1, "layernorm": 2 * L + 1, "attention": L, "matmul": 4 * L + 1}

    @property
    def head(self) -> layer_of:
        """The output matrix is the last layer of matmul, also where matmul_argmax searches its products."""
        return layer_of(matmul=4 * self.n_layer + 1)

    def search(self, dtype: str, device: str = "cpu") -> Search:
        """The problem of finding the largest logit."""
        with self.head:
            layout = footprint.chosen(matmul_ladder, Product(self.vocab_size, self.n_embd, dtype, device)).name
        return Search(self.vocab_size, self.n_embd, dtype, layout, device)

    def writes_logits(self, dtype: str) -> bool:
        """True if the CPU writes all logits before it searches the largest one."""
        with self.head:
            return footprint.chosen(argmax_ladder, self.search(dtype)).name == "cpu.logits"

    def row_bytes(self, dtype: str, device: str = "cpu") -> int:
        """Bytes of a row of a pass: x, its norm, queries, keys and values, attention's result, the layer between.

        On a GPU the hidden states besides, and in float32 the limbs of the widest operand; on the CPU sums in float32.
        """
        C, W = self.n_embd, self.width
        if device == "cpu":
            itemsize = 2 if dtype == "bfloat16" else 4
            return (12 + 4 * itemsize) * C + itemsize * W
        itemsize = footprint.element_bytes(dtype)
        return 4 * C + itemsize * (6 * C + W) + footprint.limbs(max(W, C), dtype)

    def flops(self, prompts: Prompts, tokens: int, *, cached: bool = True) -> float:
        """Operations of prompts that get `tokens` new ones each: every position through every layer, the output matrix
        for the new tokens alone. Where nothing is cached, each new token takes all positions before it again."""
        C, n = self.n_embd, prompts.count
        if not cached:
            each = [Prompts(n, prompts.tokens + n * done, prompts.longest) for done in range(tokens)]
            return sum(self.flops(longer, 1) for longer in each)
        positions = prompts.tokens + n * (tokens - 1)
        keys = positions * (positions / max(1, n) + 1) / 2  # that queries attend to, were all prompts of one length
        layers = self.n_layer * (positions * (8 * C * C + 4 * C * self.width) + 4 * C * keys)
        return float(layers + 2 * self.vocab_size * C * n * tokens)


def own_name(name: str) -> str | None:
    """The name of a checkpoint's tensor here; None for one that holds no weights of its own."""
    name = name.removeprefix(PREFIX)
    return None if name.endswith(MASKS) else name


class Layer:
    """The weights of layer i, prepared."""

    def __init__(self, weights: Mapping[str, np.ndarray], i: int, dtype: str, backend: Backend):
        def vector(name: str):
            return backend.vector(weights[f"h.{i}.{name}"])

        def matrix(name: str, number: int):
            with layer_of(matmul=4 * i + number):
                packed = prepare(backend.array(weights[f"h.{i}.{name}.weight"]), dtype=dtype)
            return packed, vector(f"{name}.bias")

        self.norm_1 = vector("ln_1.weight"), vector("ln_1.bias")
        self.norm_2 = vector("ln_2.weight"), vector("ln_2.bias")
        self.attn, self.attn_out = matrix("attn.c_attn", 1), matrix("attn.c_proj", 2)
        self.mlp, self.mlp_out = matrix("mlp.c_fc", 3), matrix("mlp.c_proj", 4)


class GPT2(LanguageModel):
    """A GPT-2 ready to run on this machine's CPU or GPU.

    weights: float32 or bfloat16 arrays by the names of `config.tensor_shapes()`; they may be memory-mapped and
    read-only. dtype: accuracy class of the products, "float32" or "bfloat16", on a GPU "float16" too; keys and values
    are cached in it. device: "cpu" or "cuda", where the weights are copied once. without: optimisations that are
    switched off: "kv-cache", "prefix-sharing", on a GPU "pinned", "overlap" and "graphs" too; none changes bits.
    Raises InputError if a tensor is missing, too many or of another shape, UsageError for another device, dtype or
    switch.
    """

    def __init__(
        self,
        config: GPT2Config,
        weights: Mapping[str, np.ndarray],
        *,
        dtype: str = "float32",
        device: str = "cpu",
        without: Without = frozenset(),
    ):
        shapes = config.tensor_shapes()
        for name in shapes.keys() | weights.keys():
            found = weights[name].shape if name in weights else None
            if found != shapes.get(name):
                wanted = shapes.get(name, "no such tensor")
                raise InputError(f"tensor {name} is {found or 'missing'}; the configuration requires {wanted}")
        check_layers("GPT-2", config.calls)
        super().__init__(config.sizes, config.stop_ids, dtype=dtype, device=device, without=without)
        self.config, backend = config, self.backend
        self.wte, self.wpe = backend.array(weights["wte.weight"]), backend.vector(weights["wpe.weight"])
        self.layers = [Layer(weights, i, dtype, backend) for i in range(config.n_layer)]
        self.norm = backend.vector(weights["ln_f.weight"]), backend.vector(weights["ln_f.bias"])
        with config.head:
            self.head = prepare(self.wte.T, dtype=dtype)
            self.best_head = prepare_argmax(self.wte.T, dtype=dtype, weights=self.head)
        self.activation = ACTIVATIONS[config.activation_function]

    def __repr__(self) -> str:
        config = self.config
        return (
            f"<GPT2: {config.n_layer} layers of width {config.n_embd:,}, {config.n_head} heads, "
            f"{config.vocab_size:,} tokens, {config.n_positions:,} positions; {self.dtype} on {self.backend.name}>"
        )

    def forward(self, batch: Batch, work: Workspace) -> Array:
        """Hidden states (n, C) of the last row of each of n sequences, after the last norm; float32 on a CPU."""
        out = work.take("x", len(batch.ids), self.config.n_embd)
        with layer_of(embedding=1):
            x = embedding(batch.ids, self.wte, positions=batch.positions, position_table=self.wpe, out=out)
        for i in range(len(self.layers)):
            x = self._layer(i, x, batch, work)
        with layer_of(layernorm=2 * len(self.layers) + 1):
            return self._normed(x, self.norm, batch.output(work, *x.shape))

    def _layer(self, i: int, x: Array, batch: Batch, work: Workspace) -> Array:
        """x (R, C) after layer i; after the last layer, only the last row of each sequence."""
        layer, dtype, (R, C) = self.layers[i], self.dtype, x.shape
        with layer_of(layernorm=2 * i + 1, matmul=4 * i + 1):
            h = self._normed(x, layer.norm_1, work.take("h", R, C, dtype))
            qkv = matmul(h, layer.attn[0], bias=layer.attn[1], out=work.take("qkv", R, 3 * C, dtype))
        q, k, v = qkv[:, :C], qkv[:, C : 2 * C], qkv[:, 2 * C :]
        with layer_of(attention=i + 1):
            x, y = batch.attend(i, x, q, k, v, self.scale(i), work)
        with layer_of(matmul=4 * i + 2, layernorm=2 * i + 2):
            matmul(y, layer.attn_out[0], bias=layer.attn_out[1], residual=x, out=x)
            h = self._normed(x, layer.norm_2, work.take("h", len(x), C, dtype))
        u = work.take("u", len(x), self.config.width, dtype)
        with layer_of(matmul=4 * i + 3):
            matmul(h, layer.mlp[0], bias=layer.mlp[1], activation=self.activation, out=u)
        with layer_of(matmul=4 * i + 4):
            return matmul(u, layer.mlp_out[0], bias=layer.mlp_out[1], residual=x, out=x)

    def _normed(self, x: Array, norm: tuple[Array, Array], out: Array | None) -> Array:
        return layernorm(x, *norm, eps=self.config.layer_norm_epsilon, out=out)

    def scale(self, i: int) -> float:
        """The factor of layer i's scores."""
        config = self.config
        scale = 1 / math.sqrt(config.n_embd // config.n_head) if config.scale_attn_weights else 1.0
        return scale / (i + 1) if config.scale_attn_by_inverse_layer_idx else scale

    def logits(self, hidden: Array, out: Array | None = None) -> Array:
        """float32 (n, vocab_size), of `hidden` (n, C)."""
        with self.config.head:
            return matmul(hidden, self.head, out=out)

    def best(self, hidden: Array, out: tuple[Array, Array] | None = None) -> tuple[Array, Array]:
        """(token int64 (n,), logit float32 (n,)) of the largest logit of each row; of equal ones the lowest id."""
        with self.config.head:
            return matmul_argmax(hidden, self.best_head, out=out)
