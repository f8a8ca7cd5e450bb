"""Keys that occur twice, against Python's own reader."""

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.formats import json_keys


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
    st.sampled_from([0, json_keys.COUNTED_BYTES]),
)
def test_a_key_that_occurs_twice_is_found_wherever_it_is(value, colon, escaped, limit):
    def different(pairs):
        nonlocal twice
        twice = twice or len(dict(pairs)) < len(pairs)
        return dict(pairs)

    twice, text = False, written(value, colon, escaped)
    json.loads(text, object_pairs_hook=different)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_keys, "COUNTED_BYTES", limit)
        for found in (0, len(dict(value))):
            if twice:
                with pytest.raises(msgspec.ValidationError, match="occurs twice"):
                    json_keys.check_keys(text.encode(), found)
            else:
                json_keys.check_keys(text.encode(), found)


def test_keys_of_a_deeply_nested_record():
    json_keys.check_keys(b'{"a":' + b"[" * 900 + b'{"b":1}' + b"]" * 900 + b"}", 1)
    with pytest.raises(msgspec.ValidationError, match=r"'b' occurs twice - at `\$\.a\.b`"):
        json_keys.check_keys(b'{"a":' + b"[" * 900 + b'{"b":1,"b":1}' + b"]" * 900 + b"}", 1)
