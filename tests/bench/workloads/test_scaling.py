"""Whole jobs by 1 and 2 workers: tiny models, the command line itself."""

import importlib.util
import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tilewright.bench.report.tables import bench_tables
from tilewright.bench.workloads import scaling as module
from tilewright.bench.workloads.scaling import JOBS, Run, Setting, bench, seconds_together
from tilewright.errors import InternalError, ResourceError


@pytest.fixture
def setting(tmp_path, monkeypatch):
    """As many cores as are asked for, whatever this machine has."""
    monkeypatch.setattr(module.os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)
    monkeypatch.setattr(module.os, "sched_setaffinity", lambda pid, cores: None, raising=False)
    return Setting(tmp_path, (1, 2), tiny=True, tokens=2)


@pytest.fixture
def pretend(monkeypatch):
    """Runs that take 12 s and a worker's part of 8 s, with these digests; returns the commands."""

    def call(*digests):
        left, commands = list(digests), []

        def run(job, command, workers, setting):
            commands.append(command)
            return Run(8 / workers, 12 + 8 / workers, 5 * workers, left.pop(0))

        monkeypatch.setattr(module, "_run", run)
        monkeypatch.setattr(module, "_call", lambda command, environment: made(command))
        return commands

    def made(command):
        model = Path(command[command.index("init") + 2])
        model.mkdir()
        (model / "config.json").write_text(json.dumps({"vocab_size": 50}))

    return call


@pytest.mark.parametrize("job", JOBS)
def test_rows_and_their_table(setting, pretend, job):
    commands, said = pretend("warm", "a", "a"), []
    rows = bench(job, 3000, setting, said.append)
    assert [(row.rung, row.median_s, row.one_off_s, row.versus_below) for row in rows] == [
        ("local, 1", 8.0, 12.0, 1.0),
        ("local, 2", 4.0, 12.0, 2.0),
    ]
    assert {row.check for row in rows} == {"same bytes, SHA-256 a"}
    assert commands[0][-2:] == ["--count", "1024"] and commands[1] == commands[2]
    assert {sum(word in ("-n", "--count") for word in command) for command in commands} == {1}
    if job == "gpt2":  # greedy, as the other rows of GPT-2
        assert all(command[command.index("--temperature") + 1] == "0" for command in commands)
    assert said[1] == f"{job}, local, 2: 4.00 s, 100% of linear, 12.00 s besides, 10 shards"
    (table,) = bench_tables(rows)
    assert table.rows[1][2:] == ("local", "1 core", "2", "750", "4", "12", "2.00", "100")
    assert (setting.folder / f"{job}.tiny.3000.bin").stat().st_size == 3000 * 16 * 4
    pretend("a", "a")  # what is warm is not warmed again
    bench(job, 3000, setting, said.append)


def test_a_gpu_warms_up_with_all_records(setting, pretend, monkeypatch):
    """Full batches compile kernels that few records do not need: they took 4 of 5 s of the first measured run."""
    monkeypatch.setattr("tilewright.hardware.gpus", lambda: [None, None])
    on_gpu = replace(setting, device="cuda")
    counts = []
    for count, digests in ((3000, "aaa"), (2000, "aa"), (4000, "aaa")):
        commands = pretend(*digests)
        bench("gpt2", count, on_gpu, lambda text: None)
        counts.append([command[-1] for command in commands])
    assert counts == [["3000"] * 3, ["2000"] * 2, ["4000"] * 3]


def test_a_folder_that_is_used_again_mixes_no_tiny_models_with_others(setting, pretend):
    models = []
    for tiny in (True, False, True):
        commands = pretend("a", "a", "a")
        bench("gpt2", 3000, replace(setting, tiny=tiny), print)
        models.append({command[command.index("--model") + 1] for command in commands})
    assert models == [{str(setting.folder / name)} for name in ("gpt2.tiny", "gpt2", "gpt2.tiny")]


def test_an_input_that_was_not_written_to_its_end_is_written_again(setting, pretend, monkeypatch):
    class Stopped:
        def integers(self, *given):
            raise KeyboardInterrupt

    pretend()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(module.np.random, "default_rng", lambda seed: Stopped())
        bench("gpt2", 3000, setting, print)
    assert not [*setting.folder.glob("*.bin")]
    pretend("warm", "a", "a")
    bench("gpt2", 3000, setting, print)
    assert (setting.folder / "gpt2.tiny.3000.bin").stat().st_size == 3000 * 16 * 4


def test_rows_of_other_numbers_of_new_tokens_have_another_size(setting, pretend):
    for tokens, size in ((8, "gpt2, 10 prompts"), (128, "gpt2, 10 prompts, 128 new tokens each")):
        pretend("a", "a", "a")
        rows = bench("gpt2", 10, replace(setting, tiny=False, tokens=tokens), print)
        assert {row.size for row in rows} == {size}


def test_workers_that_begin_one_after_the_other():
    """At 3 s both run: until 7 s they do 3.5 of the 5 shards."""
    shards = [(0, 0), (0, 2), (0, 4), (1, 3), (1, 5)]
    events = [{"pid": pid, "ts": 1e6 * begin, "dur": 2e6} for pid, begin in shards]
    assert seconds_together(events) == pytest.approx(4 * 5 / 3.5)
    assert seconds_together(events[:3]) == pytest.approx(6)
    each_one = [events[0], {"pid": 1, "ts": 1e6, "dur": 2e6}]  # the first is idle while the second ends
    assert seconds_together(each_one) == pytest.approx(2)
    late = [events[0], {"pid": 1, "ts": 1.5e6, "dur": 2e6}]  # it would have been alone for too long
    assert seconds_together(late) == pytest.approx(2 * 2 / 1.25)


def test_other_bytes(setting, pretend):
    pretend("warm", "a", "b")
    with pytest.raises(InternalError, match="gpt2: 2 workers and one do not give the same bytes"):
        bench("gpt2", 10, setting, print)


def test_too_few_cores(setting):
    with pytest.raises(ResourceError, match="4 workers need as many cores, and there are 2"):
        bench("gpt2", 10, replace(setting, workers=(1, 4)), print)


def test_a_run_that_fails(setting, monkeypatch):
    monkeypatch.setitem(module.TINY, "dcgan", "--channels 8,4,3 --base-size 0")
    with pytest.raises(InternalError, match=r"init dcgan .* ends with exit code 2: .*base-size"):
        bench("dcgan", 10, setting, print)


@pytest.mark.parametrize("job", [pytest.param(job, marks=[pytest.mark.long] * (job == "dcgan-pixels")) for job in JOBS])
@pytest.mark.parametrize("workers", [(1,), pytest.param((1, 2), marks=pytest.mark.long)])
def test_whole_runs(tmp_path, monkeypatch, workers, job):
    """The whole way: rows whose times are those of the shards."""
    monkeypatch.setattr(module.os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)
    monkeypatch.setattr(module.os, "sched_setaffinity", lambda pid, cores: None, raising=False)
    (tmp_path / f"{job}.tiny.cpu.float32.warm").touch()
    rows = bench(job, 300, Setting(tmp_path, workers, tiny=True, tokens=2), lambda text: None)
    assert [row.rows for row in rows] == [300] * len(workers) and all(0 < row.median_s < row.one_off_s for row in rows)
    assert not [*tmp_path.glob(f"{job}{module.ENDINGS[job]}*")]


MPIEXEC = shutil.which("mpiexec") or Path(sys.executable).with_name("mpiexec").exists()


@pytest.mark.long
@pytest.mark.skipif(not MPIEXEC or not importlib.util.find_spec("mpi4py"), reason="pip install mpi4py mpich")
def test_sixteen_ranks(tmp_path):
    """They share this machine's cores and write the bytes of one process, which `bench` compares."""
    plan = Setting(tmp_path, (1, 16), engine="mpi", tiny=True)
    rows = bench("dcgan", 2048, plan, lambda text: None)
    cores = min(len(os.sched_getaffinity(0)), 16)
    assert rows[1].point == f"workers=16, hosts=1, devices={cores}"
    assert rows[0].point.startswith("workers=1, hosts=1")
    (table,) = bench_tables(rows)
    assert cores == 16 or f"workers share cores or GPUs (16 on {cores})" in table.notes[0]
