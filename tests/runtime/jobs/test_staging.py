"""MPI on two nodes that share no files: the same bytes, and each file is sent to a node once."""

import gzip
import json
import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import tilewright
import two_nodes
from tilewright.cli import main
from tilewright.runtime.convert.models import init_dcgan
from tilewright.runtime.jobs.status import status

HANGS = 300  # seconds: of no test that passes, however busy the machine is
MPIEXEC = Path(sys.executable).with_name("mpiexec")
WHY = two_nodes.missing() or ("" if MPIEXEC.exists() else "mpiexec is not installed: pip install mpi4py mpich")
pytestmark = pytest.mark.skipif(bool(WHY), reason=WHY)


@pytest.fixture
def nodes(tmp_path, monkeypatch):
    """Two nodes; what jobs read is on the first."""
    found = two_nodes.Nodes(tmp_path, MPIEXEC)
    paths = [str(Path(tilewright.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    for name in ("NUMBA_ENABLE_CUDASIM", "TRITON_INTERPRET"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(found.first)
    return found


def alone(*command):
    """Runs a job in this process, in the current directory."""
    with pytest.raises(SystemExit) as ended:
        main([*command])
    assert ended.value.code == 0


def ranks(nodes, *command, each=2, code=0):
    """The report of a job on the two nodes; with another exit code (None: any), what was said."""
    words = [sys.executable, "-m", "tilewright", *command, "--engine", "mpi", *(["--json"] if code == 0 else [])]
    found, out, err = nodes.run(each, words)
    assert (found != 0) if code is None else (found == code), out + err
    if code != 0:
        return out + err
    assert os.listdir(nodes.folder / "tmp") == [], "a folder of the second node was left"
    return json.loads(out) | {"said": err}


def test_weights_are_sent_once_per_node(nodes):
    """4 ranks; the output is .npy, whose shards are written in place."""
    init_dcgan("m", 1, z_size=4, channels=(8, 4, 3))
    job = ("draw", "-p", "m", "-n", "256", "--shard-size", "8")
    alone(*job, "-o", "whole.npy")
    report = ranks(nodes, *job, "-o", "out.npy")
    files = [path for path in Path("m").iterdir() if path.is_file()]
    sent = {"nodes": 1, "files": len(files), "bytes": sum(path.stat().st_size for path in files)}
    assert report["job"]["sent"] == sent, report
    assert f"Sent {len(files)} files ({sent['bytes']:,} bytes) to 1 node that does not see" in report["said"]
    assert "Ranks of node1: 0 on core" in report["said"] and "Ranks of node2: 2 on core" in report["said"]
    assert Path("out.npy").read_bytes() == Path("whole.npy").read_bytes()
    assert os.listdir(nodes.second) == []
    assert sum(worker.records for worker in status("out.npy").workers) == 256
    assert ranks(nodes, *job, "-o", "out.npy")["job"]["computed"] == 0


@pytest.mark.long
def test_bad_records_of_the_other_node(nodes):
    """Their errors come with their shards. The first node alone has the input; the model is the named one."""
    lines = [f"A {'good' if n % 3 else 'bad'} film, number {n}." for n in range(400)]
    Path("in.jsonl").write_text("".join(json.dumps({"id": n, "text": line}) + "\n" for n, line in enumerate(lines)))
    text = Path("in.jsonl").read_bytes().replace(b'"id": 40,', b'"id": 39,').replace(b'{"id": 390', b'{"di": 390')
    Path("in.jsonl").write_bytes(text.replace(b'"id": 200, "text"', b'"id": 200, "txt"'))
    job = ("classify", "--model", "critic", "-i", "in.jsonl", "--shard-size", "1K")
    with pytest.raises(SystemExit) as ended:
        main([*job, "-o", "whole.jsonl"])
    report = ranks(nodes, *job, "-o", "out.jsonl", each=1)
    assert ended.value.code == report["exit_code"]
    assert Path("out.jsonl").read_bytes() == Path("whole.jsonl").read_bytes()
    assert report["job"]["sent"]["nodes"] == 1 and report["errors"] == 3


@pytest.mark.long
@pytest.mark.parametrize("kind", ["npy", "zarr"])
def test_a_volume(nodes, kind):
    """A kernel from a file, and a volume that is one file or a directory of them."""
    rng = np.random.default_rng(1)
    np.save("v.npy", rng.random((40, 24, 24), np.float32))
    np.save("k.npy", rng.random((3, 3, 3), np.float32))
    if kind == "zarr":
        alone("convolve", "-i", "v.npy", "--kernel", "box:1", "-o", "v.zarr")
    job = ("convolve", "-i", f"v.{kind}", "--kernel", "k.npy", "--shard-size", "4")
    alone(*job, "-o", f"whole.{kind}")
    ranks(nodes, *job, "-o", f"out.{kind}", each=1)
    files = [path.relative_to(f"whole.{kind}") for path in Path(f"whole.{kind}").rglob("*") if path.is_file()]
    for name in files or [""]:
        assert Path(f"out.{kind}", name).read_bytes() == Path(f"whole.{kind}", name).read_bytes()


@pytest.mark.long
@pytest.mark.parametrize(("shared", "sent"), [("auto", False), ("yes", False), ("no", True)])
def test_a_shared_folder(nodes, shared, sent):
    """It is found out that all see it; or believed."""
    os.chdir(nodes.folder)
    init_dcgan("m", 1, z_size=4, channels=(8, 4, 3))
    job = ("draw", "-p", str(nodes.folder / "m"), "-n", "64", "--shard-size", "8")
    alone(*job, "-o", "whole.npy")
    out = nodes.folder / "out.npy"
    report = ranks(nodes, *job, "-o", str(out), "--shared-files", shared, each=1)
    assert ("sent" in report["job"]) == sent
    assert out.read_bytes() == Path("whole.npy").read_bytes()
    assert {path.name for path in nodes.folder.iterdir() if path.name.startswith(".")} == set()


@pytest.mark.long
@pytest.mark.parametrize("shared", [True, False])
def test_the_state_elsewhere(nodes, shared):
    """Nodes that see the output and not the directory of --job-dir send their shards to rank 0."""
    os.chdir(nodes.folder)
    init_dcgan("m", 1, z_size=4, channels=(8, 4, 3))
    state = (nodes.folder if shared else nodes.work) / "state"
    job = ("draw", "-p", str(nodes.folder / "m"), "-n", "64", "--shard-size", "8")
    alone(*job, "-o", "whole.npy")
    out = nodes.folder / "out.npy"
    for options in (("--job-dir", str(state)), ()):
        report = ranks(nodes, *job, "-o", str(out), *options, each=1)
        assert ("sent" in report["job"]) == (not shared)
        assert out.read_bytes() == Path("whole.npy").read_bytes()
        assert report["job"]["directory"] == str(state) and report["job"]["computed"] == (64 // 8 if options else 0)
    assert Path("out.npy.job").is_file() and os.listdir(nodes.second) == []


@pytest.mark.long
def test_a_compressed_input(nodes):
    """It is sent as it is, and keeps its name. A directory of inputs is refused."""
    os.mkdir("in")
    with gzip.open("in/a.txt.gz", "wb") as file:
        file.write(b"".join(b"A fine film, number %d.\n" % n for n in range(300)))
    job = ("classify", "--model", "critic", "--shard-size", "1K", "-i")
    alone(*job, "in/a.txt.gz", "-o", "whole.jsonl")
    assert ranks(nodes, *job, "in/a.txt.gz", "-o", "out.jsonl", each=1)["job"]["sent"]["nodes"] == 1
    assert Path("out.jsonl").read_bytes() == Path("whole.jsonl").read_bytes()
    assert "one file alone can be sent as input" in ranks(nodes, *job, "in", "-o", "all.jsonl", each=1, code=2)


@pytest.mark.long
def test_a_trace_needs_shared_files(nodes):
    init_dcgan("m", 1, z_size=4, channels=(8, 4, 3))
    said = ranks(nodes, "draw", "-p", "m", "-n", "8", "-o", "out.npy", "--trace", "t.json", each=1, code=2)
    assert "1 of 2 nodes do not see the job's files" in said
    assert os.listdir(nodes.folder / "tmp") == []


def test_only_mpi_has_nodes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["draw", "-p", "portraits", "-n", "1", "-o", "out.npy", "--shared-files", "no"])
    assert ended.value.code == 2 and "--shared-files is for the engine mpi" in capsys.readouterr().err


@pytest.mark.long
def test_a_rank_of_the_other_node_that_is_killed(nodes):
    """Nothing stays on its node, its shard is noted on the first node, and the same command goes on."""
    init_dcgan("m", 1, z_size=4, channels=(8, 4, 3))
    job = ("draw", "-p", "m", "-n", "8192", "--shard-size", "8")
    alone(*job, "-o", "whole.npy")
    with ThreadPoolExecutor() as pool:
        ended = pool.submit(ranks, nodes, *job, "-o", "out.npy", code=None)
        until = time.monotonic() + HANGS
        while not (found := [*nodes.folder.glob("tmp/*/output/out.npy.job/logs/done-3-node2-*.json")]):
            assert time.monotonic() < until and not ended.done(), ended.result()
            time.sleep(0.01)
        pid, shards = int(found[0].stem.rpartition("-")[2]), found[0].parents[1] / "shards"
        while not [*shards.glob(f".*.part.node2-{pid}-*.tmp")]:  # it is stopped in the midst of a shard
            os.kill(pid, signal.SIGCONT)
            time.sleep(0.001)
            os.kill(pid, signal.SIGSTOP)
        os.kill(pid, signal.SIGKILL)
        assert "rank 3 on node2" in ended.result()
    while os.listdir(nodes.folder / "tmp"):
        assert time.monotonic() < until
        time.sleep(0.01)
    assert not Path("out.npy").exists()
    deaths = [json.loads(line) for line in Path("out.npy.job/logs/deaths.jsonl").read_text().splitlines()]
    assert [(death["why"], death["killed"]) for death in deaths] == [("killed or crashed", True)]
    assert "rank 3 on node2" in Path("out.npy.job/logs/ranks.log").read_text().splitlines()[0]
    report = ranks(nodes, *job, "-o", "out.npy")
    assert Path("out.npy").read_bytes() == Path("whole.npy").read_bytes()
    assert report["job"]["computed"] <= 1024
