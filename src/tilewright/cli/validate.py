"""`tilewright validate OUT REF`: PASS or FAIL, with the worst element."""

from __future__ import annotations

from typing import Annotated

import typer

from tilewright.cli._output import show


def validate(
    output: Annotated[str, typer.Argument(metavar="OUT", help="The file to check.")],
    reference: Annotated[str, typer.Argument(metavar="REF", help="The right answers.")],
    tolerance: Annotated[
        float, typer.Option(min=0, help="Largest min(absolute, relative) error of an element.")
    ] = 1e-3,
    json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Compare two files of 32-bit floats, or of JSON lines (ids, labels, errors exactly, logits by the tolerance).

    Prints PASS (exit code 0) or FAIL (exit code 1) with the first element that fails and the one with the largest
    error. NaN fails.
    """
    from msgspec.json import encode

    from tilewright.formats.validate import validate

    result = validate(output, reference, tolerance=tolerance)
    verdict = f"Validation...{'PASS' if result.passed else 'FAIL'}\n  {result.detail}"
    show(encode(result).decode() if json else verdict)
    raise typer.Exit(0 if result.passed else 1)
