"""`tilewright generate` as a user meets it: the familiar lines, and what each kind of bad input gets."""

import json
import os
import signal
import struct
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from gpt2_models import save
from options import replaced
from tilewright.cli import main
from tilewright.demo import course_file
from tilewright.models.gpt2 import GPT2

COURSE = course_file("gpt2_input.bin").resolve()


@pytest.fixture
def run(tmp_path, monkeypatch, capfd):
    """run(*options) -> (exit code, stdout, stderr) of `generate -p m -i in.jsonl -o out.jsonl --restart` and these,
    which replace them."""
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "m")

    def call(*options, verb="generate"):
        capfd.readouterr()
        fixed = ["--max-tokens", "8", "--temperature", "0"]
        usual = ["-p", "m", "-i", "in.jsonl", "-o", "out.jsonl", *fixed, "--restart"] if verb == "generate" else []
        with pytest.raises(SystemExit) as caught:
            main([verb, *replaced(usual, *options)])
        captured = capfd.readouterr()  # of the descriptors: a library in Rust writes past sys.stderr
        assert "Traceback" not in captured.err and "panicked" not in captured.err
        return caught.value.code or 0, captured.out, captured.err

    return call


def write(lines, name="in.jsonl"):
    texts = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    Path(name).write_bytes(b"".join(text + b"\n" for text in texts))


def read(name="out.jsonl"):
    return [json.loads(line) for line in Path(name).read_text().splitlines()]


def one_paragraph(errors):
    """The one line that an error takes."""
    lines = errors.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("Error: "), errors
    return lines[0]


GOOD = [{"id": "a", "prompt": "the cat"}, {"id": "b", "prompt_token_ids": [1, 2, 3]}, {"id": "c", "prompt": "z"}]


def test_the_familiar_shape(run):
    write(GOOD)
    code, out, errors = run("--max-tokens", "4")
    lines = out.splitlines()
    assert code == 0 and errors == ""
    assert " Model:      m" in lines and " New tokens: at most 4, greedy" in lines
    assert sum("...Done!" in line for line in lines) >= 5
    times = {line.split(":")[0]: float(line.split(":")[1].split()[0]) for line in lines if line.endswith("sec)")
             and line.startswith(("Elapsed", "Throughput", "Whole"))}  # fmt: skip
    tokens = sum(len(one["token_ids"]) for one in read())
    assert times["Throughput"] == pytest.approx(tokens / times["Elapsed time"], rel=0.01)
    assert [one["id"] for one in read()] == ["a", "b", "c"] and all("text" in one for one in read())


def test_json_is_one_object(run):
    write([*GOOD, {"id": "d", "prompt": ""}])
    code, out, errors = run("--json")
    report = json.loads(out)
    assert code == 0 and out.count("\n") == 1 and "...Done!" in errors
    assert (report["verb"], report["records"], report["errors"], report["exit_code"]) == ("generate", 4, 1, 0)
    assert report["tokens"] == sum(len(one.get("token_ids", ())) for one in read())
    assert report["seconds"]["run"] > 0 and report["peak_memory"] > 1e7 and report["validation"] is None
    code, out, errors = run("--json", "-i", "gone.jsonl")
    assert code == json.loads(out)["exit_code"] == 3 and json.loads(out)["error"]["path"] == "gone.jsonl"


@pytest.mark.skipif(not COURSE.exists(), reason="the course's prompts are not on this machine")
def test_the_courses_job(run, tmp_path):
    """Its prompts, its flags, a model of its vocabulary: PASS against the same, FAIL against others."""
    save(tmp_path / "wide", tokenizer=False, vocab_size=50257, n_embd=16, n_head=1, n_layer=1)
    job = ("-p", "wide", "-i", str(COURSE), "-o", "out.bin", "-n", "200")
    code, out, _ = run(*job)
    found = np.fromfile("out.bin", "<i4").reshape(200, 8)
    assert code == 0 and "Throughput: " in out
    prompts = np.fromfile(COURSE, "<i4", 200 * 16).reshape(200, 16)
    params = tw.SamplingParams(temperature=0, max_tokens=8)
    assert found.tolist() == [one.outputs[0].token_ids for one in tw.load("wide").generate(list(prompts), params)]
    os.rename("out.bin", "answers.bin")
    code, out, _ = run(*job, "-a", "answers.bin", "-v")
    assert code == 0 and "Validation...PASS" in out
    found[:, 3] += 1
    found.tofile("answers.bin")
    code, out, _ = run(*job, "--validate", "answers.bin")
    assert code == 1 and "Validation...FAIL" in out and "prompt 0, token 3 " in out
    assert np.fromfile("out.bin", "<i4").tolist() == (found - np.eye(8, dtype=np.int32)[3]).ravel().tolist()


def test_text_in_and_out(run):
    Path("in.txt").write_text("the cat\nz\n")
    assert run("-i", "in.txt", "-o", "out.txt", "--max-tokens", "5")[0] == 0
    assert len(Path("out.txt").read_text().splitlines()) == 2
    assert run("-i", "in.txt", "--max-tokens", "5")[0] == 0
    assert [one["id"] for one in read()] == [1, 2]


def test_options_reach_the_sampler(run):
    write(GOOD)
    run("--max-tokens", "6")
    free = read()
    third = free[1]["token_ids"][2]
    code, _, _ = run("--max-tokens", "6", "--stop-id", str(third), "--logprobs", "2", "--threads", "1")
    assert code == 0
    assert read()[1]["token_ids"] == free[1]["token_ids"][: free[1]["token_ids"].index(third) + 1]
    assert read()[1]["finish_reason"] == "stop" and len(read()[1]["logprobs"][0]) == 2
    values = {"samples": 2, "temperature": 1, "top-k": 9, "top-p": 0.9, "min-p": 0.01, "seed": 3, "min-tokens": 2}
    values |= {"repetition-penalty": 1.1, "max-batch-memory": "1M"}
    given = [word for name, value in values.items() for word in (f"--{name}", str(value))]
    assert run("--ignore-eos", *given)[0] == 0
    sampled = read()
    assert [len(one["choices"]) for one in sampled] == [2, 2, 2]
    assert run("--dtype", "bfloat16", "--stop", "e", "--stop", "f")[0] == 0


LINES = {
    "a token id out of range": ({"prompt_token_ids": [1, 257]}, "prompt_token_ids[1]", "token id 257 is outside"),
    "a negative token id": ({"prompt_token_ids": [-1]}, "prompt_token_ids[0]", "token id -1 is outside"),
    "a prompt longer than the context": (
        {"prompt_token_ids": [1] * 64},
        "prompt_token_ids",
        "has 64 tokens; at most 63",
    ),
    "a text longer than the context": ({"prompt": "x" * 70}, "prompt", "has 70 tokens"),
    "an empty prompt": ({"prompt": ""}, "prompt", "is empty"),
    "no token ids": ({"prompt_token_ids": []}, "prompt_token_ids", "is empty"),
    "no prompt": ({"text": "x"}, "prompt", "is missing"),
    "two prompts": ({"prompt": "x", "input_ids": [1]}, "prompt", "one of them is wanted"),
    "a prompt of another type": ({"prompt": 7}, "prompt", "expected"),
    "a float as token id": ({"prompt_token_ids": [1.5]}, "prompt_token_ids[0]", "expected int"),
    "an id given before": ({"id": "a", "prompt": "x"}, "id", "'a' is also the id of an earlier record"),
    "a temperature out of range": ({"prompt": "x", "temperature": 9}, "temperature", "is 9"),
    "a top_p out of range": ({"prompt": "x", "top_p": 0}, "top_p", "is 0"),
    "a stop id out of range": (
        {"prompt": "x", "stop_token_ids": [5000]},
        "stop_token_ids",
        "is beyond the model's tokens",
    ),
    "n with temperature 0": ({"prompt": "x", "n": 2}, "n", "is 2; 1 with temperature 0"),
    "max_tokens that are none": ({"prompt": "x", "max_tokens": "many"}, "max_tokens", "is 'many'"),
}
RAW = {
    "a broken JSON line": (b'{"prompt": "x', "", "the JSON is not whole, it ends at byte 13"),
    "another JSON than an object": (b"[1, 2]", "", "expected object"),
    "bad UTF-8": (b'{"prompt": "\xff"}', "", "byte 12 is not UTF-8"),
    "deep nesting": (b'{"prompt": "x", "more": ' + b"[" * 100_000, "", "nested"),
    "a number that ends nowhere": (b'{"prompt_token_ids": [' + b"9" * 5000 + b"]}", "prompt_token_ids", ""),
}


@pytest.mark.parametrize("name", [*LINES, *RAW])
def test_a_bad_line_costs_itself(run, name):
    """Its place in the output says its line and field; the others have the answers that they have without it."""
    write(GOOD)
    run()
    wanted = read()
    line, field, message = (LINES | RAW)[name]
    line = line if isinstance(line, bytes) else {"id": "bad"} | line
    write([GOOD[0], line, *GOOD[1:]])
    code, out, errors = run()
    found = read()
    assert code == 0 and errors == "" and "Bad records: 1 of 4" in out and "  line 2" in out
    assert found[:1] + found[2:] == wanted
    assert found[1]["error"]["line"] == 2 and found[1]["error"]["field"].startswith(field)
    assert message in found[1]["error"]["message"] and len(found[1]["error"]["message"]) < 300


def change_config(**fields):
    config = json.loads(Path("m/config.json").read_text())
    Path("m/config.json").write_text(json.dumps(config | fields))


def truncated():
    os.truncate("m/model.safetensors", 5000)


def lying(length: int):
    def damage():
        with open("m/model.safetensors", "r+b") as file:
            file.write(struct.pack("<Q", length))

    return damage


def swapped_offsets():
    with open("m/model.safetensors", "rb") as file:
        length = struct.unpack("<Q", file.read(8))[0]
        header, rest = json.loads(file.read(length)), file.read()
    header["wpe.weight"]["data_offsets"] = [0, 2**62]
    text = json.dumps(header).encode()
    Path("m/model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + rest)


def not_finite():
    with open("m/model.safetensors", "r+b") as file:
        file.seek(-4, 2)
        file.write(struct.pack("<f", float("nan")))


MODELS = {
    "another architecture": (lambda: change_config(model_type="llama"), "m/config.json: model_type is 'llama'"),
    "a long name": (lambda: change_config(model_type="x" * 5000), f"m/config.json: model_type is '{'x' * 99}; textcnn"),
    "a network of other sizes": (lambda: change_config(n_embd=24), "m/model.safetensors: tensor h.0.attn.c_attn.bias"),
    "sizes that make none": (lambda: change_config(n_head=5), "n_embd must be a multiple of n_head"),
    "a wrong type": (lambda: change_config(n_head="three"), "n_head"),
    "no configuration": (lambda: os.remove("m/config.json"), "m/config.json"),
    "a configuration that is none": (lambda: Path("m/config.json").write_text("{"), "m/config.json"),
    "no weights": (lambda: os.remove("m/model.safetensors"), "m: holds no weights: there is no model.safetensors"),
    "truncated weights": (truncated, "m/model.safetensors"),
    "a header longer than the file": (lying(2**40), "m/model.safetensors"),
    "a header of 2**63 bytes": (lying(2**63), "m/model.safetensors"),
    "a header of nothing": (lying(0), "m/model.safetensors"),
    "offsets that lie": (swapped_offsets, "wpe.weight"),
    "a weight that is NaN": (not_finite, "m"),
    "a tokenizer of junk": (
        lambda: Path("m/tokenizer.json").write_text("junk"),
        "m/tokenizer.json: no valid tokenizer",
    ),
    "a tokenizer of another kind": (
        lambda: Path("m/tokenizer.json").write_text('{"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0}}}'),
        "m/tokenizer.json",
    ),
    "a generation_config that lies": (
        lambda: Path("m/generation_config.json").write_text('{"eos_token_id": "end"}'),
        "m/generation_config.json",
    ),
    "no such model": (lambda: os.rename("m", "elsewhere"), "m: no such model"),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_bad_model(run, name):
    """Exit 3, the file's name, an earlier output as it was, nothing left behind."""
    write(GOOD)
    Path("out.jsonl").write_text("earlier")
    damage, message = MODELS[name]
    damage()
    before = sorted(os.listdir("."))
    code, _, errors = run("--force")
    assert code == 3 and message in one_paragraph(errors), errors
    assert Path("out.jsonl").read_text() == "earlier" and sorted(os.listdir(".")) == before


def change_tokenizer(**fields):
    path = Path("m/tokenizer.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_a_tokenizer_that_panics(run):
    """A panic of the library, which is no Exception and writes its own stack, is a paragraph like any other."""
    write(GOOD)
    change_tokenizer(normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"})
    code, _, errors = run()
    assert code == 3 and "m/tokenizer.json: no valid tokenizer: " in one_paragraph(errors)


def test_a_tokenizer_of_another_model(run):
    """Text of which it makes nothing, or ids that the model has not, is a record's error."""
    write([{"id": 0, "prompt": "ab"}, {"id": 1, "prompt": "xyz"}, {"id": 2, "prompt": "!"}])
    change_tokenizer(model={"type": "BPE", "vocab": {"a": 0, "b": 1, "!": 300}, "merges": []}, added_tokens=[])
    code, out, errors = run()
    assert code == 0 and errors == "" and "line 2, prompt: is empty" in out
    assert "line 3, prompt[0]: token id 300 is outside the vocabulary (ids 0 to 256)" in out
    assert [("error" in one) for one in read()] == [False, True, True]


INPUTS = {
    "no input": (["-i", "gone.jsonl"], 3, "gone.jsonl: no such input"),
    "an empty input": (["-i", "empty.jsonl"], 3, "empty.jsonl: the input is empty"),
    "a directory": (["-i", "m"], 2, "config.json: the name of the input ends with .json"),
    "too few prompts": (["-n", "9"], 3, "holds 3 records; 9 were asked for"),
    "a binary file of no prompts": (["-i", "odd.bin"], 3, "1 prompt of 64 bytes and 1 more"),
    "an id out of range": (
        ["-i", "range.bin", "-o", "o.bin"],
        3,
        "range.bin, prompt 1, position 4 (both from 0): token",
    ),
    "an output in no directory": (["-o", "gone/out.jsonl"], 4, "there is no directory "),
    "the input as output": (["-o", "in.jsonl"], 2, "overwrite the input"),
    "text to a binary file": (["-o", "out.bin"], 2, "a binary output needs an input of token ids"),
    "no answers": (["--validate", "gone.jsonl"], 3, "no such answers"),
    "no memory": (["--max-batch-memory", "1K"], 4, "1,024 are allowed. Allow more memory (max_batch_memory, --max-"),
    "an unknown rung": (["--rung", "attention=cpu.bogus"], 2, "attention has no rung 'cpu.bogus'"),
    "too many new tokens": (["-i", "ok.bin", "-o", "o.bin", "--max-tokens", "60"], 2, "the context of the model is 64"),
}


@pytest.mark.parametrize("name", INPUTS)
def test_a_job_that_cannot_be_done(run, name):
    arguments, expected, message = INPUTS[name]
    write(GOOD)
    Path("out.jsonl").write_text("earlier")
    Path("empty.jsonl").touch()
    Path("odd.bin").write_bytes(bytes(65))
    tokens = np.zeros((3, 16), np.int32)
    tokens.tofile("ok.bin")
    tokens[1, 4] = 257
    tokens.tofile("range.bin")
    before = {name: os.stat(name).st_mtime_ns for name in os.listdir(".")}
    code, _, errors = run(*arguments, "--force")
    assert code == expected and message in one_paragraph(errors)
    assert {name: os.stat(name).st_mtime_ns for name in os.listdir(".")} == before
    assert Path("out.jsonl").read_text() == "earlier"


def test_errors_allowed(run):
    write([*GOOD, {"id": "d", "prompt": ""}])
    code, _, errors = run("--max-errors", "0")
    assert code == 5 and "line 4, prompt: is empty" in one_paragraph(errors) and not os.path.exists("out.jsonl")
    assert run("--max-errors", "1")[0] == 0
    write([{"id": "d", "prompt": ""}, {"id": "e", "prompt": ""}])
    code, out, _ = run()
    assert code == 1 and "Bad records: 2 of 2" in out, "no record is good"


def test_init_makes_a_model_that_generates(run):
    sizes = ("--layers", "1", "--heads", "2", "--width", "16", "--context", "32", "--vocab-size", "99")
    assert run("gpt2", "new", "--seed", "5", *sizes, verb="init")[0] == 0
    assert run("gpt2", "same", "--seed", "5", *sizes, verb="init")[0] == 0
    assert Path("new/model.safetensors").read_bytes() == Path("same/model.safetensors").read_bytes()
    write([{"prompt_token_ids": [98, 3]}])
    assert run("-p", "new")[0] == 0 and len(read()[0]["token_ids"]) == 8
    assert run("gpt2", "bad", "--heads", "3", "--width", "16", verb="init")[0] == 2
    assert run("gpt2", "bad", "--num-filters", "3", verb="init")[0] == 2
    assert run("gpt2", "bad.bin", *sizes, verb="init")[0] == 3 and not os.path.exists("bad")


def test_stopped_in_the_middle(run, monkeypatch):
    """SIGTERM: 75, the earlier output stays, nothing is left behind; run again, the job is done."""
    write(GOOD)
    run()
    wanted = Path("out.jsonl").read_bytes()
    before = sorted(os.listdir("."))
    forward, passes = GPT2.forward, []

    def stopped(self, *arguments):
        passes.append(1)
        if len(passes) == 4:
            os.kill(os.getpid(), signal.SIGTERM)
        return forward(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(GPT2, "forward", stopped)
        code, _, errors = run("--max-tokens", "20", "--grace", "0")
    announced, _, error = errors.partition("\n")
    assert announced.startswith("SIGTERM: stopping: finishing the shards in progress, for at most 0 s")
    assert code == 75 and "stopped by SIGTERM" in one_paragraph(error)
    assert Path("out.jsonl").read_bytes() == wanted and sorted(os.listdir(".")) == before
    assert run("--max-tokens", "20")[0] == 0 and len(read()[0]["token_ids"]) == 20
