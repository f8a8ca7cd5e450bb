"""Where an output may go: not through a link that another user planted, and not where no rename can put it."""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress

from tilewright.errors import ResourceError
from tilewright.formats.files import naming

MOST_LINKS = 40  # followed in one path, as Linux does
MOUNTS = "/proc/self/mountinfo"


def resolved(path: str | os.PathLike[str]) -> str:
    """As `os.path.realpath`. Raises ResourceError for a link that another user may have planted.

    It is the rule of Linux's fs.protected_symlinks, which not every machine enforces: in a directory with the sticky
    bit that everybody may write to, a link must belong to this user or to the directory's owner.
    """
    rest, at, links = [*reversed(os.fspath(path).split("/"))], "/", 0
    if not os.path.isabs(path):
        at = os.getcwd()
    while rest:
        part = rest.pop()
        if part in ("", "."):
            continue
        if part == "..":
            at = os.path.dirname(at)
            continue
        here = os.path.join(at, part)
        target, owner = "", None
        with suppress(OSError, ValueError):  # ValueError: a NUL character, which opening it will tell
            status = os.lstat(here)
            if stat.S_ISLNK(status.st_mode) and links < MOST_LINKS:
                owner = None if trusted(at, status.st_uid) else status.st_uid
                target = os.readlink(here)
        if owner is not None:
            raise ResourceError(
                f"the output leads through a link that user {owner} made in {at}, where anyone may write",
                path=here,
                remedy="remove the link, or name a directory of yours",
            )
        if target:
            at, links = "/" if target.startswith("/") else at, links + 1
            rest += reversed(target.split("/"))
        else:
            at = here
    return at


def trusted(directory: str, owner: int) -> bool:
    """Whether something in `directory` that belongs to `owner` was put there by somebody to rely on."""
    status = os.stat(directory)
    anyone = status.st_mode & stat.S_ISVTX and status.st_mode & stat.S_IWOTH
    return not anyone or owner in (os.geteuid(), status.st_uid)


def check_renames(path: str) -> None:
    """Raises ResourceError where a rename to `path`, a resolved one, would be refused after the work: over a mount
    point, or in a sticky directory over what belongs to another user."""
    folder = os.path.dirname(path)
    with naming(path, "check"):
        try:
            owner = os.lstat(path).st_uid
        except (FileNotFoundError, NotADirectoryError):
            return
        user, keeper = os.geteuid(), os.stat(folder)
    if is_mount(path):
        raise ResourceError(
            "the output is a mount point, which no rename can replace", path=path, remedy="give a new name inside it"
        )
    if keeper.st_mode & stat.S_ISVTX and user not in (0, owner, keeper.st_uid):
        raise ResourceError(
            f"the output belongs to user {owner}, and in {folder} nobody else may replace it",
            path=path,
            remedy="choose another name",
        )


def is_mount(path: str) -> bool:
    """Whether something is mounted at `path`, a file or a directory; a part of the same file system counts, too."""
    try:
        with open(MOUNTS, "rb") as file:
            points = {_unescaped(line.split(b" ")[4]) for line in file}
    except (OSError, IndexError):
        return os.path.ismount(path)
    return os.fsencode(path) in points


def _unescaped(name: bytes) -> bytes:
    """Blanks and such are written as an octal number after a backslash."""
    return re.sub(rb"\\([0-7]{3})", lambda found: bytes([int(found[1], 8)]), name)


def job_mode(output: str) -> int:
    """The permission bits of the directory that holds all parts of an output: who may not read the output that is
    there now may read none of them."""
    try:
        status = os.stat(output)
    except (OSError, ValueError):
        return 0o777
    mode = stat.S_IMODE(status.st_mode) & 0o777
    if not stat.S_ISDIR(status.st_mode):
        mode = (mode & 0o666) | (mode & 0o444) >> 2  # who may read may enter
    return mode | 0o700
