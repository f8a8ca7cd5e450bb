"""Signs of noise: scripted loads, times of cores, and rounds."""

import pytest

from tilewright.bench import noise
from tilewright.bench.noise import Watch, spread, warning
from tilewright.bench.report.tables import bench_tables


@pytest.fixture
def machine(monkeypatch):
    """machine(load, others): two cores; between a watch's two looks 10 s pass, of which we use 5 and others so many."""

    def make(load: float, others: float) -> Watch:
        clock, busy, own = iter((0.0, 10.0)), iter((100.0, 105.0 + others)), iter((40.0, 45.0))
        monkeypatch.setattr(noise, "_cores", lambda: [0, 1])
        monkeypatch.setattr(noise, "_load", lambda: load)
        monkeypatch.setattr(noise, "_busy_s", lambda cores: next(busy))
        monkeypatch.setattr(noise, "_own_s", lambda: next(own))
        monkeypatch.setattr(noise.time, "monotonic", lambda: next(clock))
        return Watch()

    return make


@pytest.mark.parametrize(
    ("load", "others", "words"),
    [
        (2.0, 1.0, ""),
        (3.5, 0.0, "load average 3.5"),
        (0.0, 13.0, "other processes used 1.3 of 2 cores"),
        (9.0, 5.0, "load average 9.0, other processes used 0.5 of 2 cores"),
    ],
)
def test_other_work_is_told(machine, load, others, words):
    assert machine(load, others).noise() == words


def test_rows_keep_their_signs_and_tables_show_them(machine, row):
    wild, calm = row("wild", op="dcgan", low_s=0.1, high_s=0.31), row("calm", op="dcgan", low_s=0.5, high_s=0.55)
    assert (spread(wild), spread(calm)) == ("rounds differ 3.1 x", "")
    noted = machine(0.0, 0.0).noted([wild, calm])
    assert [row.noise for row in noted] == ["rounds differ 3.1 x", ""]
    assert warning(noted).endswith("on an idle machine (wild: rounds differ 3.1 x)") and warning(noted[1:]) == ""
    assert bench_tables(noted)[0].notes == ("Noisy: wild (rounds differ 3.1 x).",)
    assert machine(8.0, 0.0).noted([calm])[0].noise == "load average 8.0"


def test_this_machine_can_be_watched():
    assert isinstance(Watch().noise(), str)
