"""Local copies of objects from a store: where the copies are, and the version of the object that each one holds.

A copy never changes. Beside `objects/<key>/`, which holds the copies of one object or one folder, `objects/<key>.json`
names their URL and their ETags. The key is a hash of the URL and the ETags, so another version gets another folder.
"""

from __future__ import annotations

import json
import os
import re
from typing import NamedTuple

ROOT = "TILEWRIGHT_OBJECTS"  # the variable that moves the folder of copies
OBJECTS = "objects"  # the folder of the copies


STAGED: dict[str, str] = {}  # the path of a local output that stands for one in a store -> its URL


class Origin(NamedTuple):
    """The object that a local copy was made of."""

    url: str
    etag: str


def home() -> str:
    """`$TILEWRIGHT_OBJECTS`, or `$XDG_CACHE_HOME/tilewright-objects`, or `~/.cache/tilewright-objects`."""
    if chosen := os.environ.get(ROOT):
        return os.path.realpath(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.realpath(os.path.join(base, "tilewright-objects"))


def origin(path: str) -> Origin | None:
    """The object that was copied to `path`. None for any other file."""
    root = os.path.join(home(), OBJECTS, "")
    path = os.path.abspath(path)
    if not path.startswith(root):
        return None
    key, _, rest = path.removeprefix(root).partition("/")
    try:
        with open(f"{root}{key}.json", encoding="utf-8") as file:
            known = json.load(file)
    except (OSError, ValueError):
        return None
    within = rest.partition("/")[2]
    etag = known["etags"].get(within)
    return None if etag is None else Origin(f"{known['url']}/{within}" if within else known["url"], etag)


def etags_below(folder: str) -> dict[str, str]:
    """By path, the ETags of all objects whose local copies are in the same copied folder as `folder`; {} if it is no
    copy."""
    root = os.path.join(home(), OBJECTS, "")
    folder = os.path.abspath(folder)
    if not folder.startswith(root):
        return {}
    key, _, rest = folder.removeprefix(root).partition("/")
    try:
        with open(f"{root}{key}.json", encoding="utf-8") as file:
            etags = json.load(file)["etags"]
    except (OSError, ValueError):
        return {}
    top = os.path.join(root, key, rest.partition("/")[0])
    return {os.path.join(top, name): etag for name, etag in etags.items()}


def as_urls(text: str) -> str:
    """A text for users, in which the URLs of the objects replace the paths of copies and of staged outputs."""
    for path, url in STAGED.items():
        text = text.replace(path, url)
    root = os.path.join(home(), OBJECTS, "")
    if root not in text:
        return text

    def url_of(found: re.Match[str]) -> str:
        try:
            with open(f"{root}{found[1]}.json", encoding="utf-8") as file:
                return str(json.load(file)["url"])
        except (OSError, ValueError):
            return found[0]

    return re.sub(re.escape(root) + r"([0-9a-f]{32})/[^/\s:,;'\"]+", url_of, text)
