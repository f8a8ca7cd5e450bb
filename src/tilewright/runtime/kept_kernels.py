"""Whether compiled kernels can be kept, and whether there are any; a run goes on where not, and compiles its own."""

from __future__ import annotations

import os

from tilewright.errors import ResourceError

CACHE = "TILEWRIGHT_CACHE"


def cache_or_none() -> str:
    """Where kernels cannot be kept because their place, which nobody chose, cannot be made: switches the cache off, for
    this process and those that it starts, and returns what is to be said of it; else nothing.

    A place that was chosen, or that is not safe to load from, is refused where the first kernel is asked for.
    """
    if os.environ.get(CACHE):
        return ""
    from tilewright.simd import cache

    try:
        cache.check(cache.directory())
        return ""
    except ResourceError as error:
        if isinstance(error.__cause__, RuntimeError):  # pathlib's, where neither HOME nor the list of users tells
            where, why = "~/.cache", error.message
        elif isinstance(error.__cause__, OSError):
            where, why = str(cache.home()), (error.__cause__.strerror or str(error.__cause__)).lower()
        else:
            return ""
    os.environ[CACHE] = "off"
    return (
        f"Compiled kernels cannot be kept in {where} ({why}): every run compiles them, which takes up to minutes, "
        f"unless {CACHE} names a directory of your own"
    )


def first_run() -> str:
    """What is to be said before a run that finds no kernel compiled for this machine; else nothing."""
    from tilewright.simd import cache

    if os.environ.get(CACHE) == "off":
        return ""
    try:
        cache.check(cache.directory())
        kept = any(cache.directory().glob("*.kernel"))
    except (OSError, ResourceError):  # said where the first kernel is asked for
        return ""
    if kept:
        return ""
    when = "what is needed will be now, in a minute or two"
    return f"Nothing is compiled for this machine yet: {when} ({cache.home()} keeps it)"
