"""Where the state of a job is: in OUT.job/, or in the directory that --job-dir names.

With --job-dir, OUT.job is a file that names this directory, and owner.json in the directory names OUT. So each command
finds the state by the output alone, on each node and without the option. A second run with another --job-dir is
refused: it would start anew, and leave the first state unused. One directory never holds the state of two outputs.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Set
from contextlib import suppress

from tilewright.errors import ResourceError, UsageError
from tilewright.formats.destinations import resolved, trusted
from tilewright.formats.files import path_of, spelled
from tilewright.runtime.jobs.durable import Draft, Folder
from tilewright.runtime.jobs.manifest import Damaged, Sealed, encoded, seal, unseal

OWNER = "owner.json"
MOST_BYTES = 1 << 16  # of a Location: two paths of 4,096 bytes, each byte spelled with at most six characters


class Location(Sealed, frozen=True):
    """The content of OUT.job and of owner.json. directory: with the state. output: of the job. Both are absolute."""

    directory: str
    output: str


def job_path(output: str) -> str:
    """The directory with the state of the job of `output`. Raises ResourceError, as `moved_to`."""
    output = os.path.realpath(output)
    return moved_to(output) or f"{output}.job"


def moved_to(output: str) -> str | None:
    """The directory that the file OUT.job names; None if there is no such file. output: a resolved path.

    The file is ignored if its directory contains, equals or is inside the output: no run writes this. Raises
    ResourceError if another user may have planted the file.
    """
    path = f"{output}.job"
    found = _read(path)
    if found is None:
        return None
    location, owner = found
    folder = os.path.dirname(path)
    if not trusted(folder, owner):
        what = f"user {owner} made this file in {folder}, where anyone may write"
        raise ResourceError(what, path=path, remedy="name an output in a directory of yours")
    directory = path_of(location.directory)
    return None if _overlap(directory, output) else directory


def output_in(directory: str) -> str | None:
    """The output of the job whose state a directory of --job-dir holds; None for any other directory."""
    found = _read(os.path.join(directory, OWNER))
    output = path_of(found[0].output) if found else None
    return output if output and moved_to(output) == os.path.realpath(directory) else None


def chosen(output: str, given: str | None) -> str:
    """The directory for the state of the job of `output`, a resolved path. given: the value of --job-dir, if any.

    Raises UsageError if the state is elsewhere already, or if the directory and the output are inside each other.
    """
    there, beside = moved_to(output), f"{output}.job"
    if given is None:
        return there or beside
    if "://" in given:
        what = f"--job-dir is the URL {given!r}, and the output is a local one"
        raise UsageError(what, path=output, remedy="give --job-dir a local directory, or write the output to a URL")
    wanted = resolved(given)
    now = there or (beside if os.path.isdir(beside) else wanted)
    if now != wanted:
        raise UsageError(f"the state of this job is in {now}, and --job-dir names another directory", path=wanted,
                         remedy=f"leave out --job-dir; or remove {beside}, to begin anew")  # fmt: skip
    if _overlap(wanted, output):
        raise UsageError("--job-dir and the output are inside each other", path=wanted,
                         remedy="give --job-dir a directory of its own")  # fmt: skip
    return wanted


def settle(root: Folder, output: str, known: Set[str]) -> bool:
    """Make the open directory that of `output`: write owner.json in it, and OUT.job. True if it was empty.

    known: names of which a job's directory has one, if it is not empty. Raises UsageError if it is another job's or
    holds other files, and ResourceError.
    """
    with suppress(OSError):  # some file systems cannot lock a directory
        fcntl.flock(root.fd, fcntl.LOCK_EX)
    try:
        names = check_free(root, output, known)
        content = encoded(seal(Location(directory=spelled(root.path), output=spelled(output))))
        if root.read(OWNER, MOST_BYTES) != content:
            root.place(OWNER, content)
        _point(output, content, root.path)
        return not names
    finally:
        with suppress(OSError):
            fcntl.flock(root.fd, fcntl.LOCK_UN)


def check_free(root: Folder, output: str, known: Set[str]) -> set[str]:
    """The names in the open directory. known, errors: as for `settle`."""
    names = set(root.names())
    owner = output_in(root.path)
    if owner is None and root.path.endswith(".job") and names & known:
        owner = root.path.removesuffix(".job")  # it lies beside this output
    if owner not in (None, output):
        raise UsageError(f"this directory holds the state of the job of {owner}", path=root.path,
                         remedy="give --job-dir another directory: each job needs its own")  # fmt: skip
    if names and not names & {OWNER, *known}:
        raise UsageError("--job-dir is not empty, and holds no job", path=root.path,
                         remedy="give --job-dir a new directory, or an empty one")  # fmt: skip
    return names


def _point(output: str, content: bytes, directory: str) -> None:
    """Write OUT.job, unless it names this directory. Raises UsageError if another run has named another one."""
    if moved_to(output) == directory:
        return
    folder = Folder(os.path.dirname(output))
    try:
        with Draft(folder, f"{os.path.basename(output)}.job") as draft:
            draft.write(content)
            draft.commit_unless_there()
    finally:
        folder.close()
    if (now := moved_to(output)) != directory:
        raise UsageError(f"another run keeps the state of this job in {now or f'{output}.job'}", path=directory,
                         remedy="leave out --job-dir")  # fmt: skip


def forget(output: str, directory: str) -> None:
    """Remove OUT.job if it names this directory, whose state is gone."""
    with suppress(OSError):
        if moved_to(output) == directory:
            os.unlink(f"{output}.job")


def _overlap(directory: str, output: str) -> bool:
    """True if one of the two absolute paths is in the other, or is the other."""
    return os.path.commonpath([directory, output]) in (directory, output)


def _is_path(text: str) -> bool:
    """False for what no run writes, such as the text of an edited file."""
    return os.path.isabs(text) and "\0" not in text and os.path.normpath(text) == text


def _read(path: str) -> tuple[Location, int] | None:
    """(content, user id of its owner) of a file; None if it is missing or something else."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        status = os.fstat(fd)
        raw = os.read(fd, MOST_BYTES) if stat.S_ISREG(status.st_mode) else b""
        location = unseal(raw, Location)
        named = path_of(location.directory), path_of(location.output)
        return (location, status.st_uid) if all(map(_is_path, named)) else None
    except (Damaged, OSError):
        return None
    finally:
        os.close(fd)
