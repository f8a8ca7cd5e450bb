"""BERT, RoBERTa and DistilBERT: text classification and embedding by a stack of transformer layers in which every token
attends to every other token of its text.

    x = LN(word[id] + position[i] + type[t])
    a layer:  x = LN(x + proj(attention(x)));  x = LN(x + out(gelu(in(x))))
    logits = classifier(tanh(dense(x of the first token)))            # ReLU in DistilBERT
    vector = a pooling of x over the text's tokens, and what models/text_vectors.py does after it

Texts of a batch have different lengths, and no padding is computed: the rows of a batch are the tokens of all texts.
The bits of a text's logits and of its vector depend on that text alone. Sources: Devlin et al., "BERT", 2018; Liu et
al., "RoBERTa", 2019; Sanh et al., "DistilBERT", 2019.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from tilewright.backends import Backend, backend
from tilewright.backends.protocol import Array, Workspace
from tilewright.errors import InputError, UsageError, WrongType
from tilewright.formats.embedding_modules import EmbeddingModules
from tilewright.formats.sentence_encoder import NO_TOKEN, TEXTS, Content, RaggedEncoder
from tilewright.formats.tokenizer import Tokenizer
from tilewright.models.activations import ACTIVATIONS
from tilewright.models.answers import Answer, sigmoid_answer, softmax_answer
from tilewright.models.bert_config import BertConfig
from tilewright.models.text_vectors import TextVectors
from tilewright.ops.attention import Cache, Spans, append, attend, checked_spans
from tilewright.ops.core.arrays import as_numpy
from tilewright.ops.embedding import checked_ids, embedding
from tilewright.ops.layernorm import layernorm
from tilewright.ops.matmul import Packed, matmul, prepare

ROWS = 2048  # tokens of a pass, unless one text has more. The arrays between the layers of a BERT-base then take 90 MiB
CACHED = 4 * ROWS  # texts of a pass times tokens of its longest text: the size of the cache of keys and values


class Linear(NamedTuple):
    """A prepared matrix (inputs, outputs) and its bias."""

    weight: Packed
    bias: Array


class Norm(NamedTuple):
    """Weight and bias of a layer norm."""

    weight: Array
    bias: Array


class Layer(NamedTuple):
    """The prepared weights of a layer. qkv: one matrix that computes queries, keys and values."""

    qkv: Linear
    attention_out: Linear
    attention_norm: Norm
    mlp: Linear
    mlp_out: Linear
    mlp_norm: Norm


class Pass(NamedTuple):
    """Some texts that are computed together. ids: int64 (R,), the tokens of all texts. positions: int64 (R,), the row
    of each token in the table of positions. cache: holds the keys and values of one layer at a time."""

    ids: np.ndarray
    positions: np.ndarray
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
        self.vectors = TextVectors(EmbeddingModules(), config.hidden_size)  # `load` replaces this default
        self.activation = ACTIVATIONS[config.hidden_act]
        self.words = self.backend.array(weights["embeddings.word_embeddings.weight"])
        self.positions = self.backend.vector(position_table(weights, config.token_types))
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
        """One matrix that computes the outputs of all the named layers, side by side."""
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

    def classify(self, texts: Iterable[str | tuple[str, str] | Sequence[int] | np.ndarray]) -> list[Answer]:
        """Texts -> [{"label", "score", "logits"}].

        texts: strings or pairs of strings, if the model has a tokenizer, or sequences of token ids with their special
        tokens. If a string has more tokens than the model takes, it is cut; of a pair, the longer string is cut. score:
        softmax, or sigmoid if the configuration says that labels do not exclude each other. Raises UsageError with the
        index, from 0, of a text that cannot be classified.
        """
        rows, seconds = self._rows(texts, self.config.encoder(self.tokenizer))
        return [self.answer(row) for row in self.logits(rows, seconds)]

    def embed(
        self,
        texts: Iterable[str | Sequence[int] | np.ndarray],
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        dimensions: int | None = None,
    ) -> np.ndarray:
        """n texts -> their vectors, float32 (n, D).

        texts: as for `classify`; a sequence of token ids already contains its prompt and special tokens. A directory of
        sentence-transformers defines how its vectors are made. For any other model the vector is the mean over all
        tokens, and may have any length. prompt: stands before each string. prompt_name: use the model's prompt of that
        name. If neither is given: use the model's default prompt, if it has one. dimensions: keep so many elements of
        each vector, from the first. If the model scales its vectors to length 1, the shortened vector is scaled again.
        The bits of a vector depend only on its text.

        Raises UsageError for an unknown name, and with the index, from 0, of a text that cannot be embedded.
        """
        self.vectors.checked(dimensions)
        encoder = self.text_encoder(self.vectors.modules.prompt_of(prompt_name, prompt))
        skip = 0 if encoder is None or self.vectors.modules.include_prompt else encoder.prompt_tokens
        rows, _ = self._rows(texts, encoder, pairs=False)
        return self.embeddings(rows, dimensions=dimensions, skip=skip)

    def text_encoder(self, prompt: str = "") -> RaggedEncoder | None:
        """From texts to the token ids that `embeddings` takes; None without a tokenizer. prompt: stands before each
        text."""
        return self.config.encoder(self.tokenizer, prompt=prompt, longest=self.vectors.modules.longest)

    def _rows(
        self, texts: Iterable[str | Sequence[int] | np.ndarray | tuple[str, str]], encoder: RaggedEncoder | None,
        *, pairs: bool = True,
    ) -> tuple[list[ArrayLike], np.ndarray]:  # fmt: skip
        """(token ids of each text, see `logits`'s seconds). Raises UsageError with the index of a text that has
        none."""
        if isinstance(texts, str) or not np.iterable(texts):
            raise WrongType(f"texts is {texts!r:.100}; a list of texts is wanted")
        rows: list[Any] = list(texts)
        seconds = np.zeros(len(rows), np.int64)
        strings: dict[int, Content] = {}
        for i, text in enumerate(rows):
            is_pair = isinstance(text, tuple | list) and len(text) == 2 and all(isinstance(one, str) for one in text)
            if not isinstance(text, str) and not is_pair:
                continue
            if is_pair and not pairs:
                raise UsageError(
                    f"text {i} is a pair of texts; single ones are embedded", remedy="give them one by one"
                )
            if encoder is None:
                raise UsageError(f"text {i} is a string, and the model has no tokenizer.json", remedy="give token ids")
            try:
                strings[i] = encoder.checked_pair(*text) if is_pair else encoder.checked(text)
            except InputError as error:
                raise UsageError(f"text {i} {error.message}") from error
        order = list(strings)
        for first in range(0, len(order), TEXTS):
            assert encoder is not None
            some = order[first : first + TEXTS]
            found = encoder.encoded_pairs([strings[i] for i in some])
            seconds[some] = found.seconds
            for i, ids in zip(some, found.tokens, strict=True):
                rows[i] = ids
        return rows, seconds

    def answer(self, logits: np.ndarray) -> Answer:
        """One text's logits (num_labels,) as {"label", "score", "logits"}. If logits are equal, the lowest class is
        chosen."""
        return (sigmoid_answer if self.config.is_sigmoid else softmax_answer)(logits, self.config.label)

    def logits(self, texts: Sequence[ArrayLike] | np.ndarray, seconds: np.ndarray | None = None) -> np.ndarray:
        """Token ids of n texts, int (tokens,) each -> float32 (n, num_labels).

        The texts must contain their special tokens. A -1 at the end of a row is no token. seconds: int (n,), for pairs
        of texts: the index of the first token of the second text, or 0 if there is none. The bits of a text's logits
        depend only on that text. Raises UsageError for a model without a classification head, for a text without tokens
        or with more than the model's context, and for an id outside the vocabulary.
        """
        self.config.check_classifier()
        result = np.empty((len(texts), self.config.num_labels), np.float32)
        checked = [self._checked(i, ids) for i, ids in enumerate(texts)]
        work = self.backend.workspace()
        for chosen in passes([len(ids) for ids in checked]):
            batch = self._pass([checked[i] for i in chosen], None if seconds is None else seconds[chosen])
            first = self._first_rows(batch, work)
            h = matmul(first, self.dense.weight, bias=self.dense.bias, activation=self.config.head_activation)
            result[chosen] = self.backend.numpy(matmul(h, self.classifier.weight, bias=self.classifier.bias))
        return result

    def embeddings(
        self, texts: Sequence[ArrayLike] | np.ndarray, *, dimensions: int | None = None, skip: int = 0
    ) -> np.ndarray:
        """Token ids of n texts, as for `logits`, -> their vectors, float32 (n, D). dimensions: as for `embed`. skip:
        number of tokens at the start of each text, its prompt, that are not pooled."""
        vectors = self.vectors
        result = np.empty((len(texts), vectors.checked(dimensions)), np.float32)
        checked = [self._checked(i, ids) for i, ids in enumerate(texts)]
        work = self.backend.workspace()
        for chosen in passes([len(ids) for ids in checked]):
            batch = self._pass([checked[i] for i in chosen])
            if vectors.modules.poolings == ("cls",) and not skip:
                pooled = self.backend.numpy(self._first_rows(batch, work))
            else:
                pooled = vectors.pooled(self.backend.numpy(self._all_rows(batch, work)), batch.starts, skip)
            result[chosen] = vectors.finished(pooled, dimensions)
        return result

    def _checked(self, i: int, text: ArrayLike) -> np.ndarray:
        ids, most = as_numpy("ids", text), self.config.context
        if ids.ndim == 1 and len(ids) and ids[-1] == NO_TOKEN:
            ids = ids[: len(ids) - int(np.argmax(ids[::-1] != NO_TOKEN))]
        if ids.ndim != 1 or not 1 <= len(ids) <= most:
            raise UsageError(f"text {i} has ids of shape {ids.shape}; 1 to {most} token ids are wanted")
        return checked_ids(ids, self.config.vocab_size, f"ids of text {i}").astype(np.int64)

    def _pass(self, texts: Sequence[np.ndarray], seconds: np.ndarray | None = None) -> Pass:
        config, lengths = self.config, np.array([len(ids) for ids in texts])
        starts, n, R = np.cumsum(lengths) - lengths, len(texts), int(lengths.sum())
        heads, head_size = config.num_attention_heads, config.hidden_size // config.num_attention_heads
        cache = Cache.empty(n, heads, int(lengths.max()), head_size, self.dtype)
        slots, none = np.arange(n), np.full(n, -1)
        spans = np.stack([slots, np.zeros_like(slots), lengths, starts, none], axis=1)
        # as a query of the last position, the first token attends to all of its text
        first = np.stack([slots, lengths - 1, np.ones_like(slots), slots, none], axis=1)
        rows = [config.positions(ids) for ids in texts]
        if seconds is not None and config.token_types > 1:
            for row, second in zip(rows, seconds, strict=True):
                row[second or len(row) :] += config.max_position_embeddings  # to the rows of type 1
        positions = np.concatenate(rows)
        return Pass(np.concatenate(texts), positions, cache, checked_spans(spans, cache, R), starts,
                    checked_spans(first, cache, n))  # fmt: skip

    def _first_rows(self, batch: Pass, work: Workspace) -> Array:
        """Hidden states (n, C) of the first token of each text, after the last layer."""
        x = self._embedded(batch, work)
        for layer in self.layers[:-1]:
            x = self._layer(layer, x, batch, work)
        return self._last_layer(self.layers[-1], x, batch, work)

    def _all_rows(self, batch: Pass, work: Workspace) -> Array:
        """Hidden states (R, C) of all tokens, after the last layer."""
        x = self._embedded(batch, work)
        for layer in self.layers:
            x = self._layer(layer, x, batch, work)
        return x

    def _embedded(self, batch: Pass, work: Workspace) -> Array:
        """The input (R, C) of the first layer."""
        R, C = len(batch.ids), self.config.hidden_size
        x = embedding(batch.ids, self.words, positions=batch.positions, position_table=self.positions,
                      out=work.take("x", R, C))  # fmt: skip
        return self._normed(x, self.norm)

    def _layer(self, layer: Layer, x: Array, batch: Pass, work: Workspace) -> Array:
        """x (R, C) after the layer, in place."""
        R, C = x.shape
        q, k, v = self._qkv(layer, x, work)
        y = attend(q, batch.cache, batch.spans, causal=False, new=(k, v), out=work.take("y", R, C, self.dtype))
        return self._after_attention(layer, x, y, work)

    def _last_layer(self, layer: Layer, x: Array, batch: Pass, work: Workspace) -> Array:
        """The first row of each text (n, C) after the layer. Nothing reads the other rows."""
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


def position_table(weights: Mapping[str, np.ndarray], token_types: int = 1) -> np.ndarray:
    """float32 (token_types * positions, C): the table of positions plus token type 0, which all tokens of a single text
    have. With two types, the table plus token type 1 follows, which the second text of a pair has."""
    positions = weights["embeddings.position_embeddings.weight"].astype(np.float32)
    types = weights.get("embeddings.token_type_embeddings.weight")
    if types is None:
        return positions
    return np.concatenate([positions + types[i].astype(np.float32) for i in range(token_types)])


def passes(lengths: Sequence[int]) -> Iterator[np.ndarray]:
    """Indices of the texts of each pass: at most ROWS tokens and CACHED positions of keys, or one text. Texts of
    similar length share a pass."""
    order = np.argsort(lengths, kind="stable")
    first, rows = 0, 0
    for end, i in enumerate(order):
        full = rows + lengths[i] > ROWS or (end - first + 1) * lengths[i] > CACHED
        if full and end > first:
            yield order[first:end]
            first, rows = end, 0
        rows += lengths[i]
    if first < len(order):
        yield order[first:]
