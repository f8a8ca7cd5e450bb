"""A home that cannot be written costs a notice and the time to compile; a directory that was chosen is refused."""

import os
import stat

import pytest

from named_stand_ins import stand_ins
from tilewright.errors import ResourceError
from tilewright.runtime.draw import DrawJob, draw
from tilewright.runtime.jobs import start
from tilewright.runtime.kept_kernels import cache_or_none, first_run
from tilewright.simd import cache


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
    assert notice.startswith(f"Compiled kernels cannot be kept in {home}/.cache/tilewright (not a directory)")
    assert "TILEWRIGHT_CACHE" in notice and "\n" not in notice
    assert os.environ["TILEWRIGHT_CACHE"] == "off" and cache_or_none() == ""  # it is said once


def test_a_first_run_says_that_it_compiles(home, monkeypatch):
    notice = first_run()
    assert "Nothing is compiled" in notice and f"{home}/.cache/tilewright" in notice and "\n" not in notice
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


def test_what_was_chosen_or_is_not_safe_is_refused_as_ever(home, monkeypatch):
    cache.check(cache.directory())
    cache.directory().chmod(0o777)
    assert cache_or_none() == "" and not os.environ["TILEWRIGHT_CACHE"]
    with pytest.raises(ResourceError, match="others may write to it"):
        cache.check(cache.directory())
    (home / "file").write_text("no directory")
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(home / "file" / "x"))
    assert cache_or_none() == ""
    with pytest.raises(ResourceError, match=r"cannot be made.*TILEWRIGHT_CACHE"):
        cache.check(cache.directory())


@pytest.mark.parametrize("name", ["cache_or_none", "first_run"])
def test_a_job_says_it_and_goes_on(name, tmp_path, monkeypatch):
    stand_ins(tmp_path / "models")
    monkeypatch.setattr(start, "cache_or_none", lambda: "cannot be kept" if name == "cache_or_none" else "")
    monkeypatch.setattr(start, "first_run", lambda: "cannot be kept")
    said: list[str] = []
    job = DrawJob(str(tmp_path / "models/portraits"), None, str(tmp_path / "out.npy"), count=1)
    assert draw(job, said.append).records == 1
    assert said.count("cannot be kept") == 1
