"""Images and volumes as jobs: whatever ends them, the same command goes on to the same bytes; what was done stays done,
what was damaged is found and made again, and nothing is written anywhere else."""

import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import zarr

from tilewright.errors import InputError, ResourceError, UsageError
from tilewright.runtime.convert.models import init_dcgan
from tilewright.runtime.jobs import pieces
from tilewright.runtime.jobs.manifest import Damaged
from tilewright.runtime.jobs.merge import digest_of, verify
from tilewright.runtime.jobs.pieces import Piece, listed, parsed
from tilewright.runtime.jobs.settings import Settings
from tilewright.runtime.verbs.convolve import ConvolveJob, convolve
from tilewright.runtime.verbs.convolve import task as volumes
from tilewright.runtime.verbs.draw import DrawJob, draw
from tilewright.runtime.verbs.draw import task as images

VOLUMES = ("out.npy", "out.nii", "out.nii.gz", "out.tif", "out.zarr", "out.txt")
IMAGES = ("out.npy", "out.txt", "out.png", "out.bmp", "out/")
CASES = [("convolve", name) for name in VOLUMES] + [("draw", name) for name in IMAGES]
BIG = 1000  # of a shard: all is one


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch, rng):
    """A volume of 20 planes along each axis, in Zarr chunks of 4, and a small model."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "fsync", lambda fd: None)  # nine a job and three a shard, of milliseconds each
    np.save("v.npy", rng.standard_normal((20, 21, 20)).astype(np.float32))
    monkeypatch.setattr("tilewright.formats.zarr_volumes.CHUNK", 4)
    init_dcgan("m", 3, z_size=3, size=2, channels=(4, 3), kernel=4)


def run(verb, output, shard_size=4, **options):
    """Five shards, but of images three."""
    own = {name: options.pop(name) for name in Settings.__dataclass_fields__ if name in options}
    volume, images = {"input": "v.npy", "kernel": "box:3"}, {"model": "m", "input": None, "count": 10, "seed": 3}
    kind = ConvolveJob if verb == "convolve" else DrawJob
    given = (volume if verb == "convolve" else images | {"image": "grid.png"}) | options
    job = kind(**given, output=output, settings=Settings(shard_size=shard_size, **own))
    return convolve(job) if verb == "convolve" else draw(job)


def found(verb, output):
    """What stands in the outputs, in a word each."""
    paths = [output.rstrip("/"), *(["grid.png"] if verb == "draw" else [])]
    return [digest_of(path, lambda: None) for path in paths]


def expected(verb, output):
    """What an uninterrupted run of one shard writes, which is then put away."""
    run(verb, output, BIG)
    right = found(verb, output)
    for path in (output.rstrip("/"), "grid.png", output.rstrip("/") + ".job"):
        if os.path.exists(path):
            os.rename(path, f"earlier-{path}")
    return right


def broken_off(monkeypatch, verb, output, at=2):
    """The job ends as it comes to shard `at`."""
    worker = volumes.ConvolveWorker if verb == "convolve" else images.DrawWorker
    real = worker.run

    def broken(self, shard, out, beat):
        records = real(self, shard, out, beat)
        if shard.number == at:
            raise InputError("no more")
        return records

    with monkeypatch.context() as patched:
        patched.setattr(worker, "run", broken)
        with pytest.raises(InputError, match="no more"):
            run(verb, output)


def computed(report, verb):
    """Shards."""
    return report.job["computed"]


@pytest.mark.parametrize(("verb", "output"), CASES)
def test_shards_and_resuming_change_no_bytes(monkeypatch, verb, output):
    right = expected(verb, output)
    broken_off(monkeypatch, verb, output)
    assert not os.path.exists(output.rstrip("/")) and verify(output).intact
    if os.path.isdir(stage := f"{output.rstrip('/')}.job/output"):
        Path(stage, "00009.png").write_bytes(b"of another attempt, and larger than what will be there" * 99)
        Path(stage, "stray").mkdir()
        Path(stage, "stray", "file").touch()
    report = run(verb, output, batch_size=3) if verb == "draw" else run(verb, output, memory=1 << 34)
    assert computed(report, verb) == report.job["shards"] - 2 and found(verb, output) == right
    assert verify(output).intact and not os.path.exists(stage)
    assert os.path.getsize(f"{output.rstrip('/')}.job/shards/00000.part") < (9000 if output[4:] != "txt" else 1 << 20)


@pytest.mark.parametrize(("verb", "output"), CASES)
def test_a_finished_job_is_not_touched(verb, output):
    run(verb, output)
    there = [*(at for at, _, _ in os.walk(".")), *os.listdir(".")]
    times = {name: os.stat(name).st_mtime_ns for name in there}
    report = run(verb, output, 2)
    assert computed(report, verb) == 0 and report.computed == 0 and report.records > 0
    for name, changed in times.items():
        assert os.stat(name).st_mtime_ns == changed or name.endswith(".job") or name == "."


@pytest.mark.parametrize(("verb", "output"), CASES)
def test_a_changed_bit_of_the_output_is_found_and_its_shard_made_again(verb, output):
    run(verb, output)
    right = found(verb, output)
    whole = [os.path.join(at, name) for at, _, names in os.walk(output) for name in names] or [output]
    for path in [
        *random.Random(3).sample(sorted(whole), min(3, len(whole))),
        *(["grid.png"] if verb == "draw" else []),
    ]:
        flip(path, os.path.getsize(path) // 2)
        assert not verify(output).intact
        report = run(verb, output)
        in_place = output[3:] in (".npy", ".nii", ".tif", ".zarr", "/") and path != "grid.png"
        assert computed(report, verb) <= (in_place and not path.endswith(".json")) and found(verb, output) == right
    os.truncate(whole[0], os.path.getsize(whole[0]) - 1)
    assert not verify(output).intact
    run(verb, output)
    assert found(verb, output) == right and verify(output).intact


def flip(path, at):
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 16]))


@pytest.mark.parametrize(("verb", "output"), [("convolve", "out.npy"), ("convolve", "out.zarr"), ("draw", "out/")])
def test_a_changed_bit_of_what_is_not_finished(monkeypatch, verb, output):
    right = expected(verb, output)
    broken_off(monkeypatch, verb, output)
    stage = f"{output.rstrip('/')}.job/output"
    place = {"out.npy": stage, "out.zarr": f"{stage}/c/1/2/3", "out/": f"{stage}/00005.png"}[output]
    flip(place, {"out.npy": 128 + 4 * 5 * 21 * 20}.get(output, 60))
    said = verify(output)
    assert said.bad_shards == [1] and "have changed" in said.damaged[0]
    report = run(verb, output)
    assert computed(report, verb) == report.job["shards"] - 1 and found(verb, output) == right


@pytest.mark.parametrize(("verb", "output"), CASES)
def test_a_full_disk_at_the_merge(monkeypatch, verb, output):
    """ENOSPC at each write, fsync and rename: the earlier output is as it was, and the same call goes on."""
    right = expected(verb, output)
    broken_off(monkeypatch, verb, output, at=0 if verb == "draw" else 1)
    for path in (output.rstrip("/"), "grid.png"):
        if os.path.exists(f"earlier-{path}"):
            os.rename(f"earlier-{path}", path)
    earlier = found(verb, output)
    task = volumes.ConvolveTask if verb == "convolve" else images.DrawTask
    made, at, real = 0, 1, task.assemble
    calls = {name: getattr(os, name) for name in ("write", "pwrite", "fsync", "replace", "rename")}

    def failing(name):
        def counted(*arguments, **options):
            nonlocal made
            made += 1
            if made == at:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return calls[name](*arguments, **options)

        return counted

    def assemble(*arguments):
        with monkeypatch.context() as patched:
            for name in calls:
                patched.setattr(os, name, failing(name))
            return real(*arguments)

    monkeypatch.setattr(task, "assemble", assemble)
    while True:
        made = 0
        try:
            run(verb, output)
            break
        except ResourceError as error:
            assert "o space left on device" in str(error) and not [n for n in os.listdir(".") if n.endswith(".tmp")]
            assert found(verb, output)[0] == earlier[0]
            at += 1
    assert at > 2 and found(verb, output) == right == earlier


@pytest.mark.parametrize(
    ("verb", "change", "field"),
    [
        ("convolve", {"kernel": "box:5"}, "kernel"),
        ("convolve", {"mode": "wrap"}, "mode"),
        ("convolve", {"cval": 2.0}, "cval"),
        ("convolve", {"dtype": "float64"}, "dtype"),
        ("convolve", {"input": "w.npy"}, "the input"),
        ("draw", {"seed": 4}, "seed"),
        ("draw", {"count": 11}, "count"),
        ("draw", {"dtype": "bfloat16"}, "dtype"),
        ("draw", {"image": None}, "image"),
        ("draw", {"model": "m2"}, "the model's .*"),
        ("draw", {"input": "z.npy", "seed": 0}, "seed|the size of the input"),
    ],
)
def test_other_results_are_refused(verb, change, field):
    np.save("w.npy", np.load("v.npy") + 1)
    np.save("z.npy", np.zeros((10, 3), np.float32))
    init_dcgan("m2", 4, z_size=3, size=2, channels=(4, 3), kernel=4)
    run(verb, "out.npy")
    right = found(verb, "out.npy")
    with pytest.raises(UsageError, match=rf"other settings or inputs: ({field}) (was|has other content)") as caught:
        run(verb, "out.npy", **change)
    assert caught.value.exit_code == 2 and found(verb, "out.npy") == right
    if field in ("kernel", "seed"):
        run(verb, "out.npy", **change, restart=True)
        assert found(verb, "out.npy") != right


def test_an_input_that_changes_meanwhile(monkeypatch):
    real = volumes.ConvolveWorker.run

    def changing(self, shard, out, beat):
        os.utime("v.npy", ns=(5, 5))
        return real(self, shard, out, beat)

    monkeypatch.setattr(volumes.ConvolveWorker, "run", changing)
    with pytest.raises(InputError, match=r"was changed while it ran: input\.changed"):
        run("convolve", "out.npy")
    assert not os.path.exists("out.npy")


@pytest.mark.parametrize("links", ["output", "output/c"])
def test_nothing_is_written_through_a_link(links):
    os.makedirs("precious")
    output = "out.npy" if links == "output" else "out.zarr"
    os.makedirs(f"{output}.job/output" if links != "output" else f"{output}.job")
    os.symlink(os.path.abspath("precious/file" if links == "output" else "precious"), f"{output}.job/{links}")
    with pytest.raises(ResourceError):
        run("convolve", output)
    assert os.listdir("precious") == []


@pytest.mark.parametrize(
    "name", ["../x", "/etc/x", "a/../b", "a//b", "./a", ".", "..", "a/", "a\0b", "a b", "a/..", "é", "a\nb"]
)
def test_lists_that_lead_elsewhere(name):
    line = Piece("0" * 64, 1, 2, name)
    with pytest.raises(Damaged):
        parsed(listed([line]))
    with pytest.raises(Damaged):
        parsed(listed([Piece("x" * 64, 1, 2, "a")]))
    good = [Piece("0" * 64, 1, 2, good) for good in ("", "a", "c/0/1", "zarr.json", ".zarray", "0.0.1", "c/..a")]
    assert parsed(listed(good)) == good and parsed(b"") == parsed(b"other notes") == []


def test_a_volume_of_zeros():
    """Zarr stores no chunk of nothing but zeros, so no shard writes anything."""
    np.save("zeros.npy", np.zeros((20, 21, 20), np.float32))
    run("convolve", "out.zarr", input="zeros.npy")
    assert os.listdir("out.zarr") == ["zarr.json"] and verify("out.zarr").intact
    assert not zarr.open_array("out.zarr", mode="r")[...].any()
    assert computed(run("convolve", "out.zarr", input="zeros.npy"), "convolve") == 0


def test_everything_is_on_the_disk_before_its_shard_is_there(monkeypatch):
    synced, told, real = set(), [], os.fsync

    def fsync(fd):
        synced.add(os.path.relpath(os.readlink(f"/proc/self/fd/{fd}"), "out.zarr.job/output"))
        real(fd)

    place = pieces.Placing.__exit__

    def done(self, *error):
        place(self, *error)
        told.append({piece.name for piece in self._pieces} <= synced and {"c", ".", "c/0/0"} <= synced)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(pieces.Placing, "__exit__", done)
    run("convolve", "out.zarr")
    assert told == [True] * 5


@pytest.mark.parametrize(("verb", "output"), [("convolve", "out.npy"), ("convolve", "out.nii.gz"), ("draw", "out/")])
def test_workers_write_the_same_bytes(verb, output):
    right = expected(verb, output)
    report = run(verb, output, workers=2)
    assert report.job["workers"] == 2 and found(verb, output) == right


SERVER = """
import json, os, sys, time
from tilewright.cli import main
import tilewright.cli.convolve, tilewright.cli.draw, tilewright.runtime.verbs.draw, zarr
from tilewright.models import dcgan
from tilewright.runtime.verbs.convolve import worker as convolve_worker
compute, generate = convolve_worker._compute, dcgan.DCGAN.generate
def slow(*arguments):
    f = compute(*arguments)
    return lambda block, out: (time.sleep(0.02), f(block, out))[1]
def slowly(*arguments, **options):
    time.sleep(0.02)
    return generate(*arguments, **options)
convolve_worker._compute, dcgan.DCGAN.generate = slow, slowly
for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1), os.dup2(log, 2)
        try:
            main(json.loads(line))
        except SystemExit as error:
            os._exit(error.code or 0)
        os._exit(0)
    os.setpgid(pid, pid)
    print(pid, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


@pytest.fixture(name="killed")
def _killed():
    """killed(arguments, seconds) -> exit code of a command whose process group gets SIGKILL after so long, None: never.
    Its process is the fork of one that has imported everything."""
    with subprocess.Popen([sys.executable, "-c", SERVER], stdin=-1, stdout=-1, text=True) as server:

        def call(arguments, seconds):
            server.stdin.write(json.dumps(arguments) + "\n")
            server.stdin.flush()
            pid = int(server.stdout.readline())
            if seconds is not None:
                time.sleep(seconds)
                with suppress(ProcessLookupError):  # it is done
                    os.killpg(pid, signal.SIGKILL)
            return int(server.stdout.readline())

        yield call
        server.stdin.close()


def kill_until_done(killed, verb, output, kills, rng):
    if output == "out.zarr":  # its output has chunks like these, and so shards
        zarr.create_array("v.zarr", shape=(20, 21, 20), chunks=(4, 4, 4), dtype="f4")[...] = np.load("v.npy")
    given = {
        "convolve": ["-i", "v.zarr" if output == "out.zarr" else "v.npy", "--kernel", "box:3"],
        "draw": ["--model", "m", "-n", "40", "--seed", "3", "--image", "grid.png"],
    }[verb]
    command = [verb, *given, "--shard-size", "2"]
    for _ in range(2):  # kernels are compiled first
        begin = time.monotonic()
        assert killed([*command, "--restart", "-o", f"right-{output}"], None) == 0
    whole, done = time.monotonic() - begin, set()
    right = found(verb, f"right-{output}")
    os.rename("grid.png", "right.png") if verb == "draw" else None
    for _ in range(kills):
        changed = ["--workers", str(rng.choice((1, 1, 1, 2)))]
        draws, tiles = ["--batch-size", str(rng.choice((1, 2, 7)))], ["--memory", rng.choice(("3G", "4G"))]
        changed += draws if verb == "draw" else tiles
        code = killed([*command, "-o", output, *changed], rng.uniform(0, 1.2 * whole))
        assert code in (0, -signal.SIGKILL), Path("log").read_text()
        shards = f"{output.rstrip('/')}.job/shards"
        now = set(os.listdir(shards)) if os.path.exists(shards) else set()
        now = {name for name in now if name.endswith(".part")}
        assert done <= now, "what is committed stays"
        assert not os.path.exists(f"{shards}/../damaged") or os.listdir(f"{shards}/../damaged") == []
        done = now
        assert not os.path.exists(output.rstrip("/")) or found(verb, output) == right, "complete or absent"
        if code == 0:
            subprocess.run(["rm", "-rf", output.rstrip("/"), "grid.png", f"{output.rstrip('/')}.job"], check=True)
            done = set()
    assert killed([*command, "-o", output], None) == 0, Path("log").read_text()
    assert found(verb, output) == right


@pytest.mark.parametrize(("verb", "output"), [("convolve", "out.zarr"), ("draw", "out/")])
def test_kills_at_random_times(killed, verb, output):
    kill_until_done(killed, verb, output, 4, random.Random(5))


@pytest.mark.long
@pytest.mark.parametrize(("verb", "output"), CASES)
def test_a_hundred_kills_at_random_times(killed, verb, output):
    kill_until_done(killed, verb, output, 100, random.Random(6))
