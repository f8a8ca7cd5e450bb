"""--job-dir: the state of a job is in another directory, and every command finds it by the output."""

import os
import shutil
import signal
import time
from pathlib import Path

import pytest

import toy_jobs
from tilewright.errors import InputError, ResourceError, UsageError
from tilewright.runtime.engines.inline import Inline
from tilewright.runtime.engines.local import Local
from tilewright.runtime.jobs import location
from tilewright.runtime.jobs.directory import JobDirectory
from tilewright.runtime.jobs.location import job_path, output_in
from tilewright.runtime.jobs.manifest import encoded, seal
from tilewright.runtime.jobs.merge import verify
from tilewright.runtime.jobs.run import run
from tilewright.runtime.jobs.settings import Settings
from tilewright.runtime.jobs.status import status


@pytest.fixture(name="far")
def _far(tmp_path_factory):
    return str(tmp_path_factory.mktemp("scratch") / "state")


def files(place):
    return sorted(os.listdir(place.path))


@pytest.mark.parametrize("engine", [Inline, pytest.param(lambda: Local(2), marks=pytest.mark.long)])
def test_a_job_keeps_its_state_elsewhere(place, far, engine):
    os.mkdir(far)  # an empty directory is as good as none
    run(place.task(), place.output, engine(), Settings(job_dir=far))
    place.check()
    assert os.path.isfile(f"{place.output}.job") and len(os.listdir(f"{far}/shards")) == 10
    assert job_path(place.output) == far and output_in(far) == place.output
    assert (status(place.output).state, verify(place.output).intact) == ("finished", True)
    assert run(place.task(), place.output, Inline()).computed == 0, "without the option, too"
    os.unlink(f"{far}/shards/00003.part")
    assert run(place.task(), place.output, Inline(), Settings(job_dir=far)).computed == 1
    assert run(place.task(), place.output, Inline(), Settings(restart=True)).computed == 10
    assert files(place) == ["in", "notes", "out", "out.job"] and os.path.isfile(f"{place.output}.job")


@pytest.mark.parametrize("engine", ["inline", pytest.param(2, marks=pytest.mark.long)])
def test_a_killed_job_goes_on(place, far, kill_group, engine):
    """By the same command without the option."""
    process = place.start(engine=engine, knobs={"slow": 0.05}, options={"job_dir": far})
    until = time.monotonic() + 300
    while not os.path.isdir(f"{far}/shards") or not any(name.endswith(".part") for name in os.listdir(f"{far}/shards")):
        assert time.monotonic() < until and process.poll() is None
        time.sleep(0.005)
    assert status(place.output).state == "running"
    kill_group(process)
    found = status(place.output)
    assert found.state == "stopped" and 0 < found.done < 10
    assert run(place.task(), place.output, Inline()).computed <= 10 - found.done
    place.check()


def test_another_directory_is_refused(place, far):
    """It would start anew, and silently."""
    run(place.task(), place.output, Inline(), Settings(job_dir=far))
    with pytest.raises(UsageError, match=f"the state of this job is in {far}, and --job-dir names another directory"):
        run(place.task(), place.output, Inline(), Settings(job_dir=f"{far}2"))
    with pytest.raises(UsageError, match="another directory"):
        run(place.task(), place.output, Inline(), Settings(job_dir=f"{far}2", restart=True))
    assert not os.path.exists(f"{far}2")
    os.unlink(f"{place.output}.job")
    assert run(place.task(), place.output, Inline(), Settings(job_dir=f"{far}2", keep_others=False)).computed == 10


def test_a_job_that_has_its_state_beside_its_output(place, far):
    run(place.task(), place.output, Inline())
    with pytest.raises(UsageError, match=rf"the state of this job is in {place.output}\.job, and --job-dir"):
        run(place.task(), place.output, Inline(), Settings(job_dir=far))
    os.rename(f"{place.output}.job", far)
    assert run(place.task(), place.output, Inline(), Settings(job_dir=far)).computed == 0, "it may be moved"
    assert run(place.task(), place.output, Inline(), Settings(job_dir=far)).computed == 0


def test_a_directory_of_another_job(place, far, tmp_path):
    run(place.task(), place.output, Inline(), Settings(job_dir=far))
    with pytest.raises(UsageError, match=f"this directory holds the state of the job of {place.output}"):
        run(place.task(), str(tmp_path / "second"), Inline(), Settings(job_dir=far))
    assert not os.path.exists(tmp_path / "second.job") and status(place.output).state == "finished"
    run(place.task(), str(tmp_path / "third"), Inline())
    with pytest.raises(UsageError, match=r"this directory holds the state of the job of .*third"):
        run(place.task(), str(tmp_path / "fourth"), Inline(), Settings(job_dir=str(tmp_path / "third.job")))


def test_wrong_directories(place, far, tmp_path):
    for wrong, said in (
        (f"{place.output}/state", "inside each other"),
        (str(tmp_path), "inside each other"),
        (place.notes, "is not empty, and holds no job"),
        ("s3://bucket/state", "is the URL 's3://bucket/state', and the output is a local one"),
    ):
        Path(place.notes, "mine").touch()
        with pytest.raises(UsageError, match=said):
            run(place.task(), place.output, Inline(), Settings(job_dir=wrong))
        assert files(place) == ["in", "notes"] and os.listdir(place.notes) == ["mine"]
    with pytest.raises(ResourceError, match="there is no directory"):
        run(place.task(), place.output, Inline(), Settings(job_dir=f"{far}/deep"))
    assert files(place) == ["in", "notes"]


def test_a_job_that_fails_at_once_leaves_nothing(place, far):
    class Refusing(toy_jobs.Squares):
        def open(self, place):
            raise InputError("is not to my taste", path=self.input)

    for ready in (False, True):
        if ready:
            os.mkdir(far)
        with pytest.raises(InputError):
            run(Refusing(place.input), place.output, Inline(), Settings(job_dir=far))
        assert files(place) == ["in", "notes"] and os.path.isdir(far) == ready
    assert os.listdir(far) == []


def test_the_file_of_another_user(place, far, monkeypatch):
    run(place.task(), place.output, Inline(), Settings(job_dir=far))
    monkeypatch.setattr(location, "trusted", lambda folder, owner: False)
    with pytest.raises(ResourceError, match=r"made this file in .*, where anyone may write"):
        status(place.output)


def test_a_file_that_names_nothing(place):
    Path(f"{place.output}.job").write_text("{}")
    with pytest.raises(ResourceError, match="is a symbolic link or a file, and a job's directory is wanted"):
        run(place.task(), place.output, Inline())


@pytest.mark.parametrize("directory", ["", "state", "/a\0b", "/a/../b", "/", "/proc", "/dev/null", "s3://bucket/x"])
def test_a_file_that_was_edited(place, far, directory):
    """It names what no run would write, and its seal fits."""
    run(place.task(), place.output, Inline(), Settings(job_dir=far))
    content = location.Location(directory=directory, output=place.output)
    Path(f"{place.output}.job").write_bytes(encoded(seal(content)))
    with pytest.raises((UsageError, ResourceError)):
        run(place.task(), place.output, Inline())
    with pytest.raises((UsageError, ResourceError)):
        status(place.output)
    assert output_in(far) is None


@pytest.mark.parametrize("part", [(0, 2), pytest.param((1, 2), marks=pytest.mark.long)])
def test_parts_share_the_directory(place, far, part):
    run(place.task(), place.output, Inline(), Settings(job_dir=far, part=part))
    other = (1 - part[0], 2)
    run(place.task(), place.output, Inline(), Settings(job_dir=far, part=other))
    assert run(place.task(), place.output, Inline()).computed == 0
    place.check()


def test_a_lost_directory_is_made_again(place, far):
    """The state may be deleted; then the job begins anew in the same directory."""
    run(place.task(), place.output, Inline(), Settings(job_dir=far))
    shutil.rmtree(far)
    assert run(place.task(), place.output, Inline(), Settings(keep_others=False)).computed == 10
    with JobDirectory(place.output) as directory:
        assert directory.path == far


@pytest.mark.long
def test_signals_are_told_with_the_directory(place, far):
    process = place.start(engine="inline", knobs={"slow": 0.05}, options={"job_dir": far})
    place.wait_for(2)
    process.send_signal(signal.SIGTERM)
    errors = process.communicate()[1]
    assert process.returncode == 75 and "kept, and the output not written" in errors


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("/proc/dir", r"/proc/dir: no directory can be made in /proc. Choose another directory"),
        ("/nonexist/a/b", r"/nonexist/a/b: cannot make this directory: there is no directory /nonexist/a. Make it"),
    ],
)
def test_a_directory_that_cannot_be_made(place, wrong, said):
    """No other run has removed it, so the same command would not help."""
    with pytest.raises(ResourceError, match=said):
        run(place.task(), place.output, Inline(), Settings(job_dir=wrong))
