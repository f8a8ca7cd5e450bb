"""`tilewright ladder OP --mine FILE`: a right kernel is ranked; a wrong one is refused with its size, and not timed."""

from pathlib import Path

import pytest

from tilewright.bench.mine import rank
from tilewright.bench.results import Row
from tilewright.bench.roofs.limits import Roofs
from tilewright.ops.softmax.problem import Case

RIGHT = """\
import numpy as np

idea = "NumPy, one pass per step"


def kernel(x, out):
    np.exp(x - x.max(axis=1, keepdims=True), out=out)
    out /= out.sum(axis=1, keepdims=True)
"""


@pytest.fixture
def climbed(run, monkeypatch, tmp_path):
    """climbed(text, ...) runs the ladder of softmax at two small sizes with a file of this text as --mine."""
    monkeypatch.setattr("tilewright.bench.sizes.softmax.sizes", lambda: [Case((40, 5)), Case((9, 33), label="odd")])
    monkeypatch.setattr("tilewright.bench.climb.cpu_peers", lambda *case: {})
    monkeypatch.setattr("tilewright.bench.climb.measured_roofs", lambda count: Roofs(count, 1.0, {"float32": 1.0}))

    def call(text: str, *options: str, op: str = "softmax"):
        (tmp_path / "mine.py").write_text(text)
        return run("ladder", op, "--threads", "1", "--mine", "mine.py", *options)

    return call


def test_a_right_kernel_is_ranked_at_each_size(climbed):
    code, out, errors = climbed(RIGHT)
    assert code == 0, errors
    assert "mine.kernel: right on a few rows of 2 sizes" in out and "NumPy, one pass per step" in out
    (first, second) = [line for line in out.splitlines() if line.startswith("mine.kernel is number ")]
    for line in (first, second):
        assert " of 3: " in line and "times as fast as cpu." in line and line.endswith("as cpu.naive, the lowest.")


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        (RIGHT.replace("x.max(axis=1, keepdims=True)", "0.5").replace("axis=1, keepdims", "keepdims"), 3,
         "mine.kernel is wrong on softmax 7x5: its worst element, out["),
        (RIGHT.replace("out /= out.sum", "out[:, :32] /= out[:, :32].sum"), 3, "is wrong on softmax 1x33: its worst"),
        (RIGHT + "    out[-1, -1] = np.nan\n", 3, "out[0, 4], is nan; it must be within"),
        ("def kernel(x, out):\n    out[0] = 0.2\n    x *= 1\n", 3, "is wrong on softmax 1x5"),
        (RIGHT + "    x += 1\n", 3, "mine.kernel changes its argument x on softmax 1x5"),
        ("def kernl(x, out): ...\n", 3, "mine.py: the file defines no function named kernel. A kernel is called as"),
        ("def kernel(x, out)\n    pass\n", 3, "mine.py, line 1: SyntaxError"),
        ("\n\ndef kernel(x): ...\n", 3, "line 3: kernel(x) cannot be called as softmax calls it, with (x, out): too"),
        ("def kernel(x, out):\n    y\n", 3, "mine.py, line 2: NameError: name 'y' is not defined"),
        ("import none_such\n", 3, "mine.py, line 1: ModuleNotFoundError"),
        ("import sys\nsys.exit(0)\n", 3, "mine.py, line 2: SystemExit"),
        (RIGHT + "\n\ndef prepare(w): ...\n", 3, "softmax has no weights to prepare"),
        (RIGHT + "\nneeds = 3\n", 3, "needs is 3; a tuple of functions of a problem is wanted"),
        (RIGHT + "\nneeds = [lambda problem: 'no']\n", 2, "mine.kernel takes no size that would be timed: no"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_timed_says_why(climbed, text, code, says):
    found, out, errors = climbed(text)
    assert found == code and says in errors and " ms " not in out
    assert errors.count("\n") == 1


def test_an_error_of_numba_names_the_line(climbed):
    code, _, errors = climbed("import numba\n\n\n@numba.njit\ndef kernel(x, out):\n    out[0] = x + 'a'\n")
    assert code == 3 and "mine.py, line 6: TypingError" in errors


def test_elements_that_are_not_written_are_found(climbed):
    """`out` holds NaN before one of the runs: new memory might happen to hold the right elements."""
    leaves_one = "    if hasattr(kernel, 'ran'):\n        out[0, 0] = before\n    kernel.ran = True\n"
    code, _, errors = climbed(RIGHT.replace("    np.exp", "    before = out[0, 0]\n    np.exp") + leaves_one)
    assert code == 3 and "out[0, 0], is nan" in errors


@pytest.fixture
def product(run, tmp_path, monkeypatch):
    """product(text): (exit code, out, errors) of `ladder matmul --mine` with a file of this text, on one small size."""
    from tilewright.ops.matmul.problem import Case as Product

    monkeypatch.setattr("tilewright.bench.sizes.matmul.sizes", lambda: [Product(20, 6, 9)])
    monkeypatch.setattr("tilewright.bench.climb.climb", lambda op, case, mine, **options: iter([]))
    monkeypatch.setattr("tilewright.bench.mine.rank", lambda *arguments: "ranked")

    def ladder(text):
        (tmp_path / "mine.py").write_text(text)
        return run("ladder", "matmul", "--threads", "1", "--mine", "mine.py")

    return ladder


def in_the_guide():
    """The product of docs/guide/own-kernel.md."""
    page = (Path(__file__).parents[2] / "docs/guide/own-kernel.md").read_text()
    return page.split('```python title="product.py"\n')[1].split("```")[0]


def test_weights_go_through_prepare(product):
    laid_out = (
        "from tilewright.ops.gemm.operands import Packed\n\n\n"
        "def prepare(b, name):\n    return Packed(name, *b.shape, 'float32', b.T.copy())\n\n\n"
    )
    code, out, errors = product(laid_out + in_the_guide().replace("weights.data", "weights.data.T"))
    assert code == 0 and "ranked" in out, errors


@pytest.mark.parametrize("left_out", ["epilogue.residual.size", "epilogue.bias.size", "epilogue.activation:"])
def test_a_product_without_a_part_of_its_epilogue_is_wrong(product, left_out):
    assert product(in_the_guide())[0] == 0
    code, _, errors = product(in_the_guide().replace(f"if {left_out}", f"if False and {left_out}"))
    assert code == 3 and "bias-residual-relu" in errors


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            "softmax --mine x.py --save",
            "--save and --mine x.py exclude each other: results/ holds rungs of the project",
        ),
        ("softmax --mine x.py --explain", "--mine has no effect with --explain"),
        ("softmax --mine x.py --list", "--mine has no effect with --list"),
        ("all --mine x.py", "--mine x.py is for one operation"),
        ("softmax --mine -", "standard input"),
    ],
)
def test_options_that_exclude_mine(run, options, says):
    code, _, errors = run("ladder", *options.split())
    assert code == 2 and says in errors


def test_a_file_that_is_missing(run):
    code, _, errors = run("ladder", "softmax", "--mine", "none.py")
    assert code == 4 and "none.py: cannot read the kernel" in errors


def test_rank_compares_rates_not_times():
    """cpu.slow was timed on a tenth of the rows."""
    measured = (("cpu.slow", 10, 1.0), ("cpu.fast", 100, 1.0), ("mine.kernel", 100, 2.0), ("PyTorch", 100, 0.1))
    rows = [Row("softmax", name, "s", "float32", 1, count, seconds, 1, 1, 11) for name, count, seconds in measured]
    said = rank("mine.kernel", rows, ["cpu.slow", "cpu.fast"])
    assert said == (
        "mine.kernel is number 2 of 3: 0.5 times as fast as cpu.fast, the best rung, and 5 times as fast as cpu.slow, "
        "the lowest."
    )
    assert "none to compare" in rank("mine.kernel", rows[2:], ["cpu.slow"])
