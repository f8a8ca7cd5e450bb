"""MkDocs hook: files of the repository that a page links to become part of the site.

Pages are written with links that work in the repository: `../../src/tilewright/ops/matmul/README.md`. A linked text
becomes a page below `repository/`, a linked picture or table is copied there, and the links are rewritten. So the site
is whole without a network, and without a code host.
"""

from pathlib import Path
from typing import Any

from links import COPIED, FOLDER, is_below, linked, page_of, rewritten
from mkdocs.structure.files import File

LANGUAGES = {".py": "python", ".toml": "toml"}
FENCE = "`" * 8  # longer than any in the files
HIDDEN = "---\nsearch:\n  exclude: true\n---\n\n"
IN_NAVIGATION = ("ARCHITECTURE.md", "CONTRIBUTING.md")


def on_files(files: Any, config: Any) -> Any:
    """Add every file outside `docs` that a page links to, and what these link to."""
    docs = Path(config["docs_dir"])
    todo = [(f"{docs.name}/{file.src_uri}", file.content_string) for file in files.documentation_pages()]
    found: set[str] = set()
    while todo:
        origin, text = todo.pop()
        for path in linked(text, origin, docs.parent):
            if path not in found and not is_below(path, docs.name):
                found.add(path)
                files.append(_file(config, docs.parent / path, path))
                if path.endswith(".md"):
                    todo.append((path, (docs.parent / path).read_text("utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Rewrite the links of a page. Figures that another hook has put into it are added to the site."""
    docs = Path(config["docs_dir"])
    uri = page.file.src_uri
    origin = uri.removeprefix(FOLDER) if uri.startswith(FOLDER) else f"{docs.name}/{uri}"
    for path in linked(markdown, origin, docs.parent):
        if path.endswith(COPIED) and not is_below(path, docs.name) and not files.get_file_from_path(page_of(path)):
            files.append(_file(config, docs.parent / path, path))
    return rewritten(markdown, origin, uri, docs.parent, docs.name)


def _file(config: Any, source: Path, path: str) -> File:
    if path.endswith(COPIED):
        return File.generated(config, page_of(path), abs_src_path=str(source))
    head = "" if path in IN_NAVIGATION else HIDDEN
    if path.endswith(".md"):
        text = source.read_text("utf-8")
    elif source.is_dir():
        names = "\n".join(sorted(f"{child.name}{'/' * child.is_dir()}" for child in source.iterdir()))
        text = f"# {path}\n\n{FENCE}text\n{names}\n{FENCE}\n"
    else:
        text = f"# {path}\n\n{FENCE}{LANGUAGES.get(source.suffix, 'text')}\n{source.read_text('utf-8')}\n{FENCE}\n"
    return File.generated(config, page_of(path), content=head + text)
