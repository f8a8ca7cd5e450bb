"""Lines that are no JSON: what is still read of them, and in how much memory."""

import json
import tracemalloc

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
    assert str(lines.missing(["a", "b" * 40], "text")) == f"is missing; what is there: a, {'b' * 29}..."
    assert str(lines.missing("abcdef", "text")) == "is missing; what is there: a, b, c, d, e, f"
    assert str(lines.missing("abcdefg", "text")) == "is missing; what is there: a, b, c, d, e, 2 more"
    assert str(lines.missing([], "text")) == "is missing"


class Pairs(list):
    """Pairs of an object that may have a key twice."""


KEYS = st.sampled_from(["a", "b", "a\\", 'a"', 'a":', "{", "\u00e9", ""])
VALUES = st.recursive(
    st.sampled_from([0, True, None, "", 'x": 1', "{}", "a: b", "\\", '\\"']),
    lambda inner: st.lists(inner, max_size=3) | st.lists(st.tuples(KEYS, inner), max_size=3).map(Pairs),
    max_leaves=12,
)


def written(value, colon, escaped):
    """JSON of VALUES."""
    if isinstance(value, Pairs):
        pairs = [f"{json.dumps(k, ensure_ascii=escaped)}{colon}{written(v, colon, escaped)}" for k, v in value]
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ",".join(written(each, colon, escaped) for each in value) + "]"
    return json.dumps(value, ensure_ascii=escaped)


@settings(deadline=None)
@given(
    st.lists(st.tuples(KEYS, VALUES), max_size=4).map(Pairs),
    st.sampled_from([":", " : ", "\t:"]),
    st.booleans(),
    st.sampled_from([0, lines.LOOSE_BYTES]),
)
def test_a_key_that_occurs_twice_is_found_wherever_it_is(value, colon, escaped, limit):
    def different(pairs):
        nonlocal twice
        twice = twice or len(dict(pairs)) < len(pairs)
        return dict(pairs)

    twice, text = False, written(value, colon, escaped)
    json.loads(text, object_pairs_hook=different)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "LOOSE_BYTES", limit)
        for found in (0, len(dict(value))):
            if twice:
                with pytest.raises(msgspec.ValidationError, match="occurs twice"):
                    lines.check_keys(text.encode(), found)
            else:
                lines.check_keys(text.encode(), found)


def test_keys_of_a_deeply_nested_record():
    lines.check_keys(b'{"a":' + b"[" * 900 + b'{"b":1}' + b"]" * 900 + b"}", 1)
    with pytest.raises(msgspec.ValidationError, match=r"'b' occurs twice - at `\$\.a\.b`"):
        lines.check_keys(b'{"a":' + b"[" * 900 + b'{"b":1,"b":1}' + b"]" * 900 + b"}", 1)
