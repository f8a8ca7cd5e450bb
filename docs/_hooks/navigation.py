"""MkDocs hook: a navigation entry that ends in a slash stands for all pages of that folder."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

Entry = str | dict[str, Any]


def on_config(config: Any) -> Any:
    """Replace every folder in `nav` by the list of its pages."""
    config["nav"] = list(expanded(config["nav"], Path(config["docs_dir"])))
    return config


def expanded(entries: Iterable[Entry], docs: Path) -> Iterable[Entry]:
    for entry in entries:
        if isinstance(entry, str) and entry.endswith("/"):
            yield from pages(docs, entry)
        elif isinstance(entry, dict):
            yield {title: _section(value, docs) for title, value in entry.items()}
        else:
            yield entry


def pages(docs: Path, folder: str) -> list[str]:
    """The pages of a folder below `docs`, relative to it: `index.md` first, the others by name."""
    found = sorted((docs / folder).glob("*.md"), key=lambda page: (page.name != "index.md", page.name))
    return [page.relative_to(docs).as_posix() for page in found]


def _section(value: str | list[Entry], docs: Path) -> str | list[Entry]:
    if isinstance(value, str) and not value.endswith("/"):
        return value
    return list(expanded([value] if isinstance(value, str) else value, docs))
