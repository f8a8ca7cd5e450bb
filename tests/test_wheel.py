"""The wheel and the source archive, as a stranger installs them: into an empty environment, away from the checkout."""

import os
import re
import resource
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import tilewright
from tilewright.runtime.named_models import NAMES

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = ("3.11", "3.12", "3.13")
OFFLINE = """
import importlib.util, socket, sys
def refuse(*given, **named): raise SystemExit(f"the network is asked for: {given}")
socket.socket.connect = socket.getaddrinfo = refuse
assert importlib.util.find_spec("torch") is None
from tilewright.cli import main
main(sys.argv[1:])
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder with the wheel and the source archive."""
    path = tmp_path_factory.mktemp("built")
    run([sys.executable, "-m", "venv", path / "venv"], path)
    run([path / "venv/bin/pip", "install", "--quiet", "hatchling"], path)
    run([path / "venv/bin/python", "-m", "hatchling", "build", "-d", path], ROOT)
    return path


@pytest.mark.long
def test_what_is_in_them(built):
    wheel, archive = one(built, "*.whl"), one(built, "*.tar.gz")
    files = zipfile.ZipFile(wheel)
    models = {f"tilewright/data/models/{name}/{file}" for name in NAMES for file in ("config.json", "README.md")}
    models |= {f"tilewright/data/models/{name}/model.safetensors" for name in NAMES}
    assert {*models, "tilewright/py.typed"} <= set(files.namelist())
    assert wheel.stat().st_size < 30e6 and archive.stat().st_size < 30e6
    with tarfile.open(archive) as source:
        names = {name.partition("/")[2] for name in source.getnames()}
    assert {f"src/{name}" for name in models} | {"README.md", "LICENSE", "CHANGELOG.md", "pyproject.toml"} <= names
    assert not [name for name in names if name.startswith(("tests", "results", "docs", ".venv"))]
    (metadata,) = [name for name in files.namelist() if name.endswith(".dist-info/METADATA")]
    lines = files.read(metadata).decode().splitlines()
    assert f"Version: {tilewright.__version__}" in lines
    core = [line for line in lines if line.startswith("Requires-Dist: ") and "extra ==" not in line]
    assert len(core) > 8 and not [line for line in core if re.search("<|==", line)], "the core has no upper limits"


@pytest.mark.long
def test_the_demo_of_an_installed_wheel(tmp_path, built):
    run([sys.executable, "-m", "venv", tmp_path / "venv"], tmp_path)
    run([tmp_path / "venv/bin/pip", "install", "--quiet", one(built, "*.whl")], tmp_path)
    here = tmp_path / "empty"
    here.mkdir()
    seconds = []
    for _ in range(2):
        before = cpu_seconds()
        text = run([tmp_path / "venv/bin/python", "-c", OFFLINE, "demo", "--prompt", "My lord,"], here)
        seconds.append(cpu_seconds() - before)  # other programs do not count
        assert text.count(": PASS") == 4 and "    My lord," in text
        assert sorted(os.listdir(here / "demo")) == ["faces.png", "reviews.txt", "volume.png"]
    assert seconds[1] < seconds[0] / 3, f"the second run compiles again: {seconds} s of CPU time"


@pytest.mark.long
@pytest.mark.parametrize("version", PYTHONS)
def test_each_python_installs_the_source_archive_and_classifies(tmp_path, built, version):
    """With the newest NumPy that Numba allows, which pip chooses."""
    python = found(version)
    if python is None:
        pytest.skip(f"there is no Python {version} here")
    run([python, "-m", "venv", tmp_path / "venv"], tmp_path)
    run([tmp_path / "venv/bin/pip", "install", "--quiet", one(built, "*.tar.gz")], tmp_path)
    here = tmp_path / "empty"
    here.mkdir()
    program = tmp_path / "venv/bin/tilewright"
    assert run([program, "--version"], here) == f"tilewright {tilewright.__version__}\n"
    (here / "reviews.txt").write_text("A warm, funny film.\nDull.\n")
    run([program, "classify", "--model", "critic", "-i", "reviews.txt", "-o", "labels.jsonl"], here)
    assert re.findall('"label":"([a-z]+)"', (here / "labels.jsonl").read_text()) == ["positive", "negative"]
    print(version, run([tmp_path / "venv/bin/pip", "list", "--format=freeze"], here).split())


def found(version: str) -> str | None:
    """A program of that Python version: on the PATH, or among pyenv's."""
    pyenv = Path.home().glob(f".pyenv/versions/{version}.*/bin/python")
    for program in (*map(str, pyenv), shutil.which(f"python{version}")):
        if program and subprocess.run([program, "-c", "import venv"], check=False, capture_output=True).returncode == 0:
            return program
    return None


def one(folder: Path, pattern: str) -> Path:
    """The only file of that kind."""
    (path,) = folder.glob(pattern)
    return path


def cpu_seconds() -> float:
    """The CPU time of all ended child processes."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(command, folder) -> str:
    """What the command printed, run in `folder` with a cache of its own beside it and nothing of the checkout."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    around = {**kept, "TILEWRIGHT_CACHE": str(folder.parent / "cache"), **proxies()}
    done = subprocess.run([*map(str, command)], cwd=folder, env=around, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def proxies() -> dict[str, str]:
    """What pip needs of the environment to reach its index."""
    return {name: value for name, value in os.environ.items() if name.upper().startswith(("PIP_", "HTTP", "SSL_"))}
