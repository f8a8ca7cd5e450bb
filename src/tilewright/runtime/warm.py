"""Compiles the kernels of jobs into a directory for other machines: the nodes of a cluster, or a container image.

It runs small jobs in separate processes, with TILEWRIGHT_CACHE set to the directory. So it compiles exactly the kernels
that the same jobs need later. TILEWRIGHT_WARM makes these jobs also compile what starts kernels on several threads,
although their inputs are too small for that. The kernels are in a folder whose name depends on the CPU's features and
on the versions of the compilers, but not on the host (`simd.cache.key`). One directory may hold kernels for several
kinds of CPU.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tilewright.errors import InternalError
from tilewright.models.bert_config import BertConfig
from tilewright.models.decoder_config import DecoderConfig
from tilewright.ops.core.launch import WARM
from tilewright.runtime.kernel_cache import CACHE
from tilewright.runtime.load import VERBS, Config, config_of, has_tokenizer

TEXTS = ("A warm, funny film.", "Dull.", "To be, or not to be: that is the question of this long sentence.")
TOKENS = (0, 1, 1, 0, 1)  # the prompt for a model without a tokenizer
FILTERS = ("gaussian:1.5", "weights.npy")  # a separable kernel, and one that is not
VOLUMES = ("float32.npy", "uint8.npy")  # which are computed in float32 and in float64


@dataclass(frozen=True)
class Warmed:
    """The result of `warm`. directory: with the kernels for this CPU. kernels: how many. new: how many are new."""

    directory: str
    kernels: int
    new: int


def warm(home: str, models: list[str], dtypes: tuple[str, ...], *, volumes: bool, say: Callable[[str], None]) -> Warmed:
    """Compile the kernels of jobs with these models into the directory `home`, which is made if it is missing.

    models: directories. dtypes: accuracy classes, each for all models. volumes: also compile the filters of `convolve`.
    say: called with a line per job. All users may read the kernels afterwards; only this user may change them. Raises
    InputError for a path that is not a model, ResourceError and UsageError if the directory cannot be used, and
    InternalError if a job fails.
    """
    from tilewright.simd import cache

    configs = {model: config_of(model) for model in models}
    home, existed = os.path.abspath(home), os.path.isdir(home)
    folder = Path(home) / cache.key()
    cache.check(folder)
    before = _kernels(folder)
    with tempfile.TemporaryDirectory(prefix="tilewright-") as work:
        _write_inputs(work)
        commands = [
            command
            for number, (model, config) in enumerate(configs.items())
            for dtype in dtypes
            for command in _commands(_verb_of(config), model, dtype, _input(work, number, model, config))
        ]
        for number, command in enumerate([*commands, *(_filters() if volumes else ())]):
            say(f"tilewright {' '.join(command)}")
            _run([*command, "-o", f"out{number}{_ending(command)}"], work, home)
    after = _kernels(folder)
    for path in (folder, *([] if existed else [home])):
        os.chmod(path, 0o755)  # noqa: S103 - an image that root has built is used by others
    for name in after:
        os.chmod(folder / name, 0o644)
    return Warmed(str(folder), len(after), len(after - before))


def _kernels(folder: Path) -> set[str]:
    from tilewright.simd import cache

    return {path.name for path in folder.glob(f"*{cache.ENDING}")}


def _write_inputs(work: str) -> None:
    Path(work, "in.txt").write_text("\n".join(TEXTS) + "\n")
    volume = np.arange(20 * 24 * 32).reshape(20, 24, 32) % 251
    for name in VOLUMES:
        np.save(os.path.join(work, name), volume.astype(name.removesuffix(".npy")))
    np.save(os.path.join(work, "weights.npy"), (volume[:3, :3, :3] / 27).astype(np.float32))


def _input(work: str, number: int, model: str, config: Config) -> str:
    """The file in `work` with records for a model: texts, or token ids if it has no tokenizer. number: of the model."""
    if has_tokenizer(model):
        return "in.txt"
    record: dict[str, tuple[int, ...]] = {"tokens": (0,) * getattr(config, "shortest", 1)}
    if isinstance(config, DecoderConfig):
        record = {"prompt_token_ids": TOKENS[: config.context - 1]}
    Path(work, name := f"tokens{number}.jsonl").write_text(json.dumps(record) + "\n")
    return name


def _verb_of(config: Config) -> str:
    """The verb that runs a model. An encoder without a classification head is for vectors."""
    return "embed" if isinstance(config, BertConfig) and not config.is_classifier else VERBS[config.model_type]


def _commands(verb: str, model: str, dtype: str, given: str) -> Iterator[list[str]]:
    """The commands for a model. given: the input. A decoder gets two, because greedy decoding and sampling need
    different kernels."""
    usual = [verb, "--model", os.path.abspath(model), "--dtype", dtype]
    if verb == "draw":
        yield [*usual, "--count", "4"]
        return
    for more in (["--temperature", "0"], ["--temperature", "0.8", "--top-p", "0.9"]) if verb == "generate" else ([],):
        yield [*usual, "-i", given, *more]


def _filters() -> Iterator[list[str]]:
    for volume in VOLUMES:
        for kernel in FILTERS:
            yield ["convolve", "-i", volume, "--kernel", kernel]


def _ending(command: list[str]) -> str:
    return {"generate": ".jsonl", "classify": ".jsonl"}.get(command[0], ".npy")


def _run(command: list[str], work: str, home: str) -> None:
    """Run a job. Raises InternalError with the last line of its output if it fails."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "tilewright", *command, "--device", "cpu"],
        cwd=work,
        env=os.environ | {CACHE: home, WARM: "1"},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or "it said nothing").splitlines()[-1]
        raise InternalError(
            f"`tilewright {' '.join(command)}` ended with exit code {done.returncode}: {said}",
            remedy="run that job by hand; if it fails, too, leave out its --model",
        )
