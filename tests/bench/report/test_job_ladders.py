"""The ladder of a job as a table, a figure and pages."""

import pytest

from tilewright.bench.job_ladders.run import with_factors
from tilewright.bench.report.job_ladders import job_table, of_jobs, published_table
from tilewright.bench.report.write import write
from tilewright.bench.results import read, save


@pytest.fixture
def rows(row):
    """A ladder of three steps; the first is slow and ran on fewer sentences."""
    common = {"op": "job_sentiment", "size": "64 sentences", "label": "", "gflops": None, "runs": 3}
    naive = row("naive", rows=2, median_s=1.0, low_s=0.9, high_s=1.1, check="passed 0.10; 2 of 64 sentences", **common)
    fast = row("token table", rows=64, median_s=0.5, low_s=0.5, high_s=0.5, check="passed 0.20", threads=2, **common)
    gone = row("a step of an earlier version", rows=64, median_s=0.25, low_s=0.2, high_s=0.3, **common)
    return with_factors([gone, fast, naive])


def test_the_table_says_what_each_step_is_worth(rows):
    table = job_table(rows)
    assert [line[:2] + line[3:5] for line in table.rows] == [
        ("naive", "five loops per convolution, three per linear layer; one sentence per call, one thread", "2", ""),
        ("token table", "each pair of token and tap is multiplied once; a window is a sum of table rows", "128", "64"),
        ("a step of an earlier version", "", "256", "2.00"),
    ]
    assert table.notes == ("From the first step to the last: 128 x.",)


def test_published_figures_have_their_machine():
    table = published_table("sentiment")
    assert table.rows[0][1:] == ("one GPU of a cluster, model not stated", "8", "") and table.rows[1][3] == "5.38"
    assert published_table("dcgan") is None


def test_a_ladder_is_saved_as_a_whole_and_shown(rows, tmp_path, monkeypatch):
    monkeypatch.setattr("tilewright.bench.results.commit", lambda: "1a2b3c4")
    (path,) = save(tmp_path / "results", "made-up-2c", rows)
    save(tmp_path / "results", "made-up-2c", rows[:2])
    saved = read(tmp_path / "results")
    assert path.name == "job_sentiment.csv" and [row.rung for row in saved] == ["naive", "token table"]
    (drawing,) = of_jobs(saved).values()
    assert ">token table</text>" in drawing and ">64 x</text>" in drawing
    write(tmp_path)
    page = (tmp_path / "docs/results/job-ladders.md").read_text()
    assert "one sentence per call" in page and "job_sentiment.svg" in page and "12,545" in page
    assert "job-ladders.md" in (tmp_path / "docs/results/index.md").read_text()
    assert 'id="steps-sentiment"' in (tmp_path / "results/report.html").read_text()
    assert not write(tmp_path), "the same rows give the same pages"
