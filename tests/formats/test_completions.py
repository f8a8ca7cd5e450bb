"""Completions: every form of output says the same, and an error has its place or stops the job."""

import json

import numpy as np
import pytest

from tilewright.errors import InputError, UsageError
from tilewright.formats.atomic import AtomicFile
from tilewright.formats.completions import CompletionWriter, TextWriter
from tilewright.formats.course import TokenWriter
from tilewright.formats.records import Completion, Prompt, RecordError

ERROR = RecordError(3, "prompt", "is empty")
LOGPROBS = [{5: float(np.float32(-0.1)), 7: -2.5}, {6: -1.0}]


def prompt(id, **fields):
    return Prompt(3, id, token_ids=np.array([1, 2, 3], np.int32), **fields)


def completion(index=0, text=" a\nb", ids=(5, 6), reason="length", logprobs=None):
    return Completion(index, list(ids), text, reason, logprobs)


def write(path, kind, *calls):
    with AtomicFile(path) as file:
        writer = kind(file)
        for results in calls:
            writer.write(results)
    return path.read_bytes()


def lines(path, *results):
    return [json.loads(line) for line in write(path, CompletionWriter, results).splitlines()]


def test_one_completion(tmp_path):
    found = lines(
        tmp_path / "out",
        (prompt("a\x1b"), [completion()]),
        (prompt(7), [completion(text=None, reason="stop", logprobs=LOGPROBS)]),
        (Prompt(3, None, ERROR), []),
    )
    assert found == [
        {"id": "a\x1b", "text": " a\nb", "token_ids": [5, 6], "finish_reason": "length"},
        {"id": 7, "token_ids": [5, 6], "finish_reason": "stop", "logprobs": [{"5": -0.1, "7": -2.5}, {"6": -1.0}]},
        {"id": None, "error": {"line": 3, "field": "prompt", "message": "is empty"}},
    ]
    assert b"\x1b" not in (tmp_path / "out").read_bytes()


def test_several_completions(tmp_path):
    (found,) = lines(tmp_path / "out", (prompt("a"), [completion(), completion(1, text="", ids=[], reason="stop")]))
    assert found == {
        "id": "a",
        "choices": [
            {"index": 0, "text": " a\nb", "token_ids": [5, 6], "finish_reason": "length"},
            {"index": 1, "text": "", "token_ids": [], "finish_reason": "stop"},
        ],
    }


def test_batch_lines(tmp_path):
    good, bad = lines(
        tmp_path / "out",
        (prompt("a", openai=True), [completion(logprobs=LOGPROBS), completion(1, ids=[9], reason="stop")]),
        (Prompt(3, "b", ERROR, openai=True), []),
    )
    assert (good["id"], good["custom_id"], good["error"]) == ("batch_req_3", "a", None)
    assert good["response"]["status_code"] == 200
    body = good["response"]["body"]
    assert body["object"] == "text_completion"
    assert body["usage"] == {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}
    first, second = body["choices"]
    assert second == {"index": 1, "text": " a\nb", "token_ids": [9], "finish_reason": "stop", "logprobs": None}
    assert first["logprobs"] == {
        "tokens": ["token_id:5", "token_id:6"],
        "token_logprobs": [-0.1, -1.0],
        "top_logprobs": [{"token_id:5": -0.1, "token_id:7": -2.5}, {"token_id:6": -1.0}],
    }
    assert (bad["id"], bad["custom_id"], bad["response"]) == ("batch_req_3", "b", None)
    assert bad["error"] == {
        "code": "invalid_request",
        "message": "line 3, prompt: is empty",
        "line": 3,
        "param": "prompt",
    }


def test_logprobs_keep_their_bits(tmp_path, rng):
    values = -(rng.standard_exponential(500, np.float32) * np.float32(10) ** rng.integers(-8, 4, 500, np.int32))
    values = values.astype(np.float32)
    logprobs = [dict(enumerate(map(float, values)))]
    (found,) = lines(tmp_path / "out", (prompt(1), [completion(ids=[0], logprobs=logprobs)]))
    assert np.array(list(found["logprobs"][0].values()), np.float32).tobytes() == values.tobytes()
    assert max(len(str(x)) for x in found["logprobs"][0].values()) < 16


def test_text(tmp_path):
    text = ' a\nb\\n\r\t\x1b[31m\x7f\x85 "\u00e9\u4e16\U0001f600'
    results = [
        (prompt("a"), [completion(text=text)]),
        (Prompt(3, "b", ERROR), []),
        (prompt("c"), [completion(text="")]),
    ]
    found = write(tmp_path / "out", TextWriter, results, [(prompt("d"), [completion(text="x"), completion(1, "y")])])
    expected = ' a\\nb\\\\n\\r\\t\\x1b[31m\\x7f\\x85 "\u00e9\u4e16\U0001f600'
    assert found.decode().split("\n") == [expected, "", "", "x", "y", ""]
    with pytest.raises(UsageError, match=r"out: text needs a tokenizer\.json"):
        write(tmp_path / "out", TextWriter, [(prompt("a"), [completion(text=None)])])
    assert (tmp_path / "out").read_bytes() == found


def tokens(file):
    return TokenWriter(file, tokens=2)


def test_tokens(tmp_path):
    calls = [(prompt(i), [completion(ids=[i, 50256])]) for i in range(5)]
    found = write(tmp_path / "out.bin", tokens, calls[:3], [], calls[3:])
    assert np.frombuffer(found, "<i4").reshape(-1, 2).tolist() == [[i, 50256] for i in range(5)]


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (
            (prompt("a"), [completion(ids=[1], reason="stop")]),
            r"prompt 'a' has 1 new tokens \(stop\); the file holds 2",
        ),
        ((prompt("a"), [completion(ids=[1, 2, 3])]), "prompt 'a' has 3 new tokens"),
        ((prompt("a"), [completion(), completion(1)]), "prompt 'a' has 2 completions"),
        ((prompt("a"), []), "prompt 'a' has 0 completions"),
        ((Prompt(3, "a", ERROR), []), "line 3, prompt: is empty"),
    ],
)
def test_tokens_of_other_shapes(tmp_path, result, message):
    with pytest.raises(InputError, match=message):
        write(tmp_path / "out.bin", tokens, [(prompt("z"), [completion()]), result])
    assert not (tmp_path / "out.bin").exists()
