"""Check a Zarr chunk before a codec gets it: what the codec would read and write must match the bytes that exist.

Codecs trust a chunk's own header. For example, c-blosc reads as many bytes as the header says, even if the file has
fewer.
"""

from __future__ import annotations

import numpy as np

from tilewright.formats.inflate import GZIP, ZLIB, expanded_bytes
from tilewright.formats.zarr_layout import Layout

BLOSC_HEADER = 16  # bytes: version, version of the codec, flags, typesize, then nbytes, blocksize, cbytes
BLOSC_VERSION = 2  # of the format of c-blosc 1.x, the only one that it reads
BLOSC_STORED = 2  # flag: the values follow the header uncompressed


def check_chunk(layout: Layout, data: bytes | memoryview) -> str | None:
    """Why the stored chunk must not be decoded: it would not give the expected bytes. None if it may be decoded."""
    data = memoryview(data)
    data = data[: max(0, len(data) - layout.checksum)] if layout.checksum else data
    found = _expanded(layout.compressor, data, layout.chunk_bytes)
    if found == layout.chunk_bytes:
        return _wrong_blosc(data) if layout.compressor == "blosc" else None
    size = "an unknown number of" if found is None else f"{found:,}" if found <= layout.chunk_bytes else "more"
    return f"expands to {size} bytes; the metadata says {layout.chunk_bytes:,}"


def _expanded(compressor: str | None, data: memoryview, limit: int) -> int | None:
    """The number of bytes that the data expands to, according to its own header; counted up to limit + 1 if it has
    none."""
    if compressor is None:
        return len(data)
    if compressor == "blosc":
        return int.from_bytes(data[4:8], "little") if len(data) >= BLOSC_HEADER else None
    if compressor == "lz4":
        return int.from_bytes(data[:4], "little") if len(data) >= 4 else None
    if compressor == "zstd":
        return _zstd_size(data)
    return expanded_bytes(data, GZIP if compressor == "gzip" else ZLIB, limit)


def _zstd_size(data: memoryview) -> int | None:
    """The content size of the first frame (RFC 8878, 3.1.1.1)."""
    if len(data) < 6 or data[:4] != b"\x28\xb5\x2f\xfd":
        return None
    descriptor = data[4]
    single = descriptor >> 5 & 1
    width = (single, 2, 4, 8)[descriptor >> 6]
    begin = 5 + (1 - single) + (0, 1, 2, 4)[descriptor & 3]
    if width == 0 or len(data) < begin + width:
        return None
    return int.from_bytes(data[begin : begin + width], "little") + (256 if width == 2 else 0)


def _wrong_blosc(data: memoryview) -> str | None:
    """What is wrong with the header and the table of blocks of a Blosc chunk (c-blosc's README_CHUNK_FORMAT).

    c-blosc checks each block against the length that the header claims. Here the claim is checked against the real
    length.
    """
    version, flags, typesize = data[0], data[2], data[3]
    size, block, stored = (int(n) for n in np.frombuffer(data, "<u4", 3, 4))
    if stored != len(data):
        return f"has {len(data):,} bytes; its Blosc header says {stored:,}"
    if version != BLOSC_VERSION or not typesize or not 1 <= block <= size:
        values = f"version {version}, elements of {typesize} bytes, blocks of {block:,}"
        return f"has a Blosc header with {values}; version {BLOSC_VERSION}, 1 to 255 and 1 to {size:,} are valid"
    if flags & BLOSC_STORED:
        return None if stored == size + BLOSC_HEADER else f"stores {size:,} bytes as they are, in {stored:,}"
    blocks = -(-size // block)
    least = BLOSC_HEADER + 4 * blocks
    if stored < least + 4:
        return f"has {stored:,} bytes; the table of its {blocks:,} blocks alone takes {least:,}"
    starts = np.frombuffer(data, "<u4", blocks, BLOSC_HEADER)
    first, last = int(starts.min()), int(starts.max())
    if first < least or last > stored - 4:
        return f"has blocks that start at bytes {first:,} to {last:,}; {least:,} to {stored - 4:,} are valid"
    return None
