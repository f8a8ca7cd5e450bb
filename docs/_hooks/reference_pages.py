"""The pages of the reference that are generated from the code: `make reference` writes them into docs/reference."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from cli_reference import verb_page, verb_pages
from python_reference import ndimage_page, python_page
from sampling_reference import sampling_page

DOCS = Path(__file__).resolve().parents[1]
NOTE = "<!-- Written by `make reference` from the code. Do not edit it here. -->\n"
PAGES: dict[str, Callable[[], str]] = {
    "reference/python.md": python_page,
    "reference/ndimage.md": ndimage_page,
    "reference/sampling-fields.md": sampling_page,
    **{page: partial(verb_page, verb) for page, verb in verb_pages().items()},
}


def text_of(page: str) -> str:
    """The text of a generated page. Raises ValueError where the code lacks a docstring or a help text."""
    return f"{PAGES[page]().rstrip()}\n\n{NOTE}"


def write() -> None:
    """Write all pages."""
    for page in PAGES:
        (DOCS / page).parent.mkdir(exist_ok=True)
        (DOCS / page).write_text(text_of(page), "utf-8")


if __name__ == "__main__":
    write()
