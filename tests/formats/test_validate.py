"""The course's check: each way to be wrong is a FAIL with its place."""

import json

import numpy as np
import pytest

from tilewright.errors import InputError, UsageError
from tilewright.formats import validate as module
from tilewright.formats.validate import largest_error, validate, validate_tokens


@pytest.fixture
def pair(tmp_path, rng):
    """Writes (output, reference) as f32 and validates them."""
    base = rng.standard_normal(1000, np.float32)

    def run(change=lambda a: a, reference=base, **options):
        out, ref = tmp_path / "out.bin", tmp_path / "ref.bin"
        np.asarray(change(base.copy()), "<f4").tofile(out)
        np.asarray(reference, "<f4").tofile(ref)
        return validate(out, ref, **options)

    return run


def put(place, value):
    def change(array):
        array[place] = value
        return array

    return change


def test_equal(pair):
    result = pair()
    assert result.passed and result.checked == 1000 and result.error == 0 and result.first is None


@pytest.mark.parametrize("block", [1, 7, 1 << 18])
def test_first_and_worst(pair, monkeypatch, block):
    monkeypatch.setattr(module, "BLOCK", block)
    result = pair(lambda a: put(700, 99)(put(13, a[13] + 0.5)(a)), columns=2)
    assert not result.passed and result.checked == 1000
    assert result.first.startswith("sentence 6, logit 1 is ") and "sentence 350, logit 0" in result.worst


@pytest.mark.parametrize(
    ("found", "expected", "passes"),
    [
        (1.0009, 1.0, True),
        (1.002, 1.0, False),
        (1000.5, 1000.0, True),  # relative
        (0.0005, 0.0, True),  # absolute
        (0.002, 0.0, False),
        (0.0005, 1e-9, True),  # small answers count absolutely
        (1e-4, 1e-5, True),  # absolutely right, relatively ten times too large
        (np.nan, 1.0, False),
        (1.0, np.nan, False),
        (np.nan, np.nan, False),
        (np.inf, 1.0, False),
        (1.0, np.inf, False),
        (np.inf, np.inf, False),
        (-np.inf, np.inf, False),
        (3e38, -3e38, False),
        (-1.0, 1.0, False),
    ],
)
def test_the_rule(pair, found, expected, passes):
    result = pair(lambda a: [0.5, found], reference=[0.5, expected])
    assert result.passed is passes
    assert passes or "element 1" in result.first


def test_tolerance(pair):
    assert pair(lambda a: a + np.float32(0.01), tolerance=0.1).passed
    assert not pair(lambda a: a + np.float32(0.01)).passed
    assert not pair(lambda a: np.nextafter(a, np.float32(9)), tolerance=0).passed


def test_lengths(pair):
    result = pair(lambda a: a[:-1])
    assert not result.passed and "999 elements and the reference 1,000" in result.first
    assert pair(lambda a: a[:-1], prefix=True).passed
    assert not pair(lambda a: np.append(a, 0), prefix=True).passed


@pytest.mark.parametrize("content", [b"", b"abc", bytes(7)])
def test_no_floats(tmp_path, content):
    (tmp_path / "a.bin").write_bytes(content)
    (tmp_path / "b.bin").write_bytes(bytes(8))
    for files in (("a.bin", "b.bin"), ("b.bin", "a.bin")):
        with pytest.raises(InputError, match=f"{tmp_path / 'a.bin'}: the .* has {len(content)} bytes"):
            validate(*(tmp_path / name for name in files))


RECORDS = [
    {"id": "a", "label": "positive", "score": 0.9, "logits": [0.1, 2.0]},
    {"id": 7, "error": {"line": 2, "field": "tokens", "message": "is missing"}},
    {"id": "c", "label": "negative", "score": 0.8, "logits": [1.0, -1.0]},
]


def lines(tmp_path, records, name="out.jsonl"):
    (tmp_path / name).write_text("".join(json.dumps(record) + "\n" for record in records))
    return tmp_path / name


@pytest.mark.parametrize(
    ("records", "message"),
    [
        (RECORDS, None),
        ([{**RECORDS[0], "logits": [0.1001, 2.001]}, *RECORDS[1:]], None),
        ([{**RECORDS[0], "score": 0.1}, *RECORDS[1:]], None),
        ([{**RECORDS[0], "logits": [0.1, 2.5]}, *RECORDS[1:]], "record 0 (id 'a'), logit 1"),
        ([{**RECORDS[0], "logits": [0.1, None]}, *RECORDS[1:]], "no list of numbers"),
        ([{**RECORDS[0], "logits": [0.1]}, *RECORDS[1:]], "1 logits, and 2 are wanted"),
        ([{**RECORDS[0], "label": "negative"}, *RECORDS[1:]], "label is 'negative' and 'positive' is wanted"),
        ([{**RECORDS[0], "id": "b"}, *RECORDS[1:]], "id is 'b'"),
        ([RECORDS[0], {"id": 7, "label": "x"}, RECORDS[2]], "label is 'x' and None is wanted"),
        ([*RECORDS[:2], {**RECORDS[2], "token_ids": [1] * 99}], "token_ids is [1, 1"),
        ([*RECORDS[:2], {**RECORDS[2], "text": "x"}], "text is 'x' and None is wanted"),
        ([*RECORDS[:2], {**RECORDS[2], "choices": []}], "choices is [] and None is wanted"),
        ([*RECORDS[:2], {**RECORDS[2], "response": {}}], "response is {} and None is wanted"),
        (RECORDS[:2], "the output ends after 2 records"),
        ([*RECORDS, RECORDS[0]], "the reference ends after 3 records"),
    ],
)
def test_lines(tmp_path, records, message):
    result = validate(lines(tmp_path, records), lines(tmp_path, RECORDS, "ref.jsonl"))
    assert result.passed is (message is None)
    assert message is None or message in result.first


def test_all_records_that_differ_are_counted_and_three_are_named(tmp_path):
    """Only record 0 was named, also if all others were equal or none was."""
    found = [{"id": i, "text": "b" if i % 2 else "a", "logits": [i + 0.5 * (i == 6)]} for i in range(9)]
    wanted = [{"id": i, "text": "a", "logits": [i]} for i in range(10)]
    result = validate(lines(tmp_path, found), lines(tmp_path, wanted, "ref.jsonl"))
    assert (result.passed, result.checked, result.differing, result.error) == (False, 9, 5, 0.5 / 6)
    named = [f"record {i} (id {i}): text is 'b' and 'a' is wanted" for i in (1, 3, 5)]
    assert result.reasons == [*named, "the output ends after 9 records"]
    assert result.detail.startswith("5 of 9 records differ, counted from 0; record 1 (id 1)")
    assert "at record 6 (id 6), logit 0" in result.detail
    assert "differ" not in validate(lines(tmp_path, wanted), lines(tmp_path, wanted, "ref.jsonl")).detail


@pytest.mark.parametrize("reference", ["", "\n", '{"id": 1}\n'])
def test_no_records_are_no_pass(tmp_path, reference):
    (tmp_path / "out.jsonl").write_text("\n")
    (tmp_path / "ref.jsonl").write_text(reference)
    with pytest.raises(InputError, match=r"out\.jsonl: the output holds no records"):
        validate(tmp_path / "out.jsonl", tmp_path / "ref.jsonl", prefix=True)


def test_logits_that_are_missing(tmp_path):
    (tmp_path / "out.jsonl").write_text('{"id": 1, "label": "a"}\n')
    (tmp_path / "ref.jsonl").write_text('{"id": 1, "label": "a", "logits": [1, 2]}\n')
    result = validate(tmp_path / "out.jsonl", tmp_path / "ref.jsonl")
    assert not result.passed and "record 0 (id 1): the reference has logits and the output has none" in result.detail
    assert validate(tmp_path / "ref.jsonl", tmp_path / "out.jsonl").passed, "a reference may hold labels alone"


@pytest.mark.parametrize(
    ("name", "value", "near", "wrong", "said"),
    [
        ("logprob", -3.5, -3.5001, -3.6, "logprob 0 is -3.6"),
        ("token_logprobs", [-1.0, -2.5], [-1.0, -2.5001], [-1.0, -2.0], "token_logprob 1 is -2"),
        ("embedding", [0.1, 0.2], [0.1, 0.2001], [0.1, -0.2], "element 1 is -0.2"),
        ("logprobs", [{"5": -1.0, "7": -2.0}], [{"7": -1.0001, "5": -2.0}], [{"5": -1.0, "7": -3.0}], "logprob 1"),
        ("is_greedy", True, True, False, "is_greedy is False"),
        ("custom_id", "a", "a", "b", "custom_id is 'b'"),
    ],
)
def test_numbers_of_score_embed_and_generate_are_compared(tmp_path, name, value, near, wrong, said):
    """They were not: any log-probability and any vector passed."""
    reference = lines(tmp_path, [{"id": 1, name: value}], "ref.jsonl")
    assert validate(lines(tmp_path, [{"id": 1, name: near}]), reference).passed
    result = validate(lines(tmp_path, [{"id": 1, name: wrong}]), reference)
    assert not result.passed and said in result.detail
    for bad in ({}, {name: None}, {name: ["x"]}):
        assert not validate(lines(tmp_path, [{"id": 1, **bad}]), reference).passed


@pytest.mark.parametrize("found", [np.nan, np.inf, -np.inf])
def test_the_largest_error(found):
    expected = np.array([100.0, 0.0, 2.0])
    assert largest_error(np.array([101.0, 0.004, 2.0]), expected) == pytest.approx(0.01)
    assert largest_error(np.array([100.0, found, 2.0]), expected) == np.inf


def test_line_errors(tmp_path):
    reference = lines(tmp_path, RECORDS, "ref.jsonl")
    assert validate(lines(tmp_path, RECORDS[:2]), reference, prefix=True).passed
    (tmp_path / "out.jsonl").write_text('{"id": 1}\n[1]\n')
    with pytest.raises(InputError, match="line 2"):
        validate(tmp_path / "out.jsonl", reference)
    (tmp_path / "out.jsonl").write_text('{"id": 1, "label": "a", "label": "b"}')
    with pytest.raises(InputError, match="the key 'label' occurs twice"):
        validate(tmp_path / "out.jsonl", reference)
    with pytest.raises(UsageError):
        validate(reference, lines(tmp_path, RECORDS, "ref.json"))


@pytest.fixture
def tokens(tmp_path, rng):
    """Writes (output, reference) as i32 (1000, 8) with some tokens changed, and validates them."""
    base = rng.integers(0, 50257, (1000, 8), np.int32)

    def run(changed=(), rows=1000, reference_rows=1000, **options):
        found = base.copy()
        for place in changed:
            found[place] ^= 1
        found[:rows].tofile(tmp_path / "out.bin")
        base[:reference_rows].tofile(tmp_path / "ref.bin")
        return validate_tokens(tmp_path / "out.bin", tmp_path / "ref.bin", tokens=8, **options)

    return run


PLACES = [(700, 5), (3, 2), (3, 3), (999, 7), (500, 0)]


@pytest.mark.parametrize("block", [1000, 13, 1 << 18])
def test_differing_tokens(tokens, monkeypatch, block):
    monkeypatch.setattr(module, "BLOCK", block)
    equal = tokens(allowed=0)
    assert equal.passed and equal.checked == 8000 and equal.first is None and equal.differing == 0
    result = tokens(PLACES, allowed=4)
    assert not result.passed and result.differing == 5 and tokens(PLACES, allowed=5).passed
    assert result.first.startswith("prompt 3, token 2 (both from 0) is ")
    assert result.detail.startswith("5 of 8,000 tokens differ, 4 may; prompt 3")


def test_the_course_allows_one_token_in_two_thousand(tokens):
    assert tokens(PLACES[:4]).passed and not tokens(PLACES).passed
    assert tokens(PLACES[:3], rows=999, reference_rows=999).passed  # floor(0.0005 * 7992) is 3
    assert not tokens([*PLACES[:3], (0, 0)], rows=999, reference_rows=999).passed


def test_numbers_of_prompts(tokens):
    result = tokens(rows=999)
    assert not result.passed and result.first == "the output has 999 prompts and the reference 1,000"
    assert tokens(rows=999, prefix=True).passed and not tokens(reference_rows=999, prefix=True).passed


@pytest.mark.parametrize("content", [b"", bytes(31), bytes(36)])
def test_no_tokens(tmp_path, content):
    (tmp_path / "a").write_bytes(content)
    (tmp_path / "b").write_bytes(bytes(32))
    for files in (("a", "b"), ("b", "a")):
        with pytest.raises(
            InputError, match=f"{tmp_path / 'a'}: the .* has {len(content)} bytes; whole prompts of 32 bytes are wanted"
        ):
            validate_tokens(*(tmp_path / name for name in files), tokens=8)


def test_token_ids_are_compared_exactly_whatever_they_are_as_floats(tmp_path):
    for name, values in (("a.bin", [7, 8, 500]), ("b.bin", [7, 9, 500])):
        np.array(values, "<i4").tofile(tmp_path / name)
    assert validate(tmp_path / "a.bin", tmp_path / "a.bin").passed
    assert not validate(tmp_path / "a.bin", tmp_path / "b.bin").passed
