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

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from tilewright.backends import Backend, backend
from tilewright.backends.protocol import Array, Workspace
from tilewright.errors import InputError, UsageError, WrongType
from tilewright.formats.embedding_modules import EmbeddingModules
from tilewright.formats.sentence_encoder import TEXTS, Content, RaggedEncoder
from tilewright.formats.tokenizer import Tokenizer
from tilewright.models.activations import ACTIVATIONS
from tilewright.models.answers import Answer, sigmoid_answers, softmax_answers
from tilewright.models.bert_config import BertConfig
from tilewright.models.ragged import Limits, passes, sorted_texts
from tilewright.models.text_vectors import TextVectors
from tilewright.ops.attention import Cache, DeviceCache, Spans, append, attend, checked_spans
from tilewright.ops.core.arrays import one_of
from tilewright.ops.core.gpu.tensors import FLOATS
from tilewright.ops.embedding import embedding
from tilewright.ops.layernorm import layernorm
from tilewright.ops.matmul import Packed, matmul, prepare

ROWS = {  # the most tokens of a pass of a model of width WIDTH; a single longer text is also a pass
    "cpu": 2048,  # the arrays between the layers of a BERT-base take 90 MiB
    "cuda": 1 << 17,  # the arrays take 2 GiB in 16 bits; an H100 computes longer than the host needs to queue a pass
}
WIDTH = 768  # of BERT-base, for which ROWS was measured
MOST_ROWS = 1 << 18  # tokens of a pass of a narrower model on a GPU
CACHED = 4  # texts of a pass, times tokens of the longest one, in ROWS: the size of the cache of keys and values
IN_FLIGHT = {"cpu": 0, "cuda": 3}  # passes that a GPU computes while the host stores earlier results


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
    """Some texts, computed at once, in arrays of the device. ids: int32 (R,), the tokens of all of them. positions:
    int32 (R,), each token's row in the table of positions. cache: for the keys and values of one layer at a time.
    bounds: int64 (n + 1,), row of the first token of each text, and R."""

    ids: Array
    positions: Array
    cache: Cache
    spans: Spans  # of all rows
    bounds: Array
    first_spans: Spans  # of the first row of each text alone

    @property
    def starts(self) -> Any:
        """Row of the first token of each text, an index of rows."""
        return self.bounds[:-1]


class Bert:
    """A BERT, RoBERTa or DistilBERT ready to run on this machine's CPU or GPU.

    weights: float32 or bfloat16 arrays by the names of `config.tensor_shapes()`; they may be memory-mapped and
    read-only. dtype: accuracy class of the products, "float32" or "bfloat16", on a GPU "float16" too; there a class of
    16 bits also rounds what lies between the layers. device: "cpu", "cuda" or a backend. Raises InputError if a tensor
    is missing, too many or of another shape, UsageError for another device or dtype, ResourceError if a GPU's memory
    does not hold the weights.
    """

    def __init__(
        self,
        config: BertConfig,
        weights: Mapping[str, np.ndarray],
        *,
        dtype: str = "float32",
        device: str | Backend = "cpu",
    ):
        shapes = config.tensor_shapes()
        for name in shapes.keys() | weights.keys():
            found = weights[name].shape if name in weights else None
            if found != shapes.get(name):
                wanted = shapes.get(name, "no such tensor")
                raise InputError(f"tensor {name} is {found or 'missing'}; the configuration requires {wanted}")
        self.config, self.dtype, self.backend = config, dtype, backend(device, dtype)
        if self.backend.name != "cpu":
            one_of(config.model_type, "dtype", dtype, FLOATS)
        self.tokenizer: Tokenizer | None = None
        self.vectors = TextVectors(EmbeddingModules(), config.hidden_size)  # `load` replaces this default
        self.activation = ACTIVATIONS[config.hidden_act]
        self.rows = pass_rows(config, self.backend.name)
        with self.backend.enough_memory("the GPU's memory does not hold the weights", "run on the CPU"):
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
        return self.answers(self.logits(rows, seconds))

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

    def answers(self, logits: np.ndarray) -> list[Answer]:
        """Logits (n, num_labels) as {"label", "score", "logits"} for each text. If logits are equal, the lowest class
        is chosen."""
        return (sigmoid_answers if self.config.is_sigmoid else softmax_answers)(logits, self.config.label)

    def logits(self, texts: Sequence[ArrayLike] | np.ndarray, seconds: np.ndarray | None = None) -> np.ndarray:
        """Token ids of n texts, int (tokens,) each -> float32 (n, num_labels).

        The texts must contain their special tokens. A -1 at the end of a row is no token. seconds: int (n,), for pairs
        of texts: the index of the first token of the second text, or 0 if there is none. The bits of a text's logits
        depend only on that text. Raises UsageError for a model without a classification head, for a text without tokens
        or with more than the model's context, and for an id outside the vocabulary.
        """
        self.config.check_classifier()
        return self._computed(texts, self._logits, self.config.num_labels, seconds)

    def embeddings(
        self, texts: Sequence[ArrayLike] | np.ndarray, *, dimensions: int | None = None, skip: int = 0
    ) -> np.ndarray:
        """Token ids of n texts, as for `logits`, -> their vectors, float32 (n, D). dimensions: as for `embed`. skip:
        tokens at the start of each text, its prompt, that are not pooled."""
        self.vectors.checked(dimensions)
        whole = self._computed(texts, partial(self._vectors, skip=skip), self.vectors.size)
        return self.vectors.cut(whole, dimensions)

    def _computed(
        self, texts: Sequence[ArrayLike] | np.ndarray, run: Callable[[Pass, Workspace], Array], width: int,
        seconds: np.ndarray | None = None,
    ) -> np.ndarray:  # fmt: skip
        """float32 (n, width): `run` of each pass of the texts. seconds: as for `logits`. If a GPU's memory does not
        suffice, passes have half as many tokens from then on."""
        result = np.empty((len(texts), width), np.float32)
        return self.backend.halving(partial(self._in_passes, texts, run, result, seconds), self.rows)

    def _in_passes(
        self, texts: Sequence[ArrayLike] | np.ndarray, run: Callable[[Pass, Workspace], Array], result: np.ndarray,
        seconds: np.ndarray | None, rows: int,
    ) -> np.ndarray:  # fmt: skip
        """The result, written by passes of up to so many rows."""
        work, waiting = self.backend.workspace(), deque[tuple[np.ndarray, Callable[[], np.ndarray]]]()

        def store(most: int) -> None:
            """Wait for the oldest passes, until so many are in flight."""
            while len(waiting) > most:
                index, part = waiting.popleft()
                result[index] = part()

        every = sorted_texts(texts, Limits(self.config.context, self.config.vocab_size))
        for first, end in passes(every.lengths, rows, CACHED * rows):
            index, ids, lengths = every.part(first, end)
            found = run(self._pass(ids, lengths, None if seconds is None else seconds[index]), work)
            waiting.append((index, self.backend.fetch(found)))
            store(IN_FLIGHT[self.backend.name])
        store(0)
        self.rows = rows
        return result

    def _logits(self, batch: Pass, work: Workspace) -> Array:
        """(n, num_labels)."""
        first = self._first_rows(batch, work)
        h = matmul(first, self.dense.weight, bias=self.dense.bias, activation=self.config.head_activation)
        return matmul(h, self.classifier.weight, bias=self.classifier.bias)

    def _vectors(self, batch: Pass, work: Workspace, skip: int) -> Array:
        """float32 (n, D), whole vectors. skip: as for `embeddings`."""
        if self.vectors.modules.poolings == ("cls",) and not skip:
            return self.vectors.finished(self._first_rows(batch, work))
        pooled = self.vectors.pooled(self._all_rows(batch, work), batch.bounds, skip)
        return self.vectors.finished(pooled)

    def _pass(self, ids: np.ndarray, lengths: np.ndarray, seconds: np.ndarray | None) -> Pass:
        """Texts of these lengths, the shortest first. ids: int32 (R,). seconds: as for `logits`."""
        config, bounds = self.config, np.concatenate([[0], np.cumsum(lengths)])
        starts, n, R = bounds[:-1], len(lengths), len(ids)
        heads, head_size = config.num_attention_heads, config.hidden_size // config.num_attention_heads
        sizes = n, heads, int(lengths[-1]), head_size, self.dtype
        cache = Cache.empty(*sizes) if self.backend.name == "cpu" else DeviceCache.on(self.backend.device, *sizes)
        slots, none = np.arange(n), np.full(n, -1)
        spans = np.stack([slots, np.zeros_like(slots), lengths, starts, none], axis=1)
        # as a query of the last position, the first token attends to all of its text
        first = np.stack([slots, lengths - 1, np.ones_like(slots), slots, none], axis=1)
        positions = config.positions(ids, lengths)
        if seconds is not None and config.token_types > 1:
            pair = np.where(seconds > 0, seconds, lengths)
            typed = np.arange(R) - np.repeat(starts, lengths) >= np.repeat(pair, lengths)
            positions = positions + config.max_position_embeddings * typed  # of the half for type 1
        upload = self.backend.upload
        return Pass(upload(ids), upload(positions.astype(np.int32)), cache, checked_spans(spans, cache, R),
                    upload(bounds), checked_spans(first, cache, n))  # fmt: skip

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
                      out=work.take("x", R, C, self.backend.between))  # fmt: skip
        return self._normed(x, self.norm)

    def _layer(self, layer: Layer, x: Array, batch: Pass, work: Workspace) -> Array:
        """x (R, C) after the layer, in place."""
        R, C = x.shape
        q, k, v = self._qkv(layer, x, work)
        y = attend(q, batch.cache, batch.spans, causal=False, new=(k, v), keep=False,
                   out=work.take("y", R, C, self.dtype))  # fmt: skip
        return self._after_attention(layer, x, y, work)

    def _last_layer(self, layer: Layer, x: Array, batch: Pass, work: Workspace) -> Array:
        """The first row of each text (n, C) after the layer. Nothing reads the other rows."""
        q, k, v = self._qkv(layer, x, work)
        append(k, v, batch.cache, batch.spans)
        starts = batch.starts
        out = work.take("y", len(starts), self.config.hidden_size, self.dtype)
        y = attend(q[starts], batch.cache, batch.first_spans, out=out)
        return self._after_attention(layer, x[starts], y, work)

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


def pass_rows(config: BertConfig, device: str) -> int:
    """The largest number of tokens of a pass. A narrow model takes more on a GPU, because the host queues a pass in a
    time that does not depend on its width."""
    return ROWS[device] if device == "cpu" else min(ROWS[device] * WIDTH // config.hidden_size, MOST_ROWS)


def position_table(weights: Mapping[str, np.ndarray], token_types: int = 1) -> np.ndarray:
    """float32 (token_types * positions, C): the table of positions plus token type 0, which all tokens of a single text
    have. With two types, the table plus token type 1 follows, which the second text of a pair has."""
    positions = weights["embeddings.position_embeddings.weight"].astype(np.float32)
    types = weights.get("embeddings.token_type_embeddings.weight")
    if types is None:
        return positions
    return np.concatenate([positions + types[i].astype(np.float32) for i in range(token_types)])
