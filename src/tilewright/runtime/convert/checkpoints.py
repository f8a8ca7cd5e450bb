"""State dicts of decoders, encoders and TextCNNs. Tensors do not determine all settings of a model, so the config.json
beside the file is read, too."""

from __future__ import annotations

import os

import msgspec
import numpy as np

from tilewright.errors import InputError
from tilewright.formats.embedding_modules import MODULES
from tilewright.formats.models import CONFIG, GENERATION, fitted, read_config
from tilewright.formats.sharded import Stored
from tilewright.formats.tokenizer import file_content
from tilewright.formats.tokenizer_older import OLDER_FILES
from tilewright.formats.tokenizer_settings import TOKENIZER_CONFIG
from tilewright.models import gpt2, gpt_neox, opt, textcnn
from tilewright.models.bert_config import CONFIGS as ENCODERS
from tilewright.models.bert_config import BertConfig
from tilewright.runtime.load import KINDS, TOKENIZER, Config, config_of

COPIED = (
    GENERATION,
    TOKENIZER,
    TOKENIZER_CONFIG,
    *OLDER_FILES,
)  # files of a checkpoint's directory that are copied to the model directory
SHOWN = 12  # the most tensors that a message lists
UNSAID = {  # by kind of model: the fields that its tensors do not determine
    gpt2.MODEL_TYPE: "the number of heads (n_head)",
    opt.MODEL_TYPE: "the number of heads (num_attention_heads)",
    gpt_neox.MODEL_TYPE: "the number of heads (num_attention_heads)",
    textcnn.MODEL_TYPE: "the number of tokens of a sentence (sequence_length)",
}
TEXTCNN = (
    "embedding.weight (V, C), convs.0.weight (O, C, K), convs.0.bias (O,), convs.1.weight, ..., "
    "linears.0.weight (outputs, inputs), linears.0.bias (outputs,), linears.1.weight, ..."
)

Tensors = dict[str, np.ndarray]


def kind_of(tensors: Tensors, path: str) -> str | None:
    """The model_type of the state dict at `path`; None if it is unknown.

    A decoder is recognised by the names of its tensors, an encoder by the config.json beside the file, and a TextCNN by
    its embedding or its one-dimensional filters.
    """
    names = {gpt2.own_name(name) for name in tensors}
    if "wte.weight" in names or any(name and name.endswith("attn.c_attn.weight") for name in names):
        return gpt2.MODEL_TYPE
    if any(name.removeprefix(opt.PREFIX) == opt.TOKENS for name in tensors):
        return opt.MODEL_TYPE
    if any(name.removeprefix(gpt_neox.PREFIX) == gpt_neox.TOKENS for name in tensors):
        return gpt_neox.MODEL_TYPE
    folder = os.path.dirname(path) or os.curdir
    if (
        os.path.isfile(os.path.join(folder, CONFIG))
        and (named := str(read_config(folder).get("model_type"))) in ENCODERS
    ):
        return named
    ranks = {array.ndim for array in tensors.values()}
    if 4 not in ranks and (3 in ranks or any("embed" in name for name in tensors)):
        return textcnn.MODEL_TYPE
    return None


def with_configuration(tensors: Tensors, kind: str, path: str) -> tuple[Config, Tensors]:
    """Read the config.json beside the file at `path`, and rename the tensors to the model's names.

    Raises InputError if there is no config.json, or if the tensors do not match it.
    """
    folder = os.path.dirname(path) or os.curdir
    if not os.path.isfile(os.path.join(folder, CONFIG)):
        wanted = f". A textcnn has {TEXTCNN}; this file has {_listed(tensors)}" if kind == textcnn.MODEL_TYPE else ""
        raise InputError(
            f"is a state dict of a {kind} without a {CONFIG} beside it, which tells {UNSAID[kind]}{wanted}",
            path=path,
            remedy=f"put {os.path.join(folder, CONFIG)} there; `tilewright init {kind} DIR` writes one to start from",
        )
    config, known = config_of(folder, KINDS[kind].config), KINDS[kind]
    if isinstance(config, BertConfig) and not config.is_classifier:
        _check_no_modules(folder)
    stored = {name: Stored(path, array) for name, array in tensors.items()}
    shapes = config.tensor_shapes()
    try:
        weights = fitted(stored, shapes, known.rename(config), known.ties, path)
    except InputError as error:
        if kind == textcnn.MODEL_TYPE:
            wanted = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
            error.remedy = f"rename its tensors: {CONFIG} describes {wanted}; this file has {_listed(tensors)}"
        raise
    if isinstance(config, gpt2.GPT2Config):
        _check_untied(config, tensors, path)
        config = msgspec.structs.replace(config, tie_word_embeddings=True)
    return config, weights


def copied(path: str) -> dict[str, bytes]:
    """The content by name of the files beside a checkpoint that belong to a model directory."""
    folder = os.path.dirname(path) or os.curdir
    names = [name for name in COPIED if os.path.isfile(os.path.join(folder, name))]
    return {name: file_content(os.path.join(folder, name)) for name in names}


def _check_no_modules(folder: str) -> None:
    """Raises InputError for an encoder of sentence-transformers: without its modules it would give other vectors."""
    path = os.path.join(folder, MODULES)
    if os.path.exists(path):
        remedy = "save the model with sentence-transformers, which writes a directory that needs no conversion"
        raise InputError("lists pooling and other modules, which are not converted", path=path, remedy=remedy)


def _check_untied(config: gpt2.GPT2Config, tensors: Tensors, path: str) -> None:
    """Raises InputError if the configuration requires a separate output matrix, and the file has none."""
    alias = gpt2.TIES[0][0]
    if not config.tie_word_embeddings and not any(gpt2.own_name(name) == alias for name in tensors):
        raise InputError(f"tensor {alias} is missing, and tie_word_embeddings is false", path=path,
                         remedy="save all weights, or set tie_word_embeddings to true if the two are one")  # fmt: skip


def _listed(tensors: Tensors) -> str:
    some = [f"{name[:100]} {array.shape}" for name, array in list(tensors.items())[:SHOWN]]
    return ", ".join([*some, *(["..."] if len(tensors) > SHOWN else [])])
