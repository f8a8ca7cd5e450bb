"""Prompts: a bad one is a record with its line and field, and costs no other record."""

import json
import tracemalloc

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tilewright.errors import InputError
from tilewright.formats import lines as text_lines
from tilewright.formats.prompts import PromptFile, PromptLines, PromptText, open_prompts

V, LONGEST = 300, 6


def encode(text):
    """Its UTF-8 bytes; a text with a tab is one that the tokenizer cannot encode."""
    if "\t" in text:
        raise InputError("the tokenizer cannot encode this text", path="tokenizer.json")
    return list(text.encode())


def read(path, content, size=4, encode=encode, **options):
    path.write_bytes(content if isinstance(content, bytes) else "".join(f"{line}\n" for line in content).encode())
    reader = open_prompts(path, encode=encode, vocabulary=V, max_length=LONGEST, length=3, **options)
    try:
        batches = list(reader.batches(size))
    finally:
        reader.close()
    prompts = [prompt for batch in batches for prompt in batch.prompts]
    assert sum(map(len, batches)) == len(prompts) and 0 < batches[-1].end <= reader.bytes
    assert [error for batch in batches for error in batch.errors] == [p.error for p in prompts if p.error]
    return prompts


def batch_line(id="r", url="/v1/completions", **body):
    return json.dumps({"custom_id": id, "method": "POST", "url": url, "body": {"model": "gpt2", **body}})


@pytest.mark.parametrize(
    ("line", "ids", "text", "sampling"),
    [
        ('{"prompt": "ab"}', [97, 98], "ab", {}),
        ('{"prompt": "\\u00e9"}', [195, 169], "\u00e9", {}),
        ('{"prompt": [1, 2]}', [1, 2], None, {}),
        ('{"prompt_token_ids": [0, 299]}', [0, 299], None, {}),
        ('{"input_ids": [1], "model": "x", "attention_mask": [1], "labels": {"a": [1]}}', [1], None, {}),
        ('{"prompt": "a", "max_tokens": 3, "temperature": 0.5}', [97], "a", {"max_tokens": 3, "temperature": 0.5}),
        ('{"prompt": "a", "stop": ["x", "y"], "seed": null, "n": "2"}', [97], "a", {"stop": ["x", "y"], "n": "2"}),
        ('{"prompt": "a", "temperature": 0, "ignore_eos": false}', [97], "a", {"temperature": 0, "ignore_eos": False}),
        (
            '{"prompt": "a", "prompt_tokens": 3, "input_id": 4, "top": 1, "eos_token": "x", "stops": null}',
            [97],
            "a",
            {},
        ),
        ('{"prompt": "a", "topic": "x", "n_best": 1, "notes": [], "stopped_by": "me"}', [97], "a", {}),
        ('{"prompt": "a", "do_sample": true, "echo": false, "suffix": null}', [97], "a", {"do_sample": True}),
    ],
)
def test_good_lines(tmp_path, line, ids, text, sampling):
    first, second = read(tmp_path / "in.jsonl", [line, "", " ", line])
    assert first.token_ids.dtype == np.int32 and first.token_ids.tolist() == second.token_ids.tolist() == ids
    assert (first.text, first.sampling, first.error, first.openai) == (text, sampling, None, False)
    assert (first.id, first.line, second.id, second.line) == (1, 1, 4, 4)


def test_batch_lines(tmp_path):
    content = [
        batch_line("a", prompt="ab", max_tokens=5, frequency_penalty=0, logit_bias={}, user="u", stream=False),
        batch_line("b", prompt=[1, 2], stop=None, logprobs=2),
        '{"custom_id": "c", "body": {"prompt_token_ids": [3], "top_k": 4}, "topic": 5}',
    ]
    prompts = read(tmp_path / "in.jsonl", content)
    assert [prompt.error for prompt in prompts] == [None] * 3 and all(prompt.openai for prompt in prompts)
    assert [prompt.id for prompt in prompts] == ["a", "b", "c"]
    assert [prompt.token_ids.tolist() for prompt in prompts] == [[97, 98], [1, 2], [3]]
    assert [prompt.sampling for prompt in prompts] == [
        {"max_tokens": 5, "frequency_penalty": 0, "logit_bias": {}},
        {"logprobs": 2},
        {"top_k": 4},
    ]


@pytest.mark.parametrize(
    ("line", "field", "message", "id"),
    [
        (b"{bad", "", "JSON is malformed", None),
        (b'{"id":"q","prompt":"a', "", "the JSON is not whole, it ends at byte 21", None),
        (b'"text"', "", "expected object, got str", None),
        (b"[1,2]", "", "expected object, got array", None),
        (b'{"id":"q","prompt":"\xff"}', "", "byte 20 is not UTF-8", "q"),
        (b'{"id":"q","prompt":"\\ud800 and more"}', "prompt", "surrogate", "q"),
        (b'{"id":"q","stop":' + b"[" * 100_000, "", "nested too deeply", None),
        (b'{"id":"q","prompt":"' + b"a" * (16 << 20) + b'"}', "", "is longer than 16 MiB", None),
        (b'{"id":"q"}', "prompt", "is missing; the record has id", "q"),
        (b'{"id":"q","text":"a"}', "prompt", "has id, text. Use --prompt-field NAME to read another field", "q"),
        (b'{"id":"q","prompt":"a","input_ids":[1]}', "prompt", "is given together with input_ids", "q"),
        (b'{"id":"q","prompt":""}', "prompt", "is empty", "q"),
        (b'{"id":"q","input_ids":[]}', "input_ids", "is empty", "q"),
        (b'{"id":"q","prompt":null}', "prompt", "got null", "q"),
        (b'{"id":"q","prompt":["a"]}', "prompt[0]", "expected int, got str", "q"),
        (b'{"id":"q","prompt_token_ids":"1 2"}', "prompt_token_ids", "expected array, got str", "q"),
        (b'{"id":"q","prompt_token_ids":[1,2.5]}', "prompt_token_ids[1]", "got float", "q"),
        (b'{"id":"q","prompt_token_ids":[true]}', "prompt_token_ids[0]", "got bool", "q"),
        (
            b'{"id":"q","input_ids":[1,300]}',
            "input_ids[1]",
            "token id 300 is outside the vocabulary (ids 0 to 299)",
            "q",
        ),
        (b'{"id":"q","input_ids":[-1]}', "input_ids[0]", "token id -1 is outside", "q"),
        (b'{"id":"q","input_ids":[4294967296]}', "input_ids[0]", "token id 4294967296 is outside", "q"),
        (b'{"id":"q","input_ids":[' + b"9" * 5000 + b"]}", "input_ids[0]", "out of range", "q"),
        (b'{"id":"q","input_ids":[1,2,3,4,5,6,7]}', "input_ids", "has 7 tokens; at most 6 are possible", "q"),
        (b'{"id":"q","prompt":"1234567"}', "prompt", "has 7 tokens; at most 6 are possible", "q"),
        (b'{"id":"q","prompt":"a\\tb"}', "prompt", "the tokenizer cannot encode this text", "q"),
        (
            b'{"id":"q","prompt":"a","typical_p":0.5}',
            "typical_p",
            "is 0.5; this is not supported: leave it out, or give 1",
            "q",
        ),
        (
            b'{"id":"q","prompt":"a","tempreature":0}',
            "tempreature",
            "is not a known field; did you mean temperature?",
            "q",
        ),
        (b'{"id":"q","promt":"a"}', "promt", "is not a known field; did you mean prompt?", "q"),
        (b'{"custom_id":"q","body":{"prompt":"a","Max_Token":3}}', "body.Max_Token", "did you mean max_tokens?", "q"),
        (b'{"custom_id":"q","body":{"prompt":"a"},"top_k":5}', "top_k", "stands beside the body", "q"),
        (b'{"custom_id":"q","body":{"prompt":"a","tools":[1]}}', "body.tools", "is [1]; this is not supported", "q"),
        (b'{"id":"q","prompt":"a","max_length":' + b"9" * 5000 + b"}", "max_length", "give max_tokens, which", "q"),
        (b'{"id":"q","prompt":"a","prompt":"b"}', "prompt", "the key 'prompt' occurs twice", "q"),
        (b'{"id":"q","prompt":"a: b","max_tokens":1,"max_tokens":1}', "max_tokens", "'max_tokens' occurs twice", "q"),
        (b'{"id":"q","prompt":"a","note":{"b": [{"c" :1,"d":2,"c":3}]}}', "note.b.c", "'c' occurs twice", "q"),
        (b'{"custom_id":"q","body":{"prompt":"a","top_k":1,"top_k":2}}', "body.top_k", "'top_k' occurs twice", "q"),
        (b'{"custom_id":"q","body":{"prompt":"a"},"body":{"prompt":"b"}}', "body", "'body' occurs twice", "q"),
        (b'{"id":null,"prompt":"a"}', "id", "got null", None),
        (b'{"id":1.5,"prompt":"a"}', "id", "got float", None),
        (b'{"id":"a","prompt":"a"}', "id", "'a' is also the id of an earlier record", "a"),
        (b'{"prompt":"a"}', "id", "is missing, and the first", None),
        (b'{"custom_id":"q","prompt":"a"}', "body", "is missing from a batch line", "q"),
        (b'{"id":"q","body":{"prompt":"a"}}', "custom_id", "is missing from a batch line", "q"),
        (b'{"custom_id":"q","body":"a"}', "body", "expected object, got str", "q"),
        (b'{"custom_id":"q","body":{}}', "body.prompt", "is missing", "q"),
        (b'{"custom_id":"q","body":{"text":"a"}}', "body.prompt", "is missing; the record has text", "q"),
        (b'{"custom_id":"q","body":{"prompt":""}}', "body.prompt", "is empty", "q"),
        (b'{"custom_id":"q","body":{"prompt":["a","b"]}}', "body.prompt[0]", "expected int, got str", "q"),
        (b'{"custom_id":"q","body":{"prompt":[[1],[2]]}}', "body.prompt[0]", "expected int, got array", "q"),
        (b'{"custom_id":"q","body":{"prompt":[1,300]}}', "body.prompt[1]", "token id 300 is outside", "q"),
        (
            b'{"custom_id":"q","body":{"prompt":"a","echo":true}}',
            "body.echo",
            "is True; this is not supported: score the prompt with `tilewright score`",
            "q",
        ),
        (b'{"custom_id":"q","method":"GET","body":{"prompt":"a"}}', "method", "is 'GET'; POST is wanted", "q"),
        (b'{"custom_id":"q","url":"/v1/embeddings","body":{"prompt":"a"}}', "url", "is '/v1/embeddings'", "q"),
        (b'{"custom_id":"q","url":"/v1/chat/completions","body":{}}', "url", "chat templates are not applied", "q"),
        (b'{"custom_id":"q","body":{"messages":[{"role":"user"}]}}', "url", "chat templates are not applied", "q"),
    ],
)
def test_bad_lines(tmp_path, line, field, message, id):
    good = '{"id": "%s", "prompt": "ok"}'
    prompts = read(tmp_path / "in.jsonl", b"\n".join([(good % "a").encode(), b"", line, (good % "z").encode()]))
    assert [prompt.error is None for prompt in prompts] == [True, False, True]
    assert [prompt.token_ids.tolist() for prompt in prompts] == [[111, 107], [], [111, 107]]
    bad = prompts[1]
    assert (bad.error.line, bad.error.field, bad.id) == (3, field, id)
    assert message in bad.error.message and bad.openai == line.startswith(b'{"custom_id"')


def test_the_number_of_a_bad_line_is_its_id_where_lines_have_none(tmp_path):
    prompts = read(tmp_path / "in.jsonl", ['{"prompt": "a"}', "{", '{"id": 9, "prompt": "a"}'])
    assert [prompt.id for prompt in prompts] == [1, 2, 9] and prompts[2].error.field == "id"


def test_text_without_a_tokenizer(tmp_path):
    prompts = read(tmp_path / "in.jsonl", ['{"prompt": "a"}', '{"input_ids": [1]}'], encode=None)
    assert "no tokenizer.json" in prompts[0].error.message and prompts[1].token_ids.tolist() == [1]
    (prompt,) = read(tmp_path / "in.txt", ["a"], encode=None)
    assert prompt.error.line == 1 and "no tokenizer.json" in prompt.error.message


def test_ids_that_the_tokenizer_invents(tmp_path):
    (prompt,) = read(tmp_path / "in.txt", ["a"], encode=lambda text: [1, 2**32 - 1])
    assert "token id 4294967295 is outside" in prompt.error.message


def test_text(tmp_path):
    content = b"\xfe\n\n  \n a b \r\n" + "\u00e9\\n".encode() + b"\n1234567\nend"
    prompts = read(tmp_path / "in.txt", content)
    assert [prompt.text for prompt in prompts] == [None, " a b ", "\u00e9\\n", None, "end"]
    assert [prompt.id for prompt in prompts] == [1, 4, 5, 6, 7]
    assert prompts[1].token_ids.tolist() == list(b" a b ")
    assert [str(prompt.error) for prompt in prompts if prompt.error] == [
        "line 1: byte 0 is not UTF-8",
        "line 6: has 7 tokens; at most 6 are possible",
    ]


@pytest.mark.parametrize("size", [1, 2, 100])
def test_binary(tmp_path, rng, size):
    tokens = rng.integers(0, V, (5, 3), np.int32)
    prompts = read(tmp_path / "in.bin", tokens.tobytes(), size=size)
    assert [prompt.id for prompt in prompts] == [1, 2, 3, 4, 5]
    assert np.array([prompt.token_ids for prompt in prompts]).tobytes() == tokens.tobytes()
    assert all(prompt.text is None and prompt.sampling == {} and not prompt.openai for prompt in prompts)
    assert len(read(tmp_path / "in.bin", tokens.tobytes(), size=size, count=5)) == 5


def test_binary_errors_speak_of_prompts(tmp_path):
    for content, message in [
        (b"", "Write 3 token ids of 4 bytes per prompt"),
        (bytes(13), "1 prompt of 12 bytes and 1 more"),
        (np.full((2, 3), V, "<i4").tobytes(), "prompt 0, position 0"),
    ]:
        with pytest.raises(InputError, match=message):
            read(tmp_path / "in.bin", content)


def test_the_name_says_the_kind(tmp_path):
    for name, kind in [("a.jsonl", PromptLines), ("a.txt", PromptText), ("a.bin", PromptFile)]:
        (tmp_path / name).write_bytes(bytes(64) if name == "a.bin" else b"a")
        reader = open_prompts(tmp_path / name, encode=None, vocabulary=V, max_length=LONGEST)
        assert type(reader) is kind
        reader.close()


@pytest.mark.parametrize("name", ["in.jsonl", "in.txt"])
def test_a_binary_file_is_not_text(tmp_path, name):
    utf_16 = "3; the file is text in UTF-16"
    for content, at in [(b"a line\n and more \0", 17), ("a line".encode("utf-16"), utf_16), (bytes(100_000), 0)]:
        with pytest.raises(InputError, match=f"{name}: is not text: byte 0x00 at offset {at}. Give UTF-8 text, .j"):
            read(tmp_path / name, content)


def test_a_nul_in_json_lines_is_the_error_of_its_record(tmp_path):
    good = b'\xef\xbb\xbf {"prompt": "a"}\n'
    assert [prompt.error is None for prompt in read(tmp_path / "in.jsonl", good + b"\0\n" + good[4:])] == [
        True,
        False,
        True,
    ]


@pytest.mark.parametrize("name", ["in.jsonl", "in.txt"])
def test_whole_file_errors(tmp_path, name):
    line = '{"prompt": "a"}' if name == "in.jsonl" else "a"
    for content, count, message in [
        (b"", None, "is empty. Write lines such as "),
        (b"\n \n", None, "holds 0 records"),
        ([line] * 2, 3, "holds 2 records; 3 were asked for"),
    ]:
        with pytest.raises(InputError, match=message):
            read(tmp_path / name, content, count=count)


PIECES = [
    b'{"prompt":"ab"}', b'{"custom_id":', b'"body":{"prompt":', b"[1,2]", b'"a"', b",", b"}", b"\n", b"\r\n", b" ",
    b"[", b"\xff", b"7", b"\\u", b'"', b'"stop":', b'"url":', b"null", b"-1",
]  # fmt: skip


@given(content=st.lists(st.sampled_from(PIECES), min_size=1, max_size=30), chunk=st.integers(1, 40))
@settings(
    max_examples=2 * settings.default.max_examples,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@pytest.mark.parametrize("name", ["in.jsonl", "in.txt"])
def test_any_bytes(tmp_path, monkeypatch, name, content, chunk):
    """Every line that is not blank is one prompt, wherever chunks end; only InputError comes out."""
    monkeypatch.setattr(text_lines, "CHUNK_BYTES", chunk)
    content = b"".join(content)
    expected = [i for i, line in enumerate(content.split(b"\n"), 1) if line.strip()]
    if not expected:
        with pytest.raises(InputError):
            read(tmp_path / name, content)
        return
    prompts = read(tmp_path / name, content)
    assert [prompt.line for prompt in prompts] == expected
    assert all((prompt.error is None) == (len(prompt.token_ids) > 0) for prompt in prompts)


def test_memory_does_not_grow_with_the_input(tmp_path):
    def peak(n):
        (tmp_path / "in.jsonl").write_text("".join(f'{{"id": {i}, "prompt": "abc"}}\n' for i in range(n)))
        tracemalloc.start()
        reader = open_prompts(tmp_path / "in.jsonl", encode=encode, vocabulary=V, max_length=LONGEST)
        for batch in reader.batches(100):
            assert not batch.errors
        reader.close()
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    small, large = peak(1000), peak(30_000)
    assert large - small < 3.5 * text_lines.CHUNK_BYTES + 24 * 30_000
