"""Loads a model from a path: checks the configuration, maps the weights, checks that they are finite, builds the model
on a device."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from inspect import signature
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, overload

import msgspec
import numpy as np

from tilewright.errors import InputError, UsageError, WrongType
from tilewright.formats.blocks import check_finite
from tilewright.formats.embedding_modules import EmbeddingModules, embedding_modules
from tilewright.formats.lines import json_error
from tilewright.formats.mapped import forget
from tilewright.formats.models import CONFIG, Rename, eos_token_ids, read_config, read_model
from tilewright.formats.sharded import WEIGHTS, map_directory
from tilewright.formats.tokenizer import Tokenizer
from tilewright.formats.tokenizer_older import MERGES, VOCAB, WORDS, read_settings
from tilewright.formats.tokenizer_settings import read_overrides, read_truncation
from tilewright.models import dcgan, gpt2, gpt_neox, opt, textcnn
from tilewright.models.bert import Bert
from tilewright.models.bert_config import CONFIGS, BertConfig
from tilewright.models.dcgan import DCGAN, DCGANConfig
from tilewright.models.decoder import DecoderModel
from tilewright.models.decoder_config import DecoderConfig
from tilewright.models.gpt2 import GPT2, GPT2Config
from tilewright.models.gpt_neox import GPTNeoX, GPTNeoXConfig
from tilewright.models.opt import OPT, OPTConfig
from tilewright.models.text_vectors import TextVectors
from tilewright.models.textcnn import TextCNN, TextCNNConfig
from tilewright.runtime.devices import place_for
from tilewright.runtime.named_models import check_model, model_path
from tilewright.switches import Without, check_switches

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tilewright.generation.language_model import Output
    from tilewright.generation.prompts import Prompt
    from tilewright.generation.sampling import SamplingParams

Config = TextCNNConfig | DecoderConfig | DCGANConfig | BertConfig
Model = TextCNN | DecoderModel | DCGAN | Bert
DTYPES = ("float32", "bfloat16", "float16", "tf32", "auto")
DTYPE_RULE = "float32, bfloat16, on a GPU also float16 or tf32, or auto for the checkpoint's,"
Weights = dict[str, np.ndarray]
Classifier = TextCNNConfig | BertConfig
C = TypeVar("C", TextCNNConfig, DecoderConfig, DCGANConfig, BertConfig)
Wanted = TypeVar("Wanted", bound=Config)
TOKENIZER = "tokenizer.json"


class Kind(NamedTuple):
    """How to load one kind of model.

    rename: takes a configuration, and returns a function that maps a checkpoint's tensor name to the model's name; see
    `read_model`.
    """

    config: type[Config]
    model: Callable[..., Model]
    rename: Callable[[Any], Rename | None] = lambda config: None
    ties: tuple[tuple[str, str], ...] = ()


KINDS = {
    textcnn.MODEL_TYPE: Kind(TextCNNConfig, TextCNN),
    gpt2.MODEL_TYPE: Kind(GPT2Config, GPT2, lambda config: config.own_name, gpt2.TIES),
    opt.MODEL_TYPE: Kind(OPTConfig, OPT, lambda config: config.own_name, opt.TIES),
    gpt_neox.MODEL_TYPE: Kind(GPTNeoXConfig, GPTNeoX, lambda config: config.own_name, gpt_neox.TIES),
    dcgan.MODEL_TYPE: Kind(DCGANConfig, DCGAN),
    **{name: Kind(config, Bert, lambda config: config.own_name) for name, config in CONFIGS.items()},
}


DECODERS = tuple(name for name, kind in KINDS.items() if issubclass(kind.config, DecoderConfig))
VERBS = dict.fromkeys(KINDS, "classify") | dict.fromkeys(DECODERS, "generate") | {dcgan.MODEL_TYPE: "draw"}


def parse_config(values: dict[str, Any], path: str | os.PathLike[str]) -> Config:
    """Parse the values of config.json. Raises InputError with the name of an invalid field."""
    name = os.path.join(path, CONFIG) if os.path.isdir(path) else path
    kind = KINDS.get(str(values.get("model_type")))
    if kind is None:
        raise InputError(
            f"model_type is {values.get('model_type')!r:.100}; {', '.join(KINDS)} can be loaded", path=name
        )
    try:
        return msgspec.convert(_by_own_names(values, kind.config, name), kind.config, str_keys=True)
    except msgspec.ValidationError as error:
        wrong = json_error(error)
        field = f"field {wrong.field}" if wrong.field else None
        raise InputError(f"no valid configuration: {wrong}", path=name, where=field) from error


def _by_own_names(values: dict[str, Any], kind: type[Config], path: str | os.PathLike[str]) -> dict[str, Any]:
    """The values by the family's own names of the fields. Raises InputError if a field has two values, by two names."""
    found = dict(values)
    for alias, own in getattr(kind, "aliases", {}).items():
        given = found.pop(alias, None)
        if given is not None and found.setdefault(own, given) != given:
            what = f"{alias} is {given!r:.50} and {own} {found[own]!r:.50}: the two are names of one field"
            raise InputError(what, path=path, remedy="remove one of them")
    return found


@overload
def config_of(path: str | os.PathLike[str]) -> Config: ...
@overload
def config_of(path: str | os.PathLike[str], wanted: type[Wanted]) -> Wanted: ...
@overload
def config_of(path: str | os.PathLike[str], wanted: UnionType) -> Classifier: ...
def config_of(path: str | os.PathLike[str], wanted: type | UnionType | None = None) -> Config:
    """The model's configuration, without its weights. wanted: the class that it must have, or a union of classes."""
    check_model(path)
    config = parse_config(read_config(path), path)
    if wanted is not None and not isinstance(config, wanted):
        names = [name for name, kind in KINDS.items() if issubclass(kind.config, wanted)]
        remedy = f"use `tilewright {VERBS[config.model_type]}` for a {config.model_type}"
        what = f"the model is a {config.model_type}; a {' or '.join(names)} is wanted here"
        raise InputError(what, path=os.fspath(path), remedy=remedy)
    return config


@overload
def read_weights(path: str | os.PathLike[str]) -> tuple[Config, Weights]: ...
@overload
def read_weights(path: str | os.PathLike[str], wanted: type[C]) -> tuple[C, Weights]: ...
@overload
def read_weights(path: str | os.PathLike[str], wanted: UnionType) -> tuple[Classifier, Weights]: ...
def read_weights(path: str | os.PathLike[str], wanted: type | UnionType | None = None) -> tuple[Config, Weights]:
    """The configuration and the mapped, finite weights of the model at `path`. Raises InputError."""
    config, weights = mapped_weights(path, wanted, headers=False)
    whole = os.path.join(path, WEIGHTS)
    file = whole if os.path.isfile(whole) else os.fspath(path)
    for name, array in weights.items():
        check_finite(name, array, file)
        forget(array)
    return config, weights


def mapped_weights(
    path: str | os.PathLike[str], wanted: type | UnionType | None = None, *, headers: bool = True
) -> tuple[Config, Weights]:
    """As `read_weights`, without the check for finite values. headers: read only the headers, and no values."""
    config = config_of(path, wanted) if wanted else config_of(path)
    kind = KINDS[config.model_type]
    try:
        _, weights = read_model(
            path, lambda values: config.tensor_shapes(), kind.rename(config), kind.ties, headers=headers
        )
    except InputError as error:
        if quantized := _quantized(path):
            what = f"config.json says that the weights are quantised ({quantized}), which is not supported"
            error.remedy = f"{what}: get them in float32, bfloat16 or float16"
        raise
    if isinstance(config, GPT2Config) and not config.tie_word_embeddings:
        _check_output_matrix(path)
        config = msgspec.structs.replace(config, tie_word_embeddings=True)  # both matrices are equal
    return config, weights


def _quantized(path: str | os.PathLike[str]) -> str:
    """The method of config.json's quantization_config; "" if it has none."""
    found = read_config(path).get("quantization_config")
    return str(found.get("quant_method", "of an unknown method"))[:50] if isinstance(found, dict) else ""


def _check_output_matrix(path: str | os.PathLike[str]) -> None:
    """Raises InputError if the configuration requires a separate output matrix, and the weights have none."""
    ((alias, name),) = gpt2.TIES
    if os.path.isdir(path) and not any(gpt2.own_name(theirs) == alias for theirs in map_directory(path)):
        what = f"tensor {alias} is missing, and tie_word_embeddings is false: {name} is not the output matrix"
        raise InputError(
            what, path=path, remedy="get all weights, or set tie_word_embeddings to true if the two are one"
        )


if TYPE_CHECKING:

    class AnyModel(DecoderModel, TextCNN, DCGAN, Bert):  # type: ignore[misc]
        """The type of `load`'s result, for type checkers: it has the methods of all families of models."""

        @overload  # type: ignore[override]
        def generate(self, prompts: np.ndarray) -> np.ndarray: ...  # type: ignore[overload-overlap]
        @overload
        def generate(
            self, prompts: Iterable[Prompt], params: SamplingParams | None = None, **options: Any
        ) -> Iterator[Output]: ...
        def generate(self, *given: Any, **options: Any) -> Any: ...


@overload
def load(  # type: ignore[overload-overlap]
    path: Literal["poet"], *, device: str = "auto", dtype: str = "float32", without: Without = ...
) -> GPT2: ...
@overload
def load(  # type: ignore[overload-overlap]
    path: Literal["critic"],
    *,
    device: str = "auto",
    dtype: str = "float32",
    table_memory: int | None = None,
    without: Without = ...,
) -> TextCNN: ...
@overload
def load(  # type: ignore[overload-overlap]
    path: Literal["portraits"],
    *,
    device: str = "auto",
    dtype: str = "float32",
    batch: int | None = None,
    without: Without = ...,
) -> DCGAN: ...
@overload
def load(path: str | os.PathLike[str], *, device: str = "auto", dtype: str = "float32", **options: Any) -> AnyModel: ...
def load(path: str | os.PathLike[str], *, device: str = "auto", dtype: str = "float32", **options: Any) -> Any:
    """Load the model at `path`: a directory with config.json and model.safetensors, or a headerless .bin file.

    If the current directory has no file of that name, "poet", "critic" and "portraits" name models of the package.
    device: "cpu", "cuda", or "auto": a GPU if one can be used. dtype: the accuracy class: "float32", "bfloat16" or, on
    a GPU, "float16"; "auto": the dtype of the checkpoint (float32 instead of float16 on a CPU). options: other
    arguments of the model's class, such as `table_memory` of TextCNN, or `without`, a set of optimisations to switch
    off. Raises InputError, UsageError and ResourceError.
    """
    path = model_path(path)
    if dtype not in DTYPES:
        raise UsageError(parameter="dtype", value=repr(dtype), rule=f"{DTYPE_RULE} is wanted")
    device = place_for(device) if dtype == "auto" else device
    dtype = stored_dtype(path, device) if dtype == "auto" else dtype
    if without := options.get("without"):
        given = config_of(path)
        if isinstance(given, BertConfig):
            rule = f"a {given.model_type} has no switches"
            raise UsageError(parameter="without", value=repr(without), rule=rule, remedy="leave it out")
        verb = VERBS.get(given.model_type, "classify")
        check_switches(verb, without, place_for(device, dtype), dtype, parameter="without")
    config, weights = read_weights(path)
    _check_options(config, options)
    model = build(config, weights, device=device, dtype=dtype, **options)
    if isinstance(model, Bert):
        modules = embedding_modules(path, model.config.hidden_size)
        model.tokenizer = encoder_tokenizer(path, modules)
        model.vectors = text_vectors(modules, model)
    elif isinstance(model, DecoderModel | TextCNN):
        model.tokenizer = tokenizer_of(path)
    if isinstance(model, DecoderModel):
        model.stop_ids = eos_token_ids(path) or model.config.stop_ids
    return model


def _check_options(config: Config, options: dict[str, Any]) -> None:
    """Raises WrongType for an option that the model's class does not take."""
    known = [name for name in signature(KINDS[config.model_type].model).parameters if name not in ("config", "weights")]
    for name, value in options.items():
        if name not in known:
            rule = f"a {config.model_type} takes {', '.join(sorted(known))}"
            raise WrongType(parameter=name, value=f"{value!r:.100}", rule=rule, remedy="leave it out")


def encoder_tokenizer(path: str | os.PathLike[str], modules: EmbeddingModules) -> Tokenizer | None:
    """The tokenizer of an encoder, as `tokenizer_of`, with the settings of its modules."""
    tokenizer = tokenizer_of(path)
    if tokenizer and modules.lowercase:
        tokenizer.lowercase()
    return tokenizer


def text_vectors(modules: EmbeddingModules, model: Bert) -> TextVectors:
    """Load the modules after an encoder, such as pooling and dense layers, to its device. Raises InputError."""
    return TextVectors(modules, model.config.hidden_size, dense_weights(modules), model.dtype, model.backend)


def dense_weights(modules: EmbeddingModules) -> Weights:
    """Map the weights of the dense layers after an encoder, and check that they are finite. Raises InputError."""
    weights: Weights = {}
    for i, layer in enumerate(modules.layers):
        wanted = {"linear.weight": f"{i}.weight", **({"linear.bias": f"{i}.bias"} if layer.bias else {})}
        for name, stored in map_directory(layer.path).items():
            if name not in wanted:
                raise InputError(f"tensor {name[:200]!r} is no part of a dense layer", path=stored.path)
            check_finite(name, stored.array, stored.path)
            float16 = stored.array.dtype == np.float16
            weights[wanted[name]] = stored.array.astype(np.float32) if float16 else stored.array
    return weights


def stored_dtype(path: str | os.PathLike[str], device: str) -> str:
    """The dtype of most elements of the checkpoint. On a CPU, float32 replaces float16, which has no CPU kernels."""
    elements: Counter[str] = Counter()
    for array in mapped_weights(path)[1].values():
        elements[array.dtype.name] += array.size
    most = elements.most_common(1)[0][0]
    return "float32" if most == "float16" and device == "cpu" else most


@overload
def build(config: TextCNNConfig, weights: Weights, **options: Any) -> TextCNN: ...
@overload
def build(config: BertConfig, weights: Weights, **options: Any) -> Bert: ...
@overload
def build(config: DecoderConfig, weights: Weights, **options: Any) -> DecoderModel: ...
@overload
def build(config: DCGANConfig, weights: Weights, **options: Any) -> DCGAN: ...
@overload
def build(config: Config, weights: Weights, **options: Any) -> Model: ...
def build(config: Config, weights: Weights, **options: Any) -> Model:
    """Build the model on the `device` of its options; by default on the CPU.

    Mapped weights that the model has packed are released from memory.
    """
    if "device" in options:
        options["device"] = place_for(options["device"], options.get("dtype", "float32"))
    model = KINDS[config.model_type].model(config, weights, **options)
    for array in weights.values():
        forget(array)
    return model


def tokenizer_of(path: str | os.PathLike[str]) -> Tokenizer | None:
    """Load the tokenizer of a model directory; None if it has none.

    It is tokenizer.json, otherwise the files of older checkpoints (`formats.tokenizer_older`). Raises InputError for a
    damaged tokenizer, and if only one of vocab.json and merges.txt exists.
    """
    name = os.path.join(path, TOKENIZER)
    if os.path.isfile(name):
        tokenizer = Tokenizer(name, overrides=read_overrides(path))
    elif os.path.isdir(path) and (older := _older_files(path)):
        tokenizer = Tokenizer(older[0], older=(_kind_at(path), read_settings(os.fspath(path))))
    else:
        return None
    tokenizer.truncation = read_truncation(path)
    return tokenizer


def _kind_at(path: str | os.PathLike[str]) -> str:
    return str(read_config(path).get("model_type"))


def _older_files(path: str | os.PathLike[str]) -> list[str]:
    """The files that replace tokenizer.json in older checkpoints: vocab.txt of a BERT, otherwise vocab.json and
    merges.txt.

    Raises InputError if only one of the last two exists.
    """
    if not any(os.path.isfile(os.path.join(path, part)) for part in (WORDS, VOCAB, MERGES)):
        return []
    kind = _kind_at(path)
    words = kind in CONFIGS and kind != "roberta"
    files = [os.path.join(path, part) for part in ((WORDS,) if words else (VOCAB, MERGES))]
    there = [os.path.isfile(file) for file in files]
    if any(there) and not all(there):
        what = f"{os.path.basename(files[there[0]])} is missing: {VOCAB} and {MERGES} make a tokenizer only together"
        raise InputError(what, path=path, remedy=f"get both, or {TOKENIZER}, from where the model came")
    return files if all(there) else []


def has_tokenizer(path: str | os.PathLike[str]) -> bool:
    """True if a model directory has files of a tokenizer."""
    return bool(tokenizer_files(path))


def tokenizer_files(path: str | os.PathLike[str]) -> list[str]:
    """The files of a model directory's tokenizer. Raises InputError if only one of vocab.json and merges.txt exists."""
    whole = os.path.join(path, TOKENIZER)
    return [whole] if os.path.isfile(whole) else _older_files(path) if os.path.isdir(path) else []
