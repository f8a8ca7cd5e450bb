"""What a newcomer gives by mistake: pipes for files, words for numbers, blank texts, sentences that are too long."""

import json
import os
import socket

import pytest

from named_stand_ins import stand_ins
from options import replaced
from tilewright.errors import InputError
from tilewright.runtime import named_models
from tilewright.runtime.verbs.classify import task as classify
from tilewright.runtime.verbs.generate import task as generate


@pytest.fixture
def named(tmp_path, monkeypatch):
    """Stand-ins for the named models."""
    stand_ins(tmp_path / "models")
    monkeypatch.setattr(named_models, "FOLDER", tmp_path / "models")


VERBS = {
    "classify": ("-p", "critic", "-i", "in.txt", "-o", "out.jsonl"),
    "generate": ("-p", "poet", "-i", "in.txt", "-o", "out.txt"),
    "score": ("-p", "poet", "-i", "in.txt", "-o", "out.jsonl"),
    "draw": ("-p", "portraits", "-i", "in.npy", "-o", "out.npy"),
    "convolve": ("-i", "in.npy", "-k", "box:3", "-o", "out.npy"),
}


def refused(run, *arguments):
    """What is said of wrong usage, in one paragraph; nothing is left behind."""
    before = sorted(os.listdir("."))
    code, out, errors = run(*arguments)
    assert code == 2 and out == "" and sorted(os.listdir(".")) == before
    assert errors.startswith("Error: ") and errors.count("\n") == 1
    return errors


@pytest.mark.parametrize("verb", VERBS)
def test_a_job_reads_and_writes_files(run, named, verb):
    """Not standard input or output, nor what the shell makes of <(...) and >(...)."""
    os.mkfifo("pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
    reading, writing = os.pipe()
    for path, kind in [("-", "standard input"), (f"/dev/fd/{reading}", "a pipe"), ("pipe", "a pipe"),
                       ("socket", "a pipe")]:  # fmt: skip
        said = refused(run, verb, *replaced(VERBS[verb], "-i", path))
        assert f"{path}: the input is {kind}; it must be a file, which can be read again. Save it first" in said
    for path, kind in [("-", "standard output"), (f"/dev/fd/{writing}", "a pipe"), ("pipe", "a pipe")]:
        said = refused(run, verb, *replaced(VERBS[verb], "-o", path))
        assert f"{path}: the output is {kind}; it must be a file, which appears when it is whole. Name a file" in said
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["validate", "-", "x"], "the output is standard input"),
        (["validate", "x", "-"], "the reference is standard input"),
        (["convert", "-", "x"], "the source is standard input"),
        (["convert", "x", "-"], "the destination is standard output"),
        (["draw", "-p", "portraits", "-n", "1", "-o", "x.npy", "--image", "-"], "the image is standard output"),
        (["classify", *VERBS["classify"], "--validate", "-"], "the validate is standard input"),
        (["classify", *VERBS["classify"], "--trace", "-"], "the trace is standard output"),
        (["convolve", *replaced(VERBS["convolve"], "-k", "-")], "the kernel is standard input"),
    ],
)
def test_other_files(run, arguments, message):
    assert message in refused(run, *arguments)


def test_a_pipe_with_json(run, named):
    code, out, _ = run("classify", *replaced(VERBS["classify"], "-i", "-"), "--json")
    error = json.loads(out)["error"]
    assert code == error["code"] == 2 and error["path"] == "-" and "cat > FILE" in error["remedy"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--engine", "foo"], "'foo' is not one of 'inline', 'local', 'mpi', 'ray'"),
        (["--max-tokens", "0"], "'0' is given; a number greater than or equal to 1 is wanted"),
        (["--max-tokens", "many"], "'many'"),
        (["--max-batch-memory", "many"], "Invalid value for --max-batch-memory: 'many' is no size; write 256M or 4G"),
        (["--temperature", "5"], "temperature is 5.0; a number from 0 to 2 is wanted"),
    ],
)
def test_a_bad_value_is_told_in_our_words(run, options, message):
    code, _, errors = run("generate", *VERBS["generate"], *options)
    last = errors.splitlines()[-1]
    assert code == 2 and last.startswith("Error: ") and message in last
    assert "Value error" not in errors and "Input should" not in errors
    _, _, errors = run("plan", "generate", *VERBS["generate"], *options)
    assert message in errors and "Value error" not in errors and "Input should" not in errors
    _, out, _ = run("generate", *VERBS["generate"], *options, "--json")
    said = json.loads(out)["error"]["message"]
    assert message in said and "Value error" not in said and "Input should" not in said


@pytest.mark.parametrize("verb", VERBS)
def test_help_begins_with_what_the_verb_needs(run, verb):
    """Options that all jobs have come behind those of the verb; and what a verb refuses is not offered."""
    _, out, _ = run(verb, "--help")
    names = [line.split()[1 if line.split()[0].startswith("-") and line.split()[0].endswith(",") else 0]
             for line in out.splitlines() if line.startswith("  -")]  # fmt: skip
    shared = {"--workers", "--engine", "--restart", "--grace", "--watchdog", "--trace", "--part"}
    first = min(names.index(name) for name in shared)
    assert {"--input", "--output", "--json"} <= set(names[:first]) and shared <= set(names[first:])
    assert ("--max-errors" in names) == (verb in ("classify", "generate", "score"))
    assert f"  tilewright {verb} -" in out  # an example on a line of its own


@pytest.mark.parametrize("verb", ["classify", "generate", "score"])
def test_help_says_what_becomes_of_ids_in_parquet(run, verb):
    said = " ".join(run(verb, "--help")[1].split())
    assert "Parquet: the id column holds integers if all ids are integers, otherwise strings." in said
    assert 'Then 5 and "5" are the same id.' in said


@pytest.mark.parametrize(("verb", "module"), [("classify", classify), ("generate", generate)])
def test_a_blank_text_is_refused_before_the_model_is_loaded(run, named, monkeypatch, verb, module):
    name = {"classify": "ClassifyWorker", "generate": "GenerateWorker"}[verb]
    monkeypatch.setattr(module, name, lambda *given: pytest.fail("the model was loaded"))
    with open("in.txt", "w") as file:
        file.write("\n  \n\t\r\n" * 1000)
    before = sorted(os.listdir("."))
    code, _, errors = run(verb, *VERBS[verb])
    assert code == InputError.exit_code and sorted(os.listdir(".")) == before
    assert "in.txt: the input holds 0 records: all its lines are blank. Write lines such as a " in errors


def test_sentences_that_are_cut_are_told(run, named):
    """A token of the stand-in is a byte, and it takes 12."""
    with open("in.txt", "w") as file:
        file.write("twelve bytes\nthirteen byte\nshort\nthis is too long\n")
    line = "2 of 4 sentences are longer than the model's 12 tokens and were cut"
    for again in range(2):  # a job that has nothing to do any more says so, too
        code, out, _ = run("classify", *VERBS["classify"])
        assert code == 0 and out.count(line) == 1 and ("Nothing to do" in out) == bool(again)
    code, out, errors = run("classify", *VERBS["classify"], "--json")
    assert json.loads(out)["cut"] == 2 and line in errors
    assert "were cut" not in run("classify", *VERBS["classify"], "-n", "1", "--restart")[1]
