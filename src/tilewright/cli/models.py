"""`tilewright models`: the models that have a name."""

from __future__ import annotations

from typing import Any

from tilewright.cli._options import Json
from tilewright.cli._output import show


def models(json: Json = False) -> None:
    """List the models that come with the package: the task, the accuracy, the size and the licence of each.

    \b
    tilewright models

    --model takes these names, and so does tw.load() in Python. A file or directory of the same name in the current
    directory wins.
    """
    from tilewright.runtime.named_models import named_models

    found = named_models()
    if json:
        from dataclasses import asdict
        from json import dumps

        show(dumps({"models": [asdict(model) for model in found]}))
        return
    show("\n\n".join(_text(model) for model in found) or "no model came with this installation")


def _text(model: Any) -> str:
    rows = {
        "figures": model.figures,
        "data": model.data,
        "size": f"{model.bytes / 1e6:.1f} MB",
        "licence": model.license,
        "path": model.path,
        "limits": f"{model.path}/README.md says what it is not good for",
    }
    lines = [f"{model.name:<11}{model.task}", *(f"  {name:<9}{text}" for name, text in rows.items() if text)]
    if model.hidden:
        lines.append(
            f"  hidden   by ./{model.name}: in this directory the name means that; write the path for this one"
        )
    return "\n".join(lines)
