"""The URLs of objects: s3://bucket/key, gs://bucket/key, az://container/key, and file:///path for a local file."""

from __future__ import annotations

import re
from urllib.parse import unquote

from tilewright.errors import UsageError

SCHEMES = ("s3", "gs", "az", "file")
LOCAL = "file://"

_URL = re.compile(r"([a-z][a-z0-9+.-]*)://(.*)", re.DOTALL)
_MISSPELT = re.compile(rf"({'|'.join(SCHEMES)}):/+(.*)", re.DOTALL | re.IGNORECASE)


def is_url(text: str) -> bool:
    """True for "scheme://rest", and for a misspelt URL such as S3://rest or s3:/rest, which `local_path` refuses."""
    return (_URL.fullmatch(text) or _MISSPELT.fullmatch(text)) is not None


def local_path(url: str, *, written: bool = False) -> str | None:
    """The path of a file:// URL; None for the URL of a store. written: of an output. Raises UsageError for a malformed
    URL."""
    found, wrong = _URL.fullmatch(url), _MISSPELT.fullmatch(url)
    if wrong and not (found and found[1] in SCHEMES):
        scheme = wrong[1].lower()
        right = f"{scheme}://{'/' * (scheme == 'file')}{wrong[2]}"
        rule = f"a URL of this kind begins with {scheme}:// in small letters"
        raise UsageError(f"the URL {url!r} is misspelt; {rule}", remedy=f"write {right}; or ./{url} for a local path")
    if not found or found[1] not in SCHEMES:
        known = ", ".join(f"{scheme}://" for scheme in SCHEMES)
        other = "give a local path, or one of these URLs" if written else "download it first, and give the local path"
        raise UsageError(f"the URL {url!r} has an unknown scheme; the known ones are {known}", remedy=other)
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
    if local_path(f"{url}/any" if bucket else url, written=True) is not None:
        raise UsageError(f"the URL {url!r} is that of a local file", remedy="give its path")
    scheme, _, rest = url.rstrip("/").partition("://")
    name, _, key = rest.partition("/")
    return f"{scheme}://{name}", key
