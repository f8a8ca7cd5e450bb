"""The configurations of BERT, RoBERTa and DistilBERT: sizes, names of tensors, bytes of memory."""

from collections.abc import Mapping
from typing import ClassVar

import msgspec
import numpy as np

from tilewright.backends import footprint
from tilewright.backends.footprint import Part
from tilewright.errors import UsageError
from tilewright.formats.sentence_encoder import RaggedEncoder
from tilewright.formats.tokenizer import Tokenizer
from tilewright.models.activations import ACTIVATIONS
from tilewright.ops.core.ladder import Memory

MODEL_TYPES = ("bert", "roberta", "distilbert")
MAX_SIZE = 2**31
MAX_LAYERS = 4096  # a limit, because names of tensors are made from it before a file is read
MAX_LABELS = 65536
HEAD = "ForSequenceClassification"  # the end of the architecture's name in config.json
PROBLEMS = (None, "single_label_classification", "multi_label_classification")


class BertConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of a BERT, by Hugging Face's names. Fields that have no effect on the result are ignored. Raises ValueError
    for sizes that do not make a network, and for variants that are not supported."""

    aliases: ClassVar[Mapping[str, str]] = {}  # as in `DecoderConfig`

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
    pad_token_id: int | None = 0
    position_embedding_type: str = "absolute"
    is_decoder: bool = False
    problem_type: str | None = None
    id2label: dict[int, str] | None = None

    def __post_init__(self):
        if self.id2label is None:  # two labels, which is transformers' default
            msgspec.structs.force_setattr(self, "id2label", {0: "LABEL_0", 1: "LABEL_1"})
        if self.model_type not in MODEL_TYPES:
            raise ValueError(f"model_type is {self.model_type!r:.100}; {', '.join(MODEL_TYPES)} are known")
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
            raise ValueError(f"hidden_act is {self.hidden_act!r:.100}; {', '.join(ACTIVATIONS)} are known")
        if not 0 < self.layer_norm_eps < 1:
            raise ValueError(f"layer_norm_eps is {self.layer_norm_eps}; it must be between 0 and 1")
        if self.position_embedding_type != "absolute":
            raise ValueError(
                f"position_embedding_type is {self.position_embedding_type!r:.100}; 'absolute' is supported"
            )
        if self.is_decoder:
            raise ValueError("is_decoder is true; only encoders are supported here")
        if self.context < 1:
            raise ValueError(f"max_position_embeddings is {self.max_position_embeddings}, and pad_token_id "
                             f"{self.pad_token_id}: no position is left")  # fmt: skip
        if self.problem_type == "regression":
            raise ValueError("problem_type is 'regression'; only classification is supported")
        if self.problem_type not in PROBLEMS:
            known = ", ".join(map(str, PROBLEMS[1:]))
            raise ValueError(f"problem_type is {self.problem_type!r:.60}; {known} are known")
        if not 1 <= self.num_labels <= MAX_LABELS or set(self.labels) != set(range(self.num_labels)):
            raise ValueError("id2label must name the labels 0, 1, ... without a gap")

    @property
    def first_position(self) -> int:
        """The row of the position table for the first token of a text."""
        return 0

    def positions(self, ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """int64 (tokens,): the row of the table of positions for each token of texts of these lengths, one after the
        other."""
        return np.arange(len(ids)) - np.repeat(np.cumsum(lengths) - lengths, lengths) + self.first_position

    @property
    def context(self) -> int:
        """The largest number of tokens of a text, including special tokens."""
        return self.max_position_embeddings - self.first_position

    @property
    def calls(self) -> dict[str, int]:
        """Operations whose calls have numbers, so that a rung can be forced for one layer: none here."""
        return {}

    @property
    def sequence_length(self) -> int:
        """`context`, under the name that the readers of sentences use."""
        return self.context

    @property
    def shortest(self) -> int:
        """The number of tokens of a text that is long enough to run every kernel."""
        return min(2, self.context)

    @property
    def head_activation(self) -> str:
        """The function between the two layers of the classification head."""
        return "tanh"

    @property
    def is_classifier(self) -> bool:
        """True if the checkpoint has a classification head."""
        return any(name.endswith(HEAD) for name in self.architectures)

    def check_classifier(self) -> None:
        """Raises UsageError for a checkpoint without a classification head."""
        if not self.is_classifier:
            what = f"this {self.model_type} has no classification head: its architectures are {self.architectures}"
            raise UsageError(what, remedy=f"use a checkpoint of an architecture that ends in {HEAD}")

    @property
    def is_sigmoid(self) -> bool:
        """True if each label has a probability of its own."""
        return self.problem_type == "multi_label_classification" or self.num_labels == 1

    @property
    def num_labels(self) -> int:
        return len(self.labels)

    @property
    def labels(self) -> dict[int, str]:
        """The name of each class."""
        assert self.id2label is not None
        return self.id2label

    def label(self, i: int) -> str:
        """The name of class i."""
        return self.labels[i]

    @property
    def token_types(self) -> int:
        """Number of token types that are distinguished: 2 if the second text of a pair has a type of its own."""
        return min(2, self.type_vocab_size) if self.model_type == "bert" else 1

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

    def encoder(
        self, tokenizer: Tokenizer | None, *, prompt: str = "", longest: int | None = None
    ) -> RaggedEncoder | None:
        """From text to ids; None without a tokenizer. prompt: stands before each text. longest: the largest number of
        tokens of a text; None: the tokenizer's limit. Raises InputError if the parts do not fit."""
        if tokenizer is None:
            return None
        length = min(self.context, longest or tokenizer.truncation.longest or self.context)
        return RaggedEncoder(tokenizer, length=length, vocabulary=self.vocab_size, prompt=prompt)

    def memory(self, dtype: str, device: str = "cpu") -> Memory:
        """Bytes of the weights on a device; on the CPU without the table of words, which it maps."""
        C, W, L = self.hidden_size, self.intermediate_size, self.num_labels
        tables = self.token_types * self.max_position_embeddings * C + 2 * C
        tables += 0 if device == "cpu" else self.vocab_size * C
        vectors = self.num_hidden_layers * (3 * C + C + W + C + 4 * C)
        layer = [footprint.matrix(*sizes, dtype, device) for sizes in ((C, 3 * C), (C, C), (C, W), (W, C))]
        head = [footprint.matrix(C, C, dtype, device), footprint.matrix(C, L, dtype, device)]
        return footprint.total([Memory(4 * (tables + vectors)), *self.num_hidden_layers * layer,
                                *(head if self.is_classifier else ())])  # fmt: skip

    def row_bytes(self, dtype: str, device: str = "cpu") -> int:
        """Bytes of one token in a pass: x, queries, keys and values, attention's result, the layer between, and the
        key and value that the attention reads. On a GPU also, in float32, the limbs of the widest operand."""
        C, W = self.hidden_size, self.intermediate_size
        if device == "cpu":
            itemsize = 2 if dtype == "bfloat16" else 4
            return 4 * C + itemsize * (6 * C + W)
        return footprint.element_bytes(dtype) * (7 * C + W) + footprint.limbs(max(C, W), dtype)

    def on_gpu(self, dtype: str, rows: int, memory: int) -> tuple[Part, ...]:
        """The bytes of a GPU that a job takes, with passes of so many rows, or of half as many each time that its
        `memory` does not suffice. Raises ResourceError if it never does."""
        weights, widest = self.memory(dtype, "cuda"), 4 * self.hidden_size * max(3 * self.hidden_size,
                                                                                  self.intermediate_size)  # fmt: skip

        def parts(rows: int) -> tuple[Part, ...]:
            return (
                Part("CUDA", footprint.CONTEXT_WITHOUT_GRAPHS),
                Part("weights", weights.prepared),
                Part("weights, while they are prepared", weights.preparing + widest, footprint.PREPARING),
                Part("rows of a pass", rows * self.row_bytes(dtype, "cuda"), footprint.RUNNING),
            )

        return parts(footprint.halved(lambda n: footprint.peak_of(parts(n)), rows, memory))

    def flops(self, tokens: int) -> int:
        """Operations of a text with this many tokens."""
        C, W = self.hidden_size, self.intermediate_size
        return self.num_hidden_layers * tokens * (8 * C * C + 4 * C * W + 4 * C * tokens) + 2 * C * C


class RobertaConfig(BertConfig, frozen=True, kw_only=True):
    """Sizes of a RoBERTa. Positions start after that of the padding token."""

    model_type: str = "roberta"
    vocab_size: int = 50265
    pad_token_id: int = 1  # type: ignore[assignment]  # it sets the positions, so there must be one

    def __post_init__(self):
        if not 0 <= self.pad_token_id < self.vocab_size:
            raise ValueError(f"pad_token_id is {self.pad_token_id}; it must be a token, 0 to {self.vocab_size - 1}")
        super().__post_init__()

    @property
    def first_position(self) -> int:
        return self.pad_token_id + 1

    def positions(self, ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """The same; a padding token has a row of its own, and is not counted. Source: transformers,
        models/roberta/modeling_roberta.py, create_position_ids_from_input_ids."""
        counted = ids != self.pad_token_id
        total = np.cumsum(counted)
        first = np.cumsum(lengths) - lengths
        before = total[first] - counted[first]  # in the texts before
        return (total - np.repeat(before, lengths)) * counted + self.pad_token_id

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
    type_vocab_size: int = 1  # it has no table of token types

    aliases: ClassVar[Mapping[str, str]] = {
        "hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads",
    }  # fmt: skip

    def __post_init__(self):
        msgspec.structs.force_setattr(self, "layer_norm_eps", 1e-12)  # transformers has no field for it, either
        super().__post_init__()

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
