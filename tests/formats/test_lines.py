"""Lines that are no JSON: what is still read of them, and in how much memory."""

import tracemalloc

import msgspec
import pytest

from tilewright.formats import lines


class Found(msgspec.Struct):
    id: int | None = None


def peak_of(line):
    """(the line's error, its id, bytes that both took at most)."""
    with pytest.raises(msgspec.DecodeError) as refused:
        msgspec.json.decode(line)
    tracemalloc.start()
    error, found = lines.json_error(refused.value, line), lines.recovered(line, Found)
    taken = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return str(error), found.id, taken


def of_length(size, unit=b"[],"):
    """A line of about this many bytes that only Python reads, of what takes the most memory."""
    return b'{"id":7,"x":[' + unit * ((size - 18) // len(unit)) + b"NaN]}"


def test_the_id_of_a_line_that_only_python_reads():
    error, id, _ = peak_of(of_length(lines.LOOSE_BYTES))
    assert "JSON is malformed" in error and id == 7


def test_a_long_line_takes_no_more_memory_than_its_bytes():
    line = of_length(lines.MAX_LINE_BYTES)
    error, id, taken = peak_of(line)
    assert "JSON is malformed" in error and id is None
    assert taken < len(line)
