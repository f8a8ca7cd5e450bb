"""Where a completion ends."""

import pytest

from tilewright.errors import UsageError
from tilewright.generation.sampling import Finish, SamplingParams, finish

PIECES = ["", "The ", "e", "nd", "en", "d!", " and", "\ufffd"]


def text_of(token_ids) -> str:
    return "".join(PIECES[t] for t in token_ids)


def ended(token_ids, **values) -> tuple[int, Finish]:
    """(tokens until the end, how) of a completion that is asked after each token, as a job does."""
    params = SamplingParams(**values)
    for count in range(1, len(token_ids) + 1):
        result = finish(token_ids[:count], params, {0}, text_of)
        if result.reason:
            return count, result
    return len(token_ids), Finish(None)


@pytest.mark.parametrize(
    ("token_ids", "values", "count", "reason", "text"),
    [
        ([1, 2, 3], {}, 3, None, "The end"),
        ([1, 0, 3], {}, 2, "stop", "The "),
        ([1, 0, 3], {"ignore_eos": True}, 3, None, "The nd"),
        ([0], {"max_tokens": 1}, 1, "stop", ""),
        ([1, 2, 3], {"max_tokens": 2}, 2, "length", "The e"),
        ([1, 5, 3], {"stop_token_ids": [5], "ignore_eos": True}, 2, "stop", "The d!"),
        ([1, 0, 5, 3], {"stop_token_ids": [5], "min_tokens": 3}, 3, "stop", "The d!"),
        ([1, 2, 3, 4], {"stop": "end"}, 3, "stop", "The "),
        ([1, 4, 5], {"stop": ["end"]}, 3, "stop", "The "),
        ([1, 4, 5], {"stop": ["d!", "nope", "he e"]}, 2, "stop", "T"),
        ([1, 4, 5], {"stop": ["d!", "nd", "end"]}, 3, "stop", "The "),
        ([1, 4, 5], {"stop": "!", "max_tokens": 3}, 3, "stop", "The end"),
        ([1, 2, 3, 4], {"stop": "end", "include_stop_str_in_output": True}, 3, "stop", "The end"),
        ([1, 4, 5], {"stop": ["d!", "end"], "include_stop_str_in_output": True}, 3, "stop", "The end"),
        ([1, 4, 5], {"stop": ["he e", "he"], "include_stop_str_in_output": True}, 1, "stop", "The"),
        ([2, 3, 2, 3], {"stop": "end", "min_tokens": 2}, 4, "stop", "end"),
        ([2, 3, 6], {"stop": "end", "min_tokens": 1}, 2, "stop", ""),
        ([2, 3, 6], {"stop": "e", "min_tokens": 3, "max_tokens": 3}, 3, "length", "end and"),
    ],
)
def test_where_a_completion_ends(token_ids, values, count, reason, text):
    found, result = ended(token_ids, **values)
    assert (found, result.reason) == (count, reason)
    assert text_of(token_ids[:found])[: result.cut] == text


def test_stop_strings_need_a_tokenizer():
    assert finish([5], SamplingParams(), ()) == Finish(None) == finish([], SamplingParams(max_tokens=1), ())
    with pytest.raises(UsageError, match="no tokenizer"):
        finish([5], SamplingParams(stop="a"), ())
