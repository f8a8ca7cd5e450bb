"""`tilewright warm`: kernels that another process, or another user, need not compile."""

import itertools
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from named_stand_ins import stand_ins
from tilewright.errors import InputError, InternalError
from tilewright.models.bert_config import BertConfig
from tilewright.models.gpt2 import GPT2Config
from tilewright.models.textcnn import TextCNNConfig
from tilewright.runtime import warm as module
from tilewright.runtime.warm import warm
from tilewright.simd import cache


@pytest.fixture
def models(tmp_path):
    stand_ins(tmp_path / "models")
    return {path.name: str(path) for path in (tmp_path / "models").iterdir()}


def test_the_jobs(models, tmp_path, monkeypatch):
    """The jobs with each model and dtype, in processes whose cache is the directory; here they write a file instead."""
    ran, home = [], tmp_path / "home"

    def job(command, cwd, env, **said):
        ran.append(" ".join(command[4:]).replace(str(tmp_path), ""))
        assert all((Path(cwd) / word).exists() for before, word in itertools.pairwise(command) if before == "-i")
        Path(env["TILEWRIGHT_CACHE"], cache.key(), f"{len(ran)}.kernel").write_bytes(b"")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(module.subprocess, "run", job)
    said = []
    found = warm(str(home), [models["critic"], models["portraits"]], ("bfloat16",), volumes=True, say=said.append)
    assert ran == [
        "classify --model /models/critic --dtype bfloat16 -i in.txt -o out0.jsonl --device cpu",
        "draw --model /models/portraits --dtype bfloat16 --count 4 -o out1.npy --device cpu",
        "convolve -i float32.npy --kernel gaussian:1.5 -o out2.npy --device cpu",
        "convolve -i float32.npy --kernel weights.npy -o out3.npy --device cpu",
        "convolve -i uint8.npy --kernel gaussian:1.5 -o out4.npy --device cpu",
        "convolve -i uint8.npy --kernel weights.npy -o out5.npy --device cpu",
    ]
    assert len(said) == 6 and (found.kernels, found.new) == (6, 6) and found.directory == str(home / cache.key())
    assert {stat.S_IMODE(os.stat(path).st_mode) for path in (home, home / cache.key())} == {0o755}
    assert {stat.S_IMODE(path.stat().st_mode) for path in (home / cache.key()).iterdir()} == {0o644}


def test_each_model_gets_the_verb_and_the_records_that_it_takes(tmp_path, monkeypatch):
    """An encoder for vectors was once classified, which failed; ids for a decoder stood in a field that it ignores."""
    configs = {"vectors": BertConfig(architectures=["BertModel"]), "ids": GPT2Config(n_positions=4),
               "sentences": TextCNNConfig(sequence_length=7, kernel_sizes=(3,))}  # fmt: skip
    ran, home = {}, tmp_path / "home"

    def job(command, cwd, env, **said):
        given = Path(cwd, command[command.index("-i") + 1])
        ran[Path(command[command.index("--model") + 1]).name] = command[4], given.read_text().strip()
        Path(env["TILEWRIGHT_CACHE"], cache.key(), "x.kernel").write_bytes(b"")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(module.subprocess, "run", job)
    monkeypatch.setattr(module, "config_of", configs.get)
    monkeypatch.setattr(module, "has_tokenizer", lambda model: model == "vectors")
    warm(str(home), [*configs], ("float32",), volumes=False, say=print)
    assert ran == {"vectors": ("embed", "\n".join(module.TEXTS)),
                   "ids": ("generate", '{"prompt_token_ids": [0, 1, 1]}'),
                   "sentences": ("classify", '{"tokens": [0, 0, 0, 0, 0, 0, 0]}')}  # fmt: skip


def test_what_cannot_be_warmed(models, tmp_path, monkeypatch):
    with pytest.raises(InputError, match="nothing"):
        warm(str(tmp_path / "home"), [str(tmp_path / "nothing")], ("float32",), volumes=False, say=print)
    assert not (tmp_path / "home").exists()
    failed = subprocess.CompletedProcess([], 4, "", "progress\nno space\n")
    monkeypatch.setattr(module.subprocess, "run", lambda *given, **said: failed)
    with pytest.raises(InternalError, match=r"`tilewright classify .*` ended with exit code 4: no space"):
        warm(str(tmp_path / "home"), [models["critic"]], ("float32",), volumes=False, say=print)


@pytest.mark.long
def test_a_second_process_compiles_nothing(tmp_path):
    """From an empty cache."""
    home, reviews = tmp_path / "kernels", tmp_path / "reviews.txt"
    reviews.write_text("A warm, funny film.\nDull.\n" * 50)
    command = [sys.executable, "-m", "tilewright"]
    models = ["--model", "critic", "--model", "portraits"]
    done = subprocess.run([*command, "warm", "--for", home, *models, "--json"], stdout=subprocess.PIPE, check=True)
    found = json.loads(done.stdout)
    assert found["new"] == found["kernels"] > 5
    before = {path.name: path.stat().st_mtime_ns for path in Path(found["directory"]).iterdir()}
    jobs = [
        ["classify", "--model", "critic", "-i", reviews, "-o", tmp_path / "labels.jsonl"],
        ["draw", "--model", "portraits", "-n", "9", "-o", tmp_path / "faces.npy"],
    ]
    for job in jobs:
        said = subprocess.run(
            [*command, *job],
            env=os.environ | {"TILEWRIGHT_CACHE": str(home)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert "compiled" not in said.stdout + said.stderr
    assert {path.name: path.stat().st_mtime_ns for path in Path(found["directory"]).iterdir()} == before
