"""Check the chain of a TIFF's pages before tifffile follows it. If the chain is a circle, tifffile does not stop. If it
is cut, tifffile silently reads fewer pages."""

from __future__ import annotations

import struct

from tilewright.errors import InputError
from tilewright.formats.files import InputFile

ORDERS = {b"II": "<", b"MM": ">"}
LAYOUTS = {42: ("I", 4, "H", 12), 43: ("Q", 8, "Q", 20)}  # version -> offset, where it lies, count, tag's bytes
FIRST = 8  # the smallest offset of a page, because the header is before it


def check_pages(file: InputFile) -> None:
    """Raises InputError unless each page of the chain is inside the file, and the pages together are not larger than
    the file.

    A file that is no TIFF is left to tifffile.
    """
    head = _bytes(file, 0, 16)
    order = ORDERS.get(head[:2], "")
    version = struct.unpack(f"{order}H", head[2:4])[0] if order and len(head) == 16 else 0
    if version not in LAYOUTS:
        return
    kind, first, counts, tag_bytes = LAYOUTS[version]
    offsets, count_bytes = struct.Struct(order + kind), struct.calcsize(f"{order}{counts}")
    (offset,), seen, total = offsets.unpack_from(head, first), set[int](), 0
    while offset:
        where, page = f"byte {offset:,}", f"page {len(seen)}"
        if not FIRST <= offset <= file.size - count_bytes:
            raise _refused(file, f"{page} lies outside of the file's {file.size:,} bytes", where)
        if offset in seen:
            raise _refused(file, f"{page} is an earlier page again: the chain of pages is a loop", where)
        seen.add(offset)
        (tags,) = struct.unpack(f"{order}{counts}", _bytes(file, offset, count_bytes))
        total += count_bytes + tags * tag_bytes
        behind = offset + count_bytes + tags * tag_bytes
        if max(total, behind + offsets.size) > file.size:  # this also limits the time for pages that overlap
            what = f"{page} has {tags:,} tags; with the pages before it they take more than the file"
            raise _refused(file, what, where)
        (offset,) = offsets.unpack(_bytes(file, behind, offsets.size))


def _bytes(file: InputFile, offset: int, count: int) -> bytes:
    data = bytearray(max(0, min(count, file.size - offset)))
    file.read_into(data, offset)
    return bytes(data)


def _refused(file: InputFile, what: str, where: str) -> InputError:
    return InputError(
        what, path=file.path, where=where, remedy="copy or download the file again: it was cut short or is damaged"
    )
