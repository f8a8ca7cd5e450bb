"""A decoder's configuration: the network, the names of its weights in a checkpoint, and its cost."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import msgspec
import numpy as np

from tilewright.backends import footprint
from tilewright.generation.decoder import Sizes
from tilewright.generation.memory import Prompts
from tilewright.models.activations import ACTIVATIONS
from tilewright.ops.core.ladder import Memory
from tilewright.ops.core.layers import layer as layer_of
from tilewright.ops.matmul import Problem as Product
from tilewright.ops.matmul import ladder as matmul_ladder
from tilewright.ops.matmul_argmax import Problem as Search
from tilewright.ops.matmul_argmax import ladder as argmax_ladder

MAX_SIZE = 2**31
MAX_LAYERS = 4096  # a limit, because names of tensors are made from it before a file is read
Weights = Mapping[str, np.ndarray]
Pair = tuple[np.ndarray | None, np.ndarray | None]  # a weight and its bias; None if the network has none


class Network(NamedTuple):
    """What a configuration says about the network, with the same names for all families.

    width, inner: elements of a row between the layers, and inside the feed-forward part. activation: Hugging Face's
    name of the function there. eps: of the norms. embedding: elements of a token's row. If it differs from `width`, one
    matrix leads from it to `width`, and a second one back before the output matrix. norms_after: each norm follows its
    sum (OPT-350m). affine: norms have weights. joins: queries, keys and values are three matrices in the checkpoint, or
    interleaved ones. parallel: both parts of a layer read the same x. rotary, theta: how many elements of each head are
    rotated by their position, and the base of the frequencies; see `ops.rope`.
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
    parallel: bool = False
    rotary: int = 0
    theta: float = 0.0

    @property
    def pairs(self) -> int:
        """Pairs of elements of each head that are rotated."""
        return -(-self.rotary // 2)

    @property
    def projects(self) -> bool:
        """True if matrices lead from a token's row to the layers and back."""
        return self.embedding != self.width


class LayerWeights(NamedTuple):
    """A layer of a checkpoint. Matrices are (inputs, outputs). Those of queries, keys and values are side by side, and
    in each of them so are the heads."""

    norm_1: Pair
    attn: Pair
    attn_out: Pair
    norm_2: Pair
    mlp: Pair
    mlp_out: Pair


class EndWeights(NamedTuple):
    """The weights before and after the layers. tokens: (V, E). positions: (context, C). head: (V, E); None: the same as
    tokens. project_in: (E, C). project_out: (C, E). norm: None if there is no norm after the last layer."""

    tokens: np.ndarray
    positions: np.ndarray | None
    norm: Pair | None
    head: np.ndarray | None = None
    project_in: np.ndarray | None = None
    project_out: np.ndarray | None = None


class DecoderConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A decoder's configuration. Each family has its own fields, by Hugging Face's names. Fields that have no effect on
    the result are ignored. Raises ValueError for sizes that do not make a network, and for variants that are not
    supported."""

    title: ClassVar[str] = "decoder"  # the family's name in messages
    aliases: ClassVar[Mapping[str, str]] = {}  # transformers' attribute_map: another name of a field -> its name

    model_type: str
    vocab_size: int
    if TYPE_CHECKING:  # every family has these fields, each at its own place in the class
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
        """The model's name of a checkpoint's tensor; None for one that holds no weights of its own."""
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
        """The largest number of positions of a prompt and its completion together."""
        return self.network.context

    @property
    def sizes(self) -> Sizes:
        """The sizes that the engine needs to know."""
        n = self.network
        return Sizes(n.context, n.vocabulary, n.embedding, n.layers, n.heads, n.width // n.heads)

    def check(self, kind: str, context: str, layers: str, *sizes: str) -> None:
        """Raises ValueError for another kind, and for a size that does not make a network. context, layers, sizes:
        names of fields."""
        if self.model_type != kind:
            raise ValueError(f"model_type is {self.model_type!r:.100}; {kind!r} is wanted")
        for name in ("vocab_size", context, layers, *sizes):
            least = 2 if name == context else 1  # room for a prompt and a new token
            most, size = MAX_LAYERS if name == layers else MAX_SIZE, getattr(self, name)
            if size is not None and not least <= size <= most:
                raise ValueError(f"{name} is {size}; at least {least} and at most {most} is wanted")

    def check_heads(self, width: str, heads: str) -> None:
        """Raises ValueError if the width is not a multiple of the heads. width, heads: names of the fields."""
        C, H = getattr(self, width), getattr(self, heads)
        if C % H:
            raise ValueError(f"{width} is {C} and {heads} {H}: {width} must be a multiple of {heads}")

    def check_activation(self, name: str) -> None:
        """Raises ValueError for an activation that is not supported. name: of the field."""
        if getattr(self, name) not in ACTIVATIONS:
            raise ValueError(f"{name} is {getattr(self, name)!r:.100}; {', '.join(ACTIVATIONS)} are known")

    def check_eps(self, name: str) -> None:
        """Raises ValueError unless the field `name`, which is added to variances, is small and positive."""
        if not 0 < getattr(self, name) < 1:
            raise ValueError(f"{name} is {getattr(self, name)}; it must be between 0 and 1")

    def memory(self, dtype: str, device: str = "cpu") -> Memory:
        """Bytes of the weights on a device, without the embedding's table, which the CPU maps from its file."""
        n, first = self.network, self.first
        vectors = sum(shape[0] for shape in self.tensor_shapes().values() if len(shape) == 1)
        tables = (n.context * n.width if n.positions else 0) + n.pairs * (2 * n.context + 1)
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
            if n.joins:  # the joined matrix is a copy until it is prepared
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
        """How often a forward pass calls each operation. So a rung can be forced for one layer."""
        n = self.network
        norms, products = 2 * n.layers + (not n.norms_after), 4 * n.layers + 1 + 2 * n.projects
        rotations = {"rope": n.layers} if n.rotary else {}
        return {
            "embedding": 1 + n.projects, "layernorm": norms, "attention": n.layers, "matmul": products, **rotations,
        }  # fmt: skip

    @property
    def head(self) -> layer_of:
        """The output matrix counts as the last layer of matmul, even if matmul_argmax searches its products."""
        return layer_of(matmul=self.calls["matmul"])

    def search(self, dtype: str, device: str = "cpu") -> Search:
        """The problem of `matmul_argmax`: to find the largest logit."""
        V, E = self.network.vocabulary, self.network.embedding
        with self.head:
            layout = footprint.chosen(matmul_ladder, Product(V, E, dtype, device)).name
        return Search(V, E, dtype, layout, device)

    def searched_by(self, dtype: str) -> str:
        """The rung of `matmul_argmax` on the CPU."""
        with self.head:
            return footprint.chosen(argmax_ladder, self.search(dtype)).name

    def rows_bytes(self, dtype: str) -> int:
        """Bytes of the float32 rows that the CPU reads beside the prepared weights: the embedding. A separate output
        matrix counts, too, if "cpu.screened" searches it."""
        n = self.network
        own = not self.tie_word_embeddings and self.searched_by(dtype) == "cpu.screened"
        return 4 * n.vocabulary * n.embedding * (2 if own else 1)

    def unread_bytes(self, dtype: str, *, drawn: bool) -> int:
        """Bytes of the prepared output matrix that no step on the CPU reads. "cpu.screened" keeps it twice: in 8 bits
        for greedy tokens, and as matmul reads it where tokens are `drawn` from logits."""
        n = self.network
        if self.searched_by(dtype) != "cpu.screened":
            return 0
        with self.head:
            if drawn:
                return footprint.weights(argmax_ladder, self.search(dtype)).prepared
            return footprint.matrix(n.embedding, n.vocabulary, dtype).prepared

    def row_bytes(self, dtype: str, device: str = "cpu") -> int:
        """Bytes of a row of a pass: x, its norm, queries, keys and values, attention's result, the layer in the middle.

        On a GPU also the hidden states and `operand_bytes`. On the CPU sums are float32.
        """
        n = self.network
        C, W, tokens = n.width, n.inner, 4 * n.embedding if n.projects else 0
        if device == "cpu":
            itemsize = 2 if dtype == "bfloat16" else 4
            return (12 + (4 + n.parallel) * itemsize) * C + itemsize * W + tokens
        itemsize = footprint.element_bytes(dtype)
        return 4 * C + itemsize * ((6 + n.parallel) * C + W) + tokens + self.operand_bytes(dtype)

    def operand_bytes(self, dtype: str) -> int:
        """Bytes per row that a GPU needs, beside the buffers of a pass, to split operands into limbs; 0 in 16 bits."""
        widths = [self.network.width, self.network.inner]  # operands in the order of a layer's products
        return footprint.cached(footprint.limbs(width, dtype) for width in widths)

    def flops(self, prompts: Prompts, tokens: int, *, cached: bool = True) -> float:
        """Operations for prompts that get `tokens` new ones each: every position passes through every layer, and only
        the new tokens through the output matrix. If nothing is cached, each new token computes all positions before it
        again."""
        net, n = self.network, prompts.count
        C, E = net.width, net.embedding
        if not cached:
            each = [Prompts(n, prompts.tokens + n * done, prompts.longest) for done in range(tokens)]
            return sum(self.flops(longer, 1) for longer in each)
        positions = prompts.tokens + n * (tokens - 1)
        keys = positions * (positions / max(1, n) + 1) / 2  # for prompts of equal length
        layers = net.layers * (positions * (8 * C * C + 4 * C * net.inner) + 4 * C * keys)
        projections = 4 * C * E * positions if net.projects else 0
        return float(layers + projections + 2 * net.vocabulary * E * n * tokens)
