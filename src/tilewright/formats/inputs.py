"""Open the inputs of records by their names: plain, compressed, or many files."""

from __future__ import annotations

import os

from tilewright.formats.expanded import Expanded, Source
from tilewright.formats.files import InputFile
from tilewright.formats.many_files import FileList, Files
from tilewright.formats.names import COMPRESSED, plain_name


def open_text(path: str | os.PathLike[str], what: str) -> InputFile:
    """An input file. A compressed one gives its expanded bytes, many files give one text.

    Raises InputError as `InputFile`, `Expanded` and `Files` do.
    """
    if isinstance(path, FileList):
        return Files(path, what)
    name = os.fspath(path)
    file: InputFile
    if name.endswith(COMPRESSED):
        file = Expanded(name, what, path.expanded if isinstance(path, Source) else None)
    else:
        file = InputFile(name, what)
    file.quoted = plain_name(name).endswith((".csv", ".tsv"))
    return file
