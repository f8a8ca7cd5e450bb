"""README's Python is examples/quickstart.py, and that runs."""

import runpy
from pathlib import Path

from named_stand_ins import stand_ins
from tilewright.runtime import named_models

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "examples/quickstart.py"


def test_readme_shows_it():
    block = (ROOT / "README.md").read_text().partition("```python\n")[2].partition("```\n")[0]
    assert block.startswith("import numpy") and FILE.read_text().endswith(f'"""\n\n{block}')


def test_it_runs(tmp_path, monkeypatch, capsys):
    stand_ins(tmp_path / "models")
    monkeypatch.setattr(named_models, "FOLDER", tmp_path / "models")
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(FILE))
    *_, answers, shape, deviation, error = capsys.readouterr().out.splitlines()
    assert answers.count("'label'") == 2 and shape == "(8, 16, 16, 3)"
    assert 0 < float(deviation) < 0.1 and float(error) < 1e-4
