"""The kind of a binary file, by its first bytes. Used in the message about a binary file with the name of a text
file."""

from __future__ import annotations

MAGIC = (  # (offset, bytes there, what the file is)
    (0, b"PK\x03\x04", "a zip archive, such as .npz, .docx or .xlsx"),
    (0, b"\x1f\x8b", "compressed with gzip"),
    (0, b"\x28\xb5\x2f\xfd", "compressed with Zstandard"),
    (0, b"\xfd7zXZ\x00", "compressed with xz"),
    (0, b"BZh", "compressed with bzip2"),
    (0, b"\x89PNG\r\n", "a PNG picture"),
    (0, b"\xff\xd8\xff", "a JPEG picture"),
    (0, b"\x93NUMPY", "a NumPy array (.npy)"),
    (0, b"PAR1", "a Parquet file"),
    (0, b"%PDF", "a PDF document"),
    (0, b"SQLite format 3", "an SQLite database"),
    (0, b"\x7fELF", "a program"),
    (0, b"\xff\xfe", "text in UTF-16"),
    (0, b"\xfe\xff", "text in UTF-16"),
    (8, b'{"', "a safetensors file"),
)


def kind_of_bytes(start: bytes) -> str | None:
    """The kind of a file that begins with these bytes. None if it is unknown."""
    return next((what for at, magic, what in MAGIC if start[at:].startswith(magic)), None)
