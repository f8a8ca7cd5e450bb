"""Figures: well-formed, complete, and with every value where it belongs."""

import xml.etree.ElementTree as ET

import pytest

from tilewright.bench.report import figures
from tilewright.bench.report.figures import job_figure, ladder_figure
from tilewright.bench.report.roofline import measured_roofs, roofline
from tilewright.bench.report.svg import GLYPH, LogAxis, short, standalone, wrapped
from tilewright.bench.results import PEER

SVG = "{http://www.w3.org/2000/svg}"


def words(svg: str) -> list[str]:
    return [element.text for element in ET.fromstring(svg).iter(f"{SVG}text")]  # noqa: S314 - our own text


def drawn_bars(svg: str) -> list[ET.Element]:
    """The bars without their tracks and the figure's frame."""
    plain = ("fill-paper", "fill-grid")
    return [e for e in ET.fromstring(svg).iter(f"{SVG}rect") if e.get("class") not in plain]  # noqa: S314 - our own text


def test_a_logarithmic_axis():
    axis = LogAxis(1.0, 1000.0, 100, 400)
    assert [axis(v) for v in (1.0, 10.0, 1000.0)] == pytest.approx([100, 200, 400])
    assert axis.ticks() == [1.0, 10.0, 100.0, 1000.0]
    assert LogAxis(1.0, 30.0, 0, 1).ticks() == [1.0, 2.0, 5.0, 10.0, 20.0]
    around = LogAxis.around([3.0, 50.0], 0, 1)
    assert around.low < 3 < 50 < around.high


def test_the_roofs_are_the_highest_measured(row):
    rows = [row("a", roof_gflops=180.0, roof_gbytes_s=30.0), row("b", roof_gflops=200.0, roof_gbytes_s=None)]
    assert measured_roofs(rows) == ({"float32": 200.0}, 30.0)
    assert measured_roofs([row("c", roof_gflops=None, roof_gbytes_s=None)]) == ({}, 0.0)


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
    bars = drawn_bars(svg)
    width = [float(bar.get("width")) for bar in bars]
    assert len(bars) == 3
    assert width[1] > width[2] > width[0]
    found = words(svg)
    assert {"cpu.slow", "cpu.fast", "MKL <mm>", "20", "20 x", "measured roof 100"} <= set(found)


def test_a_roofline_has_a_point_a_size(row, ladder):
    rows = [row("cpu.fast"), row("cpu.slow"), row("cpu.slow", size="4x4x4", gflops=1.0, gbytes_s=4.0, roof_share=0.4)]
    svg = roofline(rows, {"matmul": ladder}, "matmul")
    titles = [e.text for e in ET.fromstring(svg).iter(f"{SVG}title")]  # noqa: S314 - our own text
    assert [title.split(",")[0] for title in titles] == [
        "matmul tiny 8x8x8-float32: cpu.fast",
        "matmul tiny 4x4x4: cpu.slow",
    ]
    assert "float32 50" in [e.text for e in ET.fromstring(svg).iter(f"{SVG}tspan")]  # noqa: S314 - our own text
    assert "2 sizes, 25 to 40 % of the roof; 1 thread" in words(svg)
    assert "10 GB/s" in words(svg)


def test_a_copy_has_no_roofline(row, ladder):
    assert roofline([row("cpu.fast", gflops=None)], {"matmul": ladder}, "matmul") is None


def test_names_of_the_figures(row, ladder):
    rows = [row("cpu.fast"), row("cpu.fast", dtype="bfloat16", machine="other-4c")]
    names = set(figures.of_results({"matmul": rows, "sentiment": [row("x", op="sentiment")]}, {"matmul": ladder}))
    assert names == {
        "made-up-2c/matmul-float32.svg",
        "made-up-2c/roofline-matmul.svg",
        "made-up-2c/sentiment-8x8x8-float32-float32.svg",
        "other-4c/matmul-bfloat16.svg",
        "other-4c/roofline-matmul.svg",
    }


def test_what_is_above_the_roof_is_a_ring_or_at_the_edge(row, ladder):
    """A point a little above is a ring; one far above is a triangle that says how far."""
    rows = [
        row("cpu.fast", gflops=60.0, roof_share=1.2),
        row("cpu.fast", size="far", gflops=5e5, roof_share=433.0),
        row("cpu.fast", op="softmax", size="other"),
    ]
    svg = roofline(rows, {"matmul": ladder, "softmax": ladder}, "matmul")
    shapes = [e for e in ET.fromstring(svg).iter() if e.find(f"{SVG}title") is not None]  # noqa: S314 - our own text
    assert [e.tag.removeprefix(SVG) for e in shapes] == ["circle", "path"]
    assert shapes[0].get("class") == "fill-paper line-float32" and "433 x the roof" in words(svg)
    assert svg.count('class="fill-ghost"') == 1


def test_dtypes_whose_roofs_are_close_share_a_label(row, ladder):
    roofs = {"float32": 50.0, "bfloat16": 790.0, "float16": 800.0}
    rows = [row("cpu.fast", size=d, dtype=d, roof_gflops=roof) for d, roof in roofs.items()]
    root = ET.fromstring(roofline(rows, {"matmul": ladder}, "matmul"))  # noqa: S314 - our own text
    labels = ["".join(e.itertext()) for e in root.iter(f"{SVG}text") if e.find(f"{SVG}tspan") is not None]
    assert labels == ["float32 50", "bfloat16 790; float16 800"]


def test_a_jobs_bars_begin_at_zero(row):
    rows = [row("table inside", op="sentiment", rows=100, median_s=1.0, peer="PyTorch", peer_ratio=4.0)]
    svg = job_figure([*rows, row("PyTorch", op="sentiment", rows=100, median_s=4.0, check=PEER)])
    bars = drawn_bars(svg)
    assert float(bars[0].get("width")) == pytest.approx(4 * float(bars[1].get("width")), rel=0.01)
    assert [bar.get("class") for bar in bars] == ["fill-ours", "fill-peer"]
    assert {"100", "4.00 x", "25", "sentences/s; x: gain over the peer"} <= set(words(svg))


def test_a_file_of_its_own_has_colours_for_both_themes(row, ladder):
    alone = standalone(ladder_figure([row("cpu.fast")], ladder))
    ET.fromstring(alone)  # noqa: S314 - our own text
    light, dark = alone.split("@media (prefers-color-scheme: dark)")
    assert light.count(".fill-cpu {") == dark.count(".fill-cpu {") == 1
    assert "fill-tile" not in alone, "only the colours in use"


def test_words_in_lines_and_values_in_short():
    assert wrapped("one two three", 7.9 * GLYPH * 10, 10) == ["one two", "three"]
    assert wrapped("longer-than-the-line x", 10, 10) == ["longer-than-the-line", "x"]
    assert [short(v) for v in (0.05, 500, 64_800, 2e6)] == ["0.05", "500", "64.8k", "2M"]
