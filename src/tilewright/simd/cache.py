"""Compiled kernels on disk: one file a kernel and signature, in a private directory that is checked before use.

The directory's name carries a hash of the source of `simd` and `ops`, of the versions that generate code and of the
CPU, so nothing in it is ever stale and two machines may share a home. A file is a sha256 followed by what Numba
serialises. Numba unpickles it, hence the check: the directory must belong to this user and be writable by nobody else.
A truncated or altered file is ignored and written again; a write is private first and then renamed, so any number of
processes may start at once.
"""

import functools
import hashlib
import os
import pickle
import stat
import sys
import tempfile
from pathlib import Path

from tilewright.errors import ResourceError

_DIGEST = hashlib.sha256().digest_size


def home() -> Path:
    """`$TILEWRIGHT_CACHE`, else `$XDG_CACHE_HOME/tilewright`, else `~/.cache/tilewright`."""
    if chosen := os.environ.get("TILEWRIGHT_CACHE"):
        return Path(chosen)
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "tilewright"
    try:
        return Path.home() / ".cache" / "tilewright"
    except RuntimeError as error:
        hint = "name a directory for compiled kernels: TILEWRIGHT_CACHE"
        raise ResourceError("this user has no home directory", hint=hint) from error


@functools.cache
def key() -> str:
    """16 hex digits of everything that changes the machine code of a kernel."""
    import llvmlite
    import llvmlite.binding
    import numba

    root = Path(__file__).resolve().parent.parent
    digest = hashlib.sha256()
    for source in sorted([*(root / "simd").rglob("*.py"), *(root / "ops").rglob("*.py")]):
        digest.update(str(source.relative_to(root)).encode() + b"\0" + source.read_bytes() + b"\0")
    features = llvmlite.binding.get_host_cpu_features().flatten()
    parts = (sys.version, numba.__version__, llvmlite.__version__, llvmlite.binding.get_host_cpu_name(), features)
    digest.update("\0".join(parts).encode())
    return digest.hexdigest()[:16]


def directory() -> Path:
    """Where this package's compiled kernels lie on this machine; it may not exist yet."""
    return home() / key()


def check(path: Path) -> None:
    """Make `path` (mode 0700) or check that it is ours alone.

    Raises ResourceError if it is no directory, belongs to someone else, or others may write to it: code is loaded from
    there.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        raise ResourceError(
            f"the directory for compiled kernels cannot be made: {error.strerror}",
            path=path,
            hint="set TILEWRIGHT_CACHE to a directory of your own, or to 'off' to compile in every run",
        ) from error
    wrong = None
    if not stat.S_ISDIR(found.st_mode):
        wrong = "it is no directory"
    elif hasattr(os, "getuid") and found.st_uid != os.getuid():
        wrong = f"it belongs to user {found.st_uid}, and this process is user {os.getuid()}"
    elif stat.S_IMODE(found.st_mode) & 0o022:
        wrong = f"others may write to it (mode {stat.S_IMODE(found.st_mode):04o})"
    if wrong:
        raise ResourceError(
            f"compiled kernels are not loaded from this directory because {wrong}",
            path=path,
            hint=f"remove it (rm -r {path}), or set TILEWRIGHT_CACHE to a private directory",
        )


class KernelCache:
    """What Numba's dispatcher asks for in place of its own cache: load and save one kernel's machine code."""

    def __init__(self, name: str):
        self.name = name

    def _file(self, signature) -> Path:
        folder = directory()
        check(folder)
        safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in self.name)
        return folder / f"{safe}-{hashlib.sha256(f'{self.name}{signature}'.encode()).hexdigest()[:12]}.kernel"

    def load_overload(self, signature, target_context):
        """The compiled kernel, or None if there is no whole file of it."""
        target_context.refresh()
        try:
            content = self._file(signature).read_bytes()
        except FileNotFoundError:
            return None
        digest, payload = content[:_DIGEST], content[_DIGEST:]
        if hashlib.sha256(payload).digest() != digest:
            return None
        from numba.core.compiler import CompileResult

        return CompileResult._rebuild(target_context, *pickle.loads(payload))

    def save_overload(self, signature, result) -> None:
        """Write the compiled kernel; a full or read-only disk costs the next run its compile time, not this one its
        result."""
        from numba.core.serialize import dumps

        payload = dumps(result._reduce())
        target = self._file(signature)
        try:
            handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=".new-")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(hashlib.sha256(payload).digest() + payload)
                os.replace(temporary, target)
            except OSError:
                os.unlink(temporary)
        except OSError:
            return
