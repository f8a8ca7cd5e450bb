"""Decoders: text generation by a stack of causal transformer layers. What GPT-2, OPT and their kin have in common.

    x = tokens[id] (+ positions[position])
    a layer:  x += proj(attention(LN1(x)));  x += out(act(in(LN2(x))))
    logits = LN(x) @ head

A `Network` says how a family, or one of its sizes, differs from this. Rows of a batch are positions of sequences of any
lengths, without padding. The batch knows which rows belong to which sequence, so the same code computes prompts and
single new positions.
"""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, NamedTuple

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
from tilewright.ops.matmul import Packed, matmul, prepare
from tilewright.ops.matmul import Problem as Product
from tilewright.ops.matmul import ladder as matmul_ladder
from tilewright.ops.matmul_argmax import Problem as Search
from tilewright.ops.matmul_argmax import ladder as argmax_ladder
from tilewright.ops.matmul_argmax import matmul_argmax
from tilewright.ops.matmul_argmax import prepare as prepare_argmax
from tilewright.switches import Without

MAX_SIZE = 2**31
MAX_LAYERS = 4096  # names of tensors are made from it before a file is read
Weights = Mapping[str, np.ndarray]
Pair = tuple[np.ndarray | None, np.ndarray | None]  # a weight and its bias; None: the network has none


class Network(NamedTuple):
    """What a configuration says of the network, by the same names for all families.

    width, inner: elements of a row between the layers, and within the feed-forward part. activation: Hugging Face's
    name of the function there. eps: of the norms. embedding: elements of a token's row; where they are not `width`,
    one matrix leads from the one to the other, and a second one back before the output matrix. norms_after: each norm
    follows its sum (OPT-350m). affine: norms have weights. joins: queries, keys and values are three matrices in the
    checkpoint, or mixed.
    """

    context: int
    vocabulary: int
    width: int
    inner: int
    layers: int
    heads: int
    activation: str
    eps: float
    embedding: int
    positions: bool = True
    norms_after: bool = False
    affine: bool = True
    joins: bool = False

    @property
    def projects(self) -> bool:
        """True if matrices lead from a token's row to the layers and back."""
        return self.embedding != self.width


class LayerWeights(NamedTuple):
    """A layer of a checkpoint. Matrices are (inputs, outputs); those of queries, keys and values lie side by side, and
    in each the heads do."""

    norm_1: Pair
    attn: Pair
    attn_out: Pair
    norm_2: Pair
    mlp: Pair
    mlp_out: Pair


class EndWeights(NamedTuple):
    """What lies before and after the layers. tokens: (V, E). positions: (context, C). head: (V, E); None: the tokens'
    own. project_in: (E, C). project_out: (C, E). norm: None for a network whose layers end with a norm."""

    tokens: np.ndarray
    positions: np.ndarray | None
    norm: Pair | None
    head: np.ndarray | None = None
    project_in: np.ndarray | None = None
    project_out: np.ndarray | None = None


class DecoderConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A decoder's configuration; each family has its own fields, by Hugging Face's names. Fields that do not change
    what is computed are ignored. Raises ValueError for sizes that make no network and for variants that are not
    computed."""

    title: ClassVar[str] = "decoder"  # the family's name in messages

    model_type: str
    vocab_size: int
    if TYPE_CHECKING:  # fields of every family, which have their own places in config.json
        tie_word_embeddings: bool = True
        eos_token_id: int | list[int] | None = None

    @property
    def network(self) -> Network:
        """The network that the fields describe."""
        raise NotImplementedError

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every weight."""
        raise NotImplementedError

    def own_name(self, name: str) -> str | None:
        """The name here of a checkpoint's tensor; None for one that holds no weights of its own."""
        raise NotImplementedError

    def layer(self, weights: Weights, i: int) -> LayerWeights:
        """The weights of layer i, of all weights by the names of `tensor_shapes`."""
        raise NotImplementedError

    def ends(self, weights: Weights) -> EndWeights:
        """The weights before and after the layers."""
        raise NotImplementedError

    def scale(self, i: int) -> float:
        """The factor of layer i's scores."""
        return 1 / math.sqrt(self.sizes.head_size)

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Tokens that end a text."""
        ids = self.eos_token_id if isinstance(self.eos_token_id, list) else [self.eos_token_id]
        return tuple(token for token in ids if token is not None)

    @property
    def context(self) -> int:
        """Positions at most: the longest prompt and completion together."""
        return self.network.context

    @property
    def sizes(self) -> Sizes:
        """What the engine knows of the network."""
        n = self.network
        return Sizes(n.context, n.vocabulary, n.embedding, n.layers, n.heads, n.width // n.heads)

    def check(self, kind: str, context: str, layers: str, *sizes: str) -> None:
        """Raises ValueError for another kind, and for a size that makes no network. context, layers, sizes: names of
        the fields."""
        if self.model_type != kind:
            raise ValueError(f"model_type is {self.model_type!r}; {kind!r} is wanted")
        for name in ("vocab_size", context, layers, *sizes):
            least = 2 if name == context else 1  # a prompt and a new token
            most, size = MAX_LAYERS if name == layers else MAX_SIZE, getattr(self, name)
            if size is not None and not least <= size <= most:
                raise ValueError(f"{name} is {size}; at least {least} and at most {most} is wanted")

    def check_heads(self, width: str, heads: str) -> None:
        """Raises ValueError for heads that do not divide the width. width, heads: names of the fields."""
        C, H = getattr(self, width), getattr(self, heads)
        if C % H:
            raise ValueError(f"{width} is {C} and {heads} {H}: {width} must be a multiple of {heads}")

    def check_activation(self, name: str) -> None:
        """Raises ValueError for an activation that is not computed. name: of the field."""
        if getattr(self, name) not in ACTIVATIONS:
            raise ValueError(f"{name} is {getattr(self, name)!r}; {', '.join(ACTIVATIONS)} are known")

    def check_eps(self, name: str) -> None:
        """Raises ValueError unless the field `name`, which is added to variances, is small and positive."""
        if not 0 < getattr(self, name) < 1:
            raise ValueError(f"{name} is {getattr(self, name)}; it must be between 0 and 1")

    def memory(self, dtype: str, device: str = "cpu") -> Memory:
        """Bytes of the weights on a device, without the embedding's table, which the CPU maps."""
        n, first = self.network, self.first
        vectors = sum(shape[0] for shape in self.tensor_shapes().values() if len(shape) == 1)
        tables = n.context * n.width if n.positions else 0
        plain = 0 if n.affine else 2 * n.width * self.calls["layernorm"]  # ones and zeros
        parts = [Memory(4 * (vectors + tables + plain))]

        def matrix(number: int, K: int, N: int) -> None:
            with layer_of(matmul=number):
                parts.append(footprint.matrix(K, N, dtype, device))

        if n.projects:
            matrix(1, n.embedding, n.width)
        for i in range(n.layers):
            at = first + 4 * i
            matrix(at, n.width, 3 * n.width)
            if n.joins:  # a copy while it is prepared
                parts[-1] = parts[-1]._replace(preparing=parts[-1].preparing + 12 * n.width**2)
            matrix(at + 1, n.width, n.width)
            matrix(at + 2, n.width, n.inner)
            matrix(at + 3, n.inner, n.width)
        if n.projects:
            matrix(self.calls["matmul"] - 1, n.width, n.embedding)
        matrix(self.calls["matmul"], n.embedding, n.vocabulary)
        with self.head:
            parts.append(footprint.weights(argmax_ladder, self.search(dtype, device)))
        return footprint.total(parts)

    @property
    def first(self) -> int:
        """The number of the first layer's first call of matmul."""
        return 2 if self.network.projects else 1

    @property
    def calls(self) -> dict[str, int]:
        """How often a forward pass calls each operation, for rungs that are forced for one layer."""
        n = self.network
        norms, products = 2 * n.layers + (not n.norms_after), 4 * n.layers + 1 + 2 * n.projects
        return {"embedding": 1 + n.projects, "layernorm": norms, "attention": n.layers, "matmul": products}

    @property
    def head(self) -> layer_of:
        """The output matrix is the last layer of matmul, also where matmul_argmax searches its products."""
        return layer_of(matmul=self.calls["matmul"])

    def search(self, dtype: str, device: str = "cpu") -> Search:
        """The problem of finding the largest logit."""
        V, E = self.network.vocabulary, self.network.embedding
        with self.head:
            layout = footprint.chosen(matmul_ladder, Product(V, E, dtype, device)).name
        return Search(V, E, dtype, layout, device)

    def writes_logits(self, dtype: str) -> bool:
        """True if the CPU writes all logits before it searches the largest one."""
        with self.head:
            return footprint.chosen(argmax_ladder, self.search(dtype)).name == "cpu.logits"

    def row_bytes(self, dtype: str, device: str = "cpu") -> int:
        """Bytes of a row of a pass: x, its norm, queries, keys and values, attention's result, the layer between.

        On a GPU the hidden states besides, and in float32 the limbs of the widest operand; on the CPU sums in float32.
        """
        n = self.network
        C, W, tokens = n.width, n.inner, 4 * n.embedding if n.projects else 0
        if device == "cpu":
            itemsize = 2 if dtype == "bfloat16" else 4
            return (12 + 4 * itemsize) * C + itemsize * W + tokens
        itemsize = footprint.element_bytes(dtype)
        return 4 * C + itemsize * (6 * C + W) + tokens + footprint.limbs(max(W, C), dtype)

    def flops(self, prompts: Prompts, tokens: int, *, cached: bool = True) -> float:
        """Operations of prompts that get `tokens` new ones each: every position through every layer, the output matrix
        for the new tokens alone. Where nothing is cached, each new token takes all positions before it again."""
        net, n = self.network, prompts.count
        C, E = net.width, net.embedding
        if not cached:
            each = [Prompts(n, prompts.tokens + n * done, prompts.longest) for done in range(tokens)]
            return sum(self.flops(longer, 1) for longer in each)
        positions = prompts.tokens + n * (tokens - 1)
        keys = positions * (positions / max(1, n) + 1) / 2  # that queries attend to, were all prompts of one length
        layers = net.layers * (positions * (8 * C * C + 4 * C * net.inner) + 4 * C * keys)
        projections = 4 * C * E * positions if net.projects else 0
        return float(layers + projections + 2 * net.vocabulary * E * n * tokens)


class Layer:
    """The weights of a layer, prepared. number: of its first call of matmul."""

    def __init__(self, found: LayerWeights, number: int, width: int, dtype: str, backend: Backend):
        def matrix(pair: Pair, number: int) -> tuple[Packed, Array | None]:
            weight, bias = pair
            assert weight is not None
            with layer_of(matmul=number):
                packed = prepare(backend.array(weight), dtype=dtype)
            return packed, None if bias is None else backend.vector(bias)

        self.norm_1, self.norm_2 = (norm_of(pair, width, backend) for pair in (found.norm_1, found.norm_2))
        self.attn, self.attn_out = matrix(found.attn, number), matrix(found.attn_out, number + 1)
        self.mlp, self.mlp_out = matrix(found.mlp, number + 2), matrix(found.mlp_out, number + 3)


def norm_of(pair: Pair, width: int, backend: Backend) -> tuple[Array, Array]:
    """Weight and bias (width,) of a norm; 1 and 0 where it has none."""
    weight, bias = pair
    one, zero = np.ones(width, np.float32), np.zeros(width, np.float32)
    return backend.vector(one if weight is None else weight), backend.vector(zero if bias is None else bias)


class DecoderModel(LanguageModel):
    """A decoder ready to run on this machine's CPU or GPU.

    weights: float32 or bfloat16 arrays by the names of `config.tensor_shapes()`; they may be memory-mapped and
    read-only. dtype: accuracy class of the products, "float32" or "bfloat16", on a GPU "float16" too; keys and values
    are cached in it. device: "cpu" or "cuda", where the weights are copied once. without: optimisations that are
    switched off: "kv-cache", "prefix-sharing", on a GPU "pinned", "overlap" and "graphs" too; none changes bits.
    Raises InputError if a tensor is missing, too many or of another shape, UsageError for another device, dtype or
    switch.
    """

    def __init__(
        self,
        config: DecoderConfig,
        weights: Weights,
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
        check_layers(config.title, config.calls)
        super().__init__(config.sizes, config.stop_ids, dtype=dtype, device=device, without=without)
        self.config, self.network, self.first = config, config.network, config.first
        self.activation = ACTIVATIONS[self.network.activation]
        backend, ends, C = self.backend, config.ends(weights), self.network.width
        self.wte = backend.array(ends.tokens)
        self.wpe = None if ends.positions is None else backend.vector(ends.positions)
        self.project_in = self._projection(ends.project_in, 1)
        self.layers = [
            Layer(config.layer(weights, i), self.first + 4 * i, C, dtype, backend) for i in range(self.network.layers)
        ]
        self.norm = None if ends.norm is None else norm_of(ends.norm, C, backend)
        self.project_out = self._projection(ends.project_out, config.calls["matmul"] - 1)
        output = (self.wte if ends.head is None else backend.array(ends.head)).T
        with config.head:
            self.head = prepare(output, dtype=dtype)
            self.best_head = prepare_argmax(output, dtype=dtype, weights=self.head)

    def _projection(self, weight: np.ndarray | None, number: int) -> Packed | None:
        with layer_of(matmul=number):
            return None if weight is None else prepare(self.backend.array(weight), dtype=self.dtype)

    def __repr__(self) -> str:
        n = self.network
        return (
            f"<{type(self).__name__}: {n.layers} layers of width {n.width:,}, {n.heads} heads, "
            f"{n.vocabulary:,} tokens, {n.context:,} positions; {self.dtype} on {self.backend.name}>"
        )

    def forward(self, batch: Batch, work: Workspace) -> Array:
        """Hidden states (n, E) of the last row of each of n sequences, as the output matrix reads them; float32 on a
        CPU."""
        x = self._embedded(batch, work)
        for i in range(len(self.layers)):
            x = self._layer(i, x, batch, work)
        if self.norm is not None:
            out = x if self.project_out else batch.output(work, *x.shape)
            with layer_of(layernorm=2 * len(self.layers) + 1):
                x = self._normed(x, self.norm, out)
        if self.project_out is None:
            return x
        with layer_of(matmul=self.config.calls["matmul"] - 1):
            return matmul(x, self.project_out, out=batch.output(work, len(x), self.network.embedding))

    def _embedded(self, batch: Batch, work: Workspace) -> Array:
        """x (R, C) before the first layer."""
        R, n = len(batch.ids), self.network
        out = work.take("x", R, n.width)
        if self.project_in is None:
            with layer_of(embedding=1):
                return embedding(batch.ids, self.wte, positions=None if self.wpe is None else batch.positions,
                                 position_table=self.wpe, out=out)  # fmt: skip
        with layer_of(embedding=1):
            tokens = embedding(batch.ids, self.wte, out=work.take("tokens", R, n.embedding))
        with layer_of(embedding=2, matmul=1):
            assert self.wpe is not None, "project_in is OPT's, which has learned positions"
            x = embedding(batch.positions, self.wpe, out=out)
            return matmul(tokens, self.project_in, residual=x, out=x)

    def _layer(self, i: int, x: Array, batch: Batch, work: Workspace) -> Array:
        """x (R, C) after layer i; after the last layer, only the last row of each sequence."""
        layer, dtype, (R, C), number = self.layers[i], self.dtype, x.shape, self.first + 4 * i
        after, h = self.network.norms_after, x
        with layer_of(layernorm=2 * i + 1, matmul=number):
            if not after:
                h = self._normed(x, layer.norm_1, work.take("h", R, C, dtype))
            qkv = matmul(h, layer.attn[0], bias=layer.attn[1], out=work.take("qkv", R, 3 * C, dtype))
        q, k, v = qkv[:, :C], qkv[:, C : 2 * C], qkv[:, 2 * C :]
        with layer_of(attention=i + 1):
            x, y = batch.attend(i, x, q, k, v, self.config.scale(i), work)
        with layer_of(matmul=number + 1, layernorm=2 * i + 1 + (not after)):
            matmul(y, layer.attn_out[0], bias=layer.attn_out[1], residual=x, out=x)
            if after:
                h = self._normed(x, layer.norm_1, x)
            else:
                h = self._normed(x, layer.norm_2, work.take("h", len(x), C, dtype))
        u = work.take("u", len(x), self.network.inner, dtype)
        with layer_of(matmul=number + 2):
            matmul(h, layer.mlp[0], bias=layer.mlp[1], activation=self.activation, out=u)
        with layer_of(matmul=number + 3, layernorm=2 * i + 2):
            x = matmul(u, layer.mlp_out[0], bias=layer.mlp_out[1], residual=x, out=x)
            if not after:
                return x
            last = i == len(self.layers) - 1 and self.project_out is None
            return self._normed(x, layer.norm_2, batch.output(work, *x.shape) if last else x)

    def _normed(self, x: Array, norm: tuple[Array, Array], out: Array | None) -> Array:
        return layernorm(x, *norm, eps=self.network.eps, out=out)

    def logits(self, hidden: Array, out: Array | None = None) -> Array:
        """float32 (n, V), of `hidden` (n, E)."""
        with self.config.head:
            return matmul(hidden, self.head, out=out)

    def best(self, hidden: Array, out: tuple[Array, Array] | None = None) -> tuple[Array, Array]:
        """(token int64 (n,), logit float32 (n,)) of the largest logit of each row; of equal ones the lowest id."""
        with self.config.head:
            return matmul_argmax(hidden, self.best_head, out=out)
