"""Inputs and models by URL: each version of an object is downloaded once per machine, into `formats.fetched.home()`."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from tilewright.errors import InputError
from tilewright.formats import fetched
from tilewright.formats.files import naming
from tilewright.runtime.stores.objects import Objects, Stat
from tilewright.runtime.stores.urls import local_path

DOWNLOADS = 8  # objects of a folder at once


def fetch(url: str, *, folder: bool = False) -> str:
    """The path of the local copy of an object, downloaded unless this version of it is there; of a file:// URL its
    path. folder: a prefix with all its objects may be meant, such as a model directory.

    Raises UsageError for a URL that names nothing, InputError for an object that is not there or is replaced
    meanwhile, ResourceError where the store or the disk refuses.
    """
    path = local_path(url)
    if path is not None:
        return path
    store = Objects(url)
    found = {"": status} if (status := store.stat("")) else store.names()
    if not found:
        raise InputError("there is no such object", path=url, remedy="check the URL")
    if "" not in found and not folder:
        raise InputError(f"this is a folder of {len(found):,} objects; one object is wanted", path=url,
                         remedy="give the URL of one object")  # fmt: skip
    return _copy(store, found)


def _copy(store: Objects, found: dict[str, Stat]) -> str:
    """The path of the local copy of these versions of the objects."""
    etags = {name: status.tag for name, status in sorted(found.items())}
    sizes = [found[name].size for name in etags]
    key = hashlib.sha256(json.dumps([store.url, etags, sizes]).encode()).hexdigest()[:32]
    root = os.path.join(fetched.home(), fetched.OBJECTS)
    path = os.path.join(root, key, store.url.rpartition("/")[2])
    with naming(root, "make the directory"):
        os.makedirs(root, mode=0o700, exist_ok=True)
    with _locked(os.path.join(root, f"{key}.lock")):
        if not os.path.isfile(os.path.join(root, f"{key}.json")):
            shutil.rmtree(os.path.join(root, key), ignore_errors=True)  # of a process that was killed
            _download(store, found, path)
            _note(os.path.join(root, f"{key}.json"), store.url, etags)
    return path


def _download(store: Objects, found: dict[str, Stat], path: str) -> None:
    def one(name: str) -> None:
        target = os.path.join(path, name) if name else path
        with naming(target, "make the directory of"):
            os.makedirs(os.path.dirname(target), exist_ok=True)
        store.download(name, target, found[name].tag)

    with ThreadPoolExecutor(DOWNLOADS, "tilewright-fetch") as pool:
        for _ in pool.map(one, found):
            pass


def _note(path: str, url: str, etags: dict[str, str]) -> None:
    with naming(path, "write"):
        with open(f"{path}.tmp", "w", encoding="utf-8") as file:
            json.dump({"url": url, "etags": etags}, file)
        os.replace(f"{path}.tmp", path)


@contextmanager
def _locked(path: str) -> Iterator[None]:
    """Other processes of this machine that want the same copy wait for it."""
    with naming(path, "lock"):
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        with naming(path, "lock"):
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
