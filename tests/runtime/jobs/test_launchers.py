"""Processes that a launcher of MPI started, and the one job that they were to do together."""

import json
import mmap
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import toy_jobs
from tilewright.errors import UsageError
from tilewright.runtime.engines.inline import Inline
from tilewright.runtime.engines.launchers import SIZES, check_alone, check_size, unlink_shared_memory
from tilewright.runtime.jobs.settings import Settings
from tilewright.runtime.start import engine_of

MPIEXEC = next((path for path in (Path(sys.executable).with_name("mpiexec"), shutil.which("mpiexec")) if path), None)


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    """However the tests themselves were started."""
    for name in [name for name in os.environ if name in SIZES or name.startswith("SLURM_")]:
        monkeypatch.delenv(name)


@pytest.mark.parametrize("name", SIZES)
def test_copies_of_rank_0_of_1(monkeypatch, name):
    monkeypatch.setenv(name, "4")
    check_size(4)
    with pytest.raises(UsageError, match=rf"started 4 processes \({name}\) and MPI sees one"):
        check_size(1)
    monkeypatch.setenv(name, "1")
    check_size(1)


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize(("engine", "workers"), [(None, None), ("inline", None), ("local", 2), ("ray", 2)])
def test_ranks_without_the_engine_for_them(monkeypatch, name, engine, workers):
    monkeypatch.setenv(name, "4")
    with pytest.raises(UsageError, match=rf"started 4 times by an MPI launcher \({name}\).*Add --engine mpi") as caught:
        engine_of(Settings(engine=engine, workers=workers), "cpu")
    assert caught.value.exit_code == 2


def test_all_names_that_say_so_are_told(monkeypatch):
    """Of an mpiexec that sets several: to do what the remedy says is enough."""
    monkeypatch.setenv("PMI_SIZE", "4")
    monkeypatch.setenv("MPI_LOCALNRANKS", "2")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "1")
    with pytest.raises(UsageError, match=r"started 4 processes \(PMI_SIZE, MPI_LOCALNRANKS\)"):
        check_size(1)
    with pytest.raises(UsageError, match=r"4 times by an MPI launcher \(PMI_SIZE, MPI_LOCALNRANKS\)") as caught:
        check_alone()
    assert caught.value.remedy.endswith("unset PMI_SIZE MPI_LOCALNRANKS")
    for name in caught.value.remedy.partition("unset ")[2].split():
        monkeypatch.delenv(name)
    check_alone()


@pytest.mark.parametrize(
    "there",
    [
        {},
        {"PMI_SIZE": "1", "PMI_RANK": "0"},
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_STEP_NUM_TASKS": "1"},  # an array's task, under srun
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "8"},  # a batch script, which runs once
        {"PMI_SIZE": ""},
    ],
)
def test_one_process_may_do_it_all(monkeypatch, there):
    for name, value in there.items():
        monkeypatch.setenv(name, value)
    check_alone()
    assert isinstance(engine_of(Settings(), "cpu"), Inline)


def test_ranks_may_take_parts(monkeypatch):
    """`srun -n 4 sh -c 'tilewright ... --part $SLURM_PROCID/4'`: they know how to share."""
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
    assert isinstance(engine_of(Settings(part=(1, 4)), "cpu"), Inline)


@pytest.mark.skipif(not MPIEXEC or not Path(MPIEXEC).exists(), reason="mpiexec is not installed: pip install mpich")
def test_the_command_under_mpiexec(tmp_path):
    """Refused by each, with exit code 2, before anything is written."""
    code = "from tilewright.runtime.convert.models import init_dcgan; init_dcgan('m', 1, z_size=4, channels=(8, 4, 3))"
    path = os.pathsep.join([str(Path(toy_jobs.__file__).parents[1] / "src"), os.environ.get("PYTHONPATH", "")])
    setting = {"cwd": tmp_path, "env": os.environ | {"PYTHONPATH": path}, "capture_output": True, "text": True}
    subprocess.run([sys.executable, "-c", code], check=True, **setting)
    command = ["-m", "tilewright", "draw", "-p", "m", "-n", "4", "-o", "out.npy"]
    done = subprocess.run([MPIEXEC, "-n", "2", sys.executable, *command], check=False, **setting)
    assert done.returncode == 2 and done.stderr.count("this was started 2 times by an MPI launcher") >= 1, done
    assert os.listdir(tmp_path) == ["m"]
    parts = [MPIEXEC, "-n", "1", sys.executable, *command, "--json"]
    done = subprocess.run(parts, check=False, **setting)
    assert done.returncode == 0 and json.loads(done.stdout)["records"] == 4, done


def test_shared_memory_loses_its_name(tmp_path):
    """Of MPICH's alone; a second call finds nothing."""
    names = [f"/dev/shm/{kind}_{tmp_path.parent.name}_{os.getpid()}" for kind in ("mpich_shm", "other_shm")]  # noqa: S108
    maps = []
    try:
        for name in names:
            with open(name, "w+b") as file:
                file.truncate(4096)
                maps.append(mmap.mmap(file.fileno(), 4096))
        for _ in range(2):
            unlink_shared_memory()
            assert [os.path.exists(name) for name in names] == [False, True]
        maps[0][:2] = b"ab"
    finally:
        os.unlink(names[1])
        for each in maps:
            each.close()
