"""MkDocs hook: the pages of the reference that are generated from the code, at every build."""

from collections.abc import Callable
from typing import Any

from cli_reference import verb_page, verb_pages
from mkdocs.structure.files import File
from python_reference import ndimage_page, python_page
from sampling_reference import sampling_page

PAGES: dict[str, Callable[[], str]] = {
    "reference/python.md": python_page,
    "reference/ndimage.md": ndimage_page,
    "reference/sampling-fields.md": sampling_page,
}


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages."""
    for page, make in PAGES.items():
        files.append(File.generated(config, page, content=make()))
    for page, verb in verb_pages().items():
        files.append(File.generated(config, page, content=verb_page(verb)))
    return files
