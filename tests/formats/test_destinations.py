"""Another user of the machine, permissions, mount points: an output is written as asked, or refused before the work."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import toy_jobs
from tilewright.errors import ResourceError
from tilewright.formats.atomic import AtomicDirectory, AtomicFile, check_writable
from tilewright.formats.destinations import is_mount, resolved
from tilewright.runtime.convert.models import init_dcgan
from tilewright.runtime.engines.inline import Inline
from tilewright.runtime.jobs.directory import JobDirectory
from tilewright.runtime.jobs.run import run
from tilewright.runtime.jobs.settings import Settings
from tilewright.runtime.verbs.convolve import ConvolveJob, convolve
from tilewright.runtime.verbs.draw import DrawJob, draw

NOBODY = 65534


@pytest.fixture
def shared(tmp_path_factory):
    """A directory like /tmp, where another user may make names."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to act as a second user")
    path = tmp_path_factory.mktemp("shared")
    path.chmod(0o1777)
    return path


def as_other(command, folder):
    """Runs a shell command as another user, who need not be able to come into `folder`."""
    done = subprocess.run(["/bin/sh", "-c", command], cwd=folder, user=NOBODY, group=NOBODY, extra_groups=[],
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr


WRITERS = {
    "file": lambda path: AtomicFile(path).__enter__(),
    "check": check_writable,
    "directory": lambda path: AtomicDirectory(path, frozenset()).__enter__(),
    "job": lambda path: JobDirectory(path, make=True),
}


@pytest.mark.parametrize("how", WRITERS)
@pytest.mark.parametrize("where", ["the output", "its directory", "a link to a link"])
def test_a_link_that_another_user_planted(shared, tmp_path, how, where):
    precious = tmp_path / "precious"
    precious.mkdir()
    link = {"the output": "out", "its directory": "folder", "a link to a link": "second"}[where]
    target = precious / "out" if where == "the output" else precious
    as_other(f"ln -s {target} {link}", shared)
    if where == "a link to a link":
        (tmp_path / "first").symlink_to(shared / "second")
    output = {"the output": shared / "out", "its directory": shared / "folder" / "out"}.get(
        where, tmp_path / "first/out"
    )
    with pytest.raises(ResourceError, match=rf"leads through a link that user {NOBODY} made in .*, where anyone may"):
        WRITERS[how](str(output))
    assert os.listdir(precious) == []


@pytest.mark.parametrize("how", WRITERS)
def test_links_of_ones_own(shared, tmp_path, how):
    """There, and those of anybody in a directory without the sticky bit."""
    (tmp_path / "folder").mkdir()
    (shared / "mine").symlink_to(tmp_path / "folder")
    open_folder = tmp_path / "group"
    open_folder.mkdir()
    open_folder.chmod(0o777)
    as_other(f"ln -s {tmp_path / 'folder'} theirs", open_folder)
    for number, path in enumerate((shared / "mine", open_folder / "theirs")):
        output = str(path / f"out{number}")
        assert resolved(output) == os.path.realpath(output) == str(tmp_path / "folder" / f"out{number}")
        opened = WRITERS[how](output)
        if how == "directory":
            os.rmdir(opened)
        elif how != "check":
            opened.discard() if how == "file" else opened.close()


def test_a_job_directory_that_another_user_planted(shared):
    as_other("umask 0; mkdir -p out.job/shards", shared)
    (shared / "in").write_bytes(b"1234")
    with pytest.raises(ResourceError, match=rf"user {NOBODY} made this directory in .*, where anyone may"):
        run(toy_jobs.Squares(str(shared / "in")), str(shared / "out"), Inline())
    assert not (shared / "out").exists()


@pytest.mark.parametrize("path", ["a", "a/b", "./a//b/../c", "/x/y", "link/a", "loop/a", "link/../a", "a\0b"])
def test_a_resolved_path_is_the_real_one(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder/inner").mkdir(parents=True)
    (tmp_path / "link").symlink_to("folder/inner")
    (tmp_path / "loop").symlink_to("loop")
    if "\0" in path:
        assert resolved(path).endswith(path)
    elif "loop" not in path:
        assert resolved(path) == os.path.realpath(path)
    else:
        with pytest.raises(ResourceError):
            AtomicFile(path).__enter__()


def modes(path):
    """(path, mode) of a directory and all in it."""
    for at, _, names in os.walk(path):
        for one in (at, *(os.path.join(at, name) for name in names)):
            yield os.path.relpath(one, path), stat.S_IMODE(os.stat(one).st_mode)


@pytest.mark.parametrize("output", ["out.npy", "out.txt", "out.png", "out/"])
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644])
def test_nothing_of_a_private_output_is_readable_by_others(tmp_path, monkeypatch, output, mode):
    monkeypatch.chdir(tmp_path)
    init_dcgan("m", 3, z_size=3, size=2, channels=(4, 3), kernel=4)
    path = Path(output.rstrip("/"))
    if output == "out/":
        path.mkdir()
        mode |= (mode & 0o444) >> 2
    else:
        path.touch()
    path.chmod(mode)
    seen = {}

    def look(self):
        seen.update(modes("out.job" if output == "out/" else f"{output}.job"))
        return real(self)

    real = JobDirectory.sync
    monkeypatch.setattr(JobDirectory, "sync", look)
    draw(DrawJob("m", None, output, count=6, seed=3, settings=Settings(shard_size=2)))
    seen.update(modes(f"{path}.job"))
    assert len(seen) > 8 and stat.S_IMODE(path.stat().st_mode) == mode
    assert not {name: oct(found) for name, found in seen.items() if found & 0o066 & ~mode}


def test_a_job_of_an_output_that_becomes_private(tmp_path, monkeypatch):
    """What is there already is behind a directory that only its user may enter."""
    monkeypatch.chdir(tmp_path)
    np.save("v.npy", np.ones((4, 4, 4), np.float32))
    convolve(ConvolveJob("v.npy", "box:3", "out.npy"))
    Path("out.npy").chmod(0o600)
    convolve(ConvolveJob("v.npy", "box:3", "out.npy"))
    assert stat.S_IMODE(os.stat("out.npy.job").st_mode) == 0o700


def test_a_replaced_directory_keeps_its_mode(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out").chmod(0o750)
    with AtomicDirectory(tmp_path / "out", frozenset({"a"})) as temporary:
        Path(temporary, "a").touch()
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o750 and (tmp_path / "out" / "a").exists()


MOUNTED = """
import os, sys
sys.path.insert(0, sys.argv[1])
from tilewright.errors import ResourceError
from tilewright.runtime.verbs.draw import DrawJob, draw
from tilewright.runtime.verbs.convolve import ConvolveJob, convolve
def mount(*words):
    assert os.spawnlp(os.P_WAIT, "mount", "mount", *words) == 0
os.makedirs("a b"), os.makedirs("src"), os.makedirs("v.zarr"), os.makedirs("x.npy.job")
open("file.npy", "w").close(), open("src.npy", "w").close()
mount("-t", "tmpfs", "none", "a b")
mount("--bind", "src", "v.zarr")
mount("--bind", "src.npy", "file.npy")
mount("-t", "tmpfs", "none", "x.npy.job")
def refused(job, words):
    try:
        job()
    except ResourceError as error:
        assert words in str(error), error
        print("refused")
drawn = lambda output: lambda: draw(DrawJob("m", None, output, count=2))
refused(drawn("a b/"), "the output is a mount point, which no rename can replace. Give a new name inside it")
refused(drawn("file.npy"), "the output is a mount point")
refused(lambda: convolve(ConvolveJob("v.npy", "box:3", "v.zarr")), "the output is a mount point")
refused(drawn("x.npy"), "this directory is a mount point")
draw(DrawJob("m", None, "a b/inside/", count=2))
print(sorted(os.listdir("a b/inside")), sorted(name for name in os.listdir(".") if name.endswith(".job")))
"""


@pytest.mark.filterwarnings("ignore")
def test_a_mount_point_is_refused_before_the_work(tmp_path, monkeypatch):
    probe = subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip(f"no mounts here: {probe.stderr.decode().strip()}")
    monkeypatch.chdir(tmp_path)
    init_dcgan("m", 3, z_size=3, size=2, channels=(4, 3), kernel=4)
    np.save("v.npy", np.ones((4, 4, 4), np.float32))
    command = ["unshare", "-rm", sys.executable, "-c", MOUNTED, str(Path(toy_jobs.__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "refused\n" * 4 + "['00000.png', '00001.png'] ['x.npy.job']\n", done.stdout + done.stderr
    assert is_mount("/") and not is_mount(str(tmp_path))
