"""How a model directory makes one vector per text: the files of sentence-transformers, or the default of a directory
without them, which is the mean over all tokens.

    modules.json                        Transformer, Pooling, then any of Dense, Normalize, Dropout
    1_Pooling/config.json               cls, max, mean, mean_sqrt_len_tokens, weightedmean, lasttoken
    2_Dense/config.json                 a linear layer and its activation; its weights lie beside it
    sentence_bert_config.json           max_seq_length, do_lower_case
    config_sentence_transformers.json   prompts, default_prompt_name

A module or a field that would change the vectors, and is not supported, is refused by its name.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec

from tilewright.errors import InputError, UsageError
from tilewright.formats.sharded import read_json

MODULES, PROMPTS = "modules.json", "config_sentence_transformers.json"
ENCODERS = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)  # sentence-transformers reads the first one that is there, whatever the encoder is
CONFIG, WEIGHTS = "config.json", "model.safetensors"  # the files of a module
POOLINGS = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
OLD_POOLINGS = {  # the fields for them before sentence-transformers 6, in the order of the joined vectors
    "pooling_mode_cls_token": "cls", "pooling_mode_max_tokens": "max", "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens", "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}  # fmt: skip
ACTIVATIONS = {"Identity": None, "Tanh": "tanh", "ReLU": "relu", "GELU": "gelu"}  # PyTorch's name -> matmul's name
VECTOR = "sentence_embedding"  # the name of the vector that a module reads and writes
MAX_BYTES = 1 << 20  # of a JSON file
MAX_SIZE = 2**31
MAX_NAME = 255  # bytes of a directory's name, in all usual file systems

_Size = Annotated[int, msgspec.Meta(ge=1, le=MAX_SIZE)]


@dataclass(frozen=True)
class DenseLayer:
    """A linear layer: its directory, number of inputs and outputs, its bias, and matmul's name of its activation."""

    path: str
    inputs: int
    outputs: int
    bias: bool
    activation: str | None


@dataclass(frozen=True)
class EmbeddingModules:
    """The steps after the encoder.

    poolings: their vectors are joined in this order. include_prompt: the prompt's tokens are pooled, too. normalize:
    the vector is scaled to length 1 before the layers with these numbers; the number of layers means after the last.
    longest: the most tokens of a text; None: the tokenizer's limit. lowercase: texts are converted to lower case first.
    prompts: texts by name.
    """

    poolings: tuple[str, ...] = ("mean",)
    include_prompt: bool = True
    layers: tuple[DenseLayer, ...] = ()
    normalize: tuple[int, ...] = ()
    longest: int | None = None
    lowercase: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None

    def size(self, width: int) -> int:
        """The number of elements of a text's vector. width: of the encoder."""
        return self.layers[-1].outputs if self.layers else width * len(self.poolings)

    @property
    def is_normalized(self) -> bool:
        """True if the last module scales each vector to length 1."""
        return len(self.layers) in self.normalize

    def prompt_of(self, name: str | None = None, prompt: str | None = None) -> str:
        """The text that stands before each text: `prompt`, or the prompt of that name, or the default one. Raises
        UsageError."""
        if prompt is not None:
            if name is not None:
                rule = "give the prompt or its name, not both"
                raise UsageError(parameter="prompt_name", value=repr(name), rule=rule, remedy="leave one of them out")
            return prompt
        if name is None:
            return self.prompts.get(self.default_prompt, "") if self.default_prompt else ""
        if name not in self.prompts:
            known = f"the model has {', '.join(sorted(self.prompts)) or 'no prompts'}"
            raise UsageError(parameter="prompt_name", value=repr(name), rule=known, remedy="choose one of these prompts"
                             if self.prompts else "give the text of the prompt instead")  # fmt: skip
        return self.prompts[name]


class _Module(msgspec.Struct):
    type: str
    path: str = ""


class _Pooling(msgspec.Struct):
    embedding_dimension: _Size | None = None
    word_embedding_dimension: _Size | None = None
    pooling_mode: str | list[str] | None = None
    include_prompt: bool = True


class _Dense(msgspec.Struct):
    in_features: _Size
    out_features: _Size
    bias: bool = True
    activation_function: str = "torch.nn.modules.activation.Tanh"
    module_input_name: str = VECTOR
    module_output_name: str | None = None
    use_residual: bool = False


class _Normalize(msgspec.Struct):
    module_input_name: str = VECTOR
    module_output_name: str | None = None


class _Encoder(msgspec.Struct):
    max_seq_length: _Size | None = None
    do_lower_case: bool = False
    transformer_task: str = "feature-extraction"
    module_output_name: str = "token_embeddings"


class _Prompts(msgspec.Struct):
    prompts: dict[str, str | None] = {}
    default_prompt_name: str | None = None
    model_type: str = "SentenceTransformer"


def embedding_modules(path: str | os.PathLike[str], width: int) -> EmbeddingModules:
    """The modules of the model directory at `path`. Without modules.json a vector is the mean over all tokens.

    width: of the encoder. Raises InputError for a module, or a field, that is not supported.
    """
    name = os.path.join(path, MODULES)
    if not os.path.exists(name):
        return EmbeddingModules()
    modules = read_json(name, "list of modules", MAX_BYTES, list[_Module])
    kinds = [_kind(module, name) for module in modules]
    if kinds[:2] != ["Transformer", "Pooling"] or {"Transformer", "Pooling"} & set(kinds[2:]):
        what = f"the modules are {', '.join(kinds) or 'none'}; Transformer, Pooling, then others are wanted"
        raise InputError(what, path=name)
    if modules[0].path:
        what = f"the encoder lies in {modules[0].path!r:.100}, and it must lie in the model's directory itself"
        raise InputError(what, path=name, remedy="save the model again with sentence-transformers")
    layers: list[DenseLayer] = []
    normalize: list[int] = []
    for kind, module in zip(kinds[2:], modules[2:], strict=True):
        if kind == "Dense":
            layers.append(_dense(_inside(path, module.path, name)))
        elif kind == "Normalize":
            _check_names(_of_module(_inside(path, module.path, name), _Normalize), os.path.join(path, module.path))
            normalize.append(len(layers))
    poolings, include_prompt = _pooling(_inside(path, modules[1].path, name), width)
    found = EmbeddingModules(
        poolings, include_prompt, tuple(layers), tuple(normalize), *_encoder(path), *_prompts(path)
    )
    _check_sizes(found, width, name)
    return found


def embedding_files(path: str | os.PathLike[str]) -> list[str]:
    """The files that `embedding_modules` reads, including missing ones, and the weights of dense layers."""
    name = os.path.join(path, MODULES)
    files = [name, *(os.path.join(path, other) for other in (*ENCODERS, PROMPTS))]
    if os.path.isfile(name):
        for module in read_json(name, "list of modules", MAX_BYTES, list[_Module]):
            if _kind(module, name) != "Transformer":
                folder = _inside(path, module.path, name)
                files += [os.path.join(folder, CONFIG)]
                files += [os.path.join(folder, WEIGHTS)] if _kind(module, name) == "Dense" else []
    return files


def _kind(module: _Module, path: str) -> str:
    """The class of a module. Raises InputError for one that is not supported."""
    kind = module.type.rpartition(".")[2]
    known = ("Transformer", "Pooling", "Dense", "Normalize", "Dropout")  # Dropout has no effect here
    if kind not in known or not module.type.startswith("sentence_transformers."):
        what = f"module {module.type[:100]!r} is not supported; {', '.join(known)} of sentence_transformers are"
        raise InputError(what, path=path)
    return kind


def _inside(path: str | os.PathLike[str], folder: str, listing: str) -> str:
    """The directory of a module. Raises InputError for a path outside the model's directory or a long one."""
    forbidden = os.path.isabs(folder) or ".." in folder.split("/") or "\0" in folder
    if not 0 < len(folder.encode(errors="replace")) <= MAX_NAME or forbidden:
        raise InputError(f"path {folder!r:.100} is no directory inside the model's", path=listing)
    return os.path.join(path, folder)


def _of_module(folder: str, kind: Any) -> Any:
    """A module's config.json, or its defaults if it has none."""
    name = os.path.join(folder, CONFIG)
    return read_json(name, "module's configuration", MAX_BYTES, kind) if os.path.exists(name) else kind()


def _pooling(folder: str, width: int) -> tuple[tuple[str, ...], bool]:
    """(poolings, include_prompt)."""
    name = os.path.join(folder, CONFIG)
    values = read_json(name, "module's configuration", MAX_BYTES, dict[str, Any])
    found = read_json(name, "module's configuration", MAX_BYTES, _Pooling)
    given = found.embedding_dimension or found.word_embedding_dimension
    if given not in (None, width):
        what = f"embedding_dimension is {given}, and the encoder's hidden_size {width}: the two must be equal"
        raise InputError(what, path=name)
    mode = found.pooling_mode
    if mode is None:
        chosen = [ours for theirs, ours in OLD_POOLINGS.items() if values.get(theirs) is True] or ["mean"]
    else:
        chosen = [mode] if isinstance(mode, str) else mode
    unknown = [mode for mode in chosen if mode not in POOLINGS]
    unknown += [name for name in values if name.startswith("pooling_mode_") and name not in OLD_POOLINGS]
    if unknown or not chosen:
        raise InputError(f"pooling_mode is {str(chosen)[:100]}; {', '.join(POOLINGS)} are known", path=name)
    return tuple(chosen), found.include_prompt


def _dense(folder: str) -> DenseLayer:
    found: _Dense = read_json(os.path.join(folder, CONFIG), "module's configuration", MAX_BYTES, _Dense)
    path = os.path.join(folder, CONFIG)
    _check_names(found, folder)
    if found.use_residual:
        raise InputError("use_residual is true; only layers without a residual are supported", path=path)
    module, _, name = found.activation_function.rpartition(".")
    if name not in ACTIVATIONS or not module.startswith("torch.nn."):
        what = f"activation_function is {found.activation_function[:100]!r}; {', '.join(ACTIVATIONS)} are known"
        raise InputError(what, path=path)
    return DenseLayer(folder, found.in_features, found.out_features, found.bias, ACTIVATIONS[name])


def _check_names(found: Any, folder: str) -> None:
    """Raises InputError for a module that reads or writes anything but the vectors of texts."""
    for name in (found.module_input_name, found.module_output_name or VECTOR):
        if name != VECTOR:
            what = f"the module works on {name[:100]!r}; only {VECTOR} is supported"
            raise InputError(what, path=os.path.join(folder, CONFIG))


def _encoder(path: str | os.PathLike[str]) -> Iterator[Any]:
    """(longest, lowercase)."""
    name = next((file for name in ENCODERS if os.path.exists(file := os.path.join(path, name))), None)
    if name is None:
        return iter((None, False))
    values = read_json(name, "encoder's configuration", MAX_BYTES, dict[str, Any])
    found: _Encoder = read_json(name, "encoder's configuration", MAX_BYTES, _Encoder)
    text = (values.get("modality_config") or {}).get("text", {})
    outputs = (
        {"last_hidden_state", text.get("method_output_name", "last_hidden_state")} if isinstance(text, dict) else {}
    )
    if found.transformer_task != "feature-extraction" or outputs != {"last_hidden_state"}:
        what = f"transformer_task is {found.transformer_task[:100]!r}, of {sorted(map(str, outputs))}; "
        raise InputError(f"{what}only feature-extraction of last_hidden_state is supported", path=name)
    if found.module_output_name != "token_embeddings":
        what = f"module_output_name is {found.module_output_name[:100]!r}; only token_embeddings is supported"
        raise InputError(what, path=name)
    for field_name in ("processing_kwargs", "model_kwargs", "processor_kwargs", "config_kwargs", "model_args",
                       "tokenizer_args", "config_args"):  # fmt: skip
        if changing := _changing(values.get(field_name)):
            what = f"{field_name} sets {', '.join(changing)[:100]}, which is not supported"
            raise InputError(what, path=name, remedy=f"remove {field_name} if it changes no vector")
    return iter((found.max_seq_length, found.do_lower_case))


def _changing(values: Any) -> list[str]:
    """The names of arguments that may change a vector."""
    if not isinstance(values, dict):
        return []
    harmless = {"attn_implementation", "dtype", "torch_dtype", "trust_remote_code", "use_fast", "device_map"}
    return [str(name) for name, value in values.items() if name not in harmless and value not in (None, {}, [])]


def _prompts(path: str | os.PathLike[str]) -> Iterator[Any]:
    """(prompts, default_prompt)."""
    name = os.path.join(path, PROMPTS)
    if not os.path.exists(name):
        return iter(({}, None))
    found: _Prompts = read_json(name, "model's configuration", MAX_BYTES, _Prompts)
    if found.model_type != "SentenceTransformer":
        raise InputError(f"model_type is {found.model_type!r:.100}; only SentenceTransformer is supported", path=name)
    prompts = {prompt_name: prompt for prompt_name, prompt in found.prompts.items() if prompt is not None}
    if found.default_prompt_name is not None and found.default_prompt_name not in found.prompts:
        what = f"default_prompt_name is {found.default_prompt_name[:100]!r}, which is no name in prompts"
        raise InputError(what, path=name)
    return iter((prompts, found.default_prompt_name))


def _check_sizes(found: EmbeddingModules, width: int, path: str) -> None:
    """Raises InputError unless each layer takes as many elements as the module before it gives."""
    size = width * len(found.poolings)
    for layer in found.layers:
        if layer.inputs != size:
            what = f"in_features is {layer.inputs}, and the module before it gives {size}: the two must be equal"
            raise InputError(what, path=os.path.join(layer.path, CONFIG))
        size = layer.outputs
