"""The demo's pictures: drawn and filtered for real, right by float64, and left where it says."""

import numpy as np
from PIL import Image

from tilewright import demo


def test_pictures_stay(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "DRAWN", 3)
    monkeypatch.setattr(demo, "VOLUME", 32)
    folder, lines = tmp_path / "work", []
    folder.mkdir()
    report, error = demo._drawn(str(folder), lines.append)
    assert report.records == 3 and error < 1e-5
    report, error = demo._convolved(str(folder), lines.append)
    assert report.records == 32**3 and error < 1e-5
    assert not (tmp_path / "demo").exists(), "a demo that is stopped leaves nothing"
    demo._keep_pictures(str(folder))
    for name, size in (("images.png", (128, 128)), ("volume.png", (64, 32))):
        with Image.open(tmp_path / "demo" / name) as picture:
            assert picture.size == size and np.asarray(picture).std() > 20
        text, good = demo._told("things", report, error, name)
        assert good and text.endswith(f"to look at: demo/{name}")
    assert demo._told("things", report, 2e-4, "x")[1] is demo._told("things", report, float("nan"), "x")[1] is False
