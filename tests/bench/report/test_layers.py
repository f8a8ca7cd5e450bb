"""Layer x rung: which rung wins each layer of a model."""

import pytest

from tilewright.bench.report.layers import DEFAULT, FASTEST, layer_tables
from tilewright.bench.results import PEER, SLOW
from tilewright.ops.core.ladder import Ladder, Rung


@pytest.fixture
def layered():
    """Two rungs of conv_transpose2d; the second is the default."""
    return Ladder(
        "conv_transpose2d",
        Rung("cpu.slow", idea="a", kernel="none:none", chosen=True),
        Rung("cpu.fast", after="cpu.slow", idea="b", kernel="none:none", chosen=True),
    )


def test_a_column_per_layer_and_the_rung_that_wins_it(row, layered, ladder):
    same = {"op": "conv_transpose2d"}
    rows = [
        row("cpu.slow", label="4x4", size="a", gflops=1.0, **same),
        row("cpu.fast", label="4x4", size="a", gflops=3.0, **same),
        row("torch", label="4x4", size="a", gflops=9.0, check=PEER, **same),
        row("cpu.slow", label="8x8", size="b", gflops=2.0, **same),
        row("cpu.fast", label="8x8", size="b", gflops=1.5, check=f"passed 0.1{SLOW}", **same),
    ]
    (table,) = layer_tables(rows, layered)
    assert table.header == ("rung", "4x4", "8x8") and "GFLOP/s of each layer" in table.caption
    assert table.rows == (
        ("cpu.slow", "1", "2"),
        ("cpu.fast", "3", "1.5"),
        ("torch", "9", ""),
        (FASTEST, "cpu.fast", "cpu.slow"),
        (DEFAULT, "cpu.fast", "cpu.slow"),
    )
    assert len(layer_tables([*rows, *(row("cpu.slow", label=n, dtype="bfloat16", **same) for n in "ab")], layered)) == 2
    assert layer_tables(rows[:3], layered) == []  # one layer
    assert layer_tables([row("cpu.slow", label="a"), row("cpu.slow", label="b")], ladder) == []  # no layers of a model
