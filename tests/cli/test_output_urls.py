"""Outputs by URL, in a store in memory: jobs of all verbs, and their state below another URL."""

import json
import os
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from gpt2_models import save
from tilewright.runtime import trials
from tilewright.runtime.jobs.directory import JobDirectory
from tilewright.runtime.stores.remote import Remote
from tilewright.runtime.stores.stage import staged

try:
    import obstore
except ImportError:
    obstore = None

pytestmark = pytest.mark.skipif(obstore is None, reason="obstore is not installed (extra cloud)")


@pytest.fixture(name="far")
def _far(there):
    """The job's command line with an output by URL."""
    return (*there[:-1], "s3://bucket/jobs/far.bin")


def shards_of(store):
    return sorted(found["path"] for chunk in obstore.list(store, prefix="jobs/far.bin.job/shards") for found in chunk)


def kept(store, name="jobs/far.bin"):
    return bytes(obstore.get(store, name).bytes())


@pytest.mark.parametrize("how", [(), pytest.param(("--workers", "2"), marks=pytest.mark.long)], ids=["inline", "local"])
def test_output_by_url(run, store, small, far, how):
    run(*small)
    code, _, errors = run(*far, *how, "--shard-size", "4")
    assert code == 0, errors
    assert kept(store) == Path("out.bin").read_bytes()
    assert len(shards_of(store)) == 5
    left = {found["path"].split("/")[2] for chunk in obstore.list(store, prefix="jobs/far.bin.job") for found in chunk}
    assert left == {"delivered.json", "job.json", "logs", "manifest.json", "report.json", "shards"}
    assert os.listdir("copies/jobs") == []
    code, out, _ = run(*far, *how)
    assert code == 0 and "Nothing to do" in out


def test_a_job_in_a_store_goes_on(run, store, small, far):
    """Shards that are whole are not computed again; a damaged one is; an output that is gone is made again."""
    run(*small)
    assert run(*far, "--shard-size", "4")[0] == 0
    obstore.delete(store, [shards_of(store)[0], "jobs/far.bin.job/report.json"])
    whole = kept(store, shards_of(store)[2])
    obstore.put(store, shards_of(store)[2], bytes([whole[0] ^ 1]) + whole[1:-1] + b"x")
    code, out, _ = run(*far)
    assert code == 0 and "Resumed: 3 of 5 shards were there" in out
    assert kept(store) == Path("out.bin").read_bytes()
    obstore.delete(store, "jobs/far.bin")
    code, out, _ = run(*far)
    assert code == 0 and "All 5 shards were there: the output was made of them" in out
    assert kept(store) == Path("out.bin").read_bytes()
    code, _, errors = run(*far, "--dtype", "bfloat16")
    assert code == 2 and errors.startswith(
        "Error: s3://bucket/jobs/far.bin.job: the job was begun with other settings or inputs"
    )
    code, out, _ = run(*far, "--restart")
    assert code == 0 and "Resumed" not in out and kept(store) == Path("out.bin").read_bytes()


def test_status_verify_and_plan_by_url(run, store, there):
    jsonl = ["s3://bucket/in.jsonl" if word.endswith("in.bin") else word for word in there[:-1]]
    obstore.put(store, "in.jsonl", Path("in.jsonl").read_bytes() + b"odd\n")
    far = (*jsonl, "s3://bucket/jobs/far.jsonl", "--shard-size", "200")
    code, _, errors = run("status", far[-3])
    assert code == 2 and errors.startswith("Error: s3://bucket/jobs/far.jsonl.job: there is no job for this output")
    assert run("plan", *far)[0] == 0
    code, out, _ = run(*far)
    assert code == 0 and "Bad records: 1 of 21" in out
    code, out, _ = run("status", far[-3])
    assert code == 0 and out.startswith("finished: ") and "21 records, 1 bad" in out, out
    assert run("verify", far[-3] + ".job")[1] == run("verify", far[-3])[1] != ""
    assert "the job is finished, nothing to do" in run("plan", *far)[1]
    lines = kept(store, "jobs/far.jsonl")
    obstore.put(store, "jobs/far.jsonl", lines.replace(b"label", b"lapel", 1))
    code, out, _ = run("verify", far[-3])
    assert code == 1 and "output: its" in out
    assert run(*far)[0] == 2, "it is no longer the job's own"
    assert run(*far, "--force")[0] == 0 and kept(store, "jobs/far.jsonl") == lines
    obstore.put(store, "in.jsonl", Path("in.jsonl").read_bytes() + b"other\n")
    assert run("plan", *far)[0] == 2


def test_a_trial_of_a_job_by_url_is_local(run, store, small, far, monkeypatch):
    """The plan names a local output, and uses it the next time."""
    monkeypatch.setattr(trials, "LEAST_SECONDS", 0.0)
    np.zeros((30, 6), "<i4").tofile("many.bin")
    obstore.put(store, "in.bin", Path("many.bin").read_bytes())
    plan = run("plan", *far)[1]
    command = re.search(r"run a short trial, then plan again: `tilewright (.* -o \./try\.bin)`", plan)
    assert "there is no similar job in the current directory" in plan
    assert command and "OUT.job" not in plan and "both are on this disk until the upload" in plan, plan
    assert run(*shlex.split(command[1]))[0] == 0
    assert "Source: try.bin.job took" in run("plan", *far)[1]


def test_what_a_store_cannot_hold(run, store, far):
    for words, said in {
        ("--job-dir", "far"): "--job-dir is the local 'far', and the output is a URL",
        ("--job-dir", "s3://bucket"): "names no object",
        ("--job-dir", "s3://bucket/jobs"): "--job-dir and the output are below each other",
        ("--job-dir", "s3://bucket/models"): "other objects are below the URL of --job-dir, and no job",
        ("--part", "0/2"): "--part needs a local output, and the output is a URL",
        ("--engine", "ray"): "the engine ray needs a local output, and the output is a URL",
        ("--trace", "s3://bucket/trace.json"): "the trace is the URL 's3://bucket/trace.json'",
    }.items():
        code, _, errors = run(*far, *words)
        assert code == 2 and said in errors, errors
    code, _, errors = run("draw", "--model", "portraits", "-n", "1", "-o", "a.npy", "--image", "s3://bucket/a.png")
    assert code == 2 and "only the outputs of generate, classify, score, embed, draw and convolve can be" in errors
    draw = ("draw", "--model", "portraits", "-n", "1", "-o", "s3://bucket/faces.npy")
    code, _, errors = run(*draw, "--image", "grid.png")
    assert code == 2 and "--image needs a local output, and the output is a URL" in errors


def test_an_object_of_others_is_kept(run, store, far):
    obstore.put(store, "jobs/far.bin", b"theirs")
    for verb in ((), ("plan",)):
        code, _, errors = run(*verb, *far)
        assert code == 2 and "there is an object at the output's URL that this job has not made" in errors
    assert run("plan", *far, "--force")[0] == 0
    assert kept(store) == b"theirs"
    assert run(*far, "--force")[0] == 0 and kept(store) != b"theirs"


def test_an_object_of_others_in_a_folder_is_named(run, store, far):
    """With the exit code of a local folder that holds other files."""
    folder = (*[word.replace("in.bin", "in.jsonl") for word in far[:-1]], "s3://bucket/parts/")
    obstore.put(store, "in.jsonl", Path("in.jsonl").read_bytes())
    obstore.put(store, "parts/notes.txt", b"theirs")
    assert run("plan", *folder)[::2] == run(*folder)[::2]
    code, _, errors = run(*folder)
    assert code == 4 and "s3://bucket/parts/: holds objects that this job has not made, such as 'notes.txt'" in errors
    assert kept(store, "parts/notes.txt") == b"theirs"
    os.mkdir("parts")
    Path("parts/notes.txt").write_bytes(b"theirs")
    assert run(*folder[:-1], "parts/")[0] == 4
    assert run(*folder, "--force")[0] == 0 and run(*folder)[0] == 0


def test_two_runs_of_one_job(run, store, far):
    from tilewright.runtime.stores.board import Board
    from tilewright.runtime.stores.objects import Objects

    with Board(Objects("s3://bucket/jobs/far.bin.job")) as board, board.leading("wait"):
        code, _, errors = run(*far)
    assert code == 4 and f"another run works on this job: process {os.getpid()} on" in errors
    assert "tilewright work s3://bucket/jobs/far.bin" in errors
    assert run(*far)[0] == 0


def files(path):
    """The bytes of a file, or of all files of a folder by name."""
    if os.path.isfile(path):
        return {"": Path(path).read_bytes()}
    found = [os.path.join(at, name) for at, _, names in os.walk(path) for name in names]
    return {os.path.relpath(one, path): Path(one).read_bytes() for one in found}


def objects(store, name):
    """The same of an object, or of those below it."""
    found = {one["path"] for chunk in obstore.list(store, prefix=name) for one in chunk} or {name}
    return {path.removeprefix(name).strip("/"): kept(store, path) for path in found}


FACES = ("draw", "--model", "portraits", "-n", "6", "--shard-size", "2")
MEAN = ("convolve", "-i", "s3://bucket/in.npy", "-k", "box:1", "--shard-size", "8")


@pytest.fixture(name="volume")
def _volume(run, store, rng):
    """A volume, also in the store."""
    np.save("in.npy", rng.random((24, 20, 20), np.float32))
    obstore.put(store, "in.npy", Path("in.npy").read_bytes())


@pytest.mark.parametrize(
    ("given", "name"),
    [
        pytest.param(FACES, "faces.npy", marks=pytest.mark.long),
        pytest.param(FACES, "faces.png", marks=pytest.mark.long),
        pytest.param(FACES, "faces.txt", marks=pytest.mark.long),
        pytest.param(FACES, "faces.bmp", marks=pytest.mark.long),
        pytest.param(FACES, "faces/", marks=pytest.mark.long),
        (MEAN, "out.npy"),
        pytest.param(MEAN, "out.zarr", marks=pytest.mark.long),
        pytest.param(MEAN, "out.txt", marks=pytest.mark.long),
        pytest.param(MEAN, "out.nii.gz", marks=pytest.mark.long),
        pytest.param(MEAN, "out.tif", marks=pytest.mark.long),
    ],
)
def test_images_and_volumes_by_url(run, store, volume, given, name, monkeypatch):
    """What a shard wrote in place is in the store, too, until the output is there: so others can go on."""
    assert run(*given, "-o", name)[0] == 0
    bare, url = name.rstrip("/"), f"s3://bucket/{name}"
    whole, count = files(bare), len(os.listdir(f"{bare}.job/shards"))  # one shard per chunk of an array
    with monkeypatch.context() as patched:
        patched.setattr(Remote, "deliver", lambda remote, directory: 1 / 0)
        assert run(*given, "-o", url)[0] == 5, "the run ends when it has all shards"
    parts = objects(store, f"{bare}.job")
    placed = [f"pieces/{number:05}" for number in range(count)]
    assert (parts.keys() >= {*placed}) == name.endswith((".npy", ".tif", ".zarr", "/"))
    assert run("status", url)[1].startswith(f"stopped: {count} of {count} shard")
    assert "there, and all that is there is intact" in run("verify", url)[1]
    obstore.delete(store, [f"{bare}.job/shards/{count - 1:05}.part"])
    code, out, errors = run("work", url.rstrip("/"))
    assert code == 0 and "This worker made 1 shard" in out, errors
    if placed[0] in parts:
        obstore.put(store, f"{bare}.job/{placed[0]}", parts[placed[0]][:-1])
    code, out, errors = run(*given, "-o", url)
    assert code == 0 and objects(store, bare) == whole, errors
    assert not objects(store, f"{bare}.job").keys() & {*placed} and os.listdir("copies/jobs") == []
    assert run("verify", url)[1] == run("verify", name)[1] and "Nothing to do" in run(*given, "-o", url)[1]
    with staged(url) as output:
        remote = Remote(url.rstrip("/"), output)
        remote.manifest()
        remote.pull()
        with JobDirectory(output, make=True) as directory:
            remote.publish(directory.record(0))
    assert not objects(store, f"{bare}.job").keys() & {*placed}, "a late worker uploads nothing"


def test_repeated_ids_by_url(run, store, there):
    """The merge makes records with a repeated id errors; the store gets the shards that it has changed."""
    far = [*there[:-1], "s3://bucket/jobs/far.jsonl", "--shard-size", "200"]
    far[far.index("s3://bucket/in.bin")] = "s3://bucket/in.jsonl"
    lines = Path("in.jsonl").read_bytes()
    obstore.put(store, "in.jsonl", lines + lines.splitlines(keepends=True)[0])
    code, out, _ = run(*far)
    assert code == 0 and "Bad records: 1 of 21" in out
    code, out, _ = run("verify", far[-3])
    assert code == 0 and out.startswith("intact"), out


@pytest.mark.long
@pytest.mark.parametrize(
    ("verb", "name"),
    [("score", "out.jsonl"), ("score", "out.parquet"), ("embed", "out.npy"), ("embed", "out.jsonl"),
     ("embed", "out.parquet")],
)  # fmt: skip
def test_scores_and_vectors_by_url(run, store, monkeypatch, verb, name):
    """Input, model and output in the store; a worker makes a shard that is missing."""
    from bert_models import random_texts, saved

    if verb == "embed":
        saved("bert", 0, Path("m"))
    else:
        save(Path("m"))
    texts = random_texts(30) if verb == "embed" else [f"the cat {n}" for n in range(60)]
    lines = [json.dumps({"id": f"s{n}", "text": text}) for n, text in enumerate(texts)]
    Path("in.jsonl").write_text("\n".join([*lines, "odd"]) + "\n")
    for path in (*Path("m").iterdir(), Path("in.jsonl")):
        obstore.put(store, str(path), path.read_bytes())
    given, url = ("--shard-size", "1500"), f"s3://bucket/{name}"
    assert run(verb, "--model", "m", "-i", "in.jsonl", "-o", name, *given)[0] == 0
    far = (verb, "--model", "s3://bucket/m", "-i", "s3://bucket/in.jsonl", "-o", url, *given)
    with monkeypatch.context() as patched:
        patched.setattr(Remote, "deliver", lambda remote, directory: 1 / 0)
        assert run(*far)[0] == 5
    obstore.delete(store, [f"{name}.job/shards/00001.part"])
    assert run("status", url)[1].startswith("stopped: ")
    code, out, errors = run("work", url)
    assert code == 0 and "This worker made 1 shard" in out, errors
    code, out, errors = run(*far)
    assert code == 0 and "shards were there: the output was made of them" in out, errors
    assert kept(store, name) == Path(name).read_bytes()
    assert run("verify", url)[1].startswith("intact")
    assert "Nothing to do" in run(*far)[1]


def test_the_state_below_another_url(run, store, small, far):
    run(*small)
    state = "s3://bucket/state/one"
    code, _, errors = run(*far, "--shard-size", "4", "--job-dir", state)
    assert code == 0, errors
    assert kept(store) == Path("out.bin").read_bytes()
    names = {found["path"] for chunk in obstore.list(store) for found in chunk}
    assert {name for name in names if name.startswith("jobs/")} == {"jobs/far.bin", "jobs/far.bin.job"}
    assert {"state/one/manifest.json", "state/one/owner.json", "state/one/shards/00004.part"} <= names
    for named in (far[-1], f"{far[-1]}.job", state, f"{state}/"):
        assert run("status", named)[1].startswith("finished: 5 of 5 shards")
    obstore.delete(store, ["state/one/shards/00001.part", "state/one/report.json"])
    assert "This worker made 1 shard" in run("work", far[-1])[1]
    code, out, _ = run(*far)
    assert code == 0 and "All 5 shards were there" in out, "without the option, too"
    for verb in ((), ("plan",)):
        code, _, errors = run(*verb, *far, "--job-dir", "s3://bucket/state/two")
        assert code == 2 and f"the state of this job is in {state}, and --job-dir names another URL" in errors
    code, _, errors = run(*far[:-1], "s3://bucket/jobs/second.bin", "--job-dir", state)
    assert code == 2 and f"the state of the job of {far[-1]} is there" in errors
    code, out, _ = run(*far, "--restart", "--job-dir", state)
    assert code == 0 and "Resumed" not in out and kept(store) == Path("out.bin").read_bytes()
    assert run(*far[:-1], "s3://bucket/jobs/third.bin")[0] == 0
    code, _, errors = run(*far[:-1], "s3://bucket/jobs/third.bin", "--job-dir", "s3://bucket/state/three")
    assert code == 2 and "the state of this job is in s3://bucket/jobs/third.bin.job, and" in errors


@pytest.mark.parametrize("options", [(), pytest.param(("--per-input",), marks=pytest.mark.long)])
def test_a_folder_of_parts_by_url(run, store, small, there, options):
    """Objects of an earlier output go only with --force; _SUCCESS is written last."""
    job = ("classify", "--model", "m", "-i", "in.jsonl", "--shard-size", "300", *options, "-o")
    assert run(*job, "near/")[0] == 0
    obstore.put(store, "far/theirs", b"1")
    code, _, errors = run(*job, "s3://bucket/far/")
    assert code == 4 and "or give --force to replace all that is there" in errors
    code, _, errors = run(*job, "s3://bucket/far/", "--force")
    assert code == 0 and objects(store, "far") == files("near") and "_SUCCESS" in files("near"), errors
    assert "Nothing to do" in run(*job, "s3://bucket/far/")[1]
    assert run("verify", "s3://bucket/far")[1] == run("verify", "near")[1]
    obstore.put(store, "far/_SUCCESS", b"odd")
    assert run("verify", "s3://bucket/far")[0] == 1 and run(*job, "s3://bucket/far/")[0] == 4
    obstore.delete(store, ["far.job/shards/00001.part", "far.job/report.json"])
    assert "This worker made 1 shard" in run("work", "s3://bucket/far/")[1]
    assert run(*job, "s3://bucket/far/", "--force")[0] == 0 and objects(store, "far") == files("near")
