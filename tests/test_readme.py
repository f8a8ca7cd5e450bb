"""README.md: its size, its sentences, its links, and every command in it, run as it is printed."""

import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tilewright.bench.report import headline, transcript
from tilewright.cli.generate import Options
from tilewright.demo import named
from tilewright.runtime.named_models import FOLDER

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "README.md").read_text()
LINES, COLUMNS, WORDS = 110, 120, 25
MOST = {"headline:jobs": headline.JOB_ROWS + 4, "headline:ladder": headline.LADDER_ROWS + 6, "headline:claims": 5,
        "demo:output": transcript.LINES + 5}  # fmt: skip
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```\n", re.DOTALL | re.MULTILINE)
MARKED = re.compile(r"^<!-- (\S+) -->\n(.*?)^<!-- /\1 -->\n", re.DOTALL | re.MULTILINE)
NUMBER = re.compile(r"-?\d+\.\d+")


def test_it_stays_small_whatever_the_report_writes():
    """The report's limits and the rest together; lines of tables and of text, but for links to pictures."""
    assert {name for name, _ in MARKED.findall(TEXT)} == MOST.keys()
    rest = MARKED.sub(r"<!-- \1 -->\n<!-- /\1 -->\n", TEXT).splitlines()
    assert len(rest) + sum(MOST.values()) <= LINES and TEXT.count("\n") <= LINES
    assert all(body.count("\n") <= MOST[name] for name, body in MARKED.findall(TEXT))
    assert not [line for line in TEXT.splitlines() if len(line) > COLUMNS]


def prose():
    """Paragraphs and list entries, without blocks, tables and headings."""
    text = re.sub(r"<!--.*?-->\n", "", BLOCK.sub("\n", TEXT))
    paragraphs = re.split(r"\n\s*\n|\n(?=\* )", text)
    return [" ".join(one.split()) for one in paragraphs if one.strip() and one.lstrip()[0] not in "#|!"]


def test_no_sentence_is_long():
    sentences = [one for text in prose() for one in re.split(r"(?<=[.!?:])\s+(?=[A-Z`\[*])", text)]
    assert len(sentences) > 20
    assert not [one for one in sentences if len(one.split()) > WORDS]


def test_pictures_are_there():
    pictures = re.findall(r"!\[[^]]+\]\(([^)]+)\)", TEXT)
    assert len(pictures) == 2 and all((ROOT / name).is_file() for name in pictures)


def test_defaults_that_it_names():
    assert f"{Options.max_tokens} new tokens, temperature {Options.temperature:g}" in " ".join(TEXT.split())


def test_what_make_and_the_shell_are_told():
    """Targets of the Makefile, which are not made here, and the environment that they make."""
    (block,) = [body for kind, body in BLOCK.findall(TEXT) if kind == "sh"]
    commands = [line.partition("#")[0].strip() for line in block.splitlines()]
    targets = {
        command.split()[1] for command in [*commands, *re.findall(r"`(make [\w-]+)`", TEXT)] if "make" in command
    }
    assert {"demo", "test", "bench"} <= targets
    for target in targets:
        subprocess.run(["make", "-n", target], cwd=ROOT, check=True, capture_output=True)
    assert commands[-1] == "source .venv/bin/activate"
    assert "VENV   := .venv\n" in (ROOT / "Makefile").read_text()


def test_commands_within_sentences():
    found = set(re.findall(r"`tilewright ([a-z]+)", TEXT))
    assert "convert" in found
    for verb in found:
        run(f"tilewright {verb} --help", ROOT)


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """The files that the examples read: a model that transformers saved, the demo's reviews, a volume."""
    nibabel, transformers = pytest.importorskip("nibabel"), pytest.importorskip("transformers")
    path = tmp_path_factory.mktemp("readme")
    transformers.GPT2LMHeadModel.from_pretrained(FOLDER / "poet").save_pretrained(path / "my-gpt2")
    transformers.PreTrainedTokenizerFast.from_pretrained(FOLDER / "poet").save_pretrained(path / "my-gpt2")
    (path / "demo").mkdir()
    (path / "demo/reviews.txt").write_text("".join(f"{text}\n" for _, text in named.REVIEWS))
    volume = np.random.default_rng(1).random((32, 32, 32), np.float32)
    nibabel.save(nibabel.Nifti1Image(volume, np.eye(4)), path / "scan.nii.gz")
    return path


def run(command, folder):
    """What the command printed, where `tilewright` is this package's."""
    binaries = Path(sys.executable).parent
    around = {**os.environ, "PATH": f"{binaries}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, shell=True, cwd=folder, env=around, capture_output=True, text=True, check=False)  # noqa: S602
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_examples_print_what_it_shows(here):
    """Line by line; numbers with a point may differ in the last digits on another CPU. Progress is not shown."""
    if shutil.which("tilewright", path=str(Path(sys.executable).parent)) is None:
        pytest.skip("`tilewright` is not installed beside this Python")
    (block,) = [body for kind, body in BLOCK.findall(TEXT) if kind == "console"]
    shown = 0
    for one in block.removeprefix("$ ").split("\n$ "):
        command, _, wanted = one.strip("\n").partition("\n")
        found = run(command, here).strip("\n")
        if wanted:
            shown += 1
            assert NUMBER.sub("#", found) == NUMBER.sub("#", wanted)
            pairs = zip(NUMBER.findall(found), NUMBER.findall(wanted), strict=True)
            assert all(math.isclose(float(a), float(b), rel_tol=1e-3) for a, b in pairs)
    assert shown == 3
