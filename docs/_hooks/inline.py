"""MkDocs hook: a drawing of docs/learn/img becomes part of its page, so its lines have the colour of the page."""

import re
from pathlib import Path
from typing import Any

IMAGE = re.compile(r"^!\[(?P<words>[^\]]*)\]\((?P<target>img/[\w-]+\.svg)\)$", re.MULTILINE)
STYLE = re.compile(r"<style>.*?</style>", re.DOTALL)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Replace every image of a drawing by its SVG, in the pages of docs/learn."""
    if not page.file.src_uri.startswith("learn/"):
        return markdown
    return with_drawings(markdown, Path(page.file.abs_src_path).parent)


def with_drawings(markdown: str, folder: Path) -> str:
    """The page with the drawings' elements. folder: what images are relative to."""

    def figure(match: re.Match[str]) -> str:
        drawing = STYLE.sub("", (folder / match["target"]).read_text()).replace("\n", "")
        return f'<figure class="drawing">{drawing}</figure>'

    return IMAGE.sub(figure, markdown)
