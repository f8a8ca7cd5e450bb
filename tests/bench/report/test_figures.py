"""Figures: well-formed, complete, and right where a number becomes a place."""

import xml.etree.ElementTree as ET

import pytest

from tilewright.bench.report import figures
from tilewright.bench.report.figures import LogAxis, ladder_figure, measured_roofs, roofline
from tilewright.bench.results import PEER

SVG = "{http://www.w3.org/2000/svg}"


def words(svg: str) -> list[str]:
    return [element.text for element in ET.fromstring(svg).iter(f"{SVG}text")]  # noqa: S314 - our own text


def test_a_logarithmic_axis():
    axis = LogAxis(1.0, 1000.0, 100, 400)
    assert [axis(v) for v in (1.0, 10.0, 1000.0)] == pytest.approx([100, 200, 400])
    assert axis.ticks() == [1.0, 10.0, 100.0, 1000.0]
    assert LogAxis(1.0, 30.0, 0, 1).ticks() == [1.0, 2.0, 5.0, 10.0, 20.0]
    around = LogAxis.around([3.0, 50.0], 0, 1)
    assert around.low < 3 < 50 < around.high


def test_the_roofs_are_the_highest_measured(row):
    rows = [row("a", roof_gflops=180.0, roof_gbytes_s=30.0), row("b", roof_gflops=200.0, roof_gbytes_s=None)]
    assert measured_roofs(rows) == (200.0, 30.0)
    assert measured_roofs([row("c", roof_gflops=None, roof_gbytes_s=None)]) == (0.0, 0.0)


def test_a_ladders_bars(row, ladder):
    rows = [
        row("cpu.slow", gflops=1.0, roof_share=0.01),
        row("cpu.fast", gflops=10.0, roof_share=0.1, versus_below=10.0),
        row("MKL", gflops=9.0, roof_share=0.09, check=PEER),
        row("cpu.slow", threads=2, gflops=1.0, roof_share=0.01),
        row("cpu.fast", threads=2, gflops=20.0, roof_share=0.2, versus_below=20.0),
        row("MKL <mm>", threads=2, gflops=18.0, roof_share=0.18, check=PEER),
    ]
    svg = ladder_figure(rows, ladder)
    bars = list(ET.fromstring(svg).iter(f"{SVG}rect"))[1:]  # noqa: S314 - our own text
    width = [float(bar.get("width")) for bar in bars]
    assert len(bars) == 3
    assert width[1] > width[2] > width[0]
    found = words(svg)
    assert {"cpu.slow", "cpu.fast", "MKL <mm>", "20  x20", "measured roof 100"} <= set(found)


def test_a_roofline_has_a_point_a_size(row, ladder):
    rows = [row("cpu.fast"), row("cpu.slow"), row("cpu.slow", size="4x4x4", gflops=1.0, gbytes_s=4.0, roof_share=0.4)]
    svg = roofline(rows, {"matmul": ladder})
    titles = [e.text for e in ET.fromstring(svg).iter(f"{SVG}title")]  # noqa: S314 - our own text
    assert [title.split(",")[0] for title in titles] == [
        "matmul tiny 8x8x8-float32: cpu.fast",
        "matmul tiny 4x4x4: cpu.slow",
    ]
    assert "50 GFLOP/s" in words(svg)
    assert "10 GB/s" in words(svg)


def test_a_copy_has_no_roofline(row, ladder):
    assert roofline([row("cpu.fast", gflops=None)], {"matmul": ladder}) is None


def test_names_of_the_figures(row, ladder):
    rows = [row("cpu.fast"), row("cpu.fast", dtype="bfloat16", machine="other-4c")]
    names = set(figures.of_results({"matmul": rows, "sentiment": [row("x", op="sentiment")]}, {"matmul": ladder}))
    assert names == {
        "made-up-2c/matmul-float32.svg",
        "made-up-2c/roofline-float32.svg",
        "other-4c/matmul-bfloat16.svg",
        "other-4c/roofline-bfloat16.svg",
    }
