"""Local folders that stand for an output by URL while a command runs: the job is made in one, and copied to the store.

What is in the folder is a copy of what the store has, or will be in a moment. So it is removed at the end of the
command, and after a kill by the next command.
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
    """The local path of an output by URL; its folder exists until the end of the block. Raises UsageError for a URL
    that names nothing, and ResourceError."""
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
    STAGED[path] = url.rstrip("/")  # it stays: errors are told after the block
    try:
        yield path
    finally:
        with suppress(OSError):
            shutil.rmtree(folder)


def url_of(output: str) -> str | None:
    """The URL for which a local output stands; None for an output that is a local one."""
    return STAGED.get(os.path.abspath(output))
