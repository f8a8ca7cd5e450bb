"""A file of numbers, its squares, and jobs in processes of their own."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import toy_jobs
from tilewright.runtime.jobs import durable

TESTS = str(Path(toy_jobs.__file__).parent)


class Place:
    """A directory with an input of numbers. squares: what the output must be."""

    def __init__(self, path):
        self.path = path
        self.input, self.output, self.notes = (str(path / name) for name in ("in", "out", "notes"))
        os.mkdir(self.notes)
        self.fill(40)

    def fill(self, count):
        """An input of `count` numbers: ten shards of four, where it is 40."""
        self.squares = toy_jobs.numbers(self.input, count)

    def task(self, **knobs):
        return toy_jobs.Squares(self.input, knobs=toy_jobs.Knobs(notes=self.notes, **knobs))

    def check(self, squares=None):
        """The output is right, and nothing else was left beside it."""
        with open(self.output, "rb") as file:
            assert file.read() == (self.squares if squares is None else squares)
        assert sorted(os.listdir(self.path)) == ["in", "notes", "out", "out.job"]
        assert self.temporary() == []

    def temporary(self):
        """Temporary files anywhere."""
        return [name for _, _, names in os.walk(self.path) for name in names if name.endswith(".tmp")]

    def parts(self):
        """Committed shards."""
        return sorted(name for name in os.listdir(f"{self.output}.job/shards") if name.endswith(".part"))

    def begun(self):
        """(shard, pid, worker) of each shard that was begun, in order."""
        try:
            with open(f"{self.notes}/log") as file:
                return [tuple(map(int, line.split())) for line in file]
        except FileNotFoundError:
            return []

    def command(self, engine=2, **said):
        """The arguments of a job in a process of its own."""
        said = {"input": self.input, "output": self.output, "engine": engine, **said}
        said["knobs"] = {"notes": self.notes, **said.get("knobs", {})}
        code = f"import sys; sys.path.insert(0, {TESTS!r}); import toy_jobs; toy_jobs.main()"
        return [sys.executable, "-c", code, json.dumps(said)]

    def start(self, before=(), **said):
        """Popen of that, in a process group of its own. before: a launcher."""
        return subprocess.Popen(
            [*before, *self.command(**said)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def wait_for(self, shards, seconds=300):
        """Returns as soon as so many shards are begun."""
        until = time.monotonic() + seconds
        while len(self.begun()) < shards:
            assert time.monotonic() < until, f"{len(self.begun())} shards were begun"
            time.sleep(0.005)


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch):
    """Here fsync takes no time: only a power cut tells the difference, and test_directory.py has its own."""
    monkeypatch.setattr(os, "fsync", os.fstat)


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(durable, "step", durable.step)  # a task may replace it
    return Place(tmp_path)


@pytest.fixture
def kill_group():
    """Ends a process group at once."""

    def call(process):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for stream in (process.stdout, process.stderr):
            stream.close()

    return call


@pytest.fixture(scope="session")
def verbs(tmp_path_factory):
    """A directory with models and inputs of `classify` and `generate`, see verb_jobs.py."""
    import verb_jobs

    path = tmp_path_factory.mktemp("verbs")
    verb_jobs.make(path)
    return path


@pytest.fixture(scope="session")
def cases(verbs, tmp_path_factory):
    """A directory with the inputs of kill_attack.py."""
    import kill_attack

    path = tmp_path_factory.mktemp("cases")
    kill_attack.fill(verbs, path)
    return path
