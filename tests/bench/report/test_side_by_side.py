"""conv3d on one thread, several threads and a GPU: rows of two machines in one table and one figure."""

import pytest

from tilewright.bench.report.side_by_side import cases, of_sides, side_table
from tilewright.bench.results import PEER


@pytest.fixture
def rows(row):
    """A sweep over threads and a ladder on a CPU, and ladders on two GPUs, of which one lacks a size."""

    def on(machine, rung, threads, ms, **changes):
        times = {"median_s": ms / 1e3, "low_s": ms / 1e3, "high_s": ms / 1e3}
        return row(
            rung, **{"op": "conv3d", "size": "8x8x8", "machine": machine, "threads": threads, **times, **changes}
        )

    def swept(n, ms, **changes):
        return on("amd-2c", "cpu.taps", n, ms, op="sweep_conv3d", point=f"threads={n}", **changes)

    return [
        *(swept(n, ms) for n, ms in ((1, 80.0), (2, 40.0), (3, 39.9))),
        *(swept(n, ms, size="9x9x9") for n, ms in ((1, 80.0), (2, 90.0))),
        on("amd-2c", "cpu.slow", 1, 8.0, rows=1), on("amd-2c", "cpu.rows", 2, 10.0),
        on("amd-2c", "scipy", 1, 1, check=PEER),
        on("nvidia-a", "simt.march", 0, 0.1), on("nvidia-a", "simt.naive", 0, 1.0),
        on("nvidia-a", "simt.march", 0, 0.2, size="9x9x9"), on("nvidia-b", "simt.march", 0, 0.01),
    ]  # fmt: skip


def test_a_line_per_device_with_its_speed_up(rows):
    table = side_table(rows)
    assert [line[1:4] + line[4:] for line in table.rows] == [
        ("cpu.taps", "1 thread", "amd-2c", "80", "1.00"),
        ("cpu.taps", "2 threads", "amd-2c", "40", "2.00"),
        ("cpu.rows", "2 threads", "amd-2c", "10", "8.00"),
        ("simt.march", "GPU", "nvidia-a", "0.1", "800"),
        ("cpu.taps", "1 thread", "amd-2c", "80", "1.00"),
        ("simt.march", "GPU", "nvidia-a", "0.2", "400"),
    ]
    assert "amd-2c, commit 1a2b3c4, 2026-11-21; nvidia-a, commit" in table.caption
    assert "2.78 x by threads, 837 x by the GPU" in table.notes[1]


def test_a_figure_with_a_bar_per_line(rows):
    ((name, drawing),) = of_sides(rows).items()
    assert name == "amd-2c/sides_conv3d-float32.svg" and drawing.count('class="fill-grid"') == 6
    assert "simt.march, GPU" in drawing and "800 x" in drawing


def test_without_one_of_the_devices_there_is_none(rows):
    assert not cases([row for row in rows if row.threads]) and not cases([row for row in rows if not row.point])
    assert side_table([]) is None and of_sides([]) == {}
