"""Where an output may be written: not through a link of another user, and not where a rename would be refused."""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress

from tilewright.errors import ResourceError
from tilewright.formats.files import naming

MOST_LINKS = 40  # links that are followed in one path, as in Linux
MOUNTS = "/proc/self/mountinfo"


def resolved(path: str | os.PathLike[str]) -> str:
    """As `os.path.realpath`. Raises ResourceError for a link that another user may have created as an attack.

    This is the rule of Linux's fs.protected_symlinks, which not every machine enforces. It concerns a directory with
    the sticky bit to which everybody may write. There a link must belong to this user or to the directory's owner.
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
        with suppress(OSError, ValueError):  # ValueError: a NUL character, which is reported when the file is opened
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
    """Whether something in `directory` that belongs to `owner` was created by somebody who can be trusted."""
    status = os.stat(directory)
    anyone = status.st_mode & stat.S_ISVTX and status.st_mode & stat.S_IWOTH
    return not anyone or owner in (os.geteuid(), status.st_uid)


def check_renames(path: str) -> None:
    """Raises ResourceError if a rename to `path`, which is resolved, would be refused after the work. That is so over a
    mount point, and in a sticky directory over a file of another user."""
    folder = os.path.dirname(path)
    with naming(path, "look at"):
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
    """Whether something is mounted at `path`, a file or a directory. A part of the same file system counts, too."""
    try:
        with open(MOUNTS, "rb") as file:
            points = {_unescaped(line.split(b" ")[4]) for line in file}
    except (OSError, IndexError):
        return os.path.ismount(path)
    return os.fsencode(path) in points


def holds_no_files(folder: str) -> bool:
    """True for a directory of the kernel, in which no user can make anything: in /proc or /sys."""
    kernel = [root for root in ("/proc", "/sys") if os.path.ismount(root)]
    with suppress(OSError):
        return os.stat(folder).st_dev in [os.stat(root).st_dev for root in kernel]
    return False


def _unescaped(name: bytes) -> bytes:
    """The name with its escapes decoded: blanks and similar characters are a backslash and an octal number."""
    return re.sub(rb"\\([0-7]{3})", lambda found: bytes([int(found[1], 8)]), name)


def job_mode(output: str) -> int:
    """The permission bits of the directory with all parts of an output. Who may not read the existing output may not
    read the parts."""
    try:
        status = os.stat(output)
    except (OSError, ValueError):
        return 0o777
    mode = stat.S_IMODE(status.st_mode) & 0o777
    if not stat.S_ISDIR(status.st_mode):
        mode = (mode & 0o666) | (mode & 0o444) >> 2  # whoever may read the files may enter the directory
    return mode | 0o700
