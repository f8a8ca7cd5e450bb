"""Readers of sentences: JSON lines, a text file with one sentence per line, or the course's binary files."""

from __future__ import annotations

import os

from tilewright.errors import UsageError
from tilewright.formats.course import TokenFile
from tilewright.formats.jsonl import TokenLines
from tilewright.formats.lines import Row, decode_text
from tilewright.formats.names import check_records_name, kind_of_records
from tilewright.formats.record_fields import PLAIN, RecordFields
from tilewright.formats.record_files import open_records
from tilewright.formats.records import Id
from tilewright.formats.sentence_encoder import Content, SentenceEncoder

SentenceReader = TokenLines | TokenFile


class SentenceText(TokenLines):
    """Sentences of a UTF-8 text file, one per line. The number of the line is the id. Blank lines are skipped."""

    example_of_text = "a sentence"
    IDS = False

    def _decode(self, line: bytes | Row) -> tuple[Id | None, tuple[str, Content]]:
        assert isinstance(line, bytes)
        return None, ("", decode_text(line).removesuffix("\r"))

    def _recover(self, line: bytes | Row | None) -> tuple[Id | None, Content]:
        return None, []


def open_sentences(
    path: str | os.PathLike[str],
    *,
    encoder: SentenceEncoder | None,
    length: int,
    vocabulary: int,
    count: int | None = None,
    scan: int | None = None,
    fields: RecordFields = PLAIN,
) -> SentenceReader:
    """The reader for a file, by its name: .jsonl for JSON lines; .parquet, .csv and .tsv for rows with the same fields;
    .txt for one sentence per line; .bin for binary.

    encoder: None if the model has no tokenizer. length: token ids per sentence, each below vocabulary. count: sentences
    from the start; None: all. scan: as in TokenFile. fields: the ones that the user named. Raises UsageError for
    another name and for text without an encoder, InputError as the readers do.
    """
    check_records_name(path, "input")
    form = kind_of_records(path)
    if form == ".bin":
        return TokenFile(path, length=length, vocabulary=vocabulary, count=count, scan=scan)
    if form == ".txt" and encoder is None:
        raise UsageError(
            "the input is text, and the model has no tokenizer.json",
            path=path,
            remedy="give token ids in a .jsonl file",
        )
    return open_records(TokenLines, SentenceText, path, length=length, vocabulary=vocabulary, encoder=encoder,
                        count=count, fields=fields)  # fmt: skip
