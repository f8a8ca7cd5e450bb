"""Bars of parts: where a job's time goes, and every rung at every layer."""

import re
import xml.etree.ElementTree as ET

from tilewright.bench.report.part_figures import of_parts
from tilewright.bench.report.svg import standalone
from tilewright.bench.report.write import ladders

SVG = "{http://www.w3.org/2000/svg}"


def words(svg):
    return [text.text for text in ET.fromstring(standalone(svg)).iter(f"{SVG}text")]  # noqa: S314 - our own text


def test_where_the_time_goes(row):
    long = "embedding_conv1d 4096 -> 1024x3+5+7+9, tile.gather_add"
    common = {"op": "sentiment_profile", "size": "9 sentences", "threads": 2}
    rows = [
        row("matmul", **common, median_s=0.003),
        row(long, **common, median_s=0.001),
        row("matmul", **common | {"threads": 1}, median_s=9.0),
        row("matmul", **common | {"size": "99 sentences"}, median_s=2.0),
    ]
    drawn = of_parts({"sentiment_profile": rows}, ladders())
    ((name, svg),) = drawn.items()
    assert name == "made-up-2c/sentiment-time-float32.svg"
    told = words(svg)
    assert told[0] == "sentiment, float32: where the time goes" and {"3 ms", "75%", "25%", "100%"} <= set(told)
    assert " ".join(told).count("9 sentences") == 2 and "9,000 ms" not in told, "one thread is slower than two"
    lengths = [float(x) for x in re.findall(r'fill-ours".*?width="([0-9.]+)"', svg)]
    assert lengths[0] == 3 * lengths[1] and lengths[2] > lengths[0]
    assert long.startswith(told[told.index("25%") + 1]), "a long name has several lines"


def test_every_rung_at_every_layer(row):
    common = {"op": "conv_transpose2d", "threads": 0, "machine": "nvidia-h200"}
    rows = [
        row("tile.limbs", **common, label="dcgan 4x4", gflops=10.0),
        row("tile.boxes_limbs", **common, label="dcgan 4x4", gflops=40.0),
        row("tile.limbs", **common, label="dcgan 8x8", gflops=20.0),
        row("cuDNN", **common, label="dcgan 8x8", gflops=5.0, check="peer"),
    ]
    ((name, svg),) = of_parts({"conv_transpose2d": rows}, ladders()).items()
    assert name == "nvidia-h200/conv_transpose2d-layers-float32.svg"
    told = words(svg)
    assert {"dcgan 4x4", "dcgan 8x8", "tile.boxes_limbs (by default)", "tile.limbs (by default)", "cuDNN"} <= set(told)
    assert of_parts({"conv_transpose2d": rows[:2]}, ladders()) == {}, "one layer alone is no figure"
