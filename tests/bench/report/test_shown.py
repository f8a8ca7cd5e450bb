"""Which rows are shown."""

from dataclasses import replace

from tilewright.bench.report.shown import by_machine, shown
from tilewright.bench.results import PEER


def test_a_rung_that_has_gone_is_shown_nowhere_and_gains_are_over_what_is_left(row, ladder):
    rows = [
        row("cpu.slow", gflops=2.0),
        row("cpu.gone", gflops=10.0, versus_below=5.0),
        row("cpu.fast", gflops=30.0, versus_below=3.0),
        row("MKL", check=PEER),
        row("cpu.slow", size="other", gflops=2.0),
        row("cpu.fast", size="other", gflops=30.0, versus_below=14.9),
    ]
    found = shown(rows, {"matmul": ladder})["matmul"]
    assert [r.rung for r in found] == ["cpu.slow", "cpu.fast", "MKL", "cpu.slow", "cpu.fast"]
    assert [r.versus_below for r in found] == [None, 15.0, None, None, 14.9]


def test_without_a_rung_that_exists_there_is_nothing(row, ladder):
    assert shown([row("cpu.gone"), row("MKL", check=PEER)], {"matmul": ladder}) == {}


def test_one_session_for_each_machine_and_dtype(row, ladder):
    early = [row(name, session="a") for name in ("cpu.slow", "cpu.fast")]
    late = [replace(r, session="b", commit="5d6e7f8") for r in early[1:]]
    assert shown([*late, *early], {"matmul": ladder}) == {"matmul": early}


def test_the_machine_that_was_measured_last_comes_first(row, ladder):
    rows = [
        row("x", op=op, machine=m, date=d)
        for op, m, d in [("a", "old", "2026-11-21"), ("a", "b-new", "2026-11-25"), ("b", "a-new", "2026-11-25")]
    ]
    by_op = shown(rows, {"matmul": ladder})
    assert list(by_machine(by_op)) == ["a-new", "b-new", "old"]
    assert [r.machine for r in by_op["a"]] == ["b-new", "old"]
