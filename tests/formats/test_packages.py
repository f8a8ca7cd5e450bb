"""The command that installs an extra: in a clone with its own pip, elsewhere from an index."""

import pytest

from tilewright.errors import suggestion
from tilewright.formats import packages


@pytest.mark.parametrize(
    ("python", "inside", "expected"),
    [
        ("{}/.venv", True, ".venv/bin/pip install -e '.[volume]'"),
        ("{}/.venv", False, "cd '{}' && .venv/bin/pip install -e '.[volume]'"),
        ("/opt/py", True, "/opt/py/bin/pip install -e '.[volume]'"),
        ("", True, "pip install -e '.[volume]'"),
    ],
)
def test_a_clone_installs_an_extra_with_its_own_pip(python, inside, expected, tmp_path, monkeypatch):
    clone = tmp_path / "my clone"
    clone.mkdir()
    (clone / "pyproject.toml").touch()
    monkeypatch.setattr(packages, "CLONE", clone)
    monkeypatch.setattr(packages.sys, "prefix", python.format(clone) or packages.sys.base_prefix)
    monkeypatch.chdir(clone if inside else tmp_path)
    assert packages.install_command("volume") == expected.format(clone)


def test_outside_a_clone_an_extra_comes_from_an_index(tmp_path, monkeypatch):
    monkeypatch.setattr(packages, "CLONE", tmp_path)
    assert packages.install_command("volume") == "pip install 'tilewright[volume]'"


def test_a_suggestion_is_the_most_similar_name():
    assert suggestion("matmull", ["matmul_argmax", "matmul"]) == " (did you mean matmul?)"
    assert suggestion("fourier", ["matmul", "conv3d"]) == ""
