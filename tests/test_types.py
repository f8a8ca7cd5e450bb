"""What an editor and a type checker know of the package: a user's script passes `mypy --strict`, and names complete."""

import ast
import inspect
import os
import subprocess
import sys
from pathlib import Path
from typing import get_overloads

import pytest

import tilewright as tw

ROOT = Path(tw.__file__).resolve().parent
SCRIPT = '''\
"""What a user writes, with types."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

import tilewright as tw


def continued(model: tw.GPT2, prompts: list[str]) -> list[str | None]:
    params = tw.SamplingParams(max_tokens=8, temperature=0.0)
    return [answer.outputs[0].text for answer in model.generate(prompts, params, seed=1)]


def labels(sentences: list[str]) -> dict[str, float]:
    return {answer["label"]: answer["score"] for answer in tw.load("critic").classify(sentences)}


def main(path: Path) -> npt.NDArray[np.float32]:
    own = tw.load(path, device="cpu", dtype="bfloat16")
    texts = [answer.outputs[0].text or "" for answer in own.generate(["My lord,"])]
    print(tw.__version__, texts, labels(texts), own.classify(texts)[0]["logits"], own.config)
    print(continued(tw.load("poet"), texts))
    images: npt.NDArray[np.float32] = tw.load("portraits", batch=4).generate(np.zeros((8, 100)))
    volume = np.random.default_rng(2).random((32, 64, 64), np.float32)
    smooth: npt.NDArray[np.float32] = tw.ndimage.gaussian_filter(volume, (1.0, 2.0, 2.0), mode="nearest")
    rows = tw.embedding(np.array([1, 2]), volume[0])
    with tw.using(matmul="cpu.blocked"), tw.threads(1):
        print(tw.matmul(rows, volume[0], activation="relu").shape, tw.conv3d(smooth, volume[:3, :3, :3]).mean())
    return images


try:
    main(Path("model"))
except tw.TilewrightError as error:
    print(error.remedy)
'''
WRONG = """\
import numpy as np

import tilewright as tw

tw.mat_mul(1, 2)
tw.load("critic").generate(["a"])
tw.load("poet").generate(["a"], max_tokens=8)
answer: int = tw.load("critic").classify(["a"])[0]["label"]
tw.matmul(np.zeros((2, 2)), np.zeros((2, 2)), activate="relu")
tw.ndimage.gaussian_filter(np.zeros(3), sigma="2")
"""
SETTINGS = """\
[mypy]
strict = true
follow_imports = silent
ignore_missing_imports = true
[mypy-torch.*,triton.*,numba.*,transformers.*,scipy.*,zarr.*,pyarrow.*,tilewright.ops.*.cpu.*,tilewright.ops.*.simt.*,tilewright.ops.*.tile.*,tilewright.simd.*]
follow_imports = skip
"""  # errors in an installed package are silent without settings; what is skipped only takes time


def mypy(folder, script):
    """(exit status, what it said) of mypy, which sees the package with its types but for kernels."""
    (folder / "script.py").write_text(script)
    (folder / "mypy.ini").write_text(SETTINGS)
    command = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "--cache-dir", "cache", "script.py"]
    around = {**os.environ, "MYPYPATH": str(ROOT.parent)}
    done = subprocess.run(command, cwd=folder, env=around, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_a_users_script_and_its_mistakes(tmp_path):
    """A strict run has nothing to say of the first; of the second it says something of each line."""
    assert len(SCRIPT.splitlines()) >= 30
    code, said = mypy(tmp_path, SCRIPT)
    assert code == 0, said
    code, said = mypy(tmp_path, WRONG)
    wrong = {int(line.split(":")[1]) for line in said.splitlines() if ": error:" in line}
    assert code == 1 and wrong == set(range(5, 11)), said


def test_names_for_type_checkers_are_those_that_are_imported():
    tree = ast.parse((ROOT / "__init__.py").read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    typed = {alias.asname: one.module for one in block.body for alias in one.names}
    assert typed.pop("ndimage") == "tilewright" and all(typed)
    assert typed == {name: f"tilewright.{module}" for name, module in tw._MODULES.items()}
    assert {*typed, "ndimage"} == set(tw.__all__) and (ROOT / "py.typed").is_file()


@pytest.mark.parametrize("name", [name for name in tw.__all__ if name not in ("ndimage", "TilewrightError")])
def test_every_public_function_has_types(name):
    value = getattr(tw, name)
    for one in get_overloads(value) or [value]:
        parameters = inspect.signature(one).parameters.values()
        assert all(parameter.annotation is not inspect.Parameter.empty for parameter in parameters)


def test_a_name_that_is_not_there():
    with pytest.raises(AttributeError, match="module 'tilewright' has no attribute 'mat_mul'; it has DCGAN, GPT2, "):
        tw.mat_mul  # noqa: B018
