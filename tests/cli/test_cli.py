"""The command line as a user meets it: the familiar lines, one JSON object, one paragraph an error, the exit codes."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from options import replaced
from tilewright import cli
from tilewright.cli import VERBS, main
from tilewright.cli._options import parse_bytes


def one_paragraph(errors):
    """The one line that an error takes."""
    lines = errors.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("Error: "), errors
    return lines[0]


def test_help_is_fast_and_imports_nothing_heavy():
    code = (
        "import sys\nfrom tilewright.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'numpy', 'numba', 'msgspec', 'rich', 'torch', 'psutil'} & set(sys.modules)))"
    )
    best = 1e9
    for _ in range(5):
        start = sum(os.times()[2:4])  # seconds on a core, of children: what else runs here counts for nothing
        found = subprocess.run([sys.executable, "-m", "tilewright", "--help"], capture_output=True, text=True)
        best = min(best, sum(os.times()[2:4]) - start)
    assert found.returncode == 0 and all(f"  {verb} " in found.stdout for verb in VERBS)
    assert best < 0.2, f"{best:.3f} s"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.stdout.splitlines()[-1] == "[]", found.stdout + found.stderr


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_every_verb(run, verb):
    code, out, _ = run(verb, "--help")
    assert code == 0 and f"tilewright {verb}" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["classify", "--bogus"], "No such option: --bogus"),
        (["clasify"], "Did you mean 'classify'?"),
        (["--bogus"], "No such option"),
        (["classify", "-p", "m"], "Missing option '-i' / '--input'|Missing option '--input' / '-i'"),
        (["classify", "-p", "m", "-i", "x", "-o", "y", "--dtype", "float8"], "float8"),
        (["classify", "-p", "m", "-i", "x", "-o", "y", "--threads", "0"], "--threads"),
        (["classify", "-p", "m", "-i", "x", "-o", "y", "-n", "0"], "-n"),
        (["classify", "-p", "m", "-i", "x", "-o", "y", "-v"], "answers of -a"),
        (["classify", "-p", "m", "-i", "x", "-o", "y", "-a", "z"], "-v compares with; give -v, too"),
        (["classify", "-p", "m", "-i", "x", "-o", "y", "--threads", "1000000"], "1,000,000 threads: this machine has"),
        (
            ["classify", "-p", "m", "-i", "x", "-o", "y", "--rung", "foo=cpu.naive"],
            "no operation foo; the operations are",
        ),
        (["classify", "-p", "m", "-i", "x", "-o", "y", "--rung", "conv3d=cpu.naive"], "no effect: classify runs"),
        (["generate", "-p", "m", "-i", "x", "-o", "y", "--rung", "conv3d=cpu.naive"], "no effect: generate runs"),
        (["draw", "-p", "m", "-n", "1", "-o", "y", "--rung", "sample=cpu.buckets"], "no effect: draw runs"),
        (["convolve", "-k", "box:3", "-i", "x", "-o", "y", "--rung", "matmul=cpu.blocked"], "no effect: convolve runs"),
        (["plan", "draw", "-p", "m", "-n", "1", "-o", "y", "--rung", "conv3d=cpu.naive"], "no effect: draw runs"),
        (["ladder", "matmul", "--threads", "1,two"], "'1,two' is no list of numbers; write 1,2"),
        (["ladder", "matmul", "--threads", ""], "'' is no list of numbers"),
        (["ladder", "matmul", "--threads", "1,0"], "0 threads: this machine has"),
        (["ladder", "matmul", "--threads", "1000000"], "1,000,000 threads: this machine has"),
        (["ladder", "matmull"], "no operation 'matmull' (did you mean matmul?); the operations are"),
        (["bench", "sentiment", "--threads", "1000000"], "1,000,000 threads"),
        (["classify", "-p", "m", "-i", "x", "-o", "y", "--table-memory", "many"], "'many' is no size"),
        (["classify", "-p", "m", "-i", "x", "-o", "y", "--rung", "matmul"], "OP=RUNG"),
        (
            ["generate", "-p", "m", "-i", "x", "-o", "y", "--device", "cpu", "--rung", "matmul=simt.shared"],
            "matmul=simt.shared runs on cuda, and the job's device is cpu. Give --device cuda",
        ),
        (
            ["plan", "draw", "-p", "m", "-n", "1", "-o", "y", "--device", "cuda", "--rung", "matmul=cpu.packed"],
            "matmul=cpu.packed runs on cpu, and the job's device is cuda. Give --device cpu",
        ),
        (["init", "gpt9", "m"], "gpt9"),
        (["init", "textcnn", "m", "--kernel-sizes", "3,x"], "3,x"),
        (["init", "textcnn", "m", "--kernel-sizes", "17"], "kernel_sizes"),
        (["validate", "a"], "Missing argument"),
        ([], "Usage"),
    ],
)
def test_wrong_usage(run, tmp_path, arguments, message):
    code, out, errors = run(*arguments)
    assert code == 2 and any(part in out + errors for part in message.split("|"))
    assert os.listdir(tmp_path) == []


def test_the_familiar_shape(run, small):
    code, out, errors = run(*small)
    lines = out.splitlines()
    assert code == 0 and errors == ""
    assert " Model:      m" in lines and " Output:     out.bin" in lines
    assert sum("...Done!" in line for line in lines) >= 5 and "Checking input: 20 sentences...Done!" in out
    times = {
        name: float(line.split()[2])
        for line in lines
        for name in ("Elapsed time", "Whole run")
        if line.startswith(name)
    }
    assert 0 < times["Elapsed time"] < times["Whole run"]
    throughput = next(line for line in lines if line.startswith("Throughput: ") and line.endswith(" (sentences/sec)"))
    assert float(throughput.split()[1]) == pytest.approx(20 / times["Elapsed time"], rel=0.01)
    assert os.path.getsize("out.bin") == 20 * 8


def test_the_courses_own_flags(run, small):
    run(*small)
    os.rename("out.bin", "answers.bin")
    code, out, _ = run("classify", "-p", "m", "-i", "in.bin", "-o", "few.bin", "-a", "answers.bin", "-v", "-n", "7")
    assert code == 0 and "Validation...PASS" in out
    np.zeros(40, "<f4").tofile("answers.bin")
    code, out, _ = run(*small, "--validate", "answers.bin")
    assert code == 1 and "Validation...FAIL" in out and "sentence 0, logit 0" in out


def test_json(run, small):
    code, out, errors = run(*small, "--json")
    report = json.loads(out)
    assert code == 0 and out.count("\n") == 1 and "...Done!" in errors
    assert (report["verb"], report["records"], report["errors"], report["exit_code"]) == ("classify", 20, 0, 0)
    assert report["seconds"]["run"] > 0 and report["validation"] is None and report["peak_memory"] > 1e7
    code, out, errors = run("classify", "-p", "m", "-i", "gone", "-o", "out.bin", "--json")
    report = json.loads(out)
    assert code == report["exit_code"] == report["error"]["code"] == 3 and report["error"]["path"] == "gone"
    assert report["error"]["message"] == "no such input"
    assert "Error: gone: no such input" in errors
    for wrong in (["-n", "0"], ["--threads", "1000000"], ["--bogus"]):
        code, out, errors = run(*small, "--json", *wrong)
        found = json.loads(out)
        assert code == found["exit_code"] == found["error"]["code"] == 2
        assert found["error"]["message"].split(":")[0] in errors
    code, out, _ = run("validate", "out.bin", "out.bin", "--json")
    assert code == 0 and json.loads(out)["checked"] == 40


@pytest.mark.parametrize("names", [("there.npy", "gone.npy"), ("gone", "there.npy")])
def test_a_file_to_validate_that_is_missing(run, names):
    np.save("there.npy", np.zeros((2, 2, 2), np.float32))
    code, _, errors = run("validate", *names)
    assert code == 3 and f"{next(name for name in names if 'gone' in name)}: no such " in errors


def test_a_shard_size_that_the_job_was_not_begun_with_is_told(run, small):
    job = [word for word in small if word != "--restart"]
    assert run(*job, "--shard-size", "5")[0] == 0
    told = "--shard-size 7 has no effect: the job was begun with 4 shards. --restart cuts anew"
    code, out, _ = run(*job, "--shard-size", "7")
    assert code == 0 and told in out
    for options in (("--shard-size", "5"), (), ("--shard-size", "7", "--restart")):
        code, out, _ = run(*job, *options)
        assert code == 0 and "--shard-size" not in out


def test_labels(run, small):
    code, out, _ = run("classify", "--model", "m", "-i", "in.jsonl", "-o", "out.jsonl", "--restart")
    assert code == 0 and "Bad records" not in out
    with open("in.jsonl", "a") as file:
        file.write('{"id": "bad\\u001b", "tokens": [1]}\n')
    code, out, _ = run("classify", "--model", "m", "-i", "in.jsonl", "-o", "out.jsonl", "--restart")
    assert code == 0 and "Bad records: 1 of 21" in out and "line 21, tokens: has 1 ids; the model takes 6" in out
    code, _, errors = run("classify", "-p", "m", "-i", "in.jsonl", "-o", "out.jsonl", "--restart", "--max-errors", "0")
    assert code == 5 and "1 of the first 21 records are bad" in one_paragraph(errors)
    with open("out.jsonl") as file:
        assert len(file.readlines()) == 21
    assert "what is at out.jsonl may be of an earlier one" in run("verify", "out.jsonl")[1]
    assert run("validate", "out.jsonl", "out.jsonl")[0] == 0


@pytest.mark.parametrize(
    "options", [["--dtype", "bfloat16"], ["--threads", "1"], ["--batch-size", "3"], ["--table-memory", "1M"]]
)
def test_options(run, small, options):
    run(*small)
    os.rename("out.bin", "ref.bin")
    assert run(*small, *options)[0] == 0
    tolerance = "0.2" if "bfloat16" in options else "0"
    assert run("validate", "out.bin", "ref.bin", "--tolerance", tolerance)[0] == 0


def test_keep_table(run, small, sizes):
    run(*small)
    os.rename("out.bin", "ref.bin")
    for again in range(3):
        call = small[:-1] if again else small  # without --restart: the table is nothing that results depend on
        assert run(*call, "--keep-table")[0] == 0
        assert run("validate", "out.bin", "ref.bin", "--tolerance", "0")[0] == 0
    assert sorted(os.listdir("m")) == ["config.json", "model.safetensors", "token_table.bin"]
    assert run("init", "textcnn", "m", *sizes)[0] == 2  # not without being asked
    assert (
        run("init", "textcnn", "m", *sizes, "--force")[0] == 0
    )  # a new model takes the place of the old one and its table
    assert sorted(os.listdir("m")) == ["config.json", "model.safetensors"]


def test_keep_table_needs_a_table(run, small):
    code, _, errors = run(*small, "--keep-table", "--rung", "embedding_conv1d=cpu.gather")
    assert code == 2 and "rung cpu.gather has no token table to keep. Leave out --keep-table" in one_paragraph(errors)


def test_a_rung_that_this_machine_has_no_gpu_for(run, monkeypatch):
    monkeypatch.setattr("tilewright.hardware.unavailable", lambda engine: "the NVIDIA driver shows no GPU")
    job = ["generate", "-p", "m", "-i", "x", "-o", "y"]
    for device in ("cpu", "auto", "cuda"):
        code, _, errors = run(*job, "--device", device, "--rung", "matmul=simt.shared")
        errors = one_paragraph(errors)
        assert code == (2 if device == "cpu" else 4) and "Problem(" not in errors and "tile." not in errors
        if device == "cpu":
            assert "Give --device cuda on a machine with a GPU, or use one of: cpu.memory, cpu." in errors
        else:
            assert "needs a GPU, and this machine offers none (the NVIDIA driver shows no GPU). " in errors
    errors = one_paragraph(run(*job, "--rung", "matmul=simt.tiled")[2])
    assert "matmul has no rung 'simt.tiled'. Use one of: cpu.memory, cpu." in errors and "tile." not in errors


def test_rungs(run, small):
    code, _, errors = run(*small, "--rung", "matmul=cpu.bogus")
    assert code == 2 and "matmul has no rung 'cpu.bogus'" in errors
    assert run(*small, "--rung", "matmul=cpu.packed")[0] == 0
    there = small[small.index("-o") + 1]
    assert run(*small, "--rung", "matmul=cpu.bogus", "--restart")[0] == 2
    assert "finished" in run("status", there)[1], "a slip of the pen threw away what was done"


BAD = {
    "no input": (["-i", "gone.bin"], 3, "no such input"),
    "a directory as input": (["-i", "m"], 2, "config.json: the name of the input ends with .json"),
    "an empty input": (["-i", "empty.bin"], 3, "is empty"),
    "a size of no sentences": (["-i", "odd.bin"], 3, "1 sentence of 24 bytes and 1 more"),
    "an id out of range": (["-i", "range.bin"], 3, "range.bin, sentence 2, position 4 (both from 0): token id 50 "),
    "too few sentences": (["-n", "21"], 3, "holds 20 sentences; 21 were asked for"),
    "no model": (["--model", "gone"], 3, "no such model"),
    "a model without weights": (["--model", "empty"], 3, "config.json: no such model's configuration"),
    "params.bin of the wrong size": (["--model", "odd.bin"], 3, "801,196,040"),
    "an output that is a directory": (["-o", "empty"], 4, "is a directory"),
    "an output in no directory": (["-o", "gone/out.bin"], 4, "there is no directory "),
    "an output that is a device": (["-o", "/dev/null"], 4, "not a regular file"),
    "the input as output": (["-o", "in.bin"], 2, "overwrite the input"),
    "no answers": (["--validate", "gone.bin"], 3, "no such answers"),
    "too small a table": (["--table-memory", "1"], 4, "token table"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(run, small, name):
    arguments, expected, message = BAD[name]
    os.mkdir("empty")
    open("empty.bin", "w").close()
    with open("odd.bin", "wb") as file:
        file.write(bytes(25))
    tokens = np.zeros((3, 6), np.int32)
    tokens[2, 4] = 50
    tokens.tofile("range.bin")
    np.zeros((3, 16), np.int32).tofile("course.bin")
    with open("out.bin", "w") as file:
        file.write("earlier")
    if arguments[0] == "--model" and arguments[1] != "empty":
        arguments = [*arguments, "-i", "course.bin"]
    before = sorted(os.listdir("."))
    code, _, errors = run(*replaced(small, *arguments), "--force")
    assert code == expected and message in one_paragraph(errors)
    with open("out.bin") as file:
        assert file.read() == "earlier"
    assert sorted(os.listdir(".")) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_unwritable_output(run, small, tmp_path):
    tmp_path.chmod(0o500)
    code, _, errors = run(*small)
    tmp_path.chmod(0o700)
    assert code == 4 and "permission denied" in one_paragraph(errors)


def test_a_full_disk(small, sizes):
    """A limit on the size of files, which the kernel enforces: the model that was there stays."""
    with open("m/model.safetensors", "rb") as file:
        earlier = file.read()
    found = subprocess.run(
        [sys.executable, "-m", "tilewright", "init", "textcnn", "m", "--seed", "4", "--force", *sizes],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[2])},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)),
    )
    assert found.returncode == 4, found.stderr
    assert "m/model.safetensors: cannot write: file too large" in one_paragraph(found.stderr)
    with open("m/model.safetensors", "rb") as file:
        assert file.read() == earlier
    assert sorted(os.listdir(".")) == ["in.bin", "in.jsonl", "m"]


def test_validate(run, small):
    np.array([1, 2, 3], "<f4").tofile("a.bin")
    np.array([1, 2.5, 3], "<f4").tofile("b.bin")
    assert run("validate", "a.bin", "a.bin")[:2] == (0, "Validation...PASS\n  3 compared; the largest error is 0\n")
    code, out, _ = run("validate", "a.bin", "b.bin")
    assert code == 1 and out.startswith("Validation...FAIL\n  element 1 is 2 and 2.5 is wanted")
    assert run("validate", "a.bin", "b.bin", "--tolerance", "0.6")[0] == 0
    code, _, errors = run("validate", "a.bin", "gone.bin")
    assert code == 3 and "no such reference" in one_paragraph(errors)


def test_convert_refuses_other_sizes(run, small):
    code, _, errors = run("convert", "m", "params.bin")
    assert code == 3 and "vocab_size is 50 and the course's model has 21635" in one_paragraph(errors)
    code, _, errors = run("convert", "gone", "params.bin")
    assert code == 3 and "no such model" in one_paragraph(errors)


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ValueError("odd"), 5, "internal error, ValueError: odd. Set TILEWRIGHT_DEBUG=1"),
        (MemoryError(), 4, "not enough memory (an allocation failed). Use a smaller --table-memory or --batch-size"),
        (KeyboardInterrupt(), 130, "stopped by Ctrl-C: there is nothing to resume, and what was saved stays"),
        (PermissionError(13, "Permission denied", "x"), 4, "x: the system refuses: permission denied"),
    ],
)
def test_unexpected_errors(run, small, monkeypatch, capsys, error, code, message):
    def broken(*args):
        raise error

    monkeypatch.setattr("tilewright.runtime.verbs.classify.task.config_of", broken)
    found, _, errors = run(*small)
    assert found == code and message in one_paragraph(errors)
    monkeypatch.setenv("TILEWRIGHT_DEBUG", "1")
    with pytest.raises(SystemExit):
        main([*small])
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("verb", "broken", "remedy"),
    [
        (["ladder", "matmul"], "tilewright.bench.climb.climb", "Let other programs give some back"),
        (["bench", "sentiment"], "tilewright.bench.workloads.sentiment.bench", "Let other programs give some back"),
        (["demo"], "tilewright.demo.run", "Let other programs give some back"),
    ],
)
def test_errors_of_verbs_that_are_no_jobs(run, monkeypatch, verb, broken, remedy):
    """Ctrl-C is one paragraph and 130: there is nothing to resume. No remedy names an option that the verb lacks."""
    for error, expected, message in ((KeyboardInterrupt(), 130, "nothing"), (MemoryError(), 4, remedy)):

        def fails(*args, error=error, **options):
            raise error

        monkeypatch.setattr(broken, fails)
        code, _, errors = run(*verb)
        assert code == expected and message in one_paragraph(errors)


def test_a_verb_that_is_not_there(run, monkeypatch):
    monkeypatch.setitem(cli.VERBS, "missing", "Not written.")
    code, _, errors = run("missing")
    assert code == 5 and "ModuleNotFoundError" in one_paragraph(errors)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("256M", 256 << 20),
        ("1.5G", 3 << 29),
        ("4 KiB", 4096),
        ("2tb", 2 << 40),
        ("77", 77),
        ("1e3", None),
        ("-1M", None),
        ("M", None),
    ],
)
def test_parse_bytes(text, expected):
    if expected is None:
        with pytest.raises(Exception, match="no size"):
            parse_bytes(text)
    else:
        assert parse_bytes(text) == expected
