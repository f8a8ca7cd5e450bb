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
    """The entries of a navigation, with pages instead of folders."""
    for entry in entries:
        if isinstance(entry, dict):
            yield {title: value if _is_page(value) else list(expanded(_listed(value), docs))
                   for title, value in entry.items()}  # fmt: skip
        elif _is_page(entry):
            yield entry
        else:
            yield from pages(docs, entry)


def pages(docs: Path, folder: str) -> list[str]:
    """The pages of a folder below `docs`, relative to it: `index.md` first, the others by name."""
    found = sorted((docs / folder).glob("*.md"), key=lambda page: (page.name != "index.md", page.name))
    return [page.relative_to(docs).as_posix() for page in found]


def _is_page(value: str | list[Entry]) -> bool:
    return isinstance(value, str) and not value.endswith("/")


def _listed(value: str | list[Entry]) -> list[Entry]:
    return [value] if isinstance(value, str) else value
