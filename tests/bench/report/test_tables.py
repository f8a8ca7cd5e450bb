"""Rows as tables."""

from types import SimpleNamespace

import pytest

from tilewright.bench import climb
from tilewright.bench.report.tables import (
    Table,
    bench_tables,
    default_row,
    headline,
    ladder_tables,
    machine_title,
    percent,
    sizes_tables,
    three,
    times,
)
from tilewright.bench.results import PEER
from tilewright.ops.core.ladder import Ladder, Rung


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, ""), (0.0, "0"), (0.00012, "1.2e-04"), (0.0123, "0.0123"), (1.234, "1.23"), (12345.6, "12,346")],
)
def test_three_digits(value, text):
    assert three(value) == text


def test_factors_and_shares():
    assert [times(v) for v in (None, 0.107, 2.0, 22.49, 1234.0)] == ["", "0.11", "2.00", "22.5", "1,234"]
    assert [percent(v) for v in (None, 0.031, 0.256, 1.04)] == ["", "3.1", "26", "104"]


def test_a_ladder_in_the_order_of_its_declaration_then_peers_then_what_is_missing(row, ladder):
    rows = [
        row("MKL", check=PEER, gflops=50.0),
        row("cpu.fast", versus_below=4.0, gflops=50.0, roof_share=1.0),
        row("cpu.slow", rows=2),
        row("cpu.fast", threads=2, gflops=90.0, roof_share=0.9),
    ]
    (table,) = ladder_tables(rows, ladder)
    assert table.caption == "tiny, 8x8x8, float32; made-up-2c, commit 1a2b3c4, 2026-11-21"
    steps = ("of the roof, %", "speed-up over the rung below")
    assert table.header == ("rung", "idea", "GFLOP/s, 1 thread", *steps, "GFLOP/s, 2 threads", *steps)
    assert table.rows == (
        ("cpu.slow", "one | after the other", "12.5", "25", "", "", "", ""),
        ("cpu.fast", "all <at> once", "50", "100", "4.00", "90", "90", ""),
        ("MKL", "peer", "50", "25", "", "", "", ""),
    )
    assert table.notes == ("Not measured on this machine: gpu.absent (elsewhere).",)


def test_a_rung_that_was_timed_on_fewer_rows_is_named(row, ladder):
    (table,) = ladder_tables([row("cpu.slow", rows=2), row("cpu.fast", rows=8)], ladder)
    assert table.notes[0] == "Timed on fewer than the 8 rows: cpu.slow (2)."


def test_machines_and_dtypes_have_their_own_tables(row, ladder):
    rows = [row("cpu.slow"), row("cpu.slow", dtype="bfloat16"), row("cpu.slow", machine="other-4c")]
    captions = [table.caption for table in ladder_tables(rows, ladder)]
    assert [("other-4c" in c, "bfloat16" in c) for c in captions] == [(False, False), (False, True), (True, False)]


def test_the_headline_is_the_size_with_most_rungs(row, ladder):
    rows = [
        row("cpu.slow", size="small"),
        row("cpu.slow", size="big"),
        row("cpu.fast", size="big"),
        row("cpu.gone", size="small"),
    ]
    assert {r.size for r in headline(rows, ladder)} == {"big"}
    assert headline([row("cpu.gone")], ladder) == []


def test_one_rung_for_a_rare_shape_does_not_decide_the_headline(row):
    """Ten rungs at the usual size, eleven at a rare one."""
    names = [f"cpu.{letter}" for letter in "abcdefghijk"]
    ladder = Ladder("matmul", *(Rung(name, "it", "none:none", chosen=True) for name in names))
    rows = [row(name, size="usual") for name in names[:10]] + [row(name, size="rare") for name in names]
    assert {r.size for r in headline(rows, ladder)} == {"usual"}


def test_sizes_show_the_default_rung_beside_its_peer(row, ladder):
    rows = [
        row("cpu.slow", peer="MKL", peer_ratio=9.0),
        row("cpu.fast", peer="MKL", peer_ratio=2.0),
        row("MKL", check=PEER),
        row("cpu.slow", size="4x4x4-float32", label="least", peer="MKL", peer_ratio=0.5),
        row("MKL", size="4x4x4-float32", check=PEER),
    ]
    (table,) = sizes_tables(rows, ladder)
    assert [line[:3] + line[-2:] for line in table.rows] == [
        ("tiny", "8x8x8", "cpu.fast", "MKL", "2.00"),
        ("least", "4x4x4", "cpu.slow", "MKL", "0.50"),
        ("geometric mean", "", "", "", "1.00"),
        ("least", "", "", "", "0.50"),
    ]
    assert table.rows[0][5:7] == ("500", "400 to 700")


def test_the_default_is_no_rung_that_the_machine_does_not_choose(row, ladder):
    rows = [row("cpu.fast", check="passed 0.10; slow here"), row("cpu.slow", check="passed 0.10")]
    assert default_row(rows, ladder).rung == "cpu.slow"
    assert default_row([row("cpu.fast", check="passed 0.10"), *rows[1:]], ladder).rung == "cpu.fast"


@pytest.mark.parametrize(("slow", "check"), [((), "passed 0.25"), ((lambda _: "too slow",), "passed 0.25; slow here")])
def test_a_climb_notes_which_rungs_the_machine_does_not_choose(slow, check):
    rung = Rung("cpu.fast", "an idea", "none:none", slow=slow)
    assert climb.Candidate(rung, SimpleNamespace(problem=None), print, 0.0, 0.25).check == check


def test_a_workload_end_to_end(row):
    (table,) = bench_tables(
        [row("tilewright", op="sentiment", rows=1000, one_off_s=3.0, peer_ratio=17.0, check="passed")]
    )
    assert table.rows[0] == (
        "8x8x8-float32", "tilewright", "float32", "passed", "1 thread", "2,000", "0.5", "0.4 to 0.7", "3", "", "17"
    )  # fmt: skip
    assert len(table.header) == len(table.rows[0])


def test_a_row_of_a_gpu_says_so(row):
    (table,) = bench_tables([row("tilewright", op="sentiment", threads=0)])
    assert table.rows[0][table.header.index("device")] == "GPU"


def test_a_rung_above_the_roof_is_explained(row, ladder):
    (table,) = sizes_tables([row("cpu.fast", roof_share=433.0)], ladder)
    assert table.rows[0][4] == "43,300"
    assert table.notes[0].startswith("Above the roof: cpu.fast. The roof counts the plain method's arithmetic")
    (table,) = sizes_tables([row("cpu.fast", roof_share=1.02)], ladder)
    assert table.notes == ()


@pytest.mark.parametrize(
    ("machine", "title"),
    [
        ("amd-epyc-zen5-2c", "AMD EPYC Zen 5, 2 cores"),
        ("intel-xeon-emeraldrapids-1c", "Intel Xeon Emerald Rapids, 1 core"),
        ("intel-xeon-emeraldrapids-noamx-2c", "Intel Xeon Emerald Rapids without AMX, 2 cores"),
        ("nvidia-h200", "NVIDIA H200"),
        ("nvidia-h100-80gb-hbm3", "NVIDIA H100 80 GB HBM3"),
    ],
)
def test_a_machine_by_the_name_that_people_know(machine, title):
    assert machine_title(machine) == title


def test_a_column_without_values_is_left_out():
    table = Table("it", ("a", "b", "c"), (("1", "", "2"), ("3", "", "")), 1)
    assert "| a | c |\n| --- | ---: |\n| 1 | 2 |" in table.markdown()
    assert ">b<" not in table.html() and '<td class="number" data-label="c">2</td>' in table.html()


def test_markdown_and_html_are_escaped():
    table = Table("a < b", ("x | y", "n"), (("<script>", "1"),), 1, ("a & b",))
    assert table.markdown() == "a < b\n\n| x \\| y | n |\n| --- | ---: |\n| &lt;script> | 1 |\n\na & b"
    text = table.html()
    assert "<script>" not in text
    assert '<td class="number" data-label="n">1</td>' in text
    assert "a &amp; b" in text
