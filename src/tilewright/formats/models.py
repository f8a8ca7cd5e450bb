"""Models on disk: a directory of config.json and model.safetensors, or the course's one file without a header."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
import numpy as np

from tilewright.errors import InputError
from tilewright.formats import course, safetensors
from tilewright.formats.atomic import AtomicDirectory, AtomicFile
from tilewright.formats.files import InputFile

CONFIG, WEIGHTS, TABLE = "config.json", "model.safetensors", "token_table.bin"
MAX_CONFIG_BYTES = 1 << 20
COURSE_CONFIG = {"model_type": "textcnn"}  # all sizes at their defaults: the model whose file has no header
FLOATS = ("float32", "bfloat16", "float16")  # types that weights may have in a model directory

Shapes = Mapping[str, tuple[int, ...]]
ShapesOf = Callable[[dict[str, Any]], Shapes]


def table_path(path: str | os.PathLike[str]) -> str:
    """Where the token table of the model at `path` is kept: in its directory, or beside its file."""
    return os.path.join(path, TABLE) if os.path.isdir(path) else f"{os.fspath(path)}.table"


def read_config(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What config.json of a directory says; COURSE_CONFIG for a file. Raises InputError unless it is a JSON object."""
    if not os.path.isdir(path):
        InputFile(path, "model").close()
        return dict(COURSE_CONFIG)
    name = os.path.join(path, CONFIG)
    with InputFile(name, "model's configuration") as file:
        if file.size > MAX_CONFIG_BYTES:
            raise InputError(f"{file.size:,} bytes are no configuration; the limit is {MAX_CONFIG_BYTES:,}", path=name)
        text = bytearray(file.size)
        file.read_into(text, 0)
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"no valid configuration: {error}", path=name) from error


def read_model(path: str | os.PathLike[str], shapes_of: ShapesOf) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The configuration, and the weights by name, in the order of `shapes_of(config)`, as views of the mapped file.

    float16 weights are widened to float32, which takes memory; float32 and bfloat16 ones are not copied. Raises
    InputError naming the tensor that is missing, too many, of another shape or of another type, or the byte where a
    file is damaged.
    """
    config = read_config(path)
    shapes = shapes_of(config)
    if not os.path.isdir(path):
        with InputFile(path, "model") as file:
            return config, course.map_weights(file, shapes)
    with InputFile(os.path.join(path, WEIGHTS), "model's weights") as file:
        tensors = safetensors.read_header(file)
        _check(tensors, shapes, file.path)
        weights = safetensors.map_tensors(file, tensors)
    return config, {name: _widened(weights[name]) for name in shapes}


def write_model(
    path: str | os.PathLike[str],
    config: Mapping[str, Any],
    tensors: Iterable[tuple[str, tuple[int, ...], Iterable[np.ndarray]]],
) -> None:
    """Writes a model directory, complete or absent: (name, shape, float32 blocks) a tensor, one block in memory.

    An earlier model directory is replaced as a whole; one that holds other files than a model's is refused. Raises
    ResourceError.
    """
    with AtomicDirectory(path, frozenset((CONFIG, WEIGHTS, TABLE))) as temporary:
        safetensors.write_tensors(os.path.join(temporary, WEIGHTS), tensors)
        with AtomicFile(os.path.join(temporary, CONFIG)) as file:
            file.write(json.dumps(config, indent=2).encode() + b"\n")


def _check(tensors: Mapping[str, safetensors.Tensor], shapes: Shapes, path: str) -> None:
    for name, shape in shapes.items():
        if name not in tensors:
            similar = "" if tensors.keys() & shapes.keys() else "; none of its names is one of this model's"
            hint = "compare config.json with the weights"
            raise InputError(f"tensor {name} {shape} is missing{similar}", path=path, hint=hint)
        found = tensors[name]
        if found.shape != shape:
            raise InputError(f"tensor {name} is {found.shape}; {shape} is wanted by the configuration", path=path)
        if found.dtype.name not in FLOATS:
            raise InputError(f"tensor {name} is {found.dtype.name}; {', '.join(FLOATS)} are read", path=path)
    for name in tensors:
        if name not in shapes:
            raise InputError(f"tensor {name[:200]!r} {tensors[name].shape} is not part of the model", path=path)


def _widened(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float32) if array.dtype == np.float16 else array
