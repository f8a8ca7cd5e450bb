"""The URLs of objects: s3://bucket/key, gs://bucket/key, az://container/key, and file:///path for a local file."""

from __future__ import annotations

import re
from urllib.parse import unquote

from tilewright.errors import UsageError

SCHEMES = ("s3", "gs", "az", "file")
LOCAL = "file://"

_URL = re.compile(r"([a-z][a-z0-9+.-]*)://(.*)", re.DOTALL)


def is_url(text: str) -> bool:
    """True for "scheme://rest"."""
    return _URL.fullmatch(text) is not None


def local_path(url: str) -> str | None:
    """The path of a file:// URL; None for the URL of a store. Raises UsageError for a malformed URL."""
    found = _URL.fullmatch(url)
    if not found or found[1] not in SCHEMES:
        known = ", ".join(f"{scheme}://" for scheme in SCHEMES)
        raise UsageError(f"the URL {url!r} has an unknown scheme; the known ones are {known}",
                         remedy="download it first, and give the local path")  # fmt: skip
    if found[1] == "file":
        path = found[2].removeprefix("localhost")
        if not path.startswith("/"):
            raise UsageError(
                f"the URL {url!r} has no absolute path", remedy="write file:// and a path that begins with /"
            )
        return unquote(path)
    bucket, _, key = found[2].partition("/")
    if not bucket or not key.strip("/") or any(part in ("", ".", "..") for part in key.rstrip("/").split("/")):
        rule = "scheme://bucket/key is wanted, and no part of the key is empty, '.' or '..'"
        raise UsageError(f"the URL {url!r} names no object; {rule}", remedy="correct the URL")
    return None


def parts(url: str, *, bucket: bool = False) -> tuple[str, str]:
    """(scheme://bucket, key) of a store's URL. bucket: the key may be missing. Raises as `local_path`."""
    if local_path(f"{url}/any" if bucket else url) is not None:
        raise UsageError(f"the URL {url!r} is that of a local file", remedy="give its path")
    scheme, _, rest = url.rstrip("/").partition("://")
    name, _, key = rest.partition("/")
    return f"{scheme}://{name}", key
