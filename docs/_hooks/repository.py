"""MkDocs hook: files of the repository that a page links to become part of the site.

Pages are written with links that work in the repository: `../../src/tilewright/ops/matmul/README.md`. A linked text
becomes a page below `repository/`, a linked picture or table is copied there, and the links are written anew. So the
site is whole without a network, and without a code host.
"""

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

FOLDER = "repository/"
LINK = re.compile(r"(\]\()(<?)([^)\s#<>]+)((?:#[^)\s<>]*)?>?(?:\s+\"[^\"]*\")?\))")
COPIED = (".svg", ".png", ".html", ".csv")
LANGUAGES = {".py": "python", ".toml": "toml", ".md": "markdown"}
FENCE = re.compile(r"^( *)(`{3,}|~{3,}).*?^\1\2 *$", re.MULTILINE | re.DOTALL)


def on_files(files: Any, config: Any) -> Any:
    """Add every file outside `docs` that a page links to, and what these link to."""
    docs = Path(config["docs_dir"])
    root, docs_name = docs.parent, docs.name
    todo = [(f"{docs_name}/{file.src_uri}", file.content_string) for file in files.documentation_pages()]
    found: set[str] = set()
    while todo:
        origin, text = todo.pop()
        for path in linked(text, origin, root):
            if path in found or is_below(path, docs_name):
                continue
            found.add(path)
            files.append(_file(config, root / path, path))
            if path.endswith(".md"):
                todo.append((path, (root / path).read_text("utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Write the links of a page anew."""
    docs = Path(config["docs_dir"])
    uri = page.file.src_uri
    origin = uri.removeprefix(FOLDER) if uri.startswith(FOLDER) else f"{docs.name}/{uri}"
    return rewritten(markdown, origin, uri, docs.parent, docs.name)


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


def parts(text: str) -> Iterator[tuple[str, bool]]:
    """A text cut at its fenced blocks: (part, whether it is such a block)."""
    end = 0
    for match in FENCE.finditer(text):
        yield text[end : match.start()], False
        yield match[0], True
        end = match.end()
    yield text[end:], False


def linked(text: str, origin: str, root: Path) -> Iterator[str]:
    """Paths in the repository that a text links to."""
    for part, is_code in parts(text):
        for match in () if is_code else LINK.finditer(part):
            if (path := resolved(match[3], origin, root)) is not None:
                yield path


def resolved(target: str, origin: str, root: Path) -> str | None:
    """The path in the repository that a link means; None for an address, and for what is not there."""
    if ":" in target or target.startswith("/"):
        return None
    path = posixpath.normpath(posixpath.join(posixpath.dirname(origin), target))
    return path if not path.startswith("..") and (root / path).exists() else None


def is_below(path: str, folder: str) -> bool:
    """Whether the path is the folder or in it."""
    return f"{path}/".startswith(f"{folder}/")


def page_of(path: str) -> str:
    """Where the site has a file of the repository."""
    return FOLDER + (path if path.endswith((*COPIED, ".md")) else f"{path}.md")


def _file(config: Any, source: Path, path: str) -> File:
    if path.endswith(COPIED):
        return File.generated(config, page_of(path), abs_src_path=str(source))
    if path.endswith(".md"):
        text = source.read_text("utf-8")
    elif source.is_dir():
        names = "\n".join(sorted(f"{child.name}{'/' * child.is_dir()}" for child in source.iterdir()
                                 if not child.name.startswith(("__pycache__", "."))))  # fmt: skip
        text = f"# {path}\n\n```text\n{names}\n```\n"
    else:
        code = source.read_text("utf-8")
        fence = "`" * 8
        text = f"# {path}\n\n{fence}{LANGUAGES.get(source.suffix, 'text')}\n{code}\n{fence}\n"
    return File.generated(config, page_of(path), content=f"---\nsearch:\n  exclude: true\n---\n\n{text}")
