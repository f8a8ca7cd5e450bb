"""Checks that a run's inputs have not changed since it began: after a worker has opened them, and before each commit.

A user can reset a file's mtime but not its ctime. So even an edit that is undone before the check is detected. chmod
and hard links change the ctime too: they stop the run, and the next run compares the content (contents.py).

For a directory of many files (a Zarr array), one walk at the start notes the newest ctime per device. A file that is
read later and has no newer ctime is unchanged. The reader checks that for each file and for the directories above it,
whose ctimes change when files are added or removed. So no list of files is needed.
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tilewright.errors import InputError, ResourceError
from tilewright.formats.fetched import etags_below
from tilewright.formats.files import naming
from tilewright.runtime.jobs.manifest import (
    BYTES,
    CHANGED,
    CTIME,
    FILES,
    SHA256,
    Manifest,
    Value,
    changed_while_running,
    field_words,
    file_identity,
    local_time,
)


class Identity(NamedTuple):
    """The identity of one version of a file, from `os.stat`. Times are in ns."""

    device: int
    inode: int
    size: int
    changed: int
    ctime: int

    @classmethod
    def of(cls, path: str) -> Identity | None:
        """The identity of the file at `path`; None if there is no file. Raises ResourceError."""
        with naming(path, "look at"):
            try:
                status = os.stat(path)
            except (FileNotFoundError, NotADirectoryError):
                return None
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


@dataclass(frozen=True)
class Tree:
    """A directory and all files below it, found by one walk that follows links.

    size: bytes of all files. files: sha256 of their names, sizes and mtimes; of local copies of objects, with their
    ETags in place of the mtimes. ctimes: sha256 of their ctimes; "" for such copies. newest:
    the newest ctime (ns) of files and directories, by device. links: hash of the links' names and targets. headers:
    names of metadata files, which describe the other files.
    """

    path: str
    size: int
    files: str
    ctimes: str
    newest: dict[int, int]
    links: frozenset[int] = frozenset()
    headers: tuple[str, ...] = ()

    @classmethod
    def of(cls, path: str, headers: tuple[str, ...] = ()) -> Tree:
        """Walk through the directory. Raises ResourceError."""
        digest, ctimes, size, top = hashlib.sha256(), hashlib.sha256(), 0, os.path.abspath(path)
        etags = {os.path.join(path, os.path.relpath(file, top)): etag for file, etag in etags_below(top).items()}
        newest: dict[int, int] = {}
        links: set[int] = set()

        def note(status: os.stat_result) -> None:
            newest[status.st_dev] = max(newest.get(status.st_dev, 0), status.st_ctime_ns)

        with naming(path, "list"):
            for at, folder, linked, names in _walk(path):
                note(folder)
                links.update(_link(os.path.relpath(where, path), os.stat(where)) for where in linked)
                relative = os.path.relpath(at, path)
                for name in names:
                    status = os.stat(f"{at}/{name}")
                    note(status)
                    version = etags.get(f"{at}/{name}", status.st_mtime_ns)
                    line = f"{relative!r} {name!r} {status.st_size} {version}\n"
                    digest.update(line.encode(errors="surrogateescape"))
                    ctimes.update(b"%d\n" % status.st_ctime_ns)
                    size += status.st_size
        times = "" if etags else ctimes.hexdigest()
        return cls(path, size, digest.hexdigest(), times, newest, frozenset(links), headers)

    def fields(self, name: str) -> dict[str, Value]:
        """The fields of a fingerprint that identify the directory. name: their prefix."""
        times: dict[str, Value] = {name + CTIME: self.ctimes} if self.ctimes else {}
        return {name + BYTES: self.size, name + FILES: self.files, **times}

    def check(self, names: Iterable[str]) -> None:
        """Raises InputError unless these files (paths in the directory) are unchanged, or still missing. Call it after
        reading them."""
        checked: set[str] = set()
        for name in names:
            while name not in checked:
                checked.add(name)
                self._check(name)
                name = os.path.dirname(name)

    def _check(self, name: str) -> None:
        path = os.path.join(self.path, name) if name else self.path
        with naming(path, "look at"):
            try:
                status = os.stat(path)
            except (FileNotFoundError, NotADirectoryError):
                if name:
                    return  # if it existed before, the ctime of its directory has changed
                raise
            if self.links and name and os.path.islink(path) and _link(name, status) not in self.links:
                raise changed_while_running(f"{path} leads to another file")
        if status.st_ctime_ns > self.newest.get(status.st_dev, -1):
            raise changed_while_running(f"{path} was changed at {local_time(status.st_ctime_ns)}")


def _walk(path: str) -> Iterator[tuple[str, os.stat_result, list[str], list[str]]]:
    """Walk through a directory in a fixed order. Yields (directory, its status, paths of links, names of files).

    If a link leads to a directory again, it is not walked a second time.
    """
    seen: set[tuple[int, int]] = set()
    for at, folders, names in os.walk(path, followlinks=True):
        status = os.stat(at)
        if (status.st_dev, status.st_ino) in seen:
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        folders.sort()
        names.sort()
        linked = [entry.path for entry in os.scandir(at) if entry.is_symlink()]
        yield at, status, linked, names


def files_below(path: str) -> Iterator[str]:
    """The names, relative to the directory, of all files of a `Tree`, in its order. Raises ResourceError."""
    with naming(path, "list"):
        for at, _, _, names in _walk(path):
            yield from (os.path.normpath(os.path.join(os.path.relpath(at, path), name)) for name in names)


def _link(name: str, target: os.stat_result) -> int:
    """A hash that is the same in every process."""
    said = f"{name!r} {target.st_dev} {target.st_ino}".encode(errors="surrogateescape")
    return int.from_bytes(hashlib.sha256(said).digest()[:8], "little")


@dataclass(frozen=True)
class AsBegun:
    """The inputs of a run, as they were when it began. A shard is committed only if all inputs are unchanged.

    Otherwise later runs would reuse the shard, and could not detect that a file had other content when it was computed.
    files: (path, identity) by name in the fingerprint; the identity is None for a missing file. trees: directories of
    many files, by name. host: the host on which these were found.
    """

    files: dict[str, tuple[str, Identity | None]] = field(default_factory=dict)
    trees: dict[str, Tree] = field(default_factory=dict)
    host: str = ""

    @classmethod
    def of(cls, files: dict[str, str]) -> AsBegun:
        """Note the files as they are now. files: paths by name, including missing files that would be read."""
        found = {name: (path, Identity.of(path)) for name, path in files.items() if not os.path.isdir(path)}
        return cls(found, {}, platform.node())

    def check(self) -> None:
        """Raises InputError with the name of a file that has changed."""
        for name, (path, was) in self.files.items():
            now = Identity.of(path)
            if now != was:
                raise changed_while_running(_difference(name, path, was, now))
        for tree in self.trees.values():
            tree.check(("", *tree.headers))

    def holds(self) -> bool:
        """True if `check` raises nothing."""
        try:
            self.check()
        except (InputError, ResourceError):
            return False
        return True

    def also(self, trees: dict[str, Tree]) -> AsBegun:
        """A copy with these directories."""
        return replace(self, trees=trees)

    def check_before(self, since: int | None) -> None:
        """Raises InputError for a file that was changed at `since` (ns since 1970) or later.

        The command may have read a part of the earlier version before the run began.
        """
        if since is None:
            return
        for path, was in self.files.values():
            if was and was.ctime >= since:
                raise changed_while_running(f"{path} was changed at {local_time(was.ctime)}")
        for tree in self.trees.values():
            if max(tree.newest.values(), default=0) >= since:
                raise changed_while_running(f"a file in {tree.path} was changed when the job began")

    def here(self, manifest: Manifest) -> AsBegun:
        """A copy for this process, which may run on another host. Raises InputError if a file differs.

        There a file may be a copy with the same mtime and another identity. Its samples are compared with the
        manifest's.
        """
        if not self.host or platform.node() == self.host:
            return self
        files = {}
        for name, (path, was) in self.files.items():
            now = Identity.of(path)
            shipped = name + SHA256 in manifest.fingerprint  # its mtime is the time of the installation
            same = now is not None and was is not None and now.size == was.size
            if now and was and not shipped:
                same = same and now.changed == was.changed
            if same:
                fields = file_identity(name, path)
                same = all(fields[part] == manifest.fingerprint.get(part) for part in fields if CTIME not in part
                           and CHANGED not in part)  # fmt: skip
            if not same and now is not was:
                raise changed_while_running(f"{path} is another file on {platform.node()} than on {self.host}")
            files[name] = (path, now)
        trees = {name: Tree.of(tree.path, tree.headers) for name, tree in self.trees.items()}
        for name, tree in trees.items():
            if tree.files != self.trees[name].files:
                raise changed_while_running(f"{tree.path} has other files on {platform.node()} than on {self.host}")
        return replace(self, files=files, trees=trees, host=platform.node())

    def folders(self) -> dict[str, Identity | None]:
        """The directories of missing files."""
        absent = {os.path.dirname(path) or "." for path, was in self.files.values() if was is None}
        return {folder: Identity.of(folder) for folder in sorted(absent)}


def _difference(name: str, path: str, was: Identity | None, now: Identity | None) -> str:
    if was is None or now is None:
        return f"{path} {'was not there and is' if was is None else 'was there and is not'}"
    if was.changed != now.changed:
        return f"{name + CHANGED} was {local_time(was.changed)} and is {local_time(now.changed)}"
    if was.size != now.size:
        return f"{field_words(name + BYTES)} was {was.size:,} bytes and is {now.size:,} bytes"
    if (was.device, was.inode) != (now.device, now.inode):
        return f"{path} is another file, as old and as large"
    why = "as by an edit that puts the time back, by chmod or by a hard link"
    return f"the status of {path} was changed at {local_time(now.ctime)}, {why}"
