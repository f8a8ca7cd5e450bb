"""Rows of compiled kernels: written, read, and kept apart from measurements."""

from dataclasses import replace

import pytest

from tilewright.bench import results
from tilewright.bench.kernels.table import KernelRow, case_for, read, save
from tilewright.bench.report.kernels import kernel_tables, traffic_table
from tilewright.errors import InputError
from tilewright.ops.matmul.ladder import ladder

CPU = KernelRow("matmul", "cpu.packed", "gemm.float32.16", "8x8x8", 512, 48, 29, 24, None, None, None, None, None,
                "abc", "2026-01-01", "here")  # fmt: skip
GPU = KernelRow("matmul", "simt.strip", "matmul.simt.blocks:strip", "8x8x8", None, 64, None, None, 40, 0, 4096, 512,
                0.75, "abc", "2026-01-01", "there")  # fmt: skip


def test_rows_are_read_as_they_were_written(tmp_path):
    assert save(tmp_path, [CPU, GPU]) == [tmp_path / "here/kernels_matmul.csv", tmp_path / "there/kernels_matmul.csv"]
    assert read(tmp_path, "matmul") == [CPU, GPU]
    other = replace(CPU, rung="cpu.vectors")
    save(tmp_path, [replace(CPU, sums=25), other])
    assert read(tmp_path, "matmul") == [replace(CPU, sums=25), other, GPU]


def test_they_are_no_measurements(tmp_path):
    save(tmp_path, [CPU])
    assert results.read(tmp_path) == []
    (tmp_path / "here/kernels_softmax.csv").write_text("op,rung\nsoftmax,cpu.naive\n")
    with pytest.raises(InputError, match="no rows of kernels"):
        read(tmp_path, "softmax")


def test_a_machine_has_a_table():
    here, there = kernel_tables([CPU, GPU])
    assert "here; commit abc, 2026-01-01" in here.caption
    assert here.rows == (("cpu.packed", "gemm.float32.16", "512 bits", "48", "29", "24", "", "", "", "", ""),)
    assert there.rows[0][-5:] == ("40", "0", "4,096", "512", "75%")
    assert "occupancy" not in here.markdown() and "| registers | local | shared |" in there.markdown()


def test_counted_traffic_beside_measured_time():
    row = results.Row("matmul", "simt.unrolled", "4096x4096x4096-float32", "float32", 0, 4096, 0.02, 0.02, 0.02, 11,
                      date="2026-01-02", machine="gpu")  # fmt: skip
    table = traffic_table([row], ladder)
    (line,) = [line for line in table.rows if line[0] == "simt.unrolled"]
    assert line == ("simt.unrolled", "256", "1", "8,192", "256", "862", "28,347")
    assert "on gpu:" in table.notes[0]


def test_a_rung_gets_the_first_problem_that_it_takes():
    case, lacking = case_for("matmul", ladder.rungs["simt.narrow"])
    assert case.N == 2 and lacking
    assert case_for("matmul", ladder.rungs["cpu.packed"])[1] == []
