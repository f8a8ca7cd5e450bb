"""The wheel, as a stranger installs it: into an empty environment, away from the checkout, then without a network."""

import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from tilewright.runtime.named_models import NAMES

ROOT = Path(__file__).resolve().parent.parent
COLD_S, WARM_S = 60, 20  # of the demo on two cores, by issue 7
OFFLINE = """
import importlib.util, socket, sys
def refuse(*given, **named): raise SystemExit(f"the network is asked for: {given}")
socket.socket.connect = socket.getaddrinfo = refuse
assert importlib.util.find_spec("torch") is None
from tilewright.cli import main
main(sys.argv[1:])
"""


@pytest.mark.long
def test_the_demo_of_an_installed_wheel(tmp_path):
    run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", tmp_path, ROOT], tmp_path)
    (wheel,) = tmp_path.glob("tilewright-*.whl")
    inside = set(zipfile.ZipFile(wheel).namelist())
    models = {f"tilewright/data/models/{name}/{file}" for name in NAMES for file in ("config.json", "README.md")}
    assert models | {f"tilewright/data/models/{name}/model.safetensors" for name in NAMES} <= inside
    assert wheel.stat().st_size < 30e6
    run([sys.executable, "-m", "venv", tmp_path / "venv"], tmp_path)
    run([tmp_path / "venv/bin/pip", "install", "--quiet", wheel], tmp_path)
    here = tmp_path / "empty"
    here.mkdir()
    for limit_s in (COLD_S, WARM_S):
        start = time.perf_counter()
        text = run([tmp_path / "venv/bin/python", "-c", OFFLINE, "demo", "--prompt", "My lord,"], here)
        seconds = time.perf_counter() - start
        assert text.count(": PASS") == 4 and "    My lord," in text
        assert sorted(os.listdir(here / "demo")) == ["faces.png", "reviews.txt", "volume.png"]
        assert seconds < limit_s, f"{seconds:.1f} s\n{text}"


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
