"""`tilewright sweep`: what it takes, what it refuses, what it prints and saves."""

import pytest

from tilewright.bench import sweep
from tilewright.bench.results import read
from tilewright.cli._values import parse_values
from tilewright.errors import UsageError
from tilewright.ops.core.ladder import Ladder, Rung
from tilewright.ops.softmax.ladder import ladder

TINY = ("--size", "shape=3x8")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """A call is timed twice."""
    monkeypatch.setattr(sweep, "RUNS", 2)


@pytest.fixture
def with_tile(monkeypatch):
    """softmax has one more kernel, with the options tile and scheme; its rungs are the ladder's for one test."""
    made = Rung("cpu.tiled", idea="made up", kernel=copied, options={"tile": 1, "scheme": "a"},
                swept={"tile": (1, 2), "scheme": ("a", "b")})  # fmt: skip
    changed = Ladder("softmax", *ladder.rungs.values(), made)
    monkeypatch.setattr("tilewright.ops.softmax.ladder", changed)
    return made


def copied(x, out, *, tile, scheme):
    from tilewright.ops.softmax.reference import softmax

    out[...] = softmax(x)


def test_a_sweep_over_threads_is_printed_and_saved_with_its_figure(run, tmp_path):
    code, out, _ = run("sweep", "softmax", "--rung", "cpu.naive", "--threads", "1..3", *TINY, "--save")
    assert code == 0 and out.count("passed 0.") == 3 and out.count("  best  ") == 2  # the head's, and the best point's
    assert out.splitlines()[-1] == "All points of the same kernel and case gave the same bits."
    rows = read(tmp_path / "results")
    assert [(row.op, row.rung, row.point, row.threads) for row in rows] == [
        ("sweep_softmax", "cpu.naive", f"threads={n}", n) for n in (1, 2, 3)
    ]
    assert all(row.session and row.commit and row.runs == 2 for row in rows)
    (figure,) = tmp_path.glob("results/*/sweep_softmax-threads-float32.svg")
    assert "cpu.naive" in figure.read_text() and f"written to {figure.relative_to(tmp_path)}" in out


def test_without_a_kernel_the_default_one_is_timed(run):
    code, out, _ = run("sweep", "softmax", "--threads", "2", *TINY)
    assert code == 0 and any(line.startswith(ladder.prefer) for line in out.splitlines())


def test_an_option_takes_the_kernels_own_values_and_words(run, with_tile):
    code, out, _ = run("sweep", "softmax", "--set", "tile", "--set", "scheme=b", *TINY)
    lines = [line.split() for line in out.splitlines() if line.startswith("cpu.tiled")]
    assert code == 0 and [line[2:4] for line in lines] == [["1", "b"], ["2", "b"]]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("", "no parameter: one or two parameters are wanted"),
        ("--set tile=1 --set scheme --threads 1", "threads, tile, scheme: one or two parameters"),
        ("--set tiel=1", "no kernel of softmax on cpu has the option tiel; cpu.tiled has tile, scheme"),
        ("--rung cpu.naive --set tile=1", "cpu.naive has no option tile to sweep; it has none"),
        ("--rung cpu.tiled --set block=1", "cpu.tiled has no option block to sweep; it has tile, scheme"),
        ("--set tile=1 --set tile=2", "--set tile is given twice"),
        ("--set tile=a", "--set tile=a: a value such as 1 is wanted by cpu.tiled"),
        ("--set tile=", "--set tile '' has an empty value"),
        ("--set threads=1", "--set 'threads=1': write NAME=LIST"),
        ("--threads 3..1", "--threads 3..1: 3 is more than 1. Write 1..3"),
        ("--threads 1...3", "--threads '1...3' is no range"),
        ("--threads 0,1", "--threads 0: integers from 1 to 256 are wanted"),
        ("--threads two", "--threads two: integers from 1 to 256 are wanted"),
        ("--threads 1..99", "--threads 1..99: at most 64 values are allowed"),
        ("--threads 1 --device cuda", "--threads 1 is for the CPU; --device cuda has none"),
        ("--rung simt.naive --threads 1", "--rung simt.naive does not run on --device cpu. Use --device cuda"),
        ("--rung cpu.none --threads 1", "softmax has no rung 'cpu.none'"),
        ("--threads 1 --label nothing", "no size whose name contains --label nothing"),
        ("--threads 1 --label a --size shape=3x8", "--size shape=3x8 and --label a both choose sizes"),
        ("--threads 1 --dtype float64", "softmax has no size in --dtype float64 on --device cpu"),
    ],
)
def test_what_makes_no_sweep_is_refused(run, with_tile, options, says):
    code, _, errors = run("sweep", "softmax", *options.split())
    assert code == 2 and says in errors


def test_an_unknown_operation_is_refused(run):
    code, _, errors = run("sweep", "softmaxx", "--threads", "1")
    assert code == 2 and "there is no operation 'softmaxx'" in errors


def test_values():
    assert parse_values("--set a", "1..3,8,8,0.5,word") == (1, 2, 3, 8, 0.5, "word")
    assert parse_values("--set a", "64..1024x2") == (64, 128, 256, 512, 1024)
    assert parse_values("--set a", "5..5") == (5,)
    for wrong, says in (("0..8x2", "a first value of at least 1"), ("1..8x1", "a factor of at least 2")):
        with pytest.raises(UsageError, match=says):
            parse_values("--set a", wrong)
