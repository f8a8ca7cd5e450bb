"""The house: its rules hold for every file, and each rule catches an offender."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path, PurePosixPath

import pytest

import lints
from lints import LINTS, Source

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("src", "tests", "examples")


def sources() -> Iterator[Source]:
    """All files, one at a time: their syntax trees together take hundreds of megabytes."""
    for path in sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")):
        yield Source(PurePosixPath(path.relative_to(ROOT).as_posix()), path.read_text())


def test_every_rule_holds_in_every_file():
    count, found = 0, []
    for source in sources():
        count += 1
        found += [f"{source.path}:{line}: {what}" for lint in LINTS for line, what in lint(source)]
    assert count > 50
    assert not found, "\n" + "\n".join(found)


OP, CLI, TEST = "src/tilewright/ops/gemm/cpu/loops.py", "src/tilewright/cli/classify.py", "tests/test_made_up.py"
REFERENCE, SIMD = "src/tilewright/ops/matmul/reference.py", "src/tilewright/simd/vectors.py"
LADDER, RUNTIME = "src/tilewright/ops/matmul/ladder.py", "src/tilewright/runtime/start.py"

OFFENDERS = [
    (lints.imports_go_down, OP, "from tilewright.models import textcnn\n", 1, "ops imports models"),
    (lints.imports_go_down, OP, "def f():\n    import tilewright.cli\n", 2, "ops imports cli"),
    (
        lints.imports_go_down,
        "src/tilewright/formats/course.py",
        "from tilewright import ops\n",
        1,
        "formats imports ops",
    ),
    (lints.imports_go_down, "src/tilewright/errors.py", "import tilewright.formats\n", 1, "it may import nothing"),
    (lints.imports_go_down, "src/tilewright/new/x.py", "import tilewright.errors\n", 1, "new imports errors"),
    (lints.imports_go_down, OP, "from ..errors import UsageError\n", 1, "relative import"),
    (lints.references_need_only_numpy, REFERENCE, "import numpy as np\nimport scipy\n", 2, "scipy"),
    (lints.references_need_only_numpy, REFERENCE, "from tilewright.ops.core import arrays\n", 1, "NumPy only"),
    (lints.one_file_knows_mpi, OP, "from mpi4py import MPI\n", 1, "mpi4py belongs"),
    (lints.files_are_short, TEST, "x = 1\n" * 401, 400, "401 lines"),
    (lints.functions_are_short, TEST, "def f():\n" + "    x = 1\n" * 60, 1, "f has 61 lines"),
    (lints.functions_are_short, TEST, "class C:\n  def f(self):\n" + "    x = 1\n" * 60, 2, "61 lines"),
    (lints.arguments_are_few, OP, "def f(a, b, c, d, /, e, f, h, i, *g): ...\n", 1, "takes 9 arguments"),
    (lints.arguments_are_few, OP, "def f(a, b, c, d, e, f, g, h, tasks, scratch): ...\n", 1, "takes 9 arguments"),
    (
        lints.arguments_are_few,
        OP,
        "def f(a, b, c, d, pair, more):\n    (p, q), (r, (s, t)) = pair, more\n",
        1,
        "takes 9 arguments",
    ),
    (lints.compiled_code_says_its_options, OP, "@njit\ndef f(): ...\n", 1, "boundscheck and fastmath"),
    (lints.compiled_code_says_its_options, OP, "@numba.njit(fastmath=True)\ndef f(): ...\n", 1, "without boundscheck"),
    (lints.compiled_code_says_its_options, SIMD, "g = njit(boundscheck=False)(f)\n", 1, "without fastmath"),
    (lints.comparisons_are_used, TEST, "np.allclose(a, b)\n", 1, "allclose is thrown away"),
    (lints.comparisons_are_used, OP, "def f():\n    array_equal(a, b)\n", 2, "array_equal is thrown away"),
    (lints.only_the_command_line_prints, OP, "print('hello')\n", 1, "print in a library"),
    (lints.errors_are_named, CLI, "try: ...\nexcept Exception: ...\n", 2, "except without"),
    (lints.errors_are_named, TEST, "try: ...\nexcept (OSError, Exception) as e: ...\n", 2, "except without"),
    (lints.errors_are_named, OP, "try: ...\nexcept: ...\n", 2, "except without"),
    (lints.imports_do_nothing, OP, "import os\nDEBUG = os.environ.get('DEBUG')\n", 2, "environment is read"),
    (lints.imports_do_nothing, OP, "class C:\n    x = os.getenv('X')\n", 2, "environment is read"),
    (lints.public_functions_are_documented, OP, "def multiply(): ...\n", 1, "multiply is public"),
    (lints.ideas_stand_alone, LADDER, "SIMT = (\n    ('x', None, 'the same in limbs'),\n)\n", 2, "refers to another"),
    (lints.rungs_name_functions, LADDER, "Rung('x', kernel='matmul.cpu.naive:multipl')\n", 1, "no multipl"),
    (lints.rungs_name_functions, LADDER, "Rung('x', kernel=K)\n", 1, "no file K.py"),
    (lints.rungs_name_functions, LADDER, "Rung(memory=\n'softmax.tile.none:f')\n", 2, "no file softmax/tile/none.py"),
    (lints.tile_kernels_unpack_flat, OP, "@triton.jit\ndef f(x):\n    a, (b, c) = x\n", 3, "Triton 3.6 cannot"),
    (lints.parameters_have_names, OP, "def f(x, SHAPE):\n    return x + SHAPE[1]\n", 2, "SHAPE[1] reads a parameter"),
    (lints.parameters_have_names, OP, "def f(piece):\n    return piece[2]\n", 2, "piece[2] reads a parameter"),
    (lints.words_are_standard, OP, "x = 1  # room for a panel\n", 1, "'room': write buffer"),
    (lints.words_are_standard, OP, '"""Line.\n\nA warp a row."""\n', 3, "'A warp a ': write one ... per ..."),
    (lints.words_are_standard, SIMD, "first_place = 1\n", 1, "first_place says 'place'"),
    (
        lints.parameters_have_names,
        OP,
        "SLOT, ROW = range(2)\ndef f(x, s):\n    return x[s + ROW]\n",
        3,
        "ROW is an index",
    ),
    (lints.results_are_returned, CLI, "def f():\n    x = 1\n    def g():\n        nonlocal x\n", 4, "nonlocal"),
    (
        lints.results_are_returned,
        RUNTIME,
        "def f():\n    made: list = []\n    def g():\n        made.append(1)\n        return made[0]\n    start(g)\n",
        4,
        "made.append hands out a result",
    ),
    (lints.results_are_returned, RUNTIME, "def f():\n    x = [0]\n    def g():\n        x[0] = 1\n", 4, "x[...] hands"),
    (lints.work_is_done, OP, "x = 1\n# TODO: two\n", 2, "unfinished"),
]

INNOCENTS = [
    (
        lints.imports_go_down,
        OP,
        "import numpy\nfrom tilewright import simd\nfrom tilewright.ops.core.ladder import Ladder\n",
    ),
    (
        lints.imports_go_down,
        CLI,
        "from tilewright.bench.measure import interleave\nfrom tilewright.ops import matmul\n",
    ),
    (lints.imports_go_down, TEST, "from tilewright.cli import main\n"),
    (lints.references_need_only_numpy, REFERENCE, "import numpy as np\nfrom numpy.lib import stride_tricks\n"),
    (lints.references_need_only_numpy, OP, "import scipy\n"),
    (lints.one_file_knows_mpi, "src/tilewright/runtime/engines/mpi.py", "from mpi4py import MPI\n"),
    (lints.files_are_short, TEST, "x = 1\n" * 400),
    (lints.functions_are_short, TEST, "def f():\n" + "    x = 1\n" * 59),
    (lints.arguments_are_few, OP, "class C:\n    def f(self, a, b, c, d, e, f, g, h): ...\n"),
    (lints.arguments_are_few, OP, "def kernel(a, b, c, d, e, f, job, tasks, scratch): ...\n"),
    (lints.arguments_are_few, OP, "def f(context, builder, signature, args):\n    a, b, c, d, e, f, g = args\n"),
    (lints.arguments_are_few, OP, "def f(a, b, c, job):\n    p, q, r, s = job.p, job.q, job.r, job.s\n"),
    (lints.arguments_are_few, TEST, "def f(x):\n    a, b, c, d, e, f, g, h, i = x\n"),
    (lints.compiled_code_says_its_options, SIMD, "@njit(fastmath=False, boundscheck=False)\ndef f(): ...\n"),
    (lints.compiled_code_says_its_options, OP, "@simd.kernel('void()', name='f')\ndef f(): ...\n"),
    (lints.comparisons_are_used, TEST, "assert np.allclose(a, b)\nsame = np.array_equal(a, b)\n"),
    (lints.only_the_command_line_prints, CLI, "print('hello')\n"),
    (lints.only_the_command_line_prints, "src/tilewright/demo.py", "print('hello')\n"),
    (lints.only_the_command_line_prints, OP, "shape.print()\nprinted = 1\n"),
    (lints.errors_are_named, OP, "try: ...\nexcept (OSError, ValueError): ...\n"),
    (lints.imports_do_nothing, OP, "import os\ndef f():\n    return os.environ['HOME']\n"),
    (lints.public_functions_are_documented, OP, "def _multiply(): ...\ndef f():\n    'What it gives.'\n"),
    (lints.public_functions_are_documented, "src/tilewright/ops/_private.py", "def f(): ...\n"),
    (lints.public_functions_are_documented, OP, "@overload\ndef f(x: int): ...\ndef f(x):\n    'What it gives.'\n"),
    (lints.ideas_stand_alone, LADDER, "idea = 'by limbs, with the same sums'\n"),
    (lints.ideas_stand_alone, OP, "idea = 'the same by limbs'\n"),
    (lints.rungs_name_functions, LADDER, "Rung('x', kernel='matmul.cpu.naive:multiply')\n"),
    (
        lints.rungs_name_functions,
        LADDER,
        "Rung(prepare='softmax.simt.rows:shared', kernel='conv3d.simt.launch:on_device')",
    ),
    (lints.rungs_name_functions, OP, "Rung('x', kernel='a.b:c')\n"),
    (lints.tile_kernels_unpack_flat, OP, "def f(x):\n    a, (b, c) = x\n"),
    (lints.tile_kernels_unpack_flat, OP, "@gluon.jit\ndef f(x):\n    a, b = x\n"),
    (lints.parameters_have_names, OP, "def f(x, shape, BOUNDS, i):\n    return x[i] + shape.M + x.shape[0]\n"),
    (lints.words_are_standard, OP, "# the sum is updated in place; a task at a time; a row has a panel\nroomy = 1\n"),
    (lints.words_are_standard, TEST, "place = 1  # on its way\n"),
    (lints.parameters_have_names, OP, "SPAN = Span(*range(5))\ndef f(x, s):\n    return x[s + SPAN.row]\n"),
    (lints.results_are_returned, RUNTIME, "def f():\n    x = []\n    def g(y):\n        x.append(y)\n    return x\n"),
    (lints.results_are_returned, RUNTIME, "def f(x):\n    x[0] = 1\n    y = [0]\n    y[0] = 1\n    return y\n"),
    (lints.results_are_returned, TEST, "def f():\n    x = 1\n    def g():\n        nonlocal x\n"),
    (lints.work_is_done, OP, "todo = 1\n"),
]


def imported_by_modules(sources: Iterable[Source]) -> dict[str, list[str]]:
    """What each module of the package imports, lazy imports included and those for types alone left out."""
    return {
        ".".join(source.path.with_suffix("").parts[1:]).removesuffix(".__init__"): [
            wanted for _, wanted in source.imports(types=False)
        ]
        for source in sources
        if source.inside
    }


def circle_of(imported: dict[str, list[str]]) -> list[str]:
    """Modules that import each other in a circle; empty if there are none."""
    graph = {name: {_module_of(one, imported) for one in wanted} - {name, None} for name, wanted in imported.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def _module_of(name: str, known) -> str | None:
    """The module that an import of `name` loads: itself, or the one that it is a name in."""
    return name if name in known else name.rpartition(".")[0] if name.rpartition(".")[0] in known else None


def test_no_files_import_each_other_in_a_circle():
    """Imports inside functions count, too; imports for types alone do not."""
    imported = imported_by_modules(sources())
    assert len(imported) > 350
    assert circle_of(imported) == []


def test_a_circle_is_found():
    lazy = "def f():\n    from tilewright.ops.b import g\n"
    texts = {"a": lazy, "b": "from tilewright.ops import c\n", "c": "import tilewright.ops.a\n", "d": lazy}
    made = {name: Source(PurePosixPath(f"src/tilewright/ops/{name}.py"), text) for name, text in texts.items()}
    circle = lambda *found: circle_of(imported_by_modules(found))  # noqa: E731
    assert set(circle(*made.values())) == {f"tilewright.ops.{name}" for name in "abc"}
    assert circle(made["a"], made["b"], made["d"]) == []
    for_types = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import tilewright.ops.a\n"
    types = Source(PurePosixPath("src/tilewright/ops/b.py"), for_types)
    assert circle(made["a"], types) == [], "an import for types alone runs nothing"
    assert circle(made["a"], Source(types.path, "import tilewright.ops.a\n")), "the same, when it runs"


@pytest.mark.parametrize(("lint", "path", "text", "line", "message"), OFFENDERS)
def test_a_rule_catches_its_offender(lint, path, text, line, message):
    found = list(lint(Source(PurePosixPath(path), text)))
    assert [at for at, _ in found] == [line]
    assert message in found[0][1]


@pytest.mark.parametrize(("lint", "path", "text"), INNOCENTS)
def test_a_rule_lets_the_innocent_pass(lint, path, text):
    assert list(lint(Source(PurePosixPath(path), text))) == []


def test_every_rule_has_an_offender_and_an_innocent():
    assert {lint for lint, *_ in OFFENDERS} == {lint for lint, *_ in INNOCENTS} == set(LINTS)


HEAVY = {"numpy", "numba", "llvmlite", "torch", "scipy", "msgspec", "safetensors", "psutil"}


@pytest.mark.parametrize("code", ["import tilewright", "import tilewright.cli", "import tilewright.cli.classify"])
def test_importing_loads_nothing_heavy(code):
    loaded = run(sys.executable, "-c", f"{code}; import sys, json; print(json.dumps(list(sys.modules)))")
    assert HEAVY & set(json.loads(loaded)) == set()


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_help_has_a_line_for_every_word():
    text = run("make", "-C", str(ROOT), "--no-print-directory", "help")
    words = {line.split()[0] for line in text.splitlines()}
    tests, benches = {"check", "test", "test-long", "test-gpu", "test-slurm"}, {"bench", "bench-gpu", "report"}
    assert words == {"help", "setup", "demo", "docs", "reference", "clean"} | tests | benches


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_an_old_python_is_refused_in_one_line(tmp_path):
    old = tmp_path / "python3"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo Python 3.9.2\nexit 1\n')
    old.chmod(0o755)
    command = ["make", "-C", str(ROOT), "setup", f"PYTHON={old}", f"VENV={tmp_path}/venv"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "needs Python 3.11 or newer" in done.stdout + done.stderr
    assert "Python 3.9.2" in done.stdout + done.stderr
    assert not (tmp_path / "venv").exists()


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
