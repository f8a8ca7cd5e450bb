"""The comparison of two versions: how a ratio is formed, and what makes it fail."""

import pytest

from tools import paired


class Fake(paired.Version):
    """A version whose operation takes a fixed time and has a fixed result."""

    def __init__(self, tree, scratch):
        super().__init__(tree, scratch)
        self.seconds, self.bits = (float((tree / name).read_text()) for name in ("seconds", "bits"))

    def ask(self, do, **_):
        rungs = {"chosen": "cpu.fast", "accepting": ["cpu.slow", "cpu.fast"]}
        return {"cases": ["8x8"], "rungs": rungs, "bind": self.bits, "time": self.seconds}[do]


@pytest.fixture
def compared(tmp_path, monkeypatch, capsys):
    """compared(seconds and bits before, seconds and bits after, options) -> (exit code, what was printed)."""
    monkeypatch.setattr(paired, "Version", Fake)

    def compare(before, after, *options):
        for name, (seconds, bits) in {"before": before, "after": after}.items():
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / "seconds").write_text(str(seconds))
            (tmp_path / name / "bits").write_text(str(bits))
        trees = [str(tmp_path / "before"), str(tmp_path / "after")]
        return paired.main([*trees, "--op", "matmul", "--rounds", "3", *options]), capsys.readouterr().out

    return compare


def test_the_ratio_says_how_many_times_faster_the_second_version_is(compared):
    code, said = compared((2, 1), (1, 1), "--least", "0.95")
    assert code == 0
    assert "2.000 (2.000 to 2.000)" in said
    assert "matmul 8x8 cpu.fast" in said


def test_a_slower_version_fails(compared):
    assert compared((1, 1), (2, 1), "--least", "0.95")[0] == 1


def test_other_bits_fail(compared):
    code, said = compared((1, 1), (1, 2))
    assert code == 1
    assert "OTHER BITS" in said


def test_every_rung_is_compared(compared):
    said = compared((1, 1), (1, 1), "--rungs", "every")[1]
    assert "cpu.slow" in said and "cpu.fast" in said and "geometric mean of 2" in said


def test_a_ratio_is_the_median_over_rounds():
    pair = paired.Pair.of("op", "case", "rung", [(1, 1), (4, 2), (90, 30)], True)
    assert (pair.ratio, pair.low, pair.high, pair.before_s, pair.after_s) == (2, 1, 3, 4, 2)
