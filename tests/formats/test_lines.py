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


@pytest.mark.parametrize("line", [b'{"id":7,"prompt":"a', b"[1, \r", b"[1,", b'{"x":"\\ud8'])
def test_half_a_line_is_said_to_be_half(line):
    error, id, _ = peak_of(line)
    assert error == f"the JSON is not whole, it ends at byte {len(line.rstrip())}" and id is None


def test_of_a_long_line_it_is_not_known_whether_half_a_pair_is_meant():
    line = b'{"x":"' + b"a" * lines.LOOSE_BYTES + b'\\ud800"}'
    assert peak_of(line)[0] == f"the JSON is not whole, it ends at byte {len(line):,}, or has half of a surrogate pair"


def test_fields_that_are_there_are_named_in_short():
    assert str(lines.missing(["a", "b" * 40], "text")) == f"is missing; the record has a, {'b' * 29}..."
    assert str(lines.missing("abcdef", "text")) == "is missing; the record has a, b, c, d, e, f"
    assert str(lines.missing("abcdefg", "text")) == "is missing; the record has a, b, c, d, e, 2 more"
    assert str(lines.missing([], "text")) == "is missing"
