"""Jobs on real Ray clusters of several nodes, which are processes of this machine. The head has no cores and no GPU."""

import contextlib
import hashlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import types
from pathlib import Path

import psutil
import pytest

import tilewright
import toy_jobs
from tilewright.errors import InternalError, ResourceError
from tilewright.runtime.engines import ray as module
from tilewright.runtime.engines.local import Local
from tilewright.runtime.engines.ray import Ray
from tilewright.runtime.engines.schedule import KILLS, TRIES
from tilewright.runtime.jobs.run import run
from tilewright.runtime.jobs.settings import Settings
from tilewright.runtime.jobs.task import Watch

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed"),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning", "ignore::FutureWarning"),
]

SOURCES = str(Path(tilewright.__file__).parents[1]), str(Path(toy_jobs.__file__).parent)
DIED = "The actor died unexpectedly before finishing this task."  # Ray's words
STORE = 80 << 20  # bytes of a node's object store, the least that Ray takes


class Nodes:
    """A cluster: a head without cores, and the nodes that a test adds."""

    def __init__(self):
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 0, "num_gpus": 0, "object_store_memory": STORE, "include_dashboard": False}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)

    def add(self, cpus=1, gpus=0):
        """A node that this process does not wait for."""
        return self.cluster.add_node(wait=False, num_cpus=cpus, num_gpus=gpus, object_store_memory=STORE)

    def ready(self, *cpus):
        """Nodes with so many cores."""
        nodes = [self.add(count) for count in cpus]
        self.cluster.wait_for_nodes()
        return nodes

    @staticmethod
    def processes(node):
        """The raylet of a node, and all that it has started."""
        raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
        return [raylet, *raylet.children(recursive=True)]

    def kill(self, node):
        """The machine is gone: no process of it says goodbye."""
        for process in self.processes(node):
            process.kill()

    def clear(self):
        """Remove all nodes but the head, with what they have started."""
        for node in list(self.cluster.worker_nodes):
            left = self.processes(node) if node.any_processes_alive() else []
            self.cluster.remove_node(node)
            for process in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()


@pytest.fixture(scope="module")
def cluster():
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RAY_ADDRESS", raising=False)
        patch.setenv("PYTHONPATH", os.pathsep.join([*SOURCES, os.environ.get("PYTHONPATH", "")]))  # of the workers
        found = Nodes()
        patch.setenv("RAY_ADDRESS", found.cluster.address)  # for `ray.init` of the engine and of other processes
        yield found
        found.clear()
        found.cluster.shutdown()


@pytest.fixture
def nodes(cluster):
    yield cluster
    cluster.clear()


class Told(Watch):
    """Calls `each(record, worker)` for a committed shard, `begun()` as the first shard is handed out, and `lacking()`
    the first time that the job waits."""

    def __init__(self, each=lambda record, worker: None, begun=lambda: None, lacking=lambda: None):
        self._each, self._begun, self._lacking, self.said = each, [begun], lacking, []

    def at_work(self, worker, done, share=None):
        while self._begun:
            self._begun.pop()()

    def committed(self, record, worker):
        if worker is not None:
            self._each(record, worker)

    def waiting(self, why):
        self.said.append(why)
        if len(self.said) == 1:
            self._lacking()


def sha256(path):
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def test_two_nodes_with_cores_one_with_a_gpu_and_a_head_without_either(place, nodes):
    """4 workers are asked for, and 3 nodes have a core each: 3 work. The bytes are those of a local run."""
    place.fill(400)
    nodes.ready(1, 1)
    nodes.add(1, gpus=1)
    nodes.cluster.wait_for_nodes()
    raylets = set()

    def each(record, worker):
        for _, pid, _ in place.begun():
            if psutil.pid_exists(pid):
                raylets.add(psutil.Process(pid).ppid())

    report = run(place.task(slow=0.02), place.output, Ray(4), watch=Told(each))
    place.check()
    assert report.facts == {"workers": 3, "replaced": 0} and len(raylets) == 3
    local = f"{place.path}/local"
    run(place.task(), local, Local(2))
    assert sha256(local) == sha256(place.output) == report.sha256


def test_workers_on_gpus_need_no_cores(place, nodes, monkeypatch):
    """These nodes only say that they have a GPU."""
    place.fill(8)
    monkeypatch.setattr(module, "no_gpu", lambda: "")
    for _ in range(2):
        nodes.add(0, gpus=1)
    nodes.cluster.wait_for_nodes()
    run(toy_jobs.Looking(place.input), place.output, Ray(2, gpu=True), Settings(shard_size=1))
    said = [json.loads(line) for line in Path(place.output).read_bytes().splitlines()]
    assert {(look["worker"], look["gpu"]) for look in said} == {(0, "0"), (1, "0")}
    assert len({look["parent"] for look in said}) == 2  # nodes


def test_workers_of_a_node_use_the_cores_that_ray_counts(place, nodes):
    """No worker is pinned: two could be pinned to the same core. Each runs as many threads as it has cores."""
    nodes.ready(4)
    place.fill(8)
    run(toy_jobs.Looking(place.input), place.output, Ray(2), Settings(shard_size=1))
    said = [json.loads(line) for line in Path(place.output).read_bytes().splitlines()]
    assert {look["worker"] for look in said} == {0, 1} and {look["threads"] for look in said} == {2}
    assert all(look["cores"] == sorted(os.sched_getaffinity(0)) for look in said)


def test_a_node_that_vanishes(place, nodes):
    """Its shard is run again on the other node."""
    place.fill(400)
    lost, _ = nodes.ready(1, 1)
    killed = []

    def each(record, worker):
        if not killed and len({number for _, _, number in place.begun()}) == 2:
            killed.append(lost)
            nodes.kill(lost)

    report = run(place.task(slow=0.02), place.output, Ray(2), watch=Told(each))
    place.check()
    assert report.facts["replaced"] >= 1 and report.facts["workers"] == 2


def test_a_node_that_joins(place, nodes):
    """The first record waits until a worker on the new node has committed a shard."""
    nodes.ready(1)

    watch = Told(each=lambda record, worker: Path(place.notes, "go").touch(), begun=lambda: nodes.add(1))
    report = run(place.task(trouble={0: ("wait", 1)}), place.output, Ray(8), watch=watch)
    place.check()
    assert report.facts == {"workers": 2, "replaced": 0}


def test_a_cluster_without_nodes_for_workers(place, nodes):
    """The job waits, and says so. Its pending actors are what an autoscaler counts."""
    watch = Told(lacking=lambda: nodes.add(1))
    run(place.task(), place.output, Ray(2), watch=watch)
    place.check()
    assert watch.said[0] == "no node of the Ray cluster has 1 free core; the job waits for one"


def test_actors_that_are_killed_or_hang(place, nodes, capsys):
    nodes.ready(2)
    trouble = {6: ("kill", 1), 20: ("exit", 1), 30: ("hang", 1)}
    report = run(place.task(trouble=trouble), place.output, Ray(2), Settings(watchdog=5.0))
    assert Path(place.output).read_bytes() == place.squares  # the killed process may not have ended yet
    assert report.errors == 0 and report.facts["replaced"] >= 3
    assert capsys.readouterr().out == ""  # what Ray prints about its nodes is in logs/ray.log
    assert "worker" in Path(f"{place.output}.job/logs/ray.log").read_text()


@pytest.mark.parametrize(
    ("what", "replaced", "why"),
    [
        ("crash", 2 * TRIES, "Segmentation fault"),
        ("raise", 2 * TRIES, "ZeroDivisionError('record 6')"),
        ("kill", TRIES + KILLS, f"{DIED} (killed from outside: the next run tries it again)"),
    ],
)
def test_a_record_that_ends_its_worker(place, nodes, what, replaced, why):
    nodes.ready(2)
    report = run(place.task(trouble={6: (what, 9)}), place.output, Ray(2))
    place.check(place.squares[:48] + place.squares[56:])
    assert (report.errors, report.facts["replaced"]) == (1, replaced)
    error = json.loads(Path(f"{place.output}.job/errors/00001.jsonl").read_text())
    assert error["message"] == f"it ended its worker: {why}"


def test_actors_that_cannot_start(place, nodes):
    nodes.ready(1)
    with pytest.raises(InternalError, match=r"an actor stopped while it started: RuntimeError\('no model'\)"):
        run(toy_jobs.Startless(place.input), place.output, Ray(2))


def test_a_task_that_a_node_cannot_import(place, nodes, monkeypatch):
    nodes.ready(1)
    elsewhere = types.ModuleType("elsewhere")
    monkeypatch.setitem(sys.modules, "elsewhere", elsewhere)
    elsewhere.Squares = type("Squares", (toy_jobs.Squares,), {"__module__": "elsewhere"})
    with pytest.raises(InternalError, match=r"an actor stopped while it started: .*No module named 'elsewhere'"):
        run(elsewhere.Squares(place.input), place.output, Ray(1))


def test_a_node_of_another_kind(place, nodes):
    """Its results would differ in the last bits."""
    nodes.ready(1)
    with pytest.raises(ResourceError, match=r'has the device "cpu, .*", and the job was begun with "cpu, 0 lanes"'):
        run(toy_jobs.Elsewhere(place.input), place.output, Ray(1))


def test_a_head_without_a_gpu_asks_a_node(place, nodes):
    """The node says that it has a GPU, and has none: its error is told, not one of the head."""
    nodes.add(0, gpus=1)
    Path(place.input).write_text("Dull.\n")
    with pytest.raises(ResourceError, match="there is no GPU to run on"), Ray(1, gpu=True):
        pass


def test_a_signal_and_another_engine(place, nodes, kill_group):
    """`ray.init` takes SIGTERM for itself: the job takes it back, and the running shards are committed."""
    nodes.ready(1, 1)
    place.fill(400)
    job = place.start(engine="ray", knobs={"slow": 0.02})
    try:
        place.wait_for(4)
        job.send_signal(signal.SIGTERM)
        _, said = job.communicate()
        assert job.returncode == 75 and "stopped by SIGTERM" in said
        begun = len(place.begun())
        assert 4 <= begun == len(place.parts()) < 100
    finally:
        kill_group(job)
    report = run(place.task(), place.output, Local(2))
    place.check()
    assert report.computed == 100 - begun


def test_a_verb(place, nodes):
    """The command, as a user types it."""
    nodes.ready(1, 1)
    reviews = f"{place.input}.txt"
    Path(reviews).write_text("A warm, funny film.\nDull.\n" * 200)
    command = [sys.executable, "-m", "tilewright", "classify", "--model", "critic", "-i", reviews, "--json"]
    shas = []
    for engine in (["--engine", "inline"], ["--engine", "ray", "--workers", "2"]):
        done = subprocess.run(
            [*command, *engine, "-o", f"{place.output}{len(shas)}.jsonl", "--shard-size", "1K"],
            capture_output=True,
            text=True,
            check=True,
        )
        shas.append(json.loads(done.stdout)["job"]["sha256"])
    assert shas[0] == shas[1]
