"""The models that come with the package, by name: what `--model poet` and `tw.load("poet")` mean."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tilewright.errors import InputError, UsageError, WrongType, suggestion

FOLDER = Path(__file__).resolve().parent.parent / "data" / "models"
NAMES = ("poet", "critic", "portraits")
CARD = "README.md"
MAX_CARD_BYTES = 1 << 16
REPOSITORY = re.compile(r"(?:[\w.-]*\w/)?\w[\w.-]*(?<!\.bin)(?<!\.safetensors)")  # a Hugging Face name


@dataclass(frozen=True)
class NamedModel:
    """A model of the package, as the first lines of its model card describe it.

    bytes: of all its files. hidden: true if the current directory has a file of this name, which takes precedence.
    """

    name: str
    path: str
    bytes: int
    hidden: bool
    task: str = ""
    figures: str = ""
    data: str = ""
    license: str = ""
    seed: str = ""


def model_path(path: str | os.PathLike[str]) -> str:
    """The directory of a named model, unless the current directory has a file of that name.

    Any other path is returned unchanged. Raises WrongType for a value that is not a path.
    """
    if not isinstance(path, str | os.PathLike):
        raise WrongType(f"the path is {path!r}; a text or a PathLike is wanted")
    name = os.fspath(path)
    return str(FOLDER / name) if name in NAMES and not os.path.lexists(name) and (FOLDER / name).is_dir() else name


def is_shipped(path: str) -> bool:
    """True for a file of a named model of this package."""
    found = Path(os.path.realpath(path))
    return found.parent.parent == FOLDER and found.parent.name in NAMES


def resolved(path: str, output: str | None) -> str:
    """As `model_path`. Raises UsageError if the output has the model's name: it would hide the model later."""
    found = model_path(path)
    if found != path and output is not None and os.path.realpath(output) == os.path.realpath(path):
        raise UsageError(f"the output would hide the named model {path!r}", path=output,
                         remedy="choose another output")  # fmt: skip
    return found


def check_model(path: str | os.PathLike[str]) -> None:
    """Raises InputError if `path` is neither a named model nor an existing path; the message lists the names.

    Also raises it for the name of a Hugging Face repository, and for a directory that hides a named model but has no
    config.json.
    """
    name = os.fspath(path)
    if name in NAMES and os.path.isdir(name) and not os.path.lexists(os.path.join(name, "config.json")):
        raise InputError("this directory has no config.json, and hides the named model of the same name", path=name,
                         remedy=f"rename it, or give the model's path: {FOLDER / name}")  # fmt: skip
    owner = os.path.dirname(name)
    may_be_repository = REPOSITORY.fullmatch(name) is not None and not os.path.isdir(owner)
    if os.path.lexists(name) or (owner and not may_be_repository):
        return
    known = "this installation lacks it" if name in NAMES else f"the named models are {', '.join(NAMES)}"
    near = suggestion(name, {*NAMES, *_models_here()} - {name})
    what = f"no such model{near}: there is no file of that name here, and {known}"
    remedy = "give a path, or a name that `tilewright models` lists"
    if may_be_repository and name not in NAMES and not near:
        files = "config.json model.safetensors tokenizer.json"
        command = f"hf download {name} {files} --local-dir {os.path.basename(name)}"
        remedy += (
            ". tilewright downloads nothing: for a model of Hugging Face, first run `pip install huggingface_hub` and "
            f"`{command}`, and then give --model ./{os.path.basename(name)}"
        )
    raise InputError(what, path=name, remedy=remedy)


def _models_here() -> list[str]:
    """The model directories in the current directory."""
    with suppress(OSError), os.scandir() as entries:
        return [entry.name for entry in entries if os.path.isfile(os.path.join(entry.path, "config.json"))]
    return []


def named_models() -> list[NamedModel]:
    """The named models that are installed, in the order of NAMES."""
    return [_described(name) for name in NAMES if (FOLDER / name).is_dir()]


def _described(name: str) -> NamedModel:
    folder = FOLDER / name
    size = sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
    card = _front_matter(folder / CARD)
    told = {key: card.get(key, "") for key in ("task", "figures", "data", "license", "seed")}
    return NamedModel(name=name, path=str(folder), bytes=size, hidden=os.path.lexists(name), **told)


def _front_matter(card: Path) -> dict[str, str]:
    """Parse the `key: value` lines at the start of a model card, between two `---` lines; {} if it has none."""
    if not card.is_file():
        return {}
    with card.open(encoding="utf-8", errors="replace") as file:
        head, _, rest = file.read(MAX_CARD_BYTES).partition("\n")
    if head.strip() != "---":
        return {}
    pairs = (line.partition(":") for line in rest.partition("\n---")[0].splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}
