"""Inputs and models by URL: each version of an object is downloaded once per machine, into `formats.fetched.home()`."""

from __future__ import annotations

import fcntl
import glob
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from tilewright.errors import InputError
from tilewright.formats import fetched
from tilewright.formats.files import naming
from tilewright.runtime.stores.objects import Objects, Stat
from tilewright.runtime.stores.urls import local_path

DOWNLOADS = 8  # objects of a folder at once
MANY = ("classify", "embed", "generate", "score")  # verbs whose input may be many files; of `convolve`: a Zarr array


def fetch(url: str, *, folder: bool = False, skip: Callable[[str], bool] = lambda name: False) -> str:
    """Download an object, unless this version of it is cached, and return the local path. For file://, the path itself.

    folder: the URL may also be a prefix, such as a model directory; then all objects below it are downloaded, except
    those whose names `skip` accepts.

    Raises UsageError for a malformed URL, InputError if the object is missing or is replaced during the download, and
    ResourceError if the store or the disk fails.
    """
    path = local_path(url)
    if path is not None:
        return path
    store = Objects(url)
    found = {"": status} if (status := store.stat("")) else store.names()
    found = {name: status for name, status in found.items() if not name or not skip(name)}
    if not found:
        raise InputError("there is no such object", path=url, remedy="check the URL")
    if "" not in found and not folder:
        raise InputError(f"this is a folder of {len(found):,} objects; one object is wanted", path=url,
                         remedy="give the URL of one object")  # fmt: skip
    return _copy(store, found)


def fetch_input(url: str, verb: str) -> str:
    """As `fetch`, for the input of a verb. Those of MANY take a folder of objects, or a pattern such as
    s3://bucket/data/*.jsonl. Of a pattern, the result is the path of the copies with the pattern at its end."""
    if verb not in MANY:
        return fetch(url, folder=verb == "convolve" and url.rstrip("/").endswith(".zarr"))
    if local_path(url) is not None or not glob.has_magic(url) or Objects(url).stat(""):
        return fetch(url, folder=True, skip=_is_hidden)
    names = url.split("/")
    first = next(number for number, name in enumerate(names) if glob.has_magic(name))
    head, pattern = "/".join(names[:first]), names[first:]
    store = Objects(head, bucket=True)
    found = {name: status for name, status in store.names().items() if _fits(name.split("/"), pattern)}
    if not found:
        raise InputError("there are no objects of this name", path=url, remedy="check the URL")
    return os.path.join(glob.escape(_copy(store, found)), *pattern)


def _is_hidden(name: str) -> bool:
    """True for objects that are no part of an input folder, as in a local one."""
    return any(part[0] in "._" for part in name.split("/"))


def _fits(names: list[str], pattern: list[str]) -> bool:
    """True if `glob.glob` would find the file by the pattern."""
    if not pattern or not names:
        return names == pattern
    is_shown = names[0][0] != "." or pattern[0][0] == "."
    if pattern[0] == "**":
        return _fits(names, pattern[1:]) or (is_shown and _fits(names[1:], pattern))
    return is_shown and fnmatchcase(names[0], pattern[0]) and _fits(names[1:], pattern[1:])


def _copy(store: Objects, found: dict[str, Stat]) -> str:
    """Download these versions of the objects unless they are cached, and return the local path."""
    etags = {name: status.tag for name, status in sorted(found.items())}
    sizes = [found[name].size for name in etags]
    key = hashlib.sha256(json.dumps([store.url, etags, sizes]).encode()).hexdigest()[:32]
    root = os.path.join(fetched.home(), fetched.OBJECTS)
    path = os.path.join(root, key, store.url.rpartition("/")[2])
    with naming(root, "make the directory"):
        os.makedirs(root, mode=0o700, exist_ok=True)
    note, content = os.path.join(root, f"{key}.json"), {"url": store.url, "etags": etags}
    with _locked(os.path.join(root, f"{key}.lock")):
        if not _is_whole(note, content, path, found):
            shutil.rmtree(os.path.join(root, key), ignore_errors=True)  # left by a killed process or a power failure
            _download(store, found, path)
            _note(note, content)
    return path


def _is_whole(note: str, content: dict[str, Any], path: str, found: dict[str, Stat]) -> bool:
    """True if the note is there and the copies have the sizes of the objects. A power failure may cut files short."""
    with suppress(OSError, ValueError):
        paths = {name: os.path.join(path, name) if name else path for name in found}
        known, sizes = json.loads(Path(note).read_bytes()), {name: os.path.getsize(paths[name]) for name in found}
        return bool(known == content and sizes == {name: status.size for name, status in found.items()})
    return False


def _download(store: Objects, found: dict[str, Stat], path: str) -> None:
    def one(name: str) -> None:
        target = os.path.join(path, name) if name else path
        with naming(target, "make the directory of"):
            os.makedirs(os.path.dirname(target), exist_ok=True)
        store.download(name, target, found[name].tag)

    with ThreadPoolExecutor(DOWNLOADS, "tilewright-fetch") as pool:
        for _ in pool.map(one, found):
            pass


def _note(path: str, content: dict[str, Any]) -> None:
    with naming(path, "write"):
        with open(f"{path}.tmp", "w", encoding="utf-8") as file:
            json.dump(content, file)
        os.replace(f"{path}.tmp", path)


@contextmanager
def _locked(path: str) -> Iterator[None]:
    """Hold a file lock within the block: processes of this machine that need the same copy wait for each other."""
    with naming(path, "lock"):
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        with naming(path, "lock"):
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
