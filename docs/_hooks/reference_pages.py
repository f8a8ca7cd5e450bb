"""The pages of the reference that are generated from the code."""

from collections.abc import Callable
from functools import partial

from cli_reference import verb_page, verb_pages
from python_reference import ndimage_page, python_page
from sampling_reference import sampling_page

PAGES: dict[str, Callable[[], str]] = {
    "reference/python.md": python_page,
    "reference/ndimage.md": ndimage_page,
    "reference/sampling-fields.md": sampling_page,
    **{page: partial(verb_page, verb) for page, verb in verb_pages().items()},
}
