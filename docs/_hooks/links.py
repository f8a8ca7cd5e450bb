"""Links between Markdown files, as they work in the repository, and what the site makes of them."""

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

FOLDER = "repository/"  # where the site has files from outside docs/
COPIED = (".svg", ".png", ".html", ".csv")
LINK = re.compile(r"(\]\()(<?)([^)\s#<>]*)((?:#[^)\s<>]*)?>?(?:\s+\"[^\"]*\")?\))")
FENCE = re.compile(r"^( *)(`{3,}|~{3,}).*?^\1\2 *$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"(`+)[^`].*?\1", re.DOTALL)


def links(text: str) -> Iterator[re.Match[str]]:
    """The links of a text, code left out. Group 3 is the target without its anchor, group 4 begins with the anchor."""
    for part, is_code in parts(text):
        if not is_code:
            yield from LINK.finditer(part)


def parts(text: str) -> Iterator[tuple[str, bool]]:
    """A text cut at its code: (part, whether it is a fenced block or between backticks)."""
    for block, is_fenced in blocks(text):
        if is_fenced:
            yield block, True
        else:
            yield from _cut(block, INLINE)


def blocks(text: str) -> Iterator[tuple[str, bool]]:
    """A text cut at its fenced blocks: (part, whether it is one)."""
    yield from _cut(text, FENCE)


def _cut(text: str, pattern: re.Pattern[str]) -> Iterator[tuple[str, bool]]:
    end = 0
    for match in pattern.finditer(text):
        yield text[end : match.start()], False
        yield match[0], True
        end = match.end()
    yield text[end:], False


def linked(text: str, origin: str, root: Path) -> Iterator[str]:
    """Paths in the repository that a text links to. origin: the text's own path there."""
    for match in links(text):
        if (path := resolved(match[3], origin, root)) is not None:
            yield path


def resolved(target: str, origin: str, root: Path) -> str | None:
    """The path in the repository that a link means; None for an address, an anchor, and for what is not there."""
    if ":" in target or target.startswith("/") or not target:
        return None
    path = posixpath.normpath(posixpath.join(posixpath.dirname(origin), target))
    return path if not path.startswith("..") and (root / path).exists() else None


def rewritten(text: str, origin: str, uri: str, root: Path, docs: str) -> str:
    """The text with the links of the site. origin: path of the file in the repository; uri: of its page in the site."""

    def link(match: re.Match[str]) -> str:
        before, bracket, target, after = match.groups()
        path = resolved(target, origin, root)
        if path is None or (not uri.startswith(FOLDER) and is_below(path, docs)):
            return match[0]
        to = path.removeprefix(f"{docs}/") if is_below(path, docs) else page_of(path)
        return f"{before}{bracket}{posixpath.relpath(to, posixpath.dirname(uri))}{after}"

    return "".join(part if is_code else LINK.sub(link, part) for part, is_code in parts(text))


def is_below(path: str, folder: str) -> bool:
    """Whether the path is the folder or in it."""
    return f"{path}/".startswith(f"{folder}/")


def page_of(path: str) -> str:
    """Where the site has a file of the repository."""
    return FOLDER + (path if path.endswith((*COPIED, ".md")) else f"{path}.md")
