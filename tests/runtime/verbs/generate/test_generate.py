"""The job of `generate`: answers in the order of the input, bad prompts in their places, earlier outputs untouched."""

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from gpt2_models import save, tiny
from tilewright.errors import InputError, InternalError, Interrupted, ResourceError, UsageError
from tilewright.generation.sampling import SamplingParams
from tilewright.models.gpt2 import GPT2
from tilewright.runtime.jobs.settings import Settings
from tilewright.runtime.progress import JobProgress
from tilewright.runtime.verbs.generate import GenerateJob, generate
from tilewright.runtime.verbs.generate import worker as module

GREEDY = SamplingParams(temperature=0, max_tokens=6)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A model with a tokenizer in `m`, one without in `plain`; the current directory."""
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "m")
    save(tmp_path / "plain", tokenizer=False)
    return tmp_path


def run(input="in.jsonl", output="out.jsonl", model="m", params=GREEDY, restart=True, **options):
    """With fields of GenerateJob and of Settings; it begins with nothing unless told so."""
    given = {name: options.pop(name) for name in Settings.__dataclass_fields__ if name in options}
    return generate(GenerateJob(model, input, output, params, settings=Settings(restart=restart, **given), **options))


def write(lines, name="in.jsonl"):
    Path(name).write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))


def read(name="out.jsonl"):
    return [json.loads(line) for line in Path(name).read_text().splitlines()]


def test_work_is_told_before_the_first_prompt_ends(folder, monkeypatch):
    """By the tokens read and made: all prompts end with the last step."""
    told = []
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(JobProgress, "at_work", lambda self, worker, done, share=None: told.append((done, share)))
    write([{"prompt": f"the cat {i}"} for i in range(20)])
    run(params=SamplingParams(temperature=0, max_tokens=8, ignore_eos=True))
    shares = [share for done, share in told if done == 0 and share is not None]
    assert len(set(shares)) == 7 and shares == sorted(shares) and 0.2 < shares[0] < 0.8 < shares[-1] < 1.0
    at_first = told.index((0, shares[0]))
    assert all(share is not None for _, share in told[at_first:-1]), "a worker's beat may be the only one sent on"
    told.clear()
    run(input="in.jsonl", shard_size=100, params=GREEDY)  # of bytes: each shard has some of them
    shares = [share for _, share in told if share is not None]
    assert max(shares) == 1.0 and sum(share == 1.0 for share in shares) >= 4


def test_lines_are_answered_in_order(folder, rng):
    texts = ["the cat", "", "a", "the cat", "\u4e16\u754c", "x" * 40]
    write([{"id": f"p{i}", "prompt": text} for i, text in enumerate(texts)])
    report = run()
    model = tw.load("m")
    assert (report.records, report.errors, report.exit_code) == (6, 1, 0)
    for i, (text, found) in enumerate(zip(texts, read(), strict=True)):
        assert found["id"] == f"p{i}"
        if not text:
            assert found["error"] == {"line": 2, "field": "prompt", "message": "is empty"}
            continue
        wanted = next(model.generate([text], GREEDY)).outputs[0]
        assert found["token_ids"] == wanted.token_ids and found["finish_reason"] == wanted.finish_reason
        assert found["text"] == model.tokenizer.decode(wanted.token_ids)
    assert report.tokens == sum(len(one.get("token_ids", ())) for one in read())
    assert report.prompt_tokens == sum(len(text.encode()) for text in texts)
    assert {"check", "load", "prepare", "compile", "run", "write", "total"} <= report.seconds.keys()


def test_binary_files(folder, rng):
    tokens = rng.integers(0, 97, (50, 16), np.int32)
    tokens.tofile("in.bin")
    report = run("in.bin", "out.bin", "plain")
    found = np.fromfile("out.bin", "<i4").reshape(50, 6)
    model = tw.load("plain")
    assert found.tolist() == [one.outputs[0].token_ids for one in model.generate(list(tokens), GREEDY)]
    assert (report.records, report.tokens, report.prompt_tokens, report.exit_code) == (50, 300, 800, 0)
    assert run("in.bin", "first.bin", "plain", count=7).records == 7
    assert np.fromfile("first.bin", "<i4").tolist() == found[:7].ravel().tolist()
    run("in.bin", "out.jsonl", "plain")
    assert [one["token_ids"] for one in read()] == found.tolist() and read()[3]["id"] == 4


def test_end_of_text_is_a_token_like_others_in_a_binary_file(folder, rng):
    tokens = rng.integers(0, 256, (30, 16), np.int32)
    tokens.tofile("in.bin")
    run("in.bin", "all.bin", params=SamplingParams(max_tokens=40), seed=1)
    found = np.fromfile("all.bin", "<i4").reshape(30, 40)
    assert (found[:, :-1] == 256).any(), "nothing ended early: the test shows nothing"


def test_text_files(folder):
    write(["the cat", "", "a"], "in.txt")  # a blank line is no prompt
    assert run("in.txt", "out.txt").records == 2
    model = tw.load("m")
    lines = Path("out.txt").read_text().split("\n")
    assert len(lines) == 3 and lines[2] == ""
    wanted = next(model.generate(["the cat"], GREEDY)).outputs[0].text
    assert all(c.isprintable() for c in lines[0])
    assert lines[0].encode("raw_unicode_escape") and lines[0][:1] == wanted[:1]


def test_batch_lines_of_openai(folder):
    body = {"model": "x", "prompt": "the cat", "max_tokens": 3, "temperature": 0, "logprobs": 2}
    line = {"custom_id": "one", "method": "POST", "url": "/v1/completions", "body": body}
    write([line, line | {"custom_id": "two", "body": body | {"temperature": 3}}, line | {"custom_id": "one"}])
    assert run().errors == 2
    good, hot, twice = read()
    wanted = next(tw.load("m").generate(["the cat"], SamplingParams(temperature=0, max_tokens=3))).outputs[0]
    assert good["custom_id"] == "one" and good["response"]["status_code"] == 200
    choice = good["response"]["body"]["choices"][0]
    assert choice["token_ids"] == wanted.token_ids and choice["text"] == wanted.text
    assert len(choice["logprobs"]["token_logprobs"]) == 3
    assert hot["response"] is None and "temperature: is 3" in hot["error"]["message"]
    assert "'one' is also the id of an earlier record" in twice["error"]["message"]


def test_a_line_has_its_own_parameters(folder):
    own = [{"max_tokens": 2}, {"n": 3, "temperature": 1, "seed": 4}, {"stop_token_ids": [0]}, {"top_p": 0}, {}]
    write([{"id": i, "prompt_token_ids": [7, 8, 9], **each} for i, each in enumerate(own)])
    report = run()
    two, three, _, wrong, plain = read()
    assert len(two["token_ids"]) == 2 and two["token_ids"] == plain["token_ids"][:2]
    assert [one["index"] for one in three["choices"]] == [0, 1, 2]
    assert len({tuple(one["token_ids"]) for one in three["choices"]}) == 3
    assert report.errors == 1 and "is 0; a number above 0" in wrong["error"]["message"]
    assert report.first_errors == ["line 4, top_p: is 0; a number above 0 and at most 1 is wanted"]


def test_a_small_batch_memory_is_told_with_the_batch_that_it_leads_to(folder):
    write([{"id": 1, "prompt_token_ids": [1]}])
    params, said = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True), []
    restart = Settings(restart=True, device="cpu")
    for memory in (1 << 15, 1 << 30, None):
        generate(GenerateJob("m", "in.jsonl", "out.jsonl", params, batch_memory=memory, settings=restart), said.append)
    (line,) = [line for line in said if "--max-batch-memory" in line]
    assert re.match(r"--max-batch-memory of 32,768 bytes holds at most \d+ sequences? at once, [\d,]+ bytes each", line)


def test_completions_that_the_context_has_no_room_for_are_told_once(folder):
    write([{"id": 1, "prompt_token_ids": [1] * 60}, {"id": 2, "prompt_token_ids": [2]}, {"id": 3, "prompt": ""}])
    many = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)
    said = []

    def told(params):
        said.clear()
        report = generate(
            GenerateJob("m", "in.jsonl", "out.jsonl", params, settings=Settings(restart=True)), said.append
        )
        return report.cut, [line for line in said if "context" in line]

    cut, lines = told(many)
    assert cut == 1 and [len(line["token_ids"]) for line in read()[:2]] == [4, 10]
    assert lines == ["1 of 3 prompts got fewer tokens than were asked for: the model's context of 64 tokens was full"]
    assert told(replace(many, max_tokens=4)) == (0, [])
    cut, lines = told(replace(many, max_tokens=64))
    assert cut == 2 and len(lines) == 1 and lines[0].startswith("64 new tokens (--max-tokens) are more than fit")
    write([{"prompt_token_ids": [1] * 60, "max_tokens": 4}, {"prompt_token_ids": [1] * 60, "max_tokens": 5}])
    assert told(many)[0] == 1


def test_a_stop_string_without_a_tokenizer_is_the_lines_error(folder):
    write([{"prompt_token_ids": [1]}, {"prompt_token_ids": [1], "stop": "x"}])
    assert run(model="plain").errors == 1
    assert "token_ids" in read()[0] and "has no tokenizer.json" in read()[1]["error"]["message"]


def test_samples_are_the_records_own(folder, rng):
    """The same job with its lines in another order, little memory and another number of threads."""
    lines = [{"id": f"p{i}", "prompt_token_ids": rng.integers(0, 256, 9 + i % 5).tolist()} for i in range(40)]
    write(lines)
    params = SamplingParams(max_tokens=5, logprobs=1)
    with tw.threads(1):
        run(params=params)
    wanted = {one["id"]: one for one in read()}
    write([lines[i] for i in rng.permutation(40)])
    run(params=params, batch_memory=1 << 17)
    assert {one["id"]: one for one in read()} == wanted
    run(params=params, seed=1)
    assert {one["id"]: one for one in read()} != wanted


def test_bad_prompts_cost_the_others_nothing(folder, rng):
    lines = [{"id": i, "prompt_token_ids": rng.integers(0, 256, 8).tolist()} for i in range(600)]
    write(lines)
    run()
    wanted = read()
    for i in range(5, 600, 3):
        lines[i]["prompt_token_ids"][i % 8] = 257 + i
    write(lines)
    report = run()
    assert report.errors == len(range(5, 600, 3)) and len(report.first_errors) == 5
    for i, (found, good) in enumerate(zip(read(), wanted, strict=True)):
        assert found["id"] == i
        if i >= 5 and i % 3 == 2:
            assert f"token id {257 + i} is outside" in found["error"]["message"]
            assert found["error"]["field"] == f"prompt_token_ids[{i % 8}]"
        else:
            assert found == good


def test_an_output_grows_while_prompts_are_bad(folder, monkeypatch):
    """Bad lines are written as they are met, not kept until a good one comes, and wait behind a slow one in bounds."""
    monkeypatch.setattr(module, "PENDING", 600)
    write(['{"prompt": "a"}'] + ['{"prompt": ""}'] * 3000)
    most = 0

    class Watched(module._Stream):
        def skip_bad(self):
            nonlocal most
            most = max(most, len(self.pending) + len(self.results))
            super().skip_bad()

    monkeypatch.setattr(module, "_Stream", Watched)
    report = run()
    assert (report.records, report.errors, len(read())) == (3001, 3000, 3001)
    assert most <= 1000


def test_logits_that_are_not_finite(folder, monkeypatch):
    """The record says so, and others are answered; a binary file ends."""
    write([{"id": "good", "prompt_token_ids": [1, 2]}, {"id": "bad", "prompt_token_ids": [1, 42, 2]}])
    np.array([[1] * 16, [42] * 16], np.int32).tofile("in.bin")
    run()
    wanted = read()[0]
    load = module._load

    def poisoned(*arguments):
        model = load(*arguments)
        model.wte = np.array(model.wte)
        model.wte[42] = np.nan
        return model

    monkeypatch.setattr(module, "_load", poisoned)
    report = run()
    assert report.errors == 1 and read()[0] == wanted
    assert "not finite" in read()[1]["error"]["message"] and read()[1]["error"]["line"] == 2
    with pytest.raises(InputError, match=r"in.bin: prompt 2: the logits are not finite"):
        run("in.bin", "out.bin")
    assert not os.path.exists("out.bin")


def test_more_errors_than_allowed(folder):
    write([{"prompt": "a"}, {"prompt": ""}, {"prompt": 7}])
    Path("out.jsonl").write_text("earlier")
    with pytest.raises(InternalError, match=r"2 of the first 3 records are bad and 1 are allowed.*line 2, prompt"):
        run(max_errors=1)
    assert Path("out.jsonl").read_text() == "earlier"
    assert run(max_errors=2).errors == 2


REFUSED = [
    ({"input": "in.jsonl", "output": "out.bin"}, UsageError, "a binary output needs an input of token ids"),
    ({"input": "in.txt", "output": "out.bin"}, UsageError, "a binary output needs an input of token ids"),
    ({"input": "in.bin", "output": "in.bin"}, UsageError, "overwrite the input"),
    ({"input": "in.bin", "output": "m/tokenizer.json"}, UsageError, "overwrite the model's tokenizer.json"),
    ({"input": "in.bin", "output": "o.bin", "params": SamplingParams(n=2)}, UsageError, "need .jsonl"),
    ({"input": "in.bin", "output": "o.bin", "params": SamplingParams(logprobs=0)}, UsageError, "need .jsonl"),
    ({"input": "in.txt", "output": "out.txt", "model": "plain"}, UsageError, "tokenizer"),
    ({"input": "in.bin", "output": "o.txt", "model": "plain"}, UsageError, "tokenizer"),
    ({"model": "plain", "params": SamplingParams(stop="x")}, UsageError, "no tokenizer"),
    ({"batch_memory": 100}, ResourceError, "take .* bytes; 100 are allowed"),
    ({"answers": "gone"}, InputError, "no such answers"),
    ({"model": "textcnn"}, InputError, "is a textcnn; a gpt2 or opt or gpt_neox is wanted"),
    (
        {"input": "in.bin", "output": "o.bin", "params": SamplingParams(temperature=0, max_tokens=60)},
        UsageError,
        "context",
    ),
]


@pytest.mark.parametrize("case", range(len(REFUSED)))
def test_jobs_that_are_refused(case, folder):
    from tilewright.runtime.convert.models import init_textcnn

    options, error, message = REFUSED[case]
    write([{"prompt_token_ids": [1, 2]}])
    write(["a"], "in.txt")
    np.zeros((2, 16), np.int32).tofile("in.bin")
    if options.get("model") == "textcnn":
        init_textcnn("textcnn", 0, vocab_size=9, sequence_length=4, hidden_size=4, num_filters=2, kernel_sizes=(2,),
                     hidden_sizes=(3,))  # fmt: skip
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(error, match=message):
        run(**options)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_validation(folder, rng):
    rng.integers(0, 97, (400, 16), np.int32).tofile("in.bin")
    run("in.bin", "out.bin", "plain", SamplingParams(temperature=0, max_tokens=8))
    answers = np.fromfile("out.bin", "<i4")
    answers[17] += 1  # one of 3,200 may differ
    answers.tofile("answers.bin")
    params = SamplingParams(temperature=0, max_tokens=8)
    report = run("in.bin", "out.bin", "plain", params, answers="answers.bin")
    assert report.validation.passed and report.exit_code == 0 and "prompt 2, token 1 " in report.validation.detail
    answers[8:24] += 1
    answers.tofile("answers.bin")
    report = run("in.bin", "out.bin", "plain", params, answers="answers.bin")
    assert not report.validation.passed and report.exit_code == 1 and report.validation.differing == 16


def test_lines_are_validated_exactly(folder):
    write([{"prompt": "a"}, {"prompt": "b"}])
    run()
    os.rename("out.jsonl", "answers.jsonl")
    assert run(answers="answers.jsonl").validation.passed
    found = read("answers.jsonl")
    found[1]["token_ids"][2] += 1
    write(found, "answers.jsonl")
    assert run(answers="answers.jsonl").exit_code == 1


def test_stopped_and_run_again(folder, rng, monkeypatch):
    """SIGTERM in the middle: 75, the earlier output stays; the same job again writes what it always writes."""
    write([{"id": i, "prompt_token_ids": rng.integers(0, 256, 8).tolist()} for i in range(300)])
    run()
    wanted = Path("out.jsonl").read_bytes()
    Path("out.jsonl").write_text("earlier")
    forward, steps = GPT2.forward, []

    def stopped(self, *arguments):
        steps.append(1)
        if len(steps) == 5:
            os.kill(os.getpid(), signal.SIGTERM)
        return forward(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(GPT2, "forward", stopped)
        with pytest.raises(Interrupted):
            run(shard_size=4000)
    assert Path("out.jsonl").read_text() == "earlier"
    assert sorted(os.listdir(".")) == ["in.jsonl", "m", "out.jsonl", "out.jsonl.job", "plain"]
    report = run(restart=False)
    assert 0 < report.computed < report.records == 300  # the shard that ran was finished and kept
    assert Path("out.jsonl").read_bytes() == wanted


def peak(name: str) -> int:
    """Bytes: what a process of its own says was its largest size."""
    command = ["generate", "-p", "m", "-i", name, "-o", f"{name}.out.jsonl", "--max-tokens", "1", "--json",
               "--max-batch-memory", "8M"]  # fmt: skip
    done = subprocess.run([sys.executable, "-m", "tilewright", *command], capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    return json.loads(done.stdout)["peak_memory"]


@pytest.mark.parametrize("kind", ["good", pytest.param("bad", marks=pytest.mark.long)])
def test_memory_does_not_grow_with_the_input(kind, folder, monkeypatch):
    """100 times as long: less than 10 % more, for good prompts (up to a window of them waits) and bad ones."""
    monkeypatch.setenv("PYTHONPATH", str(Path(tw.__file__).parents[1]))
    prompts = ['{"prompt_token_ids": [%d, %d]}' % (i % 251, i // 251 % 251) for i in range(40_000)]  # noqa: UP031
    if kind == "bad":
        prompts = ['{"prompt": ""}'] * 100_000
    write(prompts[: len(prompts) // 100], "short.jsonl")
    write(prompts, "long.jsonl")
    short, long = peak("short.jsonl"), peak("long.jsonl")
    assert long < 1.1 * short, f"{short:,} bytes and {long:,}"


def test_the_tiny_model_generates_as_in_memory(folder):
    """The weights of `save` are those of `tiny`."""
    wanted = next(tiny().generate([[1, 2, 3]], GREEDY)).outputs[0]
    assert next(tw.load("plain").generate([[1, 2, 3]], GREEDY)).outputs[0] == wanted
