"""Where the state of a job in a store is: below URL.job/, or below the URL that --job-dir names. See jobs/location.py.

With --job-dir, the object URL.job names that URL, and owner.json below it names the output.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tilewright.errors import ResourceError, UsageError
from tilewright.formats.files import path_of, spelled
from tilewright.runtime.jobs.directory import MANIFEST
from tilewright.runtime.jobs.location import OWNER, Location
from tilewright.runtime.jobs.manifest import Damaged, encoded, seal, unseal
from tilewright.runtime.stores.board import LEAD, WORKERS
from tilewright.runtime.stores.objects import Objects
from tilewright.runtime.stores.urls import is_url, parts

JOB = ".job"


def state_of(url: str, given: str | None = None) -> str:
    """The URL below which the state of the job of `url` is. given: the value of --job-dir, if any.

    Raises UsageError if the state is elsewhere already, if `given` is no URL of a store, or if one of the two URLs is
    below the other; and ResourceError.
    """
    beside = f"{url}{JOB}"
    with _naming(url):
        there = _named(beside)
    if given is None:
        return there or beside
    if not is_url(given):
        raise UsageError(f"--job-dir is the local {given!r}, and the output is a URL", path=url,
                         remedy="give --job-dir a URL, too; or leave it out")  # fmt: skip
    parts(wanted := given.rstrip("/"))
    now = there or (beside if wanted != beside and Objects(beside).stat(MANIFEST) else wanted)
    if now != wanted:
        raise UsageError(f"the state of this job is in {now}, and --job-dir names another URL", path=wanted,
                         remedy=f"leave out --job-dir; or remove {beside}, to begin anew")  # fmt: skip
    if f"{wanted}/".startswith(f"{url}/") or f"{url}/".startswith(f"{wanted}/"):
        raise UsageError("--job-dir and the output are below each other", path=wanted,
                         remedy="give --job-dir a URL of its own")  # fmt: skip
    return wanted


def output_at(url: str) -> str | None:
    """The URL of the output of the job whose state is below a URL of --job-dir; None for any other URL."""
    with suppress(UsageError, Damaged), _naming(url):  # UsageError: it names no object
        if got := Objects(url).get(OWNER):
            output = path_of(unseal(got[0], Location).output)
            return output if _named(f"{output}{JOB}") == url.rstrip("/") else None
    return None


def settle(store: Objects, url: str) -> None:
    """Make the URL of `store` that of the job of `url`: write owner.json and URL.job. Only the run that leads may do
    so. Raises UsageError if it is another job's, or if other objects are below it.
    """
    if store.url == f"{url}{JOB}":
        return
    owner = output_at(store.url)
    names = [name for name in store.names() if name.partition("/")[0] not in (LEAD, WORKERS)]
    if owner is None and store.url.endswith(JOB) and MANIFEST in names:
        owner = store.url.removesuffix(JOB)
    if owner not in (None, url):
        raise UsageError(f"the state of the job of {owner} is there", path=store.url,
                         remedy="give --job-dir another URL: each job needs its own")  # fmt: skip
    if names and not {OWNER, MANIFEST} & {*names}:
        raise UsageError("other objects are below the URL of --job-dir, and no job", path=store.url,
                         remedy="give --job-dir a new URL")  # fmt: skip
    content = encoded(seal(Location(directory=spelled(store.url), output=spelled(url))))
    store.put(OWNER, content)
    beside = Objects(f"{url}{JOB}")
    if beside.put("", content, absent=True) is None and (now := _named(beside.url)) != store.url:
        raise UsageError(f"another run keeps the state of this job in {now or beside.url}", path=store.url,
                         remedy="leave out --job-dir")  # fmt: skip


@contextmanager
def _naming(url: str) -> Iterator[None]:
    """Within the block, an error of the store names `url`, which the user gave, and not an object below it."""
    try:
        yield
    except ResourceError as error:
        error.path = url
        raise


def _named(pointer: str) -> str | None:
    """The URL that the object URL.job names; None if there is no such object."""
    with suppress(Damaged):
        got = Objects(pointer).get("")
        return path_of(unseal(got[0], Location).directory) if got else None
    return None
