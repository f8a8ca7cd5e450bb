"""`tilewright plan VERB ...`: the verb's own command line, its shards and refusals, and the peak of a real run."""

import json
import os
import subprocess
import sys
from dataclasses import fields, replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from options import replaced
from tilewright.bench.rates import WORKLOADS
from tilewright.bench.results import PEER, Row, save
from tilewright.cli._plan_time import trial_command
from tilewright.cli.plan import options_of
from tilewright.hardware import machine_name
from tilewright.runtime import trials
from tilewright.runtime.convert.models import init_dcgan, init_gpt2, init_textcnn
from tilewright.runtime.jobs.directory import JobDirectory

JOBS = ("generate", "classify", "draw", "convolve")  # score and embed have tests of their own plans
SMALL = {
    "generate": ("--model", "gpt2", "-i", "in.bin", "-o", "out.bin", "--max-tokens", "2"),
    "classify": ("--model", "textcnn", "-i", "in.bin", "-o", "out.bin"),
    "draw": ("--model", "dcgan", "-n", "40", "--seed", "3", "-o", "out.npy"),
    "convolve": ("-i", "in.npy", "--kernel", "box:3", "-o", "out.npy"),
}


@pytest.fixture
def small(tmp_path, rng):
    """A model and an input of every verb."""
    init_gpt2(str(tmp_path / "gpt2"), 3, vocab_size=97, n_positions=32, n_embd=16, n_layer=1, n_head=2)
    init_textcnn(str(tmp_path / "textcnn"), 3, vocab_size=97, sequence_length=16, hidden_size=8, num_filters=5,
                 kernel_sizes=(2, 3), hidden_sizes=(7,))  # fmt: skip
    init_dcgan(str(tmp_path / "dcgan"), 3, z_size=5, channels=(8, 4, 3))
    rng.integers(0, 97, (40, 16), np.int32).tofile(tmp_path / "in.bin")
    np.save(tmp_path / "in.npy", rng.random((20, 12, 10), np.float32))


def lying(folder):
    """Everything below a folder, with times."""
    return {one: one.stat().st_mtime_ns for one in [folder, *folder.rglob("*")]}


@pytest.mark.parametrize("verb", SMALL)
@pytest.mark.parametrize("options", [(), ("--shard-size", "7"), ("--part", "0/2")])
def test_shards_are_those_of_the_run_and_nothing_is_written(run, small, tmp_path, verb, options):
    line = (verb, *SMALL[verb], *options)
    before = lying(tmp_path)
    code, text, errors = run("plan", *line, "--json")
    assert code == 0, errors
    assert lying(tmp_path) == before
    told = json.loads(text)
    assert run(*line, "--threads", "1")[0] == 0
    with JobDirectory(line[line.index("-o") + 1]) as directory:
        cut = directory.manifest.cut
    assert (told["shards"], told["shard_size"]) == (cut.shards, cut.per_shard)
    assert (told["verb"], told["job"], told["state"], told["shards_done"]) == ("plan", verb, "new", 0)
    after = json.loads(run("plan", *line, "--json")[1])
    assert after["shards"] == cut.shards
    assert after["state"] == ("stopped" if "--part" in options else "finished")
    assert 0 < after["shards_done"] <= cut.shards
    assert (after["disk_needed"] == 0) == (after["state"] == "finished")


def test_it_says_it_in_words(run, small):
    for verb in SMALL:
        code, text, _ = run("plan", verb, *SMALL[verb], "--shard-size", "10")
        assert code == 0
        assert "expected peak" in text and "output: " in text and "fits" in text
        assert "shards: 2, of 10 planes" in text if verb == "convolve" else "shards: 4, of 10 " in text
        assert ("token table: used" in text) == (verb == "classify")
        assert ("tiles of" in text) == (verb == "convolve")
    assert run(*("classify", *SMALL["classify"], "--shard-size", "10"))[0] == 0
    text = run("plan", "classify", *SMALL["classify"])[1]
    assert "shards: 4, of 10 sentences" in text and "the job is finished, nothing to do" in text
    assert (
        "2 workers and their supervisor"
        in run("plan", "draw", *SMALL["draw"], "--shard-size", "10", "--workers", "2")[1]
    )


def test_sampling_fields_and_options_without_effect_are_told(run, small, tmp_path):
    """As `generate` tells them: options on stderr, fields of records in the text."""
    lines = [{"prompt_token_ids": [1], "top_k": 3}, {"prompt_token_ids": [1], "top_k": 3, "temperature": 1}]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    given = ("plan", "generate", "--model", "gpt2", "-i", "in.jsonl", "-o", "out.jsonl")
    code, text, errors = run(*given, "--top-p", "0.5", "--temperature", "0")
    assert code == 0, errors
    assert "prompts at temperature 0 with seed, top_k, top_p or min_p, which have no effect there: 1\n" in text
    assert "At --temperature 0 the likeliest token is taken, whatever is given as --top-p" in errors
    code, text, errors = run(*given, "--top-p", "0.5", "--temperature", "1")
    assert code == 0 and "no effect" not in text and not errors


@pytest.mark.parametrize("verb", SMALL)
def test_what_the_verb_refuses_is_refused_with_its_code_and_words(run, small, tmp_path, verb):
    given = list(SMALL[verb])
    of_model = ("--model", "none"), ("--model", {"draw": "gpt2"}.get(verb, "dcgan"))
    changes = [
        *(of_model if "--model" in given else [("--kernel", "none"), ("--kernel", "box:99")]),
        ("-o", given[given.index("-i") + 1] if "-i" in given else "dcgan/config.json"),
        ("-o", "none/out.npy"), ("-o", "dcgan/config.json/x.npy"),
        ("--shard-size", "0"), ("--shard-size", "x"), ("--threads", "1000"), ("--part", "3/2"), ("--workers", "0"),
        ("--rung", "matmul"), ("--dtype", "none"), ("--engine", "inline", "--workers", "2"), ("--device", "cuda"),
        *([("-i", "none.bin"), ("-i", "in.npy" if verb != "convolve" else "in.bin")] if "-i" in given else []),
        *([("-n", "99")] if verb in ("generate", "classify") else []),
        *([("--max-errors", "1")] if verb in ("draw", "convolve") else []),
        ("--nonsense",),
    ]  # fmt: skip
    for change in changes:
        line = replaced(given, *change)
        ours, theirs = run("plan", verb, *line), run(verb, *line)
        if change[:1] == ("--device",) and theirs[0] == 0:
            continue  # there is a GPU
        assert theirs[0] != 0, change
        if change[0] == "--device":
            assert ours[0] != 0 and "Give --gpu-memory, as in 80G" in said(
                ours
            )  # where the job cannot be run, it is planned
            continue
        assert (ours[0], said(ours)) == (theirs[0], said(theirs)), change


def said(answer):
    """An error without the lines of usage, which name the command."""
    return "".join(answer[2].partition("Error: ")[1:]) or answer[2].split("Error")[-1].split("\n", 1)[-1]


def test_a_job_that_was_begun_for_other_results_is_refused(run, small):
    assert run("draw", *SMALL["draw"])[0] == 0
    other = replaced(SMALL["draw"], "--seed", "4")
    code, _, errors = run("plan", "draw", *other)
    assert code == 2 and "seed was 3 and is 4" in errors
    code, text, _ = run("plan", "draw", *other, "--restart")
    assert code == 0 and "\n--restart removes the earlier work, 1 shard, when its own first shard is finished" in text
    assert json.loads(run("plan", "draw", *other, "--restart", "--json")[1])["shards_thrown_away"] == 1
    assert "--restart removes" not in run("plan", "draw", *SMALL["draw"])[1]


def test_every_option_of_a_verb_is_one_of_its_plan():
    for verb in JOBS:
        theirs = {field.name for field in fields(import_module(f"tilewright.cli.{verb}").Options)}
        more = {"gpu_memory"} | ({"length"} if verb == "generate" else set())
        assert {field.name for field in fields(options_of(verb))} == theirs | more


def test_its_own_usage(run):
    code, _, errors = run("plan", "bench")
    assert code == 2 and "'bench' is no job" in errors
    assert run("plan")[0] == 2
    code, text, _ = run("plan", "classify", "--help")
    assert code == 0 and "tilewright plan classify" in text and "--table-memory" in text


@pytest.mark.parametrize("verb", SMALL)
def test_a_gpu_that_is_elsewhere_can_be_planned_for(run, small, verb):
    dtype = {"convolve": "float32", "classify": "bfloat16"}.get(verb, "float16")
    line = ("plan", verb, *SMALL[verb], "--dtype", dtype, "--gpu-memory", "80G")
    code, text, errors = run(*line, "--device", "cuda")
    assert code == 0, errors
    assert "expected peak, on the GPU" in text and "the GPU has 80.0 GiB: it fits" in text
    assert ("through the GPU's memory" in text) == (verb == "generate")
    assert "useful workers: 1; more of them gain little (an estimate: one per GPU; " in text
    assert "--device cuda --save` measures this machine" in text
    told = json.loads(run(*line, "--device", "cuda", "--json")[1])
    assert told["device"] == "cuda" and told["shards"] == 1 and told["peak_memory"] > 600 << 20
    assert told["peak_memory"] >= told["memory"]["CUDA"] and told["total_memory"] is None
    assert json.loads(run(*line, "--json")[1])["device"] == "cuda"  # --device auto: the memory names a GPU


def test_the_memory_of_a_batch_limits_sequences_on_a_gpu_too(run, small):
    line = ("plan", "generate", *SMALL["generate"], "--device", "cuda", "--gpu-memory", "80G", "--json")
    caches = [json.loads(run(*line, *more)[1])["memory"]["keys and values"]
              for more in ((), ("--max-batch-memory", "64K"))]  # fmt: skip
    assert caches[1] <= 64 << 10 < caches[0]
    code, _, errors = run(*line, "--max-batch-memory", "1K")
    assert code == 4 and "--max-batch-memory" in errors


def test_a_forced_kernel_and_the_weights_own_dtype_for_a_gpu_that_is_elsewhere(run, small):
    line = ("plan", "generate", *SMALL["generate"], "--gpu-memory", "80G", "--dtype", "auto", "--json")
    for device in ("cuda", "auto"):
        code, text, errors = run(*line, "--device", device, "--rung", "matmul=simt.buffered")
        assert code == 0, errors
        told = json.loads(text)
        assert (told["device"], told["dtype"]) == ("cuda", "float32")


@pytest.mark.parametrize("verb", SMALL)
def test_a_saved_measurement_gives_the_rate_and_without_one_a_command_is_named(run, small, tmp_path, verb):
    """Of this machine, class and number of threads only."""
    code, text, errors = run("plan", verb, *SMALL[verb], "--threads", "1")
    assert code == 0, errors
    assert "rate: not known: there is no similar job beside the output, and no measurement in ./results" in text
    assert json.loads(run("plan", verb, *SMALL[verb], "--json")[1])["expected_seconds"] is None
    command = text.partition(" Or: `")[2].split("`")[0].split()
    assert command[:2] == ["tilewright", "bench"] and "--threads 1 --save" in text
    assert run(*command[1:], "--help")[0] == 0
    names = {"generate": "as given", "classify": "table exists"}
    size = {"generate": "124M, course: 16 -> 8", "convolve": "256x256x256-3x3x3-constant"}.get(verb, "100 records")
    row = Row(WORKLOADS[verb], names.get(verb, "tilewright"), size, "float32", 1, 8000, 2.0, 2.0, 2.0, 3, gflops=10.0,
              gbytes_s=10.0)  # fmt: skip
    others = replace(row, threads=2, median_s=9.0), replace(row, dtype="bfloat16"), replace(row, check=PEER)
    built = replace(row, rung="table inside", median_s=3.0)
    save(tmp_path / "results", machine_name(), [*others, row, *([built] if verb == "classify" else [])])
    text = run("plan", verb, *SMALL[verb], "--threads", "1")[1]
    assert "rate: about " in text and f"Source: results/{machine_name()}/{row.op}.csv: {row.rung}, {size}" in text
    told = json.loads(run("plan", verb, *SMALL[verb], "--threads", "1", "--json")[1])
    assert 0 < told["expected_seconds"] < 60 and row.op in told["measured_in"]


@pytest.mark.parametrize("verb", SMALL)
def test_a_similar_job_beside_the_output_gives_the_rate(run, small, verb, monkeypatch):
    """As the advised trial is one; a volume has no shorter trial, so a job of it is started."""
    monkeypatch.setattr(trials, "LEAST_SECONDS", 0.0)
    line = ("plan", verb, *SMALL[verb], "--threads", "1")
    text = run(*line)[1]
    advised = text.partition("rate: not known")[2].split("`")[1].split()
    ran = advised if verb != "convolve" else ["tilewright", verb, *replaced(SMALL[verb], "-o", "try.npy")]
    assert ran[:2] == ["tilewright", verb] and run(*ran[1:])[0] == 0
    text = run(*line)[1]
    count = "20 planes" if verb == "convolve" else "20 "
    assert "rate: about " in text and f"Source: {ran[-1]}.job took " in text and f" s for {count}" in text
    told = json.loads(run(*line, "--json")[1])
    assert told["measured_in"] == f"{ran[-1]}.job" and 0 < told["expected_seconds"] < 60
    other = ("--dtype", "float64" if verb == "convolve" else "bfloat16")
    assert json.loads(run(*line, *other, "--json")[1])["expected_seconds"] is None


def test_a_trial_has_the_words_of_its_job_and_a_name_of_its_own():
    given = ["--model", "m", "-n", "900", "-o", "a b/out/", "--json", "--output=x"]
    assert trial_command("draw", given, "a b/out/", 900) == "tilewright draw --model m -n 20 -o 'a b/try/'"
    assert trial_command("draw", given, "a b/out/", 20) is None
    assert trial_command("convolve", [], "out.npy", 900) is None
    short = trials.Trial("try.job", 20, 0.5)
    assert trial_command("draw", given, "a b/out/", 900, short).endswith(" -n 200 -o 'a b/try200/'")
    assert trial_command("draw", given, "a b/out/", 200, short) is None


def test_a_job_that_was_too_short_gives_no_rate(run, small, monkeypatch):
    """Another trial gets more records. A job without a good record is no trial."""
    monkeypatch.setattr(trials, "LEAST_SECONDS", 1e9)
    assert run("draw", *SMALL["draw"], "--threads", "1")[0] == 0
    text = run("plan", "draw", *replaced(SMALL["draw"], "-n", "400", "-o", "far.npy"), "--threads", "1")[1]
    assert "rate: not known: the longest similar job is too short (out.npy.job took only " in text
    assert " s for 40 images), and no measurement in ./results" in text


def test_a_job_whose_records_are_all_bad_has_no_rate(run, small, tmp_path):
    (tmp_path / "bad.jsonl").write_text('{"prompt_token_ids": [999]}\n')
    row = Row(WORKLOADS["generate"], "as given", "124M, course: 16 -> 8", "float32", 1, 8000, 2.0, 2.0, 2.0, 3)
    save(Path("results"), machine_name(), [row])
    line = ("plan", "generate", "--model", "gpt2", "-i", "bad.jsonl", "-o", "out.jsonl", "--threads", "1")
    code, text, errors = run(*line)
    assert code == 0, errors
    assert "rate: not known: no record that was read is good" in text


def test_a_rate_that_cannot_be_measured_is_told(run, small):
    text = run("plan", "convolve", *SMALL["convolve"], "--dtype", "float64")[1]
    assert "rate: not known: " in text and "`tilewright bench convolve` measures float32 only" in text


def tilewright(*arguments):
    """The JSON that a command of its own process writes."""
    command = [sys.executable, "-m", "tilewright", *map(str, arguments), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def middling(folder, verb, rng):
    """The command line of a job of which the model and the work take more memory than the program."""
    if verb == "classify":
        init_textcnn(str(folder / "m"), 3, vocab_size=8000, hidden_size=256, num_filters=256)
        rng.integers(0, 8000, (6000, 16), np.int32).tofile(folder / "in.bin")
        return ("--model", folder / "m", "-i", folder / "in.bin", "-o", folder / "out.bin")
    if verb == "draw":
        init_dcgan(str(folder / "m"), 3)
        return ("--model", folder / "m", "-n", "600", "-o", folder / "out.npy")
    np.save(folder / "in.npy", rng.random((192, 256, 256), np.float32))
    return ("-i", folder / "in.npy", "-k", "box:9", "-o", folder / "out.npy", "--memory", "500M")


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.long)])
@pytest.mark.parametrize("verb", ["classify", pytest.param("draw", marks=pytest.mark.long), "convolve"])
def test_the_peak_is_within_15_percent_of_a_real_run(tmp_path, rng, verb, dtype):
    """That of generate stands in runtime/test_plan_generate.py."""
    dtype = "float64" if (verb, dtype) == ("convolve", "bfloat16") else dtype
    line = (verb, *middling(Path(tmp_path), verb, rng), "--dtype", dtype, "--restart")
    tilewright(*line)  # kernels are on the disk after it
    planned, real = tilewright("plan", *line), tilewright(*line)
    assert planned["memory"]["compiling kernels, the first time"] == 0
    assert planned["peak_memory"] == pytest.approx(real["peak_memory"], rel=0.15)
    assert planned["shards"] == real["job"]["shards"] and planned["output_bytes"] == real["job"]["bytes"]


TEXTS = ["A film that is good and long.", "I hated every minute of it.", "Once upon a time", "A very fine day"] * 5
FORMS = {  # of small jobs, in which the process itself takes most: options by verb, and the model that is shipped
    "generate": ("in.bin", "p.jsonl", "p.txt", "p.parquet"),
    "classify": ("in.bin", "p.jsonl", "p.txt", "p.parquet"),
    "draw": ("out.npy", "out.png", "out/", "out.txt"),
    "convolve": ("out.npy", "out.nii.gz", "out.tif", "out.zarr", "out.txt"),
}


def tiny(folder, verb, form):
    """The command line of a job whose model and work take next to nothing."""
    if verb in ("draw", "convolve"):
        return (verb, *replaced(SMALL[verb], "-o", form))
    if form == "in.bin":
        return (verb, *SMALL[verb])
    text = {"p.jsonl": "".join(json.dumps({"id": i, "text": text}) + "\n" for i, text in enumerate(TEXTS)),
            "p.txt": "\n".join(TEXTS) + "\n"}  # fmt: skip
    if form == "p.parquet":
        pa = pytest.importorskip("pyarrow")
        columns = {"id": list(range(len(TEXTS))), "text": TEXTS, "prompt": TEXTS}
        pytest.importorskip("pyarrow.parquet").write_table(pa.table(columns), folder / form)
    else:
        (folder / form).write_text(text[form].replace('"text"', '"prompt"' if verb == "generate" else '"text"'))
    output = {"p.jsonl": "out.jsonl", "p.parquet": "out.parquet"}.get(
        form, "out.txt" if verb == "generate" else "out.jsonl"
    )
    more = ("--max-tokens", "4", "--temperature", "0") if verb == "generate" else ()
    return (verb, "--model", {"generate": "poet", "classify": "critic"}[verb], "-i", form, "-o", output, *more)


@pytest.mark.parametrize(
    ("verb", "form"),
    [
        # of classify and convolve the larger jobs above tell
        pytest.param(verb, form, marks=[pytest.mark.long] if i or verb in ("classify", "convolve") else [])
        for verb in FORMS
        for i, form in enumerate(FORMS[verb])
    ],
)
def test_the_peak_of_a_small_job(small, tmp_path, monkeypatch, verb, form):
    """It is the program's, with the packages that its files need: within 10 %."""
    monkeypatch.chdir(tmp_path)
    line = (*tiny(tmp_path, verb, form), "--restart")
    tilewright(*line)  # kernels are on the disk after it
    planned, real = tilewright("plan", *line), tilewright(*line)
    assert planned["memory"].get("compiling kernels, the first time", 0) == 0
    assert planned["peak_memory"] == pytest.approx(real["peak_memory"], rel=0.1)
