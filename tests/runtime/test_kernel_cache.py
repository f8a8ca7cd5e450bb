"""A home that cannot be written costs a notice and the time to compile; a directory that was chosen is refused."""

import os
import stat
from importlib import import_module

import numpy as np
import pytest
from numba import types

from named_stand_ins import stand_ins
from tilewright.errors import ResourceError, UsageError
from tilewright.runtime import start
from tilewright.runtime.kernel_cache import cache_or_none, compiling_told, first_run
from tilewright.runtime.reports import phase, quiet
from tilewright.runtime.verbs.classify import ClassifyJob, classify
from tilewright.runtime.verbs.convolve import ConvolveJob, convolve
from tilewright.runtime.verbs.draw import DrawJob, draw
from tilewright.runtime.verbs.generate import GenerateJob, generate
from tilewright.simd import cache
from tilewright.simd.kernel import Kernel, _names


@pytest.fixture
def home(tmp_path, monkeypatch):
    """HOME, which is not there yet; no other place for kernels is named."""
    monkeypatch.setenv("TILEWRIGHT_CACHE", "")  # and what is set in its place is taken back
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_a_home_that_can_be_written_is_used(home):
    assert cache_or_none() == "" and not os.environ["TILEWRIGHT_CACHE"]
    assert stat.S_IMODE(cache.directory().stat().st_mode) == 0o700


def test_a_home_that_cannot_be_written_switches_the_cache_off(home):
    home.write_text("no directory")
    notice = cache_or_none()
    assert notice.startswith(f"Compiled kernels cannot be saved in {home}/.cache/tilewright (not a directory)")
    assert "TILEWRIGHT_CACHE" in notice and "\n" not in notice
    assert os.environ["TILEWRIGHT_CACHE"] == "off" and cache_or_none() == ""  # it is said once


def test_a_first_run_says_that_it_compiles(home, monkeypatch):
    notice = first_run()
    assert (
        "Compiling kernels for this machine" in notice and f"{home}/.cache/tilewright" in notice and "\n" not in notice
    )
    cache.check(cache.directory())
    assert first_run() == notice
    (cache.directory() / "roofs.copy-0123.kernel").write_bytes(b"")
    assert first_run() == ""
    monkeypatch.setenv("TILEWRIGHT_CACHE", "off")
    assert first_run() == ""


def test_a_place_that_will_be_refused_is_not_said_to_keep_anything(home, monkeypatch):
    home.mkdir()
    (home / "file").write_text("no directory")
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(home / "file" / "x"))
    assert first_run() == ""


def test_no_home_at_all(home, monkeypatch):
    def nobody():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(cache.Path, "home", nobody)
    assert "this user has no home directory" in cache_or_none()


def test_a_default_directory_that_others_can_change_switches_the_cache_off(home):
    cache.check(cache.directory())
    cache.directory().chmod(0o777)
    where, notice = cache.directory(), cache_or_none()
    assert notice.startswith(f"{where}: refusing to load compiled kernels from this directory: others may")
    assert "every run compiles" in notice and "TILEWRIGHT_CACHE" in notice and "\n" not in notice
    assert os.environ["TILEWRIGHT_CACHE"] == "off" and cache_or_none() == ""


def test_a_chosen_directory_that_others_can_change_is_refused(home, monkeypatch):
    """Exit code 2, and the directory above is as good a way in as the directory itself."""
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(home / "x"))
    cache.check(cache.directory())
    for folder in (cache.directory(), home / "x", home):
        folder.chmod(0o777)
        with pytest.raises(UsageError, match=rf"^TILEWRIGHT_CACHE is '{home}/x': .*others may write to") as caught:
            cache_or_none()
        assert caught.value.exit_code == 2 and "'off' to compile" in str(caught.value)
        folder.chmod(0o700)
    assert cache_or_none() == ""


def test_in_python_the_default_directory_costs_a_warning_and_a_chosen_one_an_error(home, monkeypatch):
    cache.check(cache.directory())
    cache.directory().chmod(0o777)
    with pytest.warns(RuntimeWarning, match="every process compiles its kernels: .*others may write to it"):
        compiled("test.told")
    assert not any(cache.directory().iterdir())
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(home / ".cache/tilewright"))
    with pytest.raises(ResourceError, match="others may write to it"):
        compiled("test.told")


def test_a_chosen_directory_that_cannot_be_made_is_refused(home, monkeypatch):
    home.mkdir()
    (home / "file").write_text("no directory")
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(home / "file" / "x"))
    with pytest.raises(UsageError, match=r"^TILEWRIGHT_CACHE is '.*file/x', where no directory can be made: not a dir"):
        cache_or_none()
    with pytest.raises(ResourceError, match=r"cannot be made.*TILEWRIGHT_CACHE"):
        cache.check(cache.directory())


def test_a_chosen_place_that_cannot_be_is_refused_before_anything_is_begun(tmp_path, monkeypatch):
    stand_ins(tmp_path / "models")
    (tmp_path / "file").write_text("no directory")
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "file" / "x"))
    run, job = job_of("draw", tmp_path)
    with pytest.raises(UsageError, match="TILEWRIGHT_CACHE"):
        run(job)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "models"]


@pytest.mark.parametrize("name", ["cache_or_none", "first_run"])
def test_a_job_says_it_and_goes_on(name, tmp_path, monkeypatch):
    stand_ins(tmp_path / "models")
    monkeypatch.setattr(start, "cache_or_none", lambda: "cannot be kept" if name == "cache_or_none" else "")
    monkeypatch.setattr(start, "first_run", lambda: "cannot be kept")
    said: list[str] = []
    job = DrawJob(str(tmp_path / "models/portraits"), None, str(tmp_path / "out.npy"), count=1)
    assert draw(job, said.append).records == 1
    assert said.count("cannot be kept") == 1


def compiled(name):
    """Compiles a kernel, or reads it from where an earlier one of that name was kept."""
    _names.discard(name)
    Kernel(lambda i: i + 1, types.intp(types.intp), name).compiled()


def test_what_earlier_runs_did_not_need_is_said_to_be_compiled(home, monkeypatch):
    said: list[str] = []
    with compiling_told(said.append):
        compiled("test.told")
        compiled("test.told_once")
    assert len(said) == 1 and f"{home}/.cache/tilewright" in said[0] and "\n" not in said[0]
    with compiling_told(said.append):
        compiled("test.told")  # it is kept
    monkeypatch.setenv("TILEWRIGHT_CACHE", "off")
    with compiling_told(said.append):
        compiled("test.told")
    assert len(said) == 1


def test_a_first_run_is_told_once(home):
    assert first_run()
    said: list[str] = []
    with compiling_told(said.append):
        compiled("test.told")
    assert said == []


def job_of(verb, path):
    model, output = str(path / "models"), str(path / "out")
    if verb == "classify":
        (path / "in.jsonl").write_text('{"text": "a film"}\n')
        return classify, ClassifyJob(f"{model}/critic", str(path / "in.jsonl"), f"{output}.jsonl")
    if verb == "generate":
        (path / "in.jsonl").write_text('{"prompt": "a film"}\n')
        return generate, GenerateJob(f"{model}/poet", str(path / "in.jsonl"), f"{output}.jsonl")
    if verb == "draw":
        return draw, DrawJob(f"{model}/portraits", None, f"{output}.npy", count=1)
    np.save(path / "in.npy", np.ones((3, 3, 3), np.float32))
    return convolve, ConvolveJob(str(path / "in.npy"), "box:3", f"{output}.npy")


@pytest.mark.parametrize("verb", ["classify", "generate", "draw", "convolve"])
def test_a_worker_that_compiles_says_so(verb, tmp_path, monkeypatch):
    """Its own kernels are compiled in this process already, so that one more stands for them."""
    stand_ins(tmp_path / "models")
    said: list[str] = []

    def compiling(*names):
        compiled("test.told")
        return phase(*names)

    run, job = job_of(verb, tmp_path)
    run(job, quiet)
    module = import_module(f"tilewright.runtime.verbs.{verb}.worker")
    monkeypatch.setattr(module, "phase", compiling)
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(start, "first_run", lambda: "")
    job.output = job.output.replace("out", "again")
    run(job, said.append)
    assert sum("Compiling more kernels" in line for line in said) == 1
