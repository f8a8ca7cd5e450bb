"""`tilewright report` from the command line; what it writes is tested in bench/test_report.py."""

import pytest

from tilewright.bench.results import Row, save
from tilewright.cli import main


def report(capsys, *arguments):
    with pytest.raises(SystemExit) as caught:
        main(["report", *arguments])
    return caught.value.code or 0, capsys.readouterr()


def test_what_was_written_is_listed_and_the_second_time_nothing_is(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    row = Row("matmul", "cpu.packed", "8x8x8-float32", "float32", 1, 8, 0.5, 0.4, 0.6, 11, 12.5, 2.0, 0.25)
    save(tmp_path / "results", "made-up-2c", [row])
    code, captured = report(capsys)
    assert code == 0
    assert "wrote results/report.html\n" in captured.out
    code, captured = report(capsys, "--root", str(tmp_path))
    assert code == 0
    assert captured.out.startswith("nothing to change")


def test_without_results_there_is_one_paragraph(tmp_path, capsys):
    code, captured = report(capsys, "--root", str(tmp_path))
    assert code == 3
    assert captured.err.startswith("Error: ")
    assert "no results here" in captured.err
    assert "make bench" in captured.err
