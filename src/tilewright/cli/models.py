"""`tilewright models`: the models that have a name."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tilewright.cli._output import show


def models(json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False) -> None:
    """List the models that come with the package: what each does, how well, its size and licence.

    Their names are what --model takes, and tw.load() in Python. A file or directory of that name in the current
    directory comes first.
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
