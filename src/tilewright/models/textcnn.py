"""TextCNN: sentence classification by one layer of convolutions over embeddings.

features = concat over branches of max over positions of relu(conv1d(E[ids]))      # embedding_conv1d
    logits   = Linear(ReLU(Linear( ... features)))                                     # matmul, bias and ReLU fused

Source: Kim, "Convolutional Neural Networks for Sentence Classification", 2014. There is no dropout, normalisation or
padding mask. A sentence always has `sequence_length` ids, and a padding token counts like any other token.
"""

import weakref
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from tilewright.backends import Backend, backend, footprint
from tilewright.backends.protocol import Array, Network, Operand
from tilewright.backends.token_lookup import token_lookup
from tilewright.errors import InputError, UsageError, WrongType
from tilewright.formats.sentence_encoder import Content, SentenceEncoder, encoder_for
from tilewright.formats.tokenizer import Tokenizer
from tilewright.models.answers import Answer, softmax_answers
from tilewright.ops.core.arrays import as_numpy
from tilewright.ops.core.ladder import Memory, check_layers, forced, preferring
from tilewright.ops.core.layers import layer as layer_of
from tilewright.ops.embedding import checked_ids
from tilewright.ops.embedding_conv1d import Problem as Convolutions
from tilewright.ops.embedding_conv1d import embedding_conv1d
from tilewright.ops.embedding_conv1d import ladder as convolutions_ladder
from tilewright.ops.embedding_conv1d import prepare as prepare_convolutions
from tilewright.ops.embedding_conv1d.memory import LINE, row_width
from tilewright.ops.matmul import matmul
from tilewright.ops.matmul import prepare as prepare_matrix
from tilewright.switches import Without, check_switches, rungs_without

# Batch sizes in sentences. On the CPU 1,024 sentences have 16 MiB of features, and fill every block of a matmul. On an
# H200 in float32, 128 sentences take 153 us, 1,024 take 188 us and 8,192 take 1,480 us.
SIZES = {"cpu": (1024,), "cuda": (128, 1024, 8192)}
MODEL_TYPE = "textcnn"
INTEGERS = (int, np.integer)
MAX_SIZE = 2**31
MAX_LENGTH = 65536  # no weight's shape depends on the sequence length, so this limits the memory of a batch


class TextCNNConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Sizes of a TextCNN; the defaults are the course's model. pad_token_id: the token that fills up short sentences;
    None: a short sentence is an error. Raises ValueError for sizes that do not make a network."""

    model_type: str = MODEL_TYPE
    vocab_size: int = 21635
    sequence_length: int = 16
    hidden_size: int = 4096
    num_filters: int = 1024
    kernel_sizes: tuple[int, ...] = (3, 5, 7, 9)
    hidden_sizes: tuple[int, ...] = (2048, 1024, 512)
    num_labels: int = 2
    pad_token_id: int | None = None
    id2label: dict[int, str] = msgspec.field(default_factory=lambda: {0: "negative", 1: "positive"})

    def __post_init__(self):
        if self.model_type != MODEL_TYPE:
            raise ValueError(f"model_type is {self.model_type!r:.100}; {MODEL_TYPE!r} is wanted")
        sizes = {
            name: getattr(self, name)
            for name in ("vocab_size", "sequence_length", "hidden_size", "num_filters", "num_labels")
        }
        for name, size in [*sizes.items(), *(("hidden_sizes", n) for n in self.hidden_sizes)]:
            most = MAX_LENGTH if name == "sequence_length" else MAX_SIZE
            if not 1 <= size <= most:
                raise ValueError(f"{name} is {size}; at least 1 and at most {most} is wanted")
        if not self.kernel_sizes or any(not 1 <= K <= self.sequence_length for K in self.kernel_sizes):
            raise ValueError(
                f"kernel_sizes is {self.kernel_sizes}; each must be 1 to the sequence_length {self.sequence_length}"
            )
        if self.pad_token_id is not None and not 0 <= self.pad_token_id < self.vocab_size:
            raise ValueError(f"pad_token_id is {self.pad_token_id}; ids are 0 to {self.vocab_size - 1}")
        if set(self.id2label) - set(range(self.num_labels)):
            raise ValueError(f"id2label names {sorted(self.id2label)}; it may name 0 to {self.num_labels - 1}")

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every weight, in the order of the course's params.bin."""
        C, O = self.hidden_size, self.num_filters
        shapes: dict[str, tuple[int, ...]] = {"embedding.weight": (self.vocab_size, C)}
        for i, K in enumerate(self.kernel_sizes):
            shapes |= {f"convs.{i}.weight": (O, C, K), f"convs.{i}.bias": (O,)}
        for i, (inputs, outputs) in enumerate(pairwise(self.widths)):
            shapes |= {f"linears.{i}.weight": (outputs, inputs), f"linears.{i}.bias": (outputs,)}
        return shapes

    @property
    def shortest(self) -> int:
        """The smallest number of tokens of a sentence."""
        return self.sequence_length

    @property
    def widths(self) -> tuple[int, ...]:
        """Elements of a sentence after the convolutions and after each linear layer."""
        return self.num_filters * len(self.kernel_sizes), *self.hidden_sizes, self.num_labels

    def convolutions(self, dtype: str, device: str = "cpu") -> Convolutions:
        """The first layer's problem."""
        return Convolutions(self.hidden_size, self.num_filters, tuple(self.kernel_sizes), dtype, device)

    def memory(self, dtype: str, device: str = "cpu") -> Memory:
        """Bytes of the filters and the linear layers. entry: bytes of an entry of the token table, 0 if there is none.
        On a GPU an entry has a token's rows for all taps."""
        linears = []
        for i, (K, N) in enumerate(pairwise(self.widths), start=1):
            with layer_of(matmul=i):
                linears.append(footprint.matrix(K, N, dtype, device))
        if device == "cpu":
            with layer_of(embedding_conv1d=1):
                filters = footprint.weights(convolutions_ladder, self.convolutions(dtype))
        else:  # the same condition as in the rungs for a GPU, which cannot be asked on a machine without one
            C, taps, width = self.hidden_size, sum(self.kernel_sizes), row_width(self.num_filters, dtype, cut=True)
            own = footprint.matrix(C, taps * self.num_filters, dtype, device)
            entry = taps * -(-self.num_filters // width) * LINE
            filters = Memory(own.prepared, own.preparing + 4 * C * taps * self.num_filters, entry)
        return footprint.total([filters, *linears])

    def between_bytes(self, dtype: str, device: str = "cpu") -> int:
        """Bytes of a sentence between the layers. The CPU keeps the results of all layers until a batch is done. A GPU
        allocates them layer by layer: operand, result, and in float32 the operand's limbs."""
        if device == "cpu":
            return 4 * sum(self.widths)
        itemsize = footprint.element_bytes(dtype)
        layers = [itemsize * (K + N) + footprint.limbs(K, dtype) for K, N in pairwise(self.widths)]
        return max(layers) + 2 * 4 * self.sequence_length

    @property
    def calls(self) -> dict[str, int]:
        """How often a forward pass calls each operation. So a rung can be forced for one layer. A branch is one call of
        conv1d if embedding_conv1d uses it."""
        return {"embedding_conv1d": 1, "conv1d": len(self.kernel_sizes), "matmul": len(self.hidden_sizes) + 1}

    @property
    def operands(self) -> tuple[list[Operand], list[Operand]]:
        """(inputs, outputs) of a sentence. The input is its ids. The outputs are its logits and its smallest slot of
        the token table."""
        return [Operand((self.sequence_length,), "int32")], [Operand((self.num_labels,)), Operand((), "int32")]

    @property
    def flops(self) -> int:
        """Operations of a sentence if its rows of the token table are already computed."""
        sums = sum((self.sequence_length - K + 1) * K * self.num_filters for K in self.kernel_sizes)
        return sums + sum(2 * K * N for K, N in pairwise(self.widths))

    def label(self, i: int) -> str:
        """The name of class i."""
        return self.id2label.get(i, f"LABEL_{i}")

    def encoder(self, tokenizer: Tokenizer | None) -> SentenceEncoder | None:
        """From text to ids; None without a tokenizer. Raises InputError if the tokenizer does not fit the model."""
        return encoder_for(tokenizer, self)


class TextCNN:
    """A TextCNN ready to run on this machine's CPU, or on its GPU.

    weights: float32 arrays by the names of `config.tensor_shapes()`; they may be memory-mapped and read-only. dtype:
    accuracy class of the products, "float32" or "bfloat16", on a GPU also "float16". device: "cpu", "cuda" or a
    backend. table_memory: the largest size of the token table in bytes; None: no limit on the CPU, on a GPU its free
    memory without a reserve. without: optimisations that are switched off: "token-table", which may change bits, on a
    GPU also "pinned", "overlap" and "graphs".

    Raises InputError if a tensor is missing, too many or of another shape. Raises UsageError for a table_memory that is
    no number of bytes or has no table, and for another switch. Raises ResourceError if there is not enough memory.
    """

    def __init__(
        self,
        config: TextCNNConfig,
        weights: Mapping[str, np.ndarray],
        *,
        dtype: str = "float32",
        device: str | Backend = "cpu",
        table_memory: int | None = None,
        without: Without = frozenset(),
    ):
        is_integer = isinstance(table_memory, INTEGERS)
        if table_memory is not None and (not is_integer or table_memory < 0):
            kind = UsageError if is_integer else WrongType
            raise kind(f"table_memory is {table_memory!r}; a number of bytes is wanted, as in 4 << 30 for 4 GiB")
        shapes = config.tensor_shapes()
        for name in shapes.keys() | weights.keys():
            found = weights[name].shape if name in weights else None
            if found != shapes.get(name):
                wanted = shapes.get(name, "no such tensor")
                raise InputError(
                    f"tensor {name} is {'missing' if found is None else found}; the configuration requires {wanted}"
                )
        check_layers("TextCNN", config.calls)
        self.config, self.dtype, self.backend = config, dtype, backend(device, dtype, without)
        without, place = self.backend.without, self.backend.name
        check_switches("classify", without, place, dtype, parameter="without")
        self.rungs = rungs_without(without, place, forced() if without else {})
        if self.rungs and table_memory is not None:
            raise UsageError(
                f"table_memory is {table_memory}, and the token table is switched off: give one of the two"
            )
        self.tokenizer: Tokenizer | None = None
        array, vector, branches = self.backend.array, self.backend.vector, range(len(config.kernel_sizes))
        lack = "the GPU's memory does not hold the weights"
        with self.backend.enough_memory(lack, "run on the CPU"), preferring(**self.rungs):
            with layer_of(embedding_conv1d=1):
                self.convolutions = prepare_convolutions(
                    array(weights["embedding.weight"]),
                    [array(weights[f"convs.{i}.weight"]) for i in branches],
                    [array(weights[f"convs.{i}.bias"]) for i in branches],
                    length=config.sequence_length,
                    dtype=dtype,
                    memory=table_memory,
                )
            self.linears = []
            for i in range(len(config.hidden_sizes) + 1):
                with layer_of(matmul=i + 1):
                    matrix = prepare_matrix(array(weights[f"linears.{i}.weight"]).T, dtype=dtype)
                self.linears.append((matrix, vector(weights[f"linears.{i}.bias"])))
        self.tokens, sizes = token_lookup(self.convolutions), SIZES[self.backend.name]
        own = weakref.proxy(self)  # a strong reference would be a cycle, because the model owns the batches
        what = f"the GPU's memory does not hold a batch of {sizes[0]} sentences beside the weights"
        remedy = "give the token table less (table_memory, --table-memory on the command line), or run on the CPU"
        with self.backend.enough_memory(what, remedy):
            network = Network(lambda *arrays: own.forward(*arrays), *config.operands, weakref.ref(self))
            self.batches = self.backend.batches(network, sizes)

    def __repr__(self) -> str:
        config = self.config
        sizes = f"{config.vocab_size:,} tokens of width {config.hidden_size:,}, {config.num_filters:,} filters"
        return (
            f"<TextCNN: {sizes} of each size {config.kernel_sizes}, sentences of {config.sequence_length} tokens, "
            f"{config.num_labels} labels; {self.dtype} on {self.backend.name}>"
        )

    def forward(self, ids: Array, logits: Array, lowest: Array) -> None:
        """A batch of token ids int32 (n, sequence_length) -> logits (n, num_labels). lowest (n,): see `TokenLookup`."""
        n, features = len(ids), len(self.config.kernel_sizes) * self.config.num_filters
        x = self._between(n, features)
        with preferring(**self.rungs), layer_of(embedding_conv1d=1):
            embedding_conv1d(self.tokens.located(ids, lowest), self.convolutions, out=x)
        for i, (weight, bias) in enumerate(self.linears, start=1):
            last = i == len(self.linears)
            out = logits if last else self._between(n, weight.N)
            with layer_of(matmul=i):
                x = matmul(x, weight, bias=bias, activation=None if last else "relu", out=out)

    def _between(self, *shape: int) -> Array:
        return self.backend.empty(shape, self.backend.between)

    def logits(self, ids: ArrayLike) -> np.ndarray:
        """Token ids int (n, sequence_length) -> float32 (n, num_labels).

        One large n is faster than many small ones, because the token table's rows are computed for n sentences at a
        time. A sentence's bits do not depend on the others. Raises UsageError for another shape or an id outside the
        vocabulary, with its index; torch's OutOfMemoryError if new rows of the table do not fit into a GPU's memory.
        """
        ids, L = as_numpy("ids", ids), self.config.sequence_length
        if ids.ndim != 2 or ids.shape[1] != L:
            raise UsageError(f"ids has shape {ids.shape}; (n, {L}) is wanted")
        checked = np.ascontiguousarray(checked_ids(ids, self.config.vocab_size), np.int32)
        return self.batches.attempt(lambda: self._logits(checked))

    def _logits(self, ids: np.ndarray) -> np.ndarray:
        logits = self.backend.host((len(ids), self.config.num_labels))
        lowest = self.backend.host(len(ids), np.int32)
        for spans in self.tokens.passes(ids, lowest, self.batches.largest):
            self.batches.run([ids], [logits, lowest], spans)
        return logits.copy()

    def classify(self, sentences: Iterable[str | Sequence[int] | np.ndarray]) -> list[Answer]:
        """Sentences -> [{"label", "score", "logits"}]; score is the softmax of the label's logit.

        sentences: texts, if the model has a tokenizer, or sequences of token ids. `SentenceEncoder` describes those
        that are longer or shorter than sequence_length. Raises UsageError with the index of a sentence that cannot be
        classified, and the position of a token that is no id of the vocabulary, both from 0.
        """
        if isinstance(sentences, str):
            raise WrongType("sentences is one text; a list of sentences is wanted")
        if not np.iterable(sentences):
            raise WrongType(f"sentences is {sentences!r}; a list of sentences is wanted")
        encoder = self.config.encoder(self.tokenizer)
        contents = [self._content(number, sentence, encoder) for number, sentence in enumerate(sentences)]
        ids = encoder.rows(contents) if encoder else np.array(contents, np.int32)
        return self.answers(self.logits(ids.reshape(-1, self.config.sequence_length)))

    def _content(self, number: int, sentence, encoder: SentenceEncoder | None) -> Content:
        """The tokens of a sentence's text that are used, or its ids, each of them an integer of the vocabulary."""
        L, V = self.config.sequence_length, self.config.vocab_size
        if isinstance(sentence, str) and encoder is None:
            what = f"sentence {number} is text, and the model has no tokenizer.json"
            raise UsageError(what, remedy=f"give {L} token ids")
        wanted = f"text or a sequence of up to {L} token ids" if encoder else f"a sequence of {L} token ids"
        if isinstance(sentence, bytes):
            raise WrongType(f"sentence {number} is bytes; {wanted} is wanted")
        try:
            if encoder and isinstance(sentence, str):
                return encoder.checked(sentence)
            row = list(sentence)
            filled = encoder.filled(row) if encoder else row
        except TypeError as error:
            raise WrongType(f"sentence {number} is {sentence!r}; {wanted} is wanted") from error
        except InputError as error:
            what = f"sentence {number} (counted from 0) {error.message}"
            raise UsageError(what, remedy="leave it out or correct it: no sentence was classified") from error
        if len(filled) != L:
            raise UsageError(f"sentence {number} has {len(filled)} token ids; the model takes {L}")
        for position, token in enumerate(row):
            if not isinstance(token, INTEGERS) or isinstance(token, bool) or not 0 <= token < V:
                raise UsageError(
                    f"sentence {number}, position {position}: {token!r} is no token id; ids are 0 to {V - 1}"
                )
        return [int(token) for token in row]

    def answers(self, logits: np.ndarray) -> list[Answer]:
        """Logits (n, num_labels) as {"label", "score", "logits"} for each sentence. If logits are equal, the lowest
        class is chosen."""
        return softmax_answers(logits, self.config.label)
