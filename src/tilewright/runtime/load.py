"""From a path to a model: the configuration checked, the weights mapped and found finite, then placed."""

from __future__ import annotations

import os
from typing import Any

import msgspec
import numpy as np

from tilewright.errors import InputError
from tilewright.formats.blocks import check_finite
from tilewright.formats.mapped import forget
from tilewright.formats.models import CONFIG, read_config, read_model
from tilewright.models.textcnn import MODEL_TYPE, TextCNN, TextCNNConfig

CONFIGS = {MODEL_TYPE: TextCNNConfig}


def parse_config(values: dict[str, Any], path: str | os.PathLike[str]) -> TextCNNConfig:
    """The configuration that config.json's values describe. Raises InputError naming the field that is wrong."""
    name = os.path.join(path, CONFIG) if os.path.isdir(path) else path
    kind = CONFIGS.get(str(values.get("model_type")))
    if kind is None:
        raise InputError(f"model_type is {values.get('model_type')!r}; {', '.join(CONFIGS)} can be loaded", path=name)
    try:
        return msgspec.convert(values, kind, str_keys=True)
    except msgspec.ValidationError as error:
        raise InputError(f"no valid configuration: {error}", path=name) from error


def config_of(path: str | os.PathLike[str]) -> TextCNNConfig:
    """The model's configuration, without its weights."""
    return parse_config(read_config(path), path)


def read_weights(path: str | os.PathLike[str]) -> tuple[TextCNNConfig, dict[str, np.ndarray]]:
    """The configuration and the mapped, finite weights of the model at `path`. Raises InputError."""
    config, weights = read_model(path, lambda values: parse_config(values, path).tensor_shapes())
    for name, array in weights.items():
        check_finite(name, array, os.fspath(path))
        forget(array)
    return parse_config(config, path), weights


def load(path: str | os.PathLike[str], **options: Any) -> TextCNN:
    """The model at `path`: a directory (config.json, model.safetensors) or the course's params.bin.

    options: keyword arguments of the model's class (`dtype`, `table_memory`). Raises InputError and ResourceError.
    """
    config, weights = read_weights(path)
    return place(config, weights, **options)


def place(config: TextCNNConfig, weights: dict[str, np.ndarray], **options: Any) -> TextCNN:
    """The model on this machine's CPU; mapped weights that it has packed leave memory."""
    model = TextCNN(config, weights, **options)
    for array in weights.values():
        forget(array)
    return model
