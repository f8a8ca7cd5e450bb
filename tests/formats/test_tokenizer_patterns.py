"""A tokenizer.json whose pattern takes minutes of a text costs that text an error, and nothing else."""

import json
import os
import signal

import pytest

from gpt2_models import save
from tilewright.errors import InputError
from tilewright.formats import tokenizer_process
from tilewright.formats.tokenizer import Tokenizer
from tilewright.formats.tokenizer_patterns import is_linear
from tilewright.generation.sampling import SamplingParams
from tilewright.runtime.convert.models import init_textcnn
from tilewright.runtime.verbs.classify import ClassifyJob, classify
from tilewright.runtime.verbs.generate import GenerateJob, generate
from tokenizer_files import contents

SLOW = "a+a+[bc]"
MINUTES = ("a" * 4000 + " ") * 25 + "b"  # 100 KB; each 4000 "a" took 32 s, together 13 minutes

REAL = {
    "gpt2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "clip": r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+",
    "llama3": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+",
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+",
    "o200k": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "t5": " {2,}",
    "runs": r"\s+",
    "a class": "[\u2018\u2019\x91\x92]",
    "letters": r"[\p{L}\p{N}]+",
}


def split(pattern):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


@pytest.fixture
def slow(tmp_path, monkeypatch):
    monkeypatch.setattr(tokenizer_process, "SECONDS", 1)
    (tmp_path / "tokenizer.json").write_text(contents(pre_tokenizer=split(SLOW)))
    return tmp_path / "tokenizer.json"


@pytest.mark.parametrize("name", REAL)
def test_patterns_in_use_run_here(tmp_path, monkeypatch, name):
    monkeypatch.setattr(tokenizer_process, "TokenizerProcess", None)
    (tmp_path / "t.json").write_text(contents(pre_tokenizer=split(REAL[name])))
    assert Tokenizer(tmp_path / "t.json").encode("he") == [256]


@pytest.mark.parametrize(
    "pattern", ["a+b", "(a*)*b", "(?:x+x+)+y", "a*a*", r"\s+$", "[a&&b]+c", "[a]+[b]", "a|a+b", ""]
)
def test_others_do_not(pattern):
    assert not is_linear(pattern)


@pytest.mark.parametrize("part", ["pre_tokenizer", "normalizer", "decoder"])
def test_every_part_counts(tmp_path, part):
    replace = {"type": "Replace", "pattern": {"Regex": SLOW}, "content": "x"}
    (tmp_path / "t.json").write_text(contents(**{part: split(SLOW) if part == "pre_tokenizer" else replace}))
    assert Tokenizer(tmp_path / "t.json")._process


def test_a_text_that_takes_minutes(slow, tmp_path):
    (tmp_path / "plain.json").write_text(contents(pre_tokenizer=split(REAL["runs"])))
    tokenizer, plain = Tokenizer(slow), Tokenizer(tmp_path / "plain.json")
    texts = ["he said", "\u00e9\u4e16 \n", ""]
    for call in (tokenizer.encode, tokenizer.check, tokenizer.encode_word):
        with pytest.raises(InputError, match=r"tokenizer\.json: takes more than 1 s of CPU time"):
            call(MINUTES)
    assert tokenizer.encode_batch(texts) == plain.encode_batch(texts)
    assert tokenizer.encode_word("he") == [256] and tokenizer.decode([256, 0]) == plain.decode([256, 0])
    with pytest.raises(InputError, match="at most 1,048,576 can be encoded"):
        tokenizer.encode("x" * (1 << 20) + "x")


def test_a_process_that_was_killed_costs_no_text(slow):
    tokenizer = Tokenizer(slow)
    os.kill(tokenizer._process._process.pid, signal.SIGKILL)
    os.waitid(os.P_PID, tokenizer._process._process.pid, os.WEXITED | os.WNOWAIT)
    assert tokenizer.encode("he") == [256]


def test_the_process_ends_with_its_tokenizer(slow):
    tokenizer = Tokenizer(slow)
    process = tokenizer._process._process
    del tokenizer
    assert process.returncode is not None


@pytest.mark.parametrize("verb", ["classify", "generate"])
def test_the_job_goes_on(slow, tmp_path, verb):
    """The record is an error, the others are answered."""
    model, field = tmp_path / "model", {"classify": "text", "generate": "prompt"}[verb]
    if verb == "classify":
        init_textcnn(str(model), 3, vocab_size=300, sequence_length=4000, hidden_size=4, num_filters=2,
                     kernel_sizes=(2,), hidden_sizes=(3,))  # fmt: skip
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps(config | {"pad_token_id": 0}))
    else:
        save(model)
    os.replace(slow, model / "tokenizer.json")
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({field: text}) + "\n" for text in ("he", MINUTES, "hehe")))
    paths = str(model), str(tmp_path / "in.jsonl"), str(tmp_path / "out.jsonl")
    if verb == "classify":
        report = classify(ClassifyJob(*paths))
    else:
        report = generate(GenerateJob(*paths, SamplingParams(max_tokens=2)))
    assert (report.records, report.errors) == (3, 1)
    assert "takes more than 1 s of CPU time" in report.first_errors[0] and "line 2" in report.first_errors[0]
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert ["error" in line for line in lines] == [False, True, False]
