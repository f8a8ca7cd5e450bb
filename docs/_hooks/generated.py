"""MkDocs hook: adds the pages of the reference that are generated from the code, at every build."""

from typing import Any

from mkdocs.structure.files import File
from reference_pages import PAGES


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages."""
    for page, make in PAGES.items():
        files.append(File.generated(config, page, content=make()))
    return files
