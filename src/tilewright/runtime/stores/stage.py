"""A local staging folder for an output that is a URL: the job runs there, and its files are copied to the store.

The folder holds only copies of files that the store has, or is about to receive. So the command removes it at its end.
If the command is killed, the next command removes it.
"""

from __future__ import annotations

import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tilewright.formats.fetched import STAGED, home
from tilewright.formats.files import naming
from tilewright.runtime.jobs.durable import alive
from tilewright.runtime.stores.urls import parts

JOBS = "jobs"

_NAME = re.compile(r"(.*)-(\d+)-[0-9a-f]{8}")


@contextmanager
def staged(url: str) -> Iterator[str]:
    """Make a staging folder for the block, and return the local path that stands for the output `url`.

    Raises UsageError for a malformed URL, and ResourceError.
    """
    parts(url)
    root, host = os.path.join(home(), JOBS), os.uname().nodename.replace("/", "_")
    folder = os.path.join(root, f"{host}-{os.getpid()}-{uuid.uuid4().hex[:8]}")
    with naming(root, "make a directory in"):
        os.makedirs(root, mode=0o700, exist_ok=True)
        for name in os.listdir(root):
            found = _NAME.fullmatch(name)
            if found and found[1] == host and not alive(int(found[2])):
                shutil.rmtree(os.path.join(root, name), ignore_errors=True)
        os.mkdir(folder, 0o700)
    path = os.path.join(folder, url.rstrip("/").rpartition("/")[2])
    STAGED[path] = url.rstrip("/")  # never removed: errors are printed after the block, and name the URL
    try:
        yield path
    finally:
        with suppress(OSError):
            shutil.rmtree(folder)


def url_of(output: str) -> str | None:
    """The URL that belongs to a staged path; None for a local output."""
    return STAGED.get(os.path.abspath(output))
