"""README's share of the results: the rule that chooses its rows, and its limits whatever rows there are."""

import itertools
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tilewright.bench.report import headline
from tilewright.bench.report.headline import CLASSES, COLUMNS, JOB_ROWS, JOBS, LADDER_ROWS
from tilewright.bench.report.tables import groups
from tilewright.bench.results import PEER
from tilewright.ops.core.ladder import Ladder, Rung

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def job(row):
    """job(op, machine, seconds, ...) is one measurement of a workload of 100 records beside a peer."""

    def make(op, machine, median_s, **changes):
        plain = {"op": op, "machine": machine, "median_s": median_s, "size": "small", "rows": 100, "peer": "PyTorch",
                 "peer_ratio": 3.0, "threads": 2}  # fmt: skip
        size = {"size": "4x5x5-3x3x3-constant"} if op == "volumes" else {}
        return row("tilewright", **{**plain, **size, **changes})

    return make


def lines_of(rows):
    """The cells of the table's rows."""
    text = headline.jobs(groups(rows, lambda row: row.op), {})
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()[4:]]


def test_each_job_beside_its_peer_on_one_cpu_and_one_gpu(job):
    rows = [job("sentiment", "cpu-2c", 2.0), job("sentiment", "gpu", 1e-5, threads=0, peer=None, peer_ratio=None)]
    rows += [job("dcgan", "gpu", 1.0, threads=0, dtype="float16", peer="PyTorch float16, compiled", peer_ratio=12.34)]
    rows += [job("dcgan", "cpu-2c", 4.0, dtype="bfloat16"), job("volumes", "cpu-2c", 0.5)]
    assert lines_of(rows) == [
        ["`classify`: sentences/s", "float32", "50", "3.00 x PyTorch", "10 M", "no peer measured"],
        ["`draw`: images/s", "16 bit", "25", "3.00 x PyTorch", "100", "12.3 x PyTorch float16"],
        ["`convolve`: voxels/s", "float32", "200", "3.00 x PyTorch", "", ""],
    ]
    text = headline.jobs(groups(rows, lambda row: row.op), {})
    assert text.startswith(
        "Measured 2026-11-21 on Cpu, 2 cores and Gpu:\n\n"
        "| job | dtype | CPU | x strongest peer | GPU | x strongest peer |\n"
    )


def test_the_machine_that_measured_most_then_the_newest(job):
    old = [job(op, "old", 1.0, date="2026-11-01") for op in ("sentiment", "dcgan")]
    new = [job(op, "new", 2.0, date="2026-11-02") for op in ("sentiment", "dcgan")]
    one = job("sentiment", "one", 4.0, date="2026-11-03")
    for rows in itertools.permutations([*old, *new, one], 5):
        assert [line[2] for line in lines_of(rows)] == ["50", "50"]
    assert [line[2] for line in lines_of([*old, *new[:1]])] == ["100", "100"]
    alone = job("dcgan", "new", 2.0, date="2026-11-02", peer=None, peer_ratio=None)
    assert [line[2] for line in lines_of([*old, *new[:1], alone])] == ["100", "100"]


def test_the_first_size_the_newest_session_and_there_the_slowest(job):
    rows = [
        job("sentiment", "m", 9.0, check=PEER),
        job("sentiment", "m", 8.0, date="2026-11-01"),
        job("sentiment", "m", 1.0, session="b"),
        job("sentiment", "m", 4.0, session="b"),
        job("sentiment", "m", 7.0, session="a"),
        job("sentiment", "m", 9.0, session="c", size="another"),
    ]
    assert [line[2] for line in lines_of(rows)] == ["25"]


def test_a_volume_of_another_name_counts_its_planes(job):
    assert lines_of([job("volumes", "m", 0.5, size="odd")])[0][2] == "200"


def test_without_rows_it_says_so():
    empty = Ladder("matmul", Rung("cpu.one", idea="one", kernel="none:none"))
    assert headline.jobs({}, {}) == headline.UNMEASURED == headline.ladder({}, {"matmul": empty})
    assert "several workers" in headline.claims({}, {"matmul": empty})


@pytest.fixture
def long_ladder():
    rungs = [Rung(f"cpu.{i}" + "r" * 40, idea="an idea of many words " * 9, kernel="none:none") for i in range(20)]
    return Ladder("matmul", *rungs)


def test_no_row_is_too_long_and_no_table_too_tall(row, job, long_ladder):
    """Whatever the rows are called, and however many there are."""
    words = {"peer": "a peer with a long name " * 5, "peer_ratio": 98765.4, "size": "1x1x1-" + "s" * 90}
    rows = [
        job(op, str(threads) + "m" * 90, 1 / 123456.7, **words, dtype=dtype, threads=threads)
        for op in JOBS for dtypes in CLASSES.values() for dtype in dtypes for threads in (0, 64)
    ]  # fmt: skip
    rungs = [
        row(name, threads=64, gflops=12345.6 + i, roof_share=0.0123, versus_below=1234.5, machine="m" * 90)
        for i, name in enumerate(long_ladder.rungs)
    ]
    rungs += [replace(rungs[0], rung="a peer with a long name " * 5, check=PEER)]
    by_op = {**groups(rows, lambda row: row.op), "matmul": rungs}
    limits = {"jobs": JOB_ROWS + 4, "ladder": LADDER_ROWS + 6, "claims": 5}
    for name, section in headline.SECTIONS.items():
        lines = section(by_op, {"matmul": long_ladder}).splitlines()
        wide = [line for line in lines if len(line) > COLUMNS and not line.startswith("![")]
        assert not wide and len(lines) <= limits[name], "\n".join([name, *lines])


def test_a_tall_ladder_shows_the_rungs_that_change_most_and_the_fastest_peer(row, long_ladder):
    steps = [None, *(1.5 if i % 2 else 1.01 for i in range(1, 20))]
    rows = [row(name, versus_below=step) for name, step in zip(long_ladder.rungs, steps, strict=True)]
    rows += [row("slow peer", check=PEER), row("MKL", gflops=99.0, check=PEER)]
    text = headline.ladder({"matmul": rows}, {"matmul": long_ladder})
    shown = re.findall(r"^\| (cpu\.\d+|MKL|slow peer)", text, re.MULTILINE)
    assert shown == ["cpu.0", *(f"cpu.{i}" for i in range(1, 20, 2)), "MKL"] and len(shown) == LADDER_ROWS
    rows[2] = replace(rows[2], versus_below=0.1)
    assert "| cpu.2r" in headline.ladder({"matmul": rows}, {"matmul": long_ladder}), "a step down is a large one"


def test_a_factor_over_a_rung_that_is_left_out_names_it(row):
    """Otherwise it would be read as the factor over the row above."""
    names = [f"cpu.{i}" for i in range(LADDER_ROWS + 2)]
    below = [None, *names[:-1]]
    rungs = [Rung(name, after=after, idea="x", kernel="none:none") for name, after in zip(names, below, strict=True)]
    rows = [row(name, versus_below=1.01 if i in (3, 7) else 2.5 + i) for i, name in enumerate(names)]
    text = headline.ladder({"matmul": rows}, {"matmul": Ladder("matmul", *rungs)})
    assert "| cpu.3 |" not in text and "| cpu.7 |" not in text
    assert re.findall(r"\| (\S+ \(\S+\)) \|", text) == ["6.50 (cpu.3)", "10.5 (cpu.7)"] and "| 7.50 |" in text


def test_the_ladder_of_the_machine_with_most_rungs_then_the_newest(row, ladder):
    few = [row("cpu.slow", machine="few", date="2026-11-30")]
    old, new = (
        [
            row(name, machine=machine, date=date, threads=threads)
            for name in ("cpu.slow", "cpu.fast")
            for threads in (1, 2)
        ]
        for machine, date in (("old", "2026-11-01"), ("new", "2026-11-02"))
    )
    small = [replace(one, size="1x1x1-float32", gflops=1.0) for one in new]
    text = headline.ladder({"matmul": [*small, *new, *few, *old]}, {"matmul": ladder})
    assert text.startswith(
        "![matmul: the rate of each rung](results/ladder.svg)\n\nmatmul, 8x8x8, float32, 2 threads; new"
    )
    assert "| cpu.slow | one \\| after the other | 12.5 | 25 |" in text


def test_the_claims_have_the_figures_of_the_rows(job, row, ladder):
    rows = [job("sentiment", "m", 1.0, peer_ratio=2.0, check="passed 0.25; slow here"),
            job("dcgan", "m", 1.0, peer_ratio=45.67, check="passed 8.9e-03"),
            job("dcgan", "m", 1.0, check=PEER)]  # fmt: skip
    unchecked = [row("local", op="scaling", label=count, check="passed") for count in ("1", "4")]  # bytes alone
    unchecked += [row("layer", op="dcgan_profile", check="passed")]
    text = headline.claims(groups([*rows, *unchecked], lambda row: row.op), {"matmul": ladder})
    assert "4 workers write the bytes of one" in text and "1 operations have 3 kernels" in text
    assert (
        "2.00 to 45.7 times as fast as the strongest peer. A peer is faster in 0 of 2 cases." in text
        and "**Checked.** 2 measurements are published." in text
    )


def test_cases_in_which_a_peer_is_faster_are_counted(job, ladder):
    """Also at sizes that the table does not show, and in the slowest variant."""
    rows = [job("volumes", "m", 1.0, size="9x9-a"), job("volumes", "m", 1.0, size="8x8-b", peer_ratio=0.4)]
    rows += [job("dcgan", "m", 1.0, peer_ratio=5.0), job("dcgan", "m", 2.0, peer_ratio=0.9)]
    rows += [
        job("dcgan", "m", 1.0, dtype="bfloat16", peer_ratio=None),
        job("dcgan", "m", 0.1, peer_ratio=9.0, check=PEER),
    ]
    text = headline.claims(groups(rows, lambda row: row.op), {"matmul": ladder})
    assert "A peer is faster in 2 of 3 cases." in text


def test_the_number_of_kills_is_that_of_the_test():
    text = (ROOT / "tests/runtime/jobs/test_kill_attack.py").read_text()
    assert re.search(r"^KILLS = (\d+)", text, re.MULTILINE)[1] == str(headline.KILLS)
