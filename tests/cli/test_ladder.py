"""`tilewright ladder` as a newcomer reads it: what its columns are, what it compares with, how short --explain is."""

import importlib.util
import inspect
import re
from dataclasses import replace
from pathlib import Path

import pytest

import tilewright
from tilewright.bench.results import Row, read
from tilewright.cli.ladder import LEGEND
from tilewright.formats.packages import install_command
from tilewright.ops.core.ladder import operations

ROW = Row("matmul", "cpu.packed", "8x8x8", "float32", 1, 8, 0.5, 0.4, 0.7, 11, 12.5, 2.0, 0.25, check="passed 0.10")


@pytest.fixture
def measured(monkeypatch):
    """Nothing is measured: every climb has this row."""
    monkeypatch.setattr("tilewright.bench.climb.climb", lambda *args, **options: iter([ROW]))


@pytest.fixture
def absent(monkeypatch):
    """PyTorch, as where it is not installed."""
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *package: None if name == "torch" else find(name))


def test_help_names_the_operations(run):
    _, out, _ = run("ladder", "--help")
    assert f"one of {', '.join(operations())}." in re.sub(r"\s+", " ", out)


def test_columns_are_explained_once(run, measured):
    code, out, _ = run("ladder", "matmul", "--threads", "1,2")
    assert code == 0 and out.count("cpu.packed") > 2 and "PyTorch" not in out
    legend = out.splitlines()[-len(LEGEND.splitlines()) :]
    assert "\n".join(legend) == LEGEND and out.count(LEGEND) == 1
    (head, *_) = [line.split() for line in out.splitlines() if line.startswith("  rung ")]
    for column in ("time", "spread", "roof", "x below", "x peer", "check", "idea"):
        assert column in " ".join(head) and f"{column}: " in LEGEND


def test_a_row_shows_the_spread_and_the_idea(run, measured):
    _, out, _ = run("ladder", "matmul", "--threads", "1")
    line = next(line for line in out.splitlines() if line.startswith("  cpu.packed "))
    assert "500.000 ms" in line and " -20%  +40% " in line
    assert line.endswith(
        "  passed 0.10  operands packed in the order of use, a block of out in registers; threads take blocks"
    )


def test_a_ladder_is_saved_as_a_whole_or_not_at_all(run, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    climbed = []

    def climb(op, case, **options):
        climbed.append(case.name)
        if len(climbed) == 3:
            raise KeyboardInterrupt
        yield replace(ROW, size=case.name)

    monkeypatch.setattr("tilewright.bench.climb.climb", climb)
    words = ("ladder", "matmul", "--threads", "1", "--save", "--dtype", "float32", "--label")
    code, _, _ = run(*words, "gpt2")
    assert code == 130 and not list(tmp_path.iterdir())
    code, out, _ = run(*words, "square")
    assert code == 0 and [row.size for row in read(tmp_path / "results")] == climbed[3:] and "written to" in out


def test_without_pytorch_there_are_no_peers(run, measured, absent, monkeypatch):
    _, out, _ = run("ladder", "matmul", "--threads", "1")
    assert out.endswith(f"No peers: PyTorch is not installed. To compare with it: {install_command('bench')}\n")
    monkeypatch.setattr("tilewright.bench.peers.has_peers", lambda op: False)
    _, out, _ = run("ladder", "correlate", "--threads", "1")
    assert "PyTorch" not in out  # an operation without a peer in any case


def test_explain_says_the_same_once_and_of_other_devices_only_how_many(run):
    code, out, _ = run("ladder", "matmul", "--explain", "--dtype", "float32")
    assert code == 0 and "simt." not in out and "roof" not in out
    blocks = [block.splitlines() for block in out.strip().split("\n\n")]
    names = [line for block in blocks for line in block if line.startswith("matmul N=")]
    texts = [[line for line in block if line not in names] for block in blocks]
    assert len(names) == len(set(names)) > 5 and len(blocks) < len(names)
    assert len({tuple(text) for text in texts}) == len(texts)
    for text in texts:
        assert sum(line.startswith("-> cpu.") for line in text) == 1 and any("refused" in line for line in text)
        assert re.fullmatch(r"   and \d+ for GPUs", text[-1]) and len(text) < 12


def test_explain_of_a_rung_that_is_forced(run):
    _, out, _ = run("ladder", "matmul", "--explain", "--dtype", "float32", "--rung", "cpu.packed")
    assert "-> cpu.packed: " in out
    code, _, errors = run("ladder", "matmul", "--explain", "--rung", "simt.narrow")
    assert code == 2 and "simt.narrow refuses" in errors


@pytest.mark.parametrize(
    ("op", "size", "says"),
    [
        ("conv1d", "C=8,O=32,K=3", "conv1d O=32, C=8, K=3, float32 on cpu"),
        ("softmax", "shape=4x1000", "softmax C=1000, float32 on cpu"),
        ("conv_transpose2d", "C=64,O=3,K=5x4", "columns=(K=4, stride=2"),
        ("embedding_conv1d", "kernels=3x5", "kernels=3x5"),
        ("elementwise", "function=tanh", "elementwise function=tanh, float32 on cpu"),
        ("matmul", "N=100, K=64", "matmul N=100, K=64, float32 on cpu"),
    ],
)
def test_explain_of_sizes_of_ones_own(run, op, size, says):
    code, out, _ = run("ladder", op, "--explain", "--size", size)
    first, *lines = out.strip().splitlines()
    assert code == 0 and says in first and sum(line.startswith("-> cpu.") for line in lines) == 1


def test_a_ladder_is_timed_at_a_size_of_ones_own(run, monkeypatch):
    timed = []
    monkeypatch.setattr("tilewright.bench.climb.climb", lambda op, case, **options: timed.append(case) or iter([ROW]))
    code, _, errors = run("ladder", "conv1d", "--size", "C=8,O=32,K=5", "--threads", "1")
    assert code == 0, errors
    assert [(case.C, case.O, case.K, case.dtype) for case in timed] == [(8, 32, 5, "float32")]


def test_explain_of_sizes_in_another_class(run):
    _, out, _ = run("ladder", "conv1d", "--explain", "--size", "C=8,O=32,K=3", "--dtype", "bfloat16")
    assert "-> cpu.matmul: " in out and "cpu.channel_tiles: refused - dtype is bfloat16" in out


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("conv1d --explain --size Q=3", "'Q=3' names no size of conv1d; it has B, L, O, C, K, stride"),
        ("conv1d --explain --size K", "'K' names no size of conv1d"),
        ("conv1d --explain --size K=x", "--size K=x: a value such as 3 is wanted"),
        ("conv1d --explain --size K=0", "--size K=0: at least 1 is wanted"),
        ("conv1d --explain --size L=3,K=9", "leaves no output: K is 9 and L is 3"),
        ("conv1d --explain --size K=3 --k 3", "--k 3 and --size K=3 both choose sizes"),
        ("conv1d --size Q=3", "'Q=3' names no size of conv1d"),
        ("conv1d --size K=3 --label gpt2", "--label gpt2 and --size K=3 both choose sizes"),
        ("softmax --size shape=4x9 --dtype float16", "no rung of softmax accepts C=9, float16 on cpu"),
        ("conv_transpose2d --k 5", "--k 5 is no size of conv_transpose2d; it takes none of --m, --n, --k"),
        ("all --explain --size K=3", "--size K=3 is for one operation"),
        ("conv_transpose2d --explain --size stride=2", "2 integers are wanted, as in 2x2"),
        ("conv_transpose2d --explain --size padding=1x1", "it cannot be given here"),
        ("elementwise --explain --size function=sine", "function=sine: it is one of gelu"),
        ("softmax --explain --size shape=4x0", "shape=4x0: at least 1 is wanted"),
        ("conv1d --list --size K=3", "--size has no effect with --list"),
    ],
)
def test_sizes_that_make_no_problem_are_refused(run, options, says):
    code, _, errors = run("ladder", *options.split())
    assert code == 2 and says in errors


@pytest.mark.parametrize("op", operations())
def test_list_names_every_rung_with_its_kernel(run, op):
    """Also those of engines that this machine lacks; the file is there and defines the function."""
    code, out, _ = run("ladder", op, "--list")
    names = [line.split()[0] for line in out.splitlines()[1:] if line and line[0] != " "]
    assert code == 0 and names == list(importlib.import_module(f"tilewright.ops.{op}").ladder.rungs)
    found = re.findall(r"^    kernel: (\S+), (\w+)\(", out, re.MULTILINE)
    assert len(found) == len(names)
    for file, function in found:
        text = (Path(tilewright.__file__).parent / file).read_text()
        defined = rf"^(def {function}\(|{function} = |.*, {function} = )"  # or made by a factory
        assert re.search(defined, text, re.MULTILINE), f"{file} has no {function}"


@pytest.mark.parametrize("op", operations())
def test_options_of_a_rung_are_arguments_of_its_kernel(op):
    for rung in importlib.import_module(f"tilewright.ops.{op}").ladder.rungs.values():
        if rung.name.startswith("cpu.") and rung.options:
            assert set(rung.options) <= set(inspect.signature(rung.run.func).parameters), rung.name


def test_list_takes_no_other_option(run):
    code, _, errors = run("ladder", "matmul", "--list", "--dtype", "float32")
    assert code == 2 and "--dtype has no effect with --list" in errors
