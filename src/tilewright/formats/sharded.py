"""The weights of a model directory: model.safetensors, or the shards that model.safetensors.index.json lists."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import msgspec
import numpy as np

from tilewright.errors import InputError
from tilewright.formats import safetensors
from tilewright.formats.files import InputFile
from tilewright.formats.foreign_models import foreign_weights
from tilewright.formats.json_keys import check_keys
from tilewright.formats.lines import json_error

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
MAX_INDEX_BYTES = 64 << 20  # enough for a million tensors


class Stored(NamedTuple):
    """A tensor of a directory: its file, and its read-only mapped array."""

    path: str
    array: np.ndarray


class _Index(msgspec.Struct):
    weight_map: dict[str, str]
    metadata: dict[str, Any] = {}


def map_directory(path: str | os.PathLike[str]) -> dict[str, Stored]:
    """Every tensor of the directory by its name, mapped. As in other libraries, model.safetensors has precedence over
    an index.

    Raises InputError for a damaged file, for an index that names files in other directories, and for an index whose
    content differs from the shards.
    """
    whole, index = (os.path.join(path, name) for name in (WEIGHTS, INDEX))
    if not os.path.lexists(whole) and not os.path.lexists(index):
        other = foreign_weights(os.fspath(path))
        if other is not None:
            raise InputError(other[0], path=path, remedy=other[1])
    if os.path.exists(whole) or not os.path.exists(index):
        return _map_file(whole)
    shard_of = _read_index(index)
    stored: dict[str, Stored] = {}
    shards = sorted(set(shard_of.values()))
    gone = [shard for shard in shards if not os.path.lexists(os.path.join(path, shard))]
    if gone:
        some = ", ".join(gone[:5]) + (", ..." if gone[5:] else "")
        raise InputError(
            f"{len(gone)} of the {len(shards)} files that {INDEX} lists are missing: {some}",
            path=path,
            remedy="download the model again",
        )
    for shard in shards:
        found = _map_file(os.path.join(path, shard))
        for name in found:
            if shard_of.get(name) != shard:
                where = f"in {shard_of[name]}" if name in shard_of else "nowhere"
                raise InputError(f"holds tensor {name[:200]!r}, which {INDEX} has {where}", path=found[name].path)
        stored |= found
    for name, shard in shard_of.items():
        if name not in stored:
            raise InputError(
                f"tensor {name[:200]!r} is not in {shard}",
                path=index,
                remedy="download the model again: files of two differ",
            )
    return stored


def _map_file(path: str) -> dict[str, Stored]:
    with InputFile(path, "model's weights") as file:
        arrays = safetensors.map_tensors(file, safetensors.read_header(file))
    return {name: Stored(path, array) for name, array in arrays.items()}


def _read_index(path: str) -> dict[str, str]:
    """Tensor -> the name of its shard, a file in the same directory."""
    shard_of = read_json(path, "index of the weights", MAX_INDEX_BYTES, _Index).weight_map
    for shard in set(shard_of.values()):
        if not shard.endswith(".safetensors") or ".." in shard or set(shard) & set("/\\\0"):
            what = f"names {shard[:200]!r}, which is no .safetensors file of this directory"
            raise InputError(what, path=path, where="weight_map")
    return shard_of


def read_json(path: str, what: str, limit: int, kind: Any) -> Any:
    """The content of a JSON file as msgspec's `kind`. Raises InputError for more than `limit` bytes, or for other
    content."""
    with InputFile(path, what) as file:
        if file.size > limit:
            raise InputError(f"the {what} has {file.size:,} bytes; at most {limit:,} are allowed", path=path)
        text = bytearray(file.size)
        file.read_into(text, 0)
    try:
        found = msgspec.json.decode(text, type=kind)
        check_keys(text)
        return found
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        wrong = json_error(error, text)
        field = f"field {wrong.field[:100]}" if wrong.field else None
        raise InputError(f"no valid {what}: {str(wrong)[:300]}", path=path, where=field) from error
