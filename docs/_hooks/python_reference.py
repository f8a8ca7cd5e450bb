"""The Python API as Markdown, from signatures and docstrings. A public name without a docstring stops the build."""

import inspect
import re
from collections.abc import Iterable, Iterator
from typing import Any

from cli_reference import paragraphs

import tilewright
from tilewright import errors, ndimage
from tilewright.formats.records import Completion
from tilewright.generation.language_model import LanguageModel, Output
from tilewright.generation.sampling import SamplingParams
from tilewright.models.dcgan import DCGAN
from tilewright.models.textcnn import TextCNN

ELSEWHERE = (
    "ndimage",
    "TilewrightError",
    "SamplingParams",
    "GPT2",
    "TextCNN",
    "DCGAN",
)  # public names that other sections document
METHODS = {"GPT2": (LanguageModel, ("generate",)), "TextCNN": (TextCNN, ("classify", "logits")),
           "DCGAN": (DCGAN, ("generate",))}  # fmt: skip
RESULTS = (Output, Completion)


def python_page() -> str:
    """The names of `tilewright`, the methods of models, their parameters and results, the errors."""
    names = [name for name in tilewright.__all__ if name not in ELSEWHERE]
    lines = [
        "# Python API", "",
        "```python", "import tilewright as tw", "```", "",
        f"`tw` offers {', '.join(f'`{name}`' for name in tilewright.__all__)}.",
        "Importing it loads nothing heavy: each name is loaded when it is first used.",
        "`tw.ndimage` has [a page of its own](ndimage.md).", "",
        "## Functions", "",
        *_functions("tw.", ((name, getattr(tilewright, name)) for name in names)),
        "## Models", "", "`tw.load` returns a model. Which methods it has depends on its kind.", "",
    ]  # fmt: skip
    for model, (kind, methods) in METHODS.items():
        lines += _class(f"tw.{model}", getattr(tilewright, model))
        lines += _functions(f"{model}.", ((name, getattr(kind, name)) for name in methods), method=True)
    lines += ["## Sampling parameters", "", *_class("tw.SamplingParams", SamplingParams)]
    lines += ["## Results", ""]
    for kind in RESULTS:
        lines += _class(kind.__name__, kind)
    return "\n".join([*lines, "## Errors", "", paragraphs(_doc(errors)), "", *_errors()])


def ndimage_page() -> str:
    """The filters of `tilewright.ndimage`."""
    lines = ["# ndimage", "", paragraphs(_doc(ndimage)), ""]
    return "\n".join([*lines, *_functions("", ((name, getattr(ndimage, name)) for name in ndimage.__all__))])


def _functions(prefix: str, named: Iterable[tuple[str, Any]], *, method: bool = False) -> Iterator[str]:
    for name, function in named:
        yield from [f"### {prefix}{name}", "", "```python", f"{prefix}{name}{_signature(function, method)}", "```", ""]
        yield from [paragraphs(_doc(function)), ""]


def _class(name: str, kind: type) -> list[str]:
    return [f"### {name}", "", "```python", f"{name}{_signature(kind, False)}", "```", "", paragraphs(_doc(kind)), ""]


def _errors() -> list[str]:
    """A table of the error classes, each with Python's own error that it is, too."""
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    rows = ["| class | is also | exit code | means |", "|---|---|---:|---|"]
    for kind in kinds:
        also = [base.__name__ for base in kind.__mro__ if base.__module__ == "builtins"][:-3] or ["Exception"]
        about = " ".join(_doc(kind).split("\n\n")[0].split())
        rows.append(f"| `{kind.__name__}` | `{also[0]}` | {kind.exit_code} | {paragraphs(about)} |")
    return rows


def _doc(thing: Any) -> str:
    """Raises ValueError for a public name without a docstring of its own."""
    text = thing.__doc__
    if not text:
        raise ValueError(f"{getattr(thing, '__qualname__', thing)} is public and has no docstring")
    return inspect.cleandoc(text)


def _signature(function: Any, method: bool) -> str:
    """As text, one argument per line if it would be longer than 74 characters, the width of a page."""
    signature = inspect.signature(function)
    parameters = [each.replace(annotation=_plain(each.annotation)) for each in signature.parameters.values()]
    returned = inspect.Signature.empty if isinstance(function, type) else _plain(signature.return_annotation)
    text = str(signature.replace(parameters=parameters[method:], return_annotation=returned))
    if len(text) <= 74:
        return text
    inside, _, after = text.removeprefix("(").rpartition(")")
    return "(\n" + "".join(f"    {part},\n" for part in _split(inside)) + ")" + after


class _Verbatim(str):
    """An annotation that `inspect` writes without quotes."""

    __repr__ = str.__str__


def _plain(annotation: Any) -> Any:
    """The annotation as the source has it, without the modules of names."""
    if annotation is inspect.Signature.empty:
        return annotation
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return _Verbatim(re.sub(r"\b(?:\w+\.)+(\w+)", r"\1", text))


def _split(text: str) -> list[str]:
    """Parts between commas that are in no brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]
