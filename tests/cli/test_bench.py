"""`tilewright bench --save`: what was measured before the command is cut off stays."""

import pytest

from tilewright.bench.noise import Watch
from tilewright.bench.results import Row, read
from tilewright.cli import bench
from tilewright.hardware import machine_name


def test_a_part_is_saved_before_the_next_is_measured(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def parts():
        yield [Row("dcgan", "tilewright", "100 records", "float32", 1, 100, 2.0, 2.0, 2.0, 3)]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bench.saved(parts(), bench.Dcgan(save=True), Watch())
    assert [row.rung for row in read(tmp_path / "results", machine_name(), "dcgan")] == ["tilewright"]
