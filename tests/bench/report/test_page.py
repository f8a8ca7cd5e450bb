"""The report page in a browser: nothing scrolls sideways, no text leaves its box, every figure is labelled."""

import re
from pathlib import Path

import pytest

import browser
from tilewright.bench.report import figures
from tilewright.bench.report.page import page
from tilewright.bench.report.shown import shown
from tilewright.bench.report.sweeps import is_sweep, of_sweeps
from tilewright.bench.report.write import ladders
from tilewright.bench.results import PEER, Row, read

RESULTS = Path(__file__).parents[3] / "results"
MISSING = f"none of {', '.join(browser.BROWSERS)} is installed"


def drawn(rows: list[Row]) -> str:
    """The page of these rows."""
    known = ladders()
    swept = [row for row in rows if is_sweep(row)]
    by_op = shown([row for row in rows if not is_sweep(row)], known)
    return page(by_op, known, figures.of_results(by_op, known) | of_sweeps(swept), swept)


@pytest.fixture
def job(row):
    """Our row of a job and its peer's, on a GPU."""
    common = {"op": "sentiment", "size": "16384 sentences", "threads": 0, "machine": "nvidia-h100", "gflops": None}
    return [row("table inside", **common, peer="PyTorch", peer_ratio=9.0), row("PyTorch", **common, check=PEER)]


def test_every_operation_has_a_section_and_says_what_is_missing(row, job):
    text = drawn([row("cpu.packed", machine="amd-epyc-zen4-2c"), *job])
    for name in (*ladders(), "sentiment", "scaling", "machines", "rooflines"):
        assert f'<section id="{name}">' in text and f'<a href="#{name}">' in text
    softmax, matmul = (text.split(f'<section id="{op}">')[1].split("</section>")[0] for op in ("softmax", "matmul"))
    assert "No rows from: AMD EPYC Zen 4, 2 cores; NVIDIA H100." in softmax
    assert "No rows from: NVIDIA H100." in matmul and "<h3>AMD EPYC Zen 4, 2 cores</h3>" in matmul


def test_a_gpu_is_no_thread(job):
    text = drawn(job)
    assert ">GPU</td>" in text and "0 thread" not in text and ">0</td>" not in text


def test_a_jobs_speed_stands_at_the_head(job):
    text = drawn(job)
    assert "<b>16</b> <span>sentences/s</span><em>9.00 x as fast as PyTorch</em>" in text
    assert "<small>16384 sentences, float32; NVIDIA H100</small>" in text
    assert 'headline"' not in drawn(job[1:])


def test_the_page_has_two_themes_and_a_switch(row):
    text = drawn([row("cpu.packed")])
    assert "light-dark(" in text and 'id="theme"' in text and "prefers-color-scheme" in text


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("<nav>" + "".join(f'<a href="#{i}">operation{i}</a>' for i in range(99)) + "</nav>", "the page is .* wide"),
        ('<div style="overflow-x: auto; width: 90px"><p style="width: 300px">wide</p></div>', "DIV scrolls"),
        ('<p style="height: 9px; width: 60px">many words in a small box</p>', "text outside its box"),
        ('<svg width="90" height="20"><text class="title name" x="50" y="9">a long legend</text></svg>', "its figure"),
        ("<svg><text>no role</text></svg>", "without role"),
        ('<svg role="img" aria-label="a"><text class="name">x</text></svg>', "without a title"),
        ('<svg role="img" aria-label="a"><text class="title">x</text></svg>', "without the name of an axis"),
        ('<svg width="90"><text y="19">over</text><text x="9" y="22">under</text></svg>', "text over text"),
        ("<p>one theme</p>", "no switch"),
    ],
    ids=["page", "scrolls", "box", "figure", "role", "title", "axis", "over", "theme"],
)
@pytest.mark.long
@pytest.mark.skipif(not browser.browser(), reason=MISSING)
def test_the_measurement_finds_faults(body, message, tmp_path):
    page = f"<!DOCTYPE html><style>nav {{ white-space: nowrap; }}</style><body>{body}</body>"
    (found,) = browser.faults(page, tmp_path, (400,)).values()
    assert any(re.search(message, fault) for fault in found), found


@pytest.mark.long
@pytest.mark.skipif(not browser.browser(), reason=MISSING)
def test_the_page_of_this_repository_is_right_at_1400_and_at_400_px(tmp_path):
    found = browser.faults(drawn(read(RESULTS)), tmp_path)
    assert found == {width: [] for width in browser.WIDTHS}
