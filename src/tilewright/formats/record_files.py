"""Opens a file of records by its name: JSON lines, text, CSV or Parquet."""

from __future__ import annotations

import os
from typing import Any, TypeVar

from tilewright.formats.lines import LineReader
from tilewright.formats.names import check_records_name, kind_of_records

R = TypeVar("R", bound=LineReader[Any, Any])


def open_records(lines: type[R], text: type[R], path: str | os.PathLike[str], **options: Any) -> R:
    """The reader for a file, by its name: `text` for .txt, with one record per line; `lines` for .jsonl, .parquet, .csv
    and .tsv.

    options: the reader's arguments. Raises UsageError for another name, and InputError.
    """
    check_records_name(path, "input")
    form = kind_of_records(path)
    reader = (text if form == ".txt" else lines)(path, **options)
    if form == ".parquet":
        from tilewright.formats.parquet import as_rows

        return as_rows(reader, options.get("count"))
    if form in (".csv", ".tsv"):
        from tilewright.formats.csv_rows import as_table

        as_table(reader, form)
    return reader
