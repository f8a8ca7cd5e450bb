"""Model files: a directory with config.json and safetensors, or one of the course's files without a header."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any

import msgspec
import numpy as np

from tilewright.errors import InputError
from tilewright.formats import course, safetensors
from tilewright.formats.atomic import AtomicDirectory, AtomicFile
from tilewright.formats.files import BLOCK_BYTES, InputFile
from tilewright.formats.foreign_models import foreign_format
from tilewright.formats.mapped import forget
from tilewright.formats.sharded import WEIGHTS, Stored, map_directory, read_json

CONFIG, GENERATION, TABLE = "config.json", "generation_config.json", "token_table.bin"
MAX_CONFIG_BYTES = 1 << 20
COURSE_CONFIG: dict[str, Any] = {"model_type": "textcnn"}  # default sizes: the file has no header
COURSE_CONFIGS = {  # by the exact number of bytes of the file
    801_196_040: COURSE_CONFIG,
    497_759_232: {"model_type": "gpt2"},
    20_549_132: {"model_type": "dcgan"},
}
FLOATS = ("float32", "bfloat16", "float16")  # types that weights may have in a model directory

_TokenId = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
Shapes = Mapping[str, tuple[int, ...]]
ShapesOf = Callable[[dict[str, Any]], Shapes]
Rename = Callable[[str], str | None]
Ties = Iterable[tuple[str, str]]


class _EndOfText(msgspec.Struct):
    eos_token_id: _TokenId | list[_TokenId] | None = None


def table_path(path: str | os.PathLike[str]) -> str:
    """The path of the token table of the model at `path`: in its directory, or beside its file."""
    return os.path.join(path, TABLE) if os.path.isdir(path) else f"{os.fspath(path)}.table"


def read_config(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The content of a directory's config.json. For a file, the entry of COURSE_CONFIGS with its size.

    Raises InputError for a configuration that is no JSON object, and for a file of another size.
    """
    if os.path.isdir(path):
        name = os.path.join(path, CONFIG)
        if not os.path.lexists(name):
            raise InputError("no such model's configuration", path=name, remedy=_without_config(os.fspath(path)))
        return read_json(name, "model's configuration", MAX_CONFIG_BYTES, dict[str, Any])
    with InputFile(path, "model") as file:
        if file.size in COURSE_CONFIGS:
            return dict(COURSE_CONFIGS[file.size])
        start = bytearray(min(file.size, 8))
        file.read_into(start, 0)
    if (what := foreign_format(os.fspath(path), bytes(start))) is not None:
        raise InputError(what[0], path=path, remedy=what[1])
    known = " or ".join(f"{size:,} ({config['model_type']})" for size, config in COURSE_CONFIGS.items())
    raise InputError(
        f"the weights have {file.size:,} bytes; the course's model takes exactly {known}",
        path=path,
        remedy="give any other model as a directory with config.json and model.safetensors",
    )


def eos_token_ids(path: str | os.PathLike[str]) -> tuple[int, ...]:
    """The ids that end a text: `eos_token_id` of generation_config.json, or else of config.json; () if neither has it.

    A file without a header has none. Raises InputError unless they are integers from 0.
    """
    for name in (GENERATION, CONFIG) if os.path.isdir(path) else ():
        file = os.path.join(path, name)
        if name == GENERATION and not os.path.exists(file):
            continue
        ids = read_json(file, "model's configuration", MAX_CONFIG_BYTES, _EndOfText).eos_token_id
        if ids is not None:
            return (ids,) if isinstance(ids, int) else tuple(ids)
    return ()


def read_model(
    path: str | os.PathLike[str],
    shapes_of: ShapesOf,
    rename: Rename | None = None,
    ties: Ties = (),
    *,
    headers: bool = False,
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The configuration, and the weights by name, in the order of `shapes_of(config)`, as views of the mapped files.

    rename: a tensor's name in the directory -> the model's name, or None to ignore the tensor. ties: (alias, name)
    pairs of the model's names. If the file also has the alias, its bytes must equal those of the name. float16 weights
    are converted to float32, which takes memory; float32 and bfloat16 ones are not copied. headers: read nothing but
    the headers of the files. float16 weights then stay unchanged, and no bytes are compared.

    Raises InputError, which names the tensor, if it is missing, unknown, given twice, not tied, or of another shape or
    type. For a damaged file it names the byte.
    """
    config = read_config(path)
    shapes = shapes_of(config)
    if not os.path.isdir(path):
        with InputFile(path, "model") as file:
            return config, course.map_weights(file, shapes)
    stored = map_directory(path)
    files = {tensor.path for tensor in stored.values()}
    shown = files.pop() if len(files) == 1 else os.fspath(path)
    arrays = fitted(stored, shapes, rename, ties, shown, headers=headers)
    return config, arrays if headers else {name: _widened(array) for name, array in arrays.items()}


def fitted(
    stored: Mapping[str, Stored],
    shapes: Shapes,
    rename: Rename | None,
    ties: Ties,
    path: str,
    *,
    headers: bool = False,
) -> dict[str, np.ndarray]:
    """The tensors of a checkpoint by the model's names, in the order of `shapes`. Parameters and errors are as in
    `read_model`. path: the name in messages that concern no single tensor."""
    tensors = _renamed(stored, rename)
    for alias, name in ties:
        if alias in tensors and alias not in shapes:
            twin = tensors.pop(alias)
            if not headers:
                _check_tied(alias, twin, name, tensors.get(name))
    _check(tensors, shapes, path)
    return {name: tensors[name].array for name in shapes}


def write_model(
    path: str | os.PathLike[str],
    config: Mapping[str, Any],
    tensors: Iterable[tuple[str, tuple[int, ...], Iterable[np.ndarray]]],
    others: Mapping[str, bytes] | None = None,
) -> None:
    """Write a model directory, complete or absent: (name, shape, float32 blocks) per tensor, with one block in memory.

    others: names and contents of further files, such as those of a tokenizer. An earlier model directory is replaced as
    a whole. One with files that do not belong to a model is refused. Raises ResourceError.
    """
    others = others or {}
    with AtomicDirectory(path, frozenset((CONFIG, WEIGHTS, TABLE, *others))) as temporary:
        for name, content in others.items():
            with AtomicFile(os.path.join(temporary, name)) as file:
                file.write(content)
        safetensors.write_tensors(os.path.join(temporary, WEIGHTS), tensors)
        with AtomicFile(os.path.join(temporary, CONFIG)) as file:
            file.write(json.dumps(config, indent=2).encode() + b"\n")


def _without_config(path: str) -> str:
    """What to do about a directory without config.json."""
    names = sorted(os.listdir(path))
    if not names:
        return "give a directory that holds config.json and model.safetensors: this one is empty"
    inside = [name for name in names if os.path.isfile(os.path.join(path, name, CONFIG))]
    if inside:
        return f"give {os.path.join(path, inside[0])}, which has one"
    if any(name.endswith((".safetensors", ".bin", ".pt", ".pth", ".ckpt")) for name in names):
        return f"get the config.json that came with these weights: the directory holds {', '.join(names[:3])}"
    return "give a model's directory, which holds config.json and model.safetensors"


def _renamed(stored: Mapping[str, Stored], rename: Rename | None) -> dict[str, Stored]:
    if rename is None:
        return dict(stored)
    tensors: dict[str, Stored] = {}
    for theirs, tensor in stored.items():
        name = rename(theirs)
        if name in tensors:
            raise InputError(
                f"tensor {theirs[:200]!r} is another name of {name}, which is given twice", path=tensor.path
            )
        if name is not None:
            tensors[name] = tensor
    return tensors


def _check_tied(alias: str, found: Stored, name: str, other: Stored | None) -> None:
    """Raises InputError unless both have the same bytes. They are read one block at a time, and then freed."""
    if other is None:
        return  # `_check` reports that `name` is missing
    a, b = found.array, other.array
    same = a.shape == b.shape and a.dtype == b.dtype
    if same and a.size:
        flat_a, flat_b = a.reshape(-1).view(np.uint8), b.reshape(-1).view(np.uint8)
        offsets = range(0, flat_a.size, BLOCK_BYTES)
        same = all(np.array_equal(flat_a[i : i + BLOCK_BYTES], flat_b[i : i + BLOCK_BYTES]) for i in offsets)
        forget(a)
        forget(b)
    if not same:
        raise InputError(
            f"tensor {alias} {a.shape} differs from {name} {b.shape}: a separate output matrix is not supported",
            path=found.path,
            remedy="use a model that was trained with tie_word_embeddings true, whose two matrices are one",
        )


def _check(tensors: Mapping[str, Stored], shapes: Shapes, path: str) -> None:
    for name, shape in shapes.items():
        if name not in tensors:
            similar = "" if tensors.keys() & shapes.keys() else "; the file has no tensor of such a model"
            remedy = "compare config.json with the weights"
            raise InputError(f"tensor {name} {shape} is missing{similar}", path=path, remedy=remedy)
        where, array = tensors[name]
        if array.shape != shape:
            raise InputError(f"tensor {name} is {array.shape}; the configuration requires {shape}", path=where)
        if array.dtype.name not in FLOATS:
            what = f"tensor {name} is {array.dtype.name}; {', '.join(FLOATS)} are read"
            raise InputError(what, path=where, remedy="save the model with weights of one of these dtypes")
    for name, (where, array) in tensors.items():
        if name not in shapes:
            raise InputError(f"tensor {name[:200]!r} {array.shape} is not part of the model", path=where)


def _widened(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float32) if array.dtype == np.float16 else array
