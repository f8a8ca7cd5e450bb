"""The output of a job in a store: one object; or a folder of objects, such as a Zarr array or the parts of a text.

One object is replaced at once. Of a folder, the objects by which readers know it are deleted first and written last: a
Zarr array's metadata, or _SUCCESS. So nobody takes a half-written folder for a whole one.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from tilewright.formats.files import naming
from tilewright.runtime.stores.objects import Objects, Stat

LAST = ("_SUCCESS", "zarr.json", ".zarray", ".zattrs", ".zgroup")
TRANSFERS = 16  # at once: a request takes some milliseconds, most of them in the network


class Output:
    """The output at `url`, and its local copy `path`."""

    def __init__(self, url: str, path: str) -> None:
        self._store, self.path = Objects(url), path

    def tag(self) -> str | None:
        """The ETag of the object, or a hash of those of all objects of a folder; None if there is none."""
        if status := self._store.stat(""):
            return status.tag
        found = self._store.names()
        listed = "".join(f"{name!r} {found[name].tag}\n" for name in sorted(found))
        return hashlib.sha256(listed.encode()).hexdigest() if found else None

    def newest(self) -> str | None:
        """The name of the object in the folder that was written last; None if the output is not a folder."""
        found = {} if self._store.stat("") else self._store.names()
        return max(found, key=lambda name: found[name].modified, default=None)

    def download(self, *, hole: bool = False) -> bool:
        """Copy the output; False if there is none. hole: files of its sizes without its bytes."""
        status = self._store.stat("")
        found = {"": status} if status else self._store.names()
        with naming(self.path, "remove"), suppress(FileNotFoundError):
            shutil.rmtree(self.path) if os.path.isdir(self.path) else os.unlink(self.path)
        _each(lambda name: self._download(name, found[name], hole=hole), found)
        return bool(found)

    def _download(self, name: str, found: Stat, *, hole: bool) -> None:
        path = os.path.join(self.path, name) if name else self.path
        with naming(path, "write"):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            if hole:
                with open(path, "wb") as file:
                    file.truncate(found.size)
        if not hole:
            self._store.download(name, path, found.tag)

    def upload(self) -> str:
        """Replace the output by the local one; returns its tag. Of a folder, all other objects in it are deleted."""
        if not os.path.isdir(self.path):
            return self._store.upload("", self.path)
        names = [os.path.relpath(os.path.join(at, name), self.path)
                 for at, _, found in os.walk(self.path) for name in found]  # fmt: skip
        last = [name for name in names if os.path.basename(name) in LAST]
        self._store.delete([name for name in self._store.names() if name not in names or name in last])
        for some in (set(names) - set(last), last):
            _each(lambda name: self._store.upload(name, os.path.join(self.path, name)), sorted(some))
        return self.tag() or ""


def _each(call: Callable[[Any], object], items: Iterable[Any]) -> None:
    with ThreadPoolExecutor(TRANSFERS, "tilewright-output") as pool:
        for _ in pool.map(call, items):
            pass
