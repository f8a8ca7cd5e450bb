"""BERT, RoBERTa and DistilBERT: text classification by a stack of transformer layers in which every token attends to
every other token of its text.

    x = LN(word[id] + position[i] + type[t])
    a layer:  x = LN(x + proj(attention(x)));  x = LN(x + out(gelu(in(x))))
    logits = classifier(tanh(dense(x of the first token)))            # ReLU in DistilBERT

Texts of a batch have different lengths, and no padding is computed: the rows of a batch are the tokens of all its texts.
The bits of a text's logits depend on that text alone. Sources: Devlin et al., "BERT", 2018; Liu et al., "RoBERTa",
2019; Sanh et al., "DistilBERT", 2019.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from tilewright.backends import Backend, backend, footprint
from tilewright.backends.protocol import Array, Workspace
from tilewright.errors import InputError, UsageError
from tilewright.formats.tokenizer import Tokenizer
from tilewright.models.activations import ACTIVATIONS
from tilewright.ops.attention import Cache, Spans, append, attend, checked_spans
from tilewright.ops.core.arrays import as_numpy
from tilewright.ops.core.ladder import Memory
from tilewright.ops.embedding import checked_ids, embedding
from tilewright.ops.layernorm import layernorm
from tilewright.ops.matmul import Packed, matmul, prepare

MODEL_TYPES = ("bert", "roberta", "distilbert")
MAX_SIZE = 2**31
MAX_LAYERS = 4096  # names of tensors are made from it before a file is read
MAX_LABELS = 65536
ROWS = 2048  # tokens of a pass, at least one text: all arrays between the layers of a BERT-base take 90 MiB then
HEAD = "ForSequenceClassification"  # the end of the architecture's name in config.json


class BertConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of a BERT, by Hugging Face's names. Fields that do not change what is computed are ignored. Raises
    ValueError for sizes that make no network and for variants that are not computed."""

    model_type: str = "bert"
    architectures: list[str] = msgspec.field(default_factory=list)
    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12
    pad_token_id: int = 0
    position_embedding_type: str = "absolute"
    is_decoder: bool = False
    problem_type: str | None = None
    id2label: dict[int, str] = msgspec.field(default_factory=lambda: {0: "LABEL_0", 1: "LABEL_1"})

    def __post_init__(self):
        if self.model_type not in MODEL_TYPES:
            raise ValueError(f"model_type is {self.model_type!r}; {', '.join(MODEL_TYPES)} are known")
        limits = {"num_hidden_layers": MAX_LAYERS}
        for name in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
                     "max_position_embeddings", "type_vocab_size"):  # fmt: skip
            size, most = getattr(self, name), limits.get(name, MAX_SIZE)
            if not 1 <= size <= most:
                raise ValueError(f"{name} is {size}; at least 1 and at most {most} is wanted")
        if self.hidden_size % self.num_attention_heads:
            heads = f"num_attention_heads {self.num_attention_heads}"
            raise ValueError(f"hidden_size is {self.hidden_size} and {heads}: it must be a multiple of the heads")
        if self.hidden_act not in ACTIVATIONS:
            raise ValueError(f"hidden_act is {self.hidden_act!r}; {', '.join(ACTIVATIONS)} are known")
        if not 0 < self.layer_norm_eps < 1:
            raise ValueError(f"layer_norm_eps is {self.layer_norm_eps}; it must be between 0 and 1")
        if self.position_embedding_type != "absolute":
            raise ValueError(f"position_embedding_type is {self.position_embedding_type!r}; 'absolute' is computed")
        if self.is_decoder:
            raise ValueError("is_decoder is true; only encoders are computed here")
        if self.context < 1:
            raise ValueError(f"max_position_embeddings is {self.max_position_embeddings}, and pad_token_id "
                             f"{self.pad_token_id}: no position is left")  # fmt: skip
        if not 1 <= len(self.id2label) <= MAX_LABELS or set(self.id2label) != set(range(len(self.id2label))):
            raise ValueError("id2label must name the labels 0, 1, ... without a gap")

    @property
    def first_position(self) -> int:
        """Row of the position table that the first token of a text uses."""
        return 0

    @property
    def context(self) -> int:
        """Tokens of a text at most, special tokens included."""
        return self.max_position_embeddings - self.first_position

    @property
    def head_activation(self) -> str:
        """The function between the two layers of the classification head."""
        return "tanh"

    @property
    def is_classifier(self) -> bool:
        """True if the checkpoint has a classification head."""
        return any(name.endswith(HEAD) for name in self.architectures)

    @property
    def num_labels(self) -> int:
        return len(self.id2label)

    def label(self, i: int) -> str:
        """The name of class i."""
        return self.id2label[i]

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every weight; the names are BERT's, for all families. See `own_name`."""
        C, W = self.hidden_size, self.intermediate_size
        shapes: dict[str, tuple[int, ...]] = {
            "embeddings.word_embeddings.weight": (self.vocab_size, C),
            "embeddings.position_embeddings.weight": (self.max_position_embeddings, C),
        }
        if self.model_type != "distilbert":
            shapes["embeddings.token_type_embeddings.weight"] = (self.type_vocab_size, C)
        shapes |= {"embeddings.LayerNorm.weight": (C,), "embeddings.LayerNorm.bias": (C,)}
        linears = {"attention.self.query": (C, C), "attention.self.key": (C, C), "attention.self.value": (C, C),
                   "attention.output.dense": (C, C), "intermediate.dense": (W, C), "output.dense": (C, W)}  # fmt: skip
        for i in range(self.num_hidden_layers):
            layer = f"encoder.layer.{i}"
            for name, (outputs, inputs) in linears.items():
                shapes |= {f"{layer}.{name}.weight": (outputs, inputs), f"{layer}.{name}.bias": (outputs,)}
            for name in ("attention.output.LayerNorm", "output.LayerNorm"):
                shapes |= {f"{layer}.{name}.weight": (C,), f"{layer}.{name}.bias": (C,)}
        if self.is_classifier:
            shapes |= {"head.dense.weight": (C, C), "head.dense.bias": (C,)}
            shapes |= {"head.out.weight": (self.num_labels, C), "head.out.bias": (self.num_labels,)}
        return shapes

    def own_name(self, name: str) -> str | None:
        """The name here of a checkpoint's tensor; None for a tensor that this model does not use."""
        name = name.removeprefix(f"{self.model_type}.")
        for theirs, ours in OLD_NAMES:
            name = name.replace(theirs, ours)
        name = self._head_name(name)
        used = ("head.",) if self.is_classifier else ()
        return name if name.startswith(("embeddings.", "encoder.", *used)) and name not in BUFFERS else None

    def _head_name(self, name: str) -> str:
        return name.replace("pooler.dense.", "head.dense.").replace("classifier.", "head.out.")

    def memory(self, dtype: str, device: str = "cpu") -> Memory:
        """Bytes of the weights on a device, without the table of words, which the CPU maps."""
        C, W, L = self.hidden_size, self.intermediate_size, self.num_labels
        tables = self.max_position_embeddings * self.type_vocab_size * C + 2 * C
        vectors = self.num_hidden_layers * (3 * C + C + W + C + 4 * C)
        layer = [footprint.matrix(*sizes, dtype, device) for sizes in ((C, 3 * C), (C, C), (C, W), (W, C))]
        head = [footprint.matrix(C, C, dtype, device), footprint.matrix(C, L, dtype, device)]
        return footprint.total([Memory(4 * (tables + vectors)), *self.num_hidden_layers * layer,
                                *(head if self.is_classifier else ())])  # fmt: skip

    def row_bytes(self, dtype: str) -> int:
        """Bytes of one token in a pass: x, queries, keys and values, attention's result, the layer between, and the
        key and value that the attention reads."""
        itemsize = 2 if dtype == "bfloat16" else 4
        return 4 * self.hidden_size + itemsize * (6 * self.hidden_size + self.intermediate_size)

    def flops(self, tokens: int) -> int:
        """Operations of a text of so many tokens."""
        C, W = self.hidden_size, self.intermediate_size
        return self.num_hidden_layers * tokens * (8 * C * C + 4 * C * W + 4 * C * tokens) + 2 * C * C


class RobertaConfig(BertConfig, frozen=True, kw_only=True):
    """Sizes of a RoBERTa. Positions start after that of the padding token."""

    model_type: str = "roberta"
    vocab_size: int = 50265
    max_position_embeddings: int = 514
    type_vocab_size: int = 1
    layer_norm_eps: float = 1e-5
    pad_token_id: int = 1

    @property
    def first_position(self) -> int:
        return self.pad_token_id + 1

    def _head_name(self, name: str) -> str:
        name = name.replace("classifier.dense.", "head.dense.")
        return name.replace("classifier.out_proj.", "head.out.")


class DistilBertConfig(BertConfig, frozen=True, kw_only=True):
    """Sizes of a DistilBERT, by its own names of the fields."""

    model_type: str = "distilbert"
    hidden_size: int = msgspec.field(default=768, name="dim")
    num_hidden_layers: int = msgspec.field(default=6, name="n_layers")
    num_attention_heads: int = msgspec.field(default=12, name="n_heads")
    intermediate_size: int = msgspec.field(default=3072, name="hidden_dim")
    hidden_act: str = msgspec.field(default="gelu", name="activation")
    type_vocab_size: int = 1  # it has no table of types

    @property
    def head_activation(self) -> str:
        return "relu"

    def _head_name(self, name: str) -> str:
        name = name.replace("pre_classifier.", "head.dense.").replace("classifier.", "head.out.")
        for theirs, ours in DISTILBERT_NAMES:
            name = name.replace(theirs, ours)
        return name


CONFIGS = {"bert": BertConfig, "roberta": RobertaConfig, "distilbert": DistilBertConfig}
OLD_NAMES = ((".gamma", ".weight"), (".beta", ".bias"))  # of layer norms in checkpoints converted from TensorFlow
BUFFERS = ("embeddings.position_ids", "embeddings.token_type_ids")  # of old checkpoints; they hold no weights
DISTILBERT_NAMES = (
    ("transformer.layer.", "encoder.layer."),
    (".attention.q_lin.", ".attention.self.query."),
    (".attention.k_lin.", ".attention.self.key."),
    (".attention.v_lin.", ".attention.self.value."),
    (".attention.out_lin.", ".attention.output.dense."),
    (".sa_layer_norm.", ".attention.output.LayerNorm."),
    (".ffn.lin1.", ".intermediate.dense."),
    (".ffn.lin2.", ".output.dense."),
    (".output_layer_norm.", ".output.LayerNorm."),
)


class Linear(NamedTuple):
    """A prepared matrix (inputs, outputs) and its bias."""

    weight: Packed
    bias: Array


class Norm(NamedTuple):
    """Weight and bias of a layer norm."""

    weight: Array
    bias: Array


class Layer(NamedTuple):
    """The weights of a layer, prepared. qkv: queries, keys and values by one product."""

    qkv: Linear
    attention_out: Linear
    attention_norm: Norm
    mlp: Linear
    mlp_out: Linear
    mlp_norm: Norm


class Pass(NamedTuple):
    """Some texts, computed at once. ids: int64 (R,), the tokens of all of them. places: int64 (R,), the row of the
    table of positions and types for each token. cache: for the keys and values of one layer at a time."""

    ids: np.ndarray
    places: np.ndarray
    cache: Cache
    spans: Spans  # of all rows
    starts: np.ndarray  # row of the first token of each text
    first_spans: Spans  # of these rows alone


class Bert:
    """A BERT, RoBERTa or DistilBERT ready to run on this machine's CPU.

    weights: float32 or bfloat16 arrays by the names of `config.tensor_shapes()`; they may be memory-mapped and
    read-only. dtype: accuracy class of the products, "float32" or "bfloat16". Raises InputError if a tensor is
    missing, too many or of another shape, UsageError for another device or dtype.
    """

    def __init__(
        self,
        config: BertConfig,
        weights: Mapping[str, np.ndarray],
        *,
        dtype: str = "float32",
        device: str | Backend = "cpu",
    ):
        if device != "cpu":
            raise UsageError(f"device is {device!r}; a {config.model_type} runs on the CPU", remedy="use device cpu")
        shapes = config.tensor_shapes()
        for name in shapes.keys() | weights.keys():
            found = weights[name].shape if name in weights else None
            if found != shapes.get(name):
                wanted = shapes.get(name, "no such tensor")
                raise InputError(f"tensor {name} is {found or 'missing'}; the configuration requires {wanted}")
        self.config, self.dtype, self.backend = config, dtype, backend(device, dtype)
        self.tokenizer: Tokenizer | None = None
        self.activation = ACTIVATIONS[config.hidden_act]
        self.words = self.backend.array(weights["embeddings.word_embeddings.weight"])
        self.places = self.backend.vector(table_of_places(config, weights))
        self.norm = self._norm(weights, "embeddings.LayerNorm")
        self.layers = [self._prepared(weights, f"encoder.layer.{i}") for i in range(config.num_hidden_layers)]
        if config.is_classifier:
            self.dense, self.classifier = (self._linear(weights, f"head.{name}") for name in ("dense", "out"))

    def _prepared(self, weights: Mapping[str, np.ndarray], name: str) -> Layer:
        return Layer(
            self._linear(weights, *(f"{name}.attention.self.{part}" for part in ("query", "key", "value"))),
            self._linear(weights, f"{name}.attention.output.dense"),
            self._norm(weights, f"{name}.attention.output.LayerNorm"),
            self._linear(weights, f"{name}.intermediate.dense"),
            self._linear(weights, f"{name}.output.dense"),
            self._norm(weights, f"{name}.output.LayerNorm"),
        )

    def _linear(self, weights: Mapping[str, np.ndarray], *names: str) -> Linear:
        """One matrix of the outputs of all the named layers, side by side."""
        weight = [weights[f"{name}.weight"] for name in names]  # (outputs, inputs)
        joined = weight[0] if len(weight) == 1 else np.concatenate(weight)
        bias = np.concatenate([weights[f"{name}.bias"] for name in names])
        return Linear(prepare(self.backend.array(joined).T, dtype=self.dtype), self.backend.vector(bias))

    def _norm(self, weights: Mapping[str, np.ndarray], name: str) -> Norm:
        return Norm(self.backend.vector(weights[f"{name}.weight"]), self.backend.vector(weights[f"{name}.bias"]))

    def __repr__(self) -> str:
        config = self.config
        return (
            f"<{config.model_type}: {config.num_hidden_layers} layers of width {config.hidden_size:,}, "
            f"{config.num_attention_heads} heads, {config.vocab_size:,} tokens, texts of up to {config.context:,}; "
            f"{self.dtype} on {self.backend.name}>"
        )

    def logits(self, texts: Sequence[ArrayLike]) -> np.ndarray:
        """Token ids of n texts, int (tokens,) each -> float32 (n, num_labels).

        The special tokens must be there already. The bits of a text's logits depend on that text alone. Raises
        UsageError for a model without a classification head, for a text of no tokens or of more than the model's
        context, and for an id outside the vocabulary.
        """
        if not self.config.is_classifier:
            what = f"this {self.config.model_type} has no classification head: architectures is "
            raise UsageError(f"{what}{self.config.architectures}; {HEAD} is wanted")
        result = np.empty((len(texts), self.config.num_labels), np.float32)
        checked = [self._checked(i, ids) for i, ids in enumerate(texts)]
        work = self.backend.workspace()
        for chosen in passes([len(ids) for ids in checked]):
            first = self._first_rows(self._pass([checked[i] for i in chosen]), work)
            h = matmul(first, self.dense.weight, bias=self.dense.bias, activation=self.config.head_activation)
            result[chosen] = matmul(h, self.classifier.weight, bias=self.classifier.bias)
        return result

    def _checked(self, i: int, text: ArrayLike) -> np.ndarray:
        ids, most = as_numpy("ids", text), self.config.context
        if ids.ndim != 1 or not 1 <= len(ids) <= most:
            raise UsageError(f"text {i} has ids of shape {ids.shape}; 1 to {most} token ids are wanted")
        return checked_ids(ids, self.config.vocab_size, f"ids of text {i}").astype(np.int64)

    def _pass(self, texts: Sequence[np.ndarray]) -> Pass:
        config, lengths = self.config, np.array([len(ids) for ids in texts])
        starts, n, R = np.cumsum(lengths) - lengths, len(texts), int(lengths.sum())
        positions = np.arange(R) - np.repeat(starts, lengths)
        heads, head_size = config.num_attention_heads, config.hidden_size // config.num_attention_heads
        cache = Cache.empty(n, heads, int(lengths.max()), head_size, self.dtype)
        slots, none = np.arange(n), np.full(n, -1)
        spans = np.stack([slots, np.zeros_like(slots), lengths, starts, none], axis=1)
        # as a query of the last position, the first token attends to all of its text
        first = np.stack([slots, lengths - 1, np.ones_like(slots), slots, none], axis=1)
        return Pass(np.concatenate(texts), positions + config.first_position, cache,
                    checked_spans(spans, cache, R), starts, checked_spans(first, cache, n))  # fmt: skip

    def _first_rows(self, batch: Pass, work: Workspace) -> Array:
        """Hidden states (n, C) of the first token of each text, after the last layer."""
        R, C = len(batch.ids), self.config.hidden_size
        x = embedding(batch.ids, self.words, positions=batch.places, position_table=self.places,
                      out=work.take("x", R, C))  # fmt: skip
        self._normed(x, self.norm)
        for layer in self.layers[:-1]:
            x = self._layer(layer, x, batch, work)
        return self._last_layer(self.layers[-1], x, batch, work)

    def _layer(self, layer: Layer, x: Array, batch: Pass, work: Workspace) -> Array:
        """x (R, C) after the layer, in place."""
        R, C = x.shape
        q, k, v = self._qkv(layer, x, work)
        y = attend(q, batch.cache, batch.spans, causal=False, new=(k, v), out=work.take("y", R, C, self.dtype))
        return self._after_attention(layer, x, y, work)

    def _last_layer(self, layer: Layer, x: Array, batch: Pass, work: Workspace) -> Array:
        """The first row of each text (n, C) after the layer: nothing reads the others."""
        q, k, v = self._qkv(layer, x, work)
        append(k, v, batch.cache, batch.spans)
        out = work.take("y", len(batch.starts), self.config.hidden_size, self.dtype)
        y = attend(q[batch.starts], batch.cache, batch.first_spans, out=out)
        return self._after_attention(layer, x[batch.starts], y, work)

    def _qkv(self, layer: Layer, x: Array, work: Workspace) -> tuple[Array, Array, Array]:
        R, C = x.shape
        qkv = matmul(x, layer.qkv.weight, bias=layer.qkv.bias, out=work.take("qkv", R, 3 * C, self.dtype))
        return qkv[:, :C], qkv[:, C : 2 * C], qkv[:, 2 * C :]

    def _after_attention(self, layer: Layer, x: Array, y: Array, work: Workspace) -> Array:
        matmul(y, layer.attention_out.weight, bias=layer.attention_out.bias, residual=x, out=x)
        self._normed(x, layer.attention_norm)
        u = work.take("u", len(x), self.config.intermediate_size, self.dtype)
        matmul(x, layer.mlp.weight, bias=layer.mlp.bias, activation=self.activation, out=u)
        matmul(u, layer.mlp_out.weight, bias=layer.mlp_out.bias, residual=x, out=x)
        return self._normed(x, layer.mlp_norm)

    def _normed(self, x: Array, norm: Norm) -> Array:
        return layernorm(x, norm.weight, norm.bias, eps=self.config.layer_norm_eps, out=x)


def table_of_places(config: BertConfig, weights: Mapping[str, np.ndarray]) -> np.ndarray:
    """The sum of the tables of positions and token types: float32 (types * positions, C), row type * positions + i."""
    positions = weights["embeddings.position_embeddings.weight"].astype(np.float32)
    types = weights.get("embeddings.token_type_embeddings.weight")
    if types is None:
        return positions
    return (types.astype(np.float32)[:, None] + positions).reshape(-1, config.hidden_size)


def passes(lengths: Sequence[int]) -> Iterator[np.ndarray]:
    """Indices of the texts of each pass, of at most ROWS tokens, or one text. Texts of similar length share a pass."""
    order = np.argsort(lengths, kind="stable")
    first, rows = 0, 0
    for end, i in enumerate(order):
        if rows + lengths[i] > ROWS and end > first:
            yield order[first:end]
            first, rows = end, 0
        rows += lengths[i]
    if first < len(order):
        yield order[first:]
