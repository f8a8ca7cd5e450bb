"""Notices for runs whose compiled kernels cannot be cached or are not cached yet. The run continues and compiles."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tilewright.errors import ResourceError, UsageError, printable

CACHE = "TILEWRIGHT_CACHE"
_first: set[str] = set()  # cache directories that this process has reported as empty


def cache_or_none() -> str:
    """Check the default cache directory. Returns a notice if kernels cannot be cached there, else "".

    The directory is unusable if it cannot be created, or if another user could change its files. Then the cache is off
    for this process and its children. Raises UsageError if TILEWRIGHT_CACHE names such a directory.
    """
    chosen = os.environ.get(CACHE)
    if chosen == "off":
        return ""
    from tilewright.simd import cache
    from tilewright.simd.private_directory import UnsafeDirectoryError

    try:
        cache.check(cache.directory())
        return ""
    except UnsafeDirectoryError as error:
        if chosen:
            remedy = "name a directory that only you may change, with such a parent, or 'off' to compile in every run"
            raise UsageError(f"{CACHE} is {chosen!r}: {error.message}", remedy=remedy) from error
        what = f"{error.path}: {error.message}"
    except ResourceError as error:
        why = (getattr(error.__cause__, "strerror", None) or str(error.__cause__ or error.message)).lower()
        if chosen:
            remedy = "name a directory of your own, or 'off' to compile in every run"
            raise UsageError(f"{CACHE} is {chosen!r}, where no directory can be made: {why}", remedy=remedy) from error
        if isinstance(error.__cause__, RuntimeError):  # pathlib raises it if the home directory is unknown
            what = f"Compiled kernels cannot be saved in ~/.cache ({error.message})"
        else:
            what = f"Compiled kernels cannot be saved in {cache.home()} ({why})"
    os.environ[CACHE] = "off"
    return (
        f"{printable(what)}: every run compiles them again, which can take minutes. Set {CACHE} to a directory "
        "of your own to save them"
    )


def first_run() -> str:
    """The notice for the user if this machine has no compiled kernels yet; else ""."""
    from tilewright.simd import cache

    if os.environ.get(CACHE) == "off":
        return ""
    try:
        cache.check(cache.directory())
        kept = any(path.is_file() for path in cache.directory().glob("*.kernel"))
    except (OSError, ResourceError):  # raised again when the first kernel is needed
        return ""
    if kept:
        return ""
    _first.add(str(cache.home()))
    saved = f"The kernels are saved in {cache.home()}"
    return f"Compiling kernels for this machine: the first run takes up to two minutes longer. {saved}"


@contextmanager
def compiling_told(say: Callable[[str], None]) -> Iterator[None]:
    """Within the block, print a notice when the first kernel that is not in the cache is compiled.

    Compiling takes time, so the user should know. Nothing is printed without a cache, or if `first_run` has already
    returned a notice.
    """
    from numba.core import event

    from tilewright.simd import cache

    class Compiled(event.Listener):
        told = False

        def on_start(self, event: Any) -> None:
            ours = isinstance(getattr(event.data["dispatcher"], "_cache", None), cache.KernelCache)
            if ours and not self.told and str(cache.home()) not in _first:
                self.told = True
                saved = f"They are saved in {cache.home()}"
                say(f"Compiling more kernels, which this run needs: it can take a minute longer. {saved}")

        def on_end(self, event: Any) -> None:
            pass

    with event.install_listener("numba:compile", Compiled()):
        yield
