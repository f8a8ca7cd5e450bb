"""The demo with small models: what it says, shows and leaves, that its checks can fail, and that it can be stopped."""

import dataclasses
import functools
import importlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from subprocess import Popen

import numpy as np
import pytest
from PIL import Image

from named_stand_ins import stand_ins
from tilewright import demo, hardware
from tilewright.bench.report import transcript
from tilewright.cli import main
from tilewright.demo import ahead, course, named
from tilewright.errors import UsageError
from tilewright.hardware import cpu
from tilewright.models import dcgan, gpt2, textcnn
from tilewright.runtime import named_models
from tilewright.simd.cache import directory

TEXTCNN = {"hidden_size": 8, "num_filters": 16, "hidden_sizes": (8,)}
GPT2 = {"n_layer": 1, "n_embd": 32, "n_head": 2, "vocab_size": 300}
DCGAN = {"channels": 4, "layers": dcgan.doubling((4, 3), 5)}


@pytest.fixture
def small(tmp_path, monkeypatch):
    """Stand-ins for the named models and for the course's, in an empty current directory."""
    stand_ins(tmp_path / "models")
    monkeypatch.setattr(named_models, "FOLDER", tmp_path / "models")
    monkeypatch.setattr(named, "VOLUME", 32)
    for module, name, sizes in ((textcnn, "TextCNNConfig", TEXTCNN), (gpt2, "GPT2Config", GPT2),
                                (dcgan, "DCGANConfig", DCGAN)):  # fmt: skip
        monkeypatch.setattr(module, name, functools.partial(getattr(module, name), **sizes))
    for name, number in (("PROMPTS", 3), ("IMAGES", 3), ("VOLUME", 16)):
        monkeypatch.setattr(course, name, number)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def test_all_of_it(small, capsys):
    with pytest.raises(SystemExit) as end:
        main(["demo", "--prompt", "\U0001f3ad \x00 caf\u00e9\nMy lord", "--save"])
    printed = capsys.readouterr().out
    kept = small / "results/demo"
    assert end.value.code == 0 and (kept / "demo.txt").read_text() == printed
    assert printed.count(": PASS") == 4 and "FAIL" not in printed
    assert "    \U0001f3ad \\x00 caf\u00e9\n    My lord" in printed
    assert all(review in printed for _, review in named.REVIEWS)
    assert printed.count("tive  0.") == len(named.REVIEWS)
    for name, size in (("faces.png", (8 * 16, 3 * 16)), ("volume.png", (64, 32))):
        assert str(transcript.FOLDER / name) in printed
        with Image.open(kept / name) as picture:
            assert picture.size == size and np.asarray(picture).std() > 10
    text = transcript.transcript(small)
    assert (
        text.count(" s)") == 4
        and "](results/demo/faces.png)\n\n```\n$ tilewright demo\npoet continues a line (" in text
        and " s): demo/faces.png\n" in text
    )
    assert transcript.transcript(small / "results") == transcript.MISSING
    assert sorted(os.listdir(small)) == ["results"]
    assert (kept / "reviews.txt").read_text().splitlines() == [review for _, review in named.REVIEWS]


def test_what_to_run_next_works_as_printed(small, monkeypatch):
    """From a directory that is not the environment's, with and without `tilewright` on the PATH."""
    demo.FOLDER.mkdir()
    (demo.FOLDER / demo.REVIEWS).write_text("A film.\n")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("PYTHONPATH", str(Path(demo.__file__).parents[2]))
    _, *lines = demo.following(demo.FOLDER).splitlines()
    commands = [line.partition(demo.program())[1:] for line in lines]
    assert len(commands) == len(demo.NEXT) and demo.program() != "tilewright"
    for name, words in commands:
        again = words.replace("matmul", "matmul --list")  # the sizes take minutes
        short = "--help" if "demo" in again.split() else ""
        done = subprocess.run(f"{name}{again} {short}", shell=True, capture_output=True, text=True, check=False)  # noqa: S602
        assert done.returncode == 0, f"{name}{again}\n{done.stdout}\n{done.stderr}"
    assert Path("labels.jsonl").read_text().count("label") == 1 and len(os.listdir("faces")) == 1000
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    assert demo.program() == "tilewright"
    monkeypatch.setattr(sys, "executable", str(small / "python"))
    assert demo.program() == f"{small / 'python'} -m tilewright"


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", 'the prompt is empty. Give some words, as in --prompt "My lord,"'),
        (" \n ", "the prompt is empty"),
        (
            "word " * 10_000,
            "the prompt is too long: it has 10,000 words, and the first 32 of them fill the poet's context",
        ),
        ("x" * 160, "the prompt is too long: it has 1 word, and the first of them is longer than"),
        ("caf\udce9", "the prompt is no valid text: its character 4 is not UTF-8. Type it again"),
    ],
    ids=["empty", "blank", "long", "a long word", "no UTF-8"],
)
def test_a_prompt_that_cannot_be_continued(small, prompt, message):
    """Is refused at once, in one line, and nothing is left."""
    said = []
    with pytest.raises(UsageError) as caught:
        demo.run(said.append, prompt=prompt)
    assert message in str(caught.value) and "token" not in str(caught.value)
    assert said == [] and os.listdir(small) == []


def test_the_longest_prompt_can_be_continued(small):
    """A token of the stand-in is a byte; 159 of its 160 positions can be given."""
    assert named.poet_for("x" * 159) and named.poet_for(" ".join(["word"] * 32))


def test_every_check_can_fail(small, monkeypatch):
    """A reference that is off by a thousandth is told from the result."""
    off = {
        course.sentiment: "tilewright.bench.workloads.sentiment.reference_logits",
        course.images: "tilewright.bench.workloads.dcgan_reference.reference_images",
        course.volume: "tilewright.ops.conv3d.reference.conv3d",
    }
    for job, name in off.items():
        said, module = [], name.rpartition(".")[0]
        __import__(module)
        right = getattr(sys.modules[module], name.rpartition(".")[2])
        monkeypatch.setattr(name, lambda *given, right=right: right(*given) + 1e-3)
        assert not job(said.append, demo.Clock()) and said[-1].endswith(": FAIL")
    right = sys.modules["tilewright.models.gpt2"].GPT2.best

    def wrong(self, hidden):
        token, logit = right(self, hidden)
        return token ^ 1, logit

    monkeypatch.setattr("tilewright.models.gpt2.GPT2.best", wrong)
    assert not course.text(said.append, demo.Clock()) and said[-1].endswith(": FAIL")
    assert not course._checked(said.append, "a NaN", float("nan"))


def test_a_job_that_memory_does_not_hold_is_left_out(small, monkeypatch):
    monkeypatch.setattr("tilewright.hardware.available_memory", lambda: 10**9)
    for job in (course.sentiment, course.text):
        said = []
        assert job(said.append, demo.Clock())
        assert said[-1].startswith("    left out: it takes ") and "1.0 GB are free" in said[-1]


def test_late_kernels_are_compiled_beside_the_first_ones(small, tmp_path, monkeypatch):
    """By a process that ends with the block, where the cache is empty; it calls what the demo calls last."""
    started = tmp_path / "started"
    waits = f"import pathlib, time; pathlib.Path({str(started)!r}).touch(); time.sleep(600)"
    monkeypatch.setattr(ahead, "_command", lambda: [sys.executable, "-c", waits])
    found = []
    monkeypatch.setattr(subprocess, "Popen", lambda *given, **named: found.append(Popen(*given, **named)) or found[-1])
    for cache, cores, count in (("empty", 2, 1), ("empty", 1, 1), ("off", 2, 1), ("full", 2, 1)):
        monkeypatch.setenv("TILEWRIGHT_CACHE", cache if cache == "off" else str(tmp_path / cache))
        if cache == "full":
            directory().mkdir(parents=True)
            (directory() / "x.kernel").touch()
        monkeypatch.setattr(hardware, "cpu", lambda cores=cores: dataclasses.replace(cpu(), cores=cores))
        with ahead.compiling_ahead():
            while len(found) == count and not started.exists():
                assert found[0].poll() is None
        assert len(found) == count and found[0].poll() == -signal.SIGKILL
    monkeypatch.undo()
    monkeypatch.setattr(named_models, "FOLDER", tmp_path / "models")
    called = []
    for name in ("conv3d", "conv_transpose2d", "matmul_argmax"):
        module = importlib.import_module(f"tilewright.ops.{name}")
        right = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, name=name, right=right, **b: called.append(name) or right(*a, **b))
    ahead.compile_late_kernels()
    assert called == ["conv_transpose2d", "conv_transpose2d", "conv3d", "matmul_argmax", "conv3d"]


STOPPED = """
from pathlib import Path
from tilewright.runtime import named_models
from tilewright.simd.cache import directory
named_models.FOLDER = Path({models!r})
from tilewright.cli import main
main(["demo"])
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_can_be_stopped(tmp_path, number):
    """While it makes the weights of the first job at full size: what it wrote before is complete."""
    stand_ins(tmp_path / "models")
    (tmp_path / "here").mkdir()
    around = {**os.environ, "PYTHONPATH": str(Path(demo.__file__).parents[2])}
    command = [sys.executable, "-u", "-c", STOPPED.format(models=str(tmp_path / "models"))]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, env=around, cwd=tmp_path / "here", text=True, **pipes)
    while not process.stdout.readline().startswith("sentiment: "):
        assert process.poll() is None
    process.send_signal(number)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 130 and errors.startswith("Error: the demo was stopped: ")
    assert "pictures and reviews that it wrote are complete" in errors
    assert errors.count("\n") == 1
    assert sorted(os.listdir(tmp_path / "here/demo")) == ["faces.png", "reviews.txt", "volume.png"]
