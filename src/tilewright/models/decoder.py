"""Decoders: text generation by a stack of causal transformer layers. This is what GPT-2, OPT and GPT-NeoX have in
common.

x = tokens[id] (+ positions[position])
    a layer:  x += proj(attention(LN1(x)));  x += out(act(in(LN2(x))))
    in parallel:  x += proj(attention(LN1(x))) + out(act(in(LN2(x))))
    logits = LN(x) @ head

A `Network` describes how a family differs from this. The rows of a batch are positions of sequences of any lengths,
without padding. The batch knows which rows belong to which sequence, so the same code computes prompts and single new
positions.
"""

import numpy as np

from tilewright.backends.protocol import Array, Backend, Workspace
from tilewright.errors import InputError
from tilewright.generation.decoder import Batch
from tilewright.generation.language_model import LanguageModel
from tilewright.models.activations import ACTIVATIONS
from tilewright.models.decoder_config import DecoderConfig, LayerWeights, Pair, Weights
from tilewright.ops.core.ladder import check_layers
from tilewright.ops.core.layers import layer as layer_of
from tilewright.ops.embedding import embedding
from tilewright.ops.layernorm import layernorm
from tilewright.ops.matmul import Packed, matmul, matmul_peaks, prepare
from tilewright.ops.matmul_argmax import matmul_argmax
from tilewright.ops.matmul_argmax import prepare as prepare_argmax
from tilewright.ops.rope import inverse_frequencies, rope
from tilewright.ops.rope import prepare as prepare_rotation
from tilewright.switches import Without


class Layer:
    """The prepared weights of a layer. number: the number of its first call of matmul."""

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
    """Weight and bias (width,) of a norm; ones and zeros if it has none."""
    weight, bias = pair
    one, zero = np.ones(width, np.float32), np.zeros(width, np.float32)
    return backend.vector(one if weight is None else weight), backend.vector(zero if bias is None else bias)


class DecoderModel(LanguageModel):
    """A decoder ready to run on this machine's CPU or GPU.

    weights: float32 or bfloat16 arrays by the names of `config.tensor_shapes()`; they may be memory-mapped and
    read-only. dtype: accuracy class of the products, "float32" or "bfloat16", on a GPU "float16" too; keys and values
    are cached in it. device: "cpu" or "cuda", where the weights are copied once. without: optimisations that are
    switched off: "kv-cache", "prefix-sharing", on a GPU "pinned", "overlap" and "graphs" too. On a GPU
    "kv-cache" may change the last bits; the others change none.
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
        self.rotation = None
        if self.network.rotary:
            frequencies = inverse_frequencies(self.network.rotary, self.network.theta)
            like = None if backend.name == "cpu" else self.wte
            self.rotation = prepare_rotation(frequencies, length=self.network.context, like=like)
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
        """Hidden states (n, E) of the last row of each of n sequences, in the form that the output matrix takes;
        float32 on a CPU."""
        x = self._embedded(batch, work)
        return batch.run(x, lambda: self._hidden(x, batch, work))

    def _hidden(self, x: Array, batch: Batch, work: Workspace) -> Array:
        """What `forward` returns, from x (R, C) before the first layer."""
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
        after, parallel, h = self.network.norms_after, self.network.parallel, x
        with layer_of(layernorm=2 * i + 1, matmul=number):
            if not after:
                h = self._normed(x, layer.norm_1, work.take("h", R, C, dtype))
            qkv = matmul(h, layer.attn[0], bias=layer.attn[1], out=work.take("qkv", R, 3 * C, dtype))
        if self.rotation is not None:
            with layer_of(rope=i + 1):
                both = qkv[:, : 2 * C]  # all heads of queries, then all of keys
                rope(both, batch.positions, self.rotation, heads=2 * self.network.heads, out=both)
        q, k, v = qkv[:, :C], qkv[:, C : 2 * C], qkv[:, 2 * C :]
        with layer_of(attention=i + 1):
            x, y = batch.attend(i, x, q, k, v, self.config.scale(i), work)
        with layer_of(matmul=number + 1, layernorm=2 * i + 1 + (not after)):
            if parallel:  # both parts read x before the sum
                h = self._normed(x, layer.norm_2, work.take("n", len(x), C, dtype))
            matmul(y, layer.attn_out[0], bias=layer.attn_out[1], residual=x, out=x)
            if after:
                h = self._normed(x, layer.norm_1, x)
            elif not parallel:
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
        """The logits float32 (n, V) of `hidden` (n, E)."""
        with self.config.head:
            return matmul(hidden, self.head, out=out)

    def logits_and_peaks(self, hidden: Array, out: Array, peaks: Array) -> tuple[Array, Array | None]:
        """See `Decoder`."""
        with self.config.head:
            return out, matmul_peaks(hidden, self.head, out=out, peaks=peaks)

    def best(self, hidden: Array, out: tuple[Array, Array] | None = None) -> tuple[Array, Array]:
        """(token int64 (n,), logit float32 (n,)) of the largest logit of each row, or the lowest id of several equal
        ones."""
        with self.config.head:
            return matmul_argmax(hidden, self.best_head, out=out)
