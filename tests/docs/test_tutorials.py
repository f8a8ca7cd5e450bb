"""Every command of the documentation runs, in the order of its page, in an empty directory, on the CPU.

A block of the language `console` holds commands, each after "$ ", and lines that they print. A block with a title is a
file, which is written first. A comment before a block says what is special about it:

    <!-- not tested: REASON -->               the block is listed as skipped
    <!-- insert into FILE before: TEXT -->    the block is inserted into a file of the repository
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import pytest
import typer

from docs_pages import DOCS, INSERT, ROOT, Block, Command, blocks, commands, pages
from tilewright import cli

REASONS = {
    "installs packages", "needs the network", "needs a GPU", "needs MPI", "needs Slurm", "needs Ray", "takes minutes",
    "needs a container engine", "needs a file",
}  # fmt: skip
INPUTS = {  # files that guides suppose
    "reviews.txt": "A warm, funny film.\nDull.\n",
    "lines.txt": "To be, or not to be:\nMy lord,\n",
}
SECONDS = 400  # that a block may take: kernels may have to be compiled
# they import PyTorch, run for long, or start many processes for verbs that other pages and tests start, too
LONG = {
    "embed", "hugging-face", "first-kernel", "pytorch-models", "timeline", "show", "slurm", "switches", "cluster",
    "many-gpus", "mpi", "job-ladder", "records", "resume", "sweep",
}  # fmt: skip
IN_REPOSITORY = {"first-kernel"}  # their commands run in the root of a copy of the repository
VARIES = re.compile(r"\.\.\.|\d\.\d")  # a shown line with one of these is not compared
PAGES = [DOCS / "index.md", *pages("tutorials", "guide")]
UNTESTED = [block for page in PAGES for block in blocks(page) if block.reason]


def run_here(page: Path) -> list[Block]:
    return [
        b for b in blocks(page) if not b.reason and (b.language == "console" or b.title or INSERT.match(b.directive))
    ]


WITH_COMMANDS = [
    pytest.param(page, id=page.stem, marks=[pytest.mark.long] if page.stem in LONG else [])
    for page in PAGES
    if any(block.language == "console" for block in run_here(page))
]


@pytest.fixture
def shell(tmp_path, monkeypatch):
    """shell(command, folder) -> what it prints; `tilewright` and `python` are this test's own."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, start in {"tilewright": f"{sys.executable} -m tilewright", "python": sys.executable}.items():
        (programs / name).write_text(f'#!/bin/sh\nexec {start} "$@"\n')
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    for name in ("NUMBA_ENABLE_CUDASIM", "TRITON_INTERPRET"):
        monkeypatch.delenv(name, raising=False)

    def run(command: Command, folder: Path, where: str) -> str:
        source = folder / "src" if (folder / "src").is_dir() else ROOT / "src"
        paths = filter(None, (str(source), str(folder), os.environ.get("PYTHONPATH")))  # msgspec may lie in the last
        no_gpu = {"CUDA_VISIBLE_DEVICES": ""}  # the pages show what a CPU computes, with as many workers as they like
        env = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "HF_HUB_OFFLINE": "1", **no_gpu}
        done = subprocess.run(
            ["bash", "-eu", "-o", "pipefail", "-c", command.text], cwd=folder, env=env, timeout=SECONDS,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{where}: {command.text}\nexit code {done.returncode}\n{done.stdout}"
        return done.stdout

    return run


@pytest.mark.parametrize("page", WITH_COMMANDS)
def test_every_command_runs_and_prints_what_the_page_shows(page, shell, tmp_path):
    folder = tmp_path / "work"
    start(folder, page)
    for block in run_here(page):
        if INSERT.match(block.directive):
            insert(block, folder)
        elif block.title:
            (folder / block.title).write_text(block.text)
        else:
            for command in commands(block):
                printed = shell(command, folder, block.where)
                missing = [line for line in command.shown if not VARIES.search(line) and line.strip() not in printed]
                assert not missing, f"{block.where}: {command.text}\ndoes not print {missing}, but\n{printed}"


def calls(command: Command) -> Iterator[list[str]]:
    """The words after each `tilewright` of a command, up to a pipe or the like."""
    lexer = shlex.shlex(command.text.partition("<<")[0], posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words = list(lexer)
    while "tilewright" in words:
        words = words[words.index("tilewright") + 1 :]
        yield list(takewhile(lambda word: not set(word) <= set("|&;<>()"), words))


def parse(command, words: list[str]) -> None:
    """Raises an error for a verb or an option that there is not, or for one without its value."""
    context = typer.Context(command, **command.context_settings)
    if hasattr(command, "get_command") and words and not words[0].startswith("-"):
        verb = command.get_command(context, words[0])
        assert verb, f"there is no {words[0]}"
        parse(verb, words[1:])
    else:
        command.make_parser(context).parse_args(words)


@pytest.mark.parametrize("block", [b for page in pages() for b in blocks(page) if b.language == "console"],
                         ids=lambda block: block.where)  # fmt: skip
def test_every_option_exists(block):
    """Also of commands that need a GPU or a network, and of pages that only `make test-long` runs."""
    for command in commands(block):
        for words in calls(command):
            parse(typer.main.get_command(cli.app), words)


@pytest.mark.parametrize("words", ["clasify -i a", "classify --outputs b", "bench gpt2 --nothing", "draw --count"])
def test_an_option_that_does_not_exist_is_found(words):
    wrong_usage = typer.BadParameter.__base__  # typer brings it along or takes it from click, by its version
    with pytest.raises((AssertionError, wrong_usage)):
        parse(typer.main.get_command(cli.app), words.split())


def start(folder: Path, page: Path) -> None:
    """The files that a page's commands suppose."""
    if page.stem in IN_REPOSITORY:
        for name in ("src", "tests"):
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", folder)
        return
    folder.mkdir()
    if page.parent.name == "tutorials":
        return  # a tutorial supposes nothing
    for name, text in INPUTS.items():
        (folder / name).write_text(text)
    save_volume(folder / "scan.npy")


def save_volume(path: Path) -> None:
    import numpy as np

    np.save(path, np.arange(24**3, dtype=np.float32).reshape(24, 24, 24))


def insert(block: Block, folder: Path) -> None:
    """Put the block before the line that its comment names."""
    name, before = INSERT.match(block.directive).groups()
    text = (folder / name).read_text()
    assert text.count(before) == 1, f"{block.where}: {name} has {before!r} {text.count(before)} times"
    line = text[: text.index(before)].rfind("\n") + 1
    (folder / name).write_text(text[:line] + block.text + text[line:])


@pytest.mark.parametrize("block", UNTESTED, ids=lambda block: block.where)
def test_a_block_that_is_not_run_says_why(block):
    assert block.reason in REASONS, f"{block.where}: {block.reason!r} is no reason; there are {sorted(REASONS)}"
    pytest.skip(f"{block.where}: {block.reason}")


def test_no_console_block_is_forgotten():
    """A page outside of PAGES has none, so that all are run or listed."""
    others = [page for page in pages("design", "reference") if any(b.language == "console" for b in blocks(page))]
    assert not others


def test_blocks_are_cut_into_commands(tmp_path):
    page = tmp_path / "docs" / "page.md"
    page.parent.mkdir()
    page.write_text(
        "<!-- not tested: needs MPI -->\n```console\n$ cat > a <<'END'\n$ not a command\nEND\n$ ls\na\n...\n```\n"
        '```python title="x.py"\n1\n```\n'
    )
    first, second = blocks(page)
    assert (first.reason, first.line, second.title, second.text) == ("needs MPI", 2, "x.py", "1\n")
    assert commands(first) == [Command("cat > a <<'END'\n$ not a command\nEND", ()), Command("ls", ("a", "..."))]


def test_a_command_that_fails_is_found(shell, tmp_path):
    with pytest.raises(AssertionError, match="exit code 2"):
        shell(Command("tilewright classify --unknown", ()), tmp_path, "here")
