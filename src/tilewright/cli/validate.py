"""`tilewright validate OUT REF`: PASS or FAIL, with the worst element."""

from __future__ import annotations

from typing import Annotated

import typer

from tilewright.cli._output import show, show_json


def validate(
    output: Annotated[str, typer.Argument(metavar="OUT", help="The file to check.")],
    reference: Annotated[str, typer.Argument(metavar="REF", help="The right answers, in a file of the same kind.")],
    tolerance: Annotated[
        float | None, typer.Option(min=0, help="Largest min(absolute, relative) error; 1e-3, for volumes 1e-4.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Compare two files of 32-bit floats, of JSON lines (ids, labels, errors exactly, logits by the tolerance), of
    images (.txt, .npy), or two volumes (.txt, .npy, .nii, .tif, .zarr, of one format or two).

    Prints PASS (exit code 0) or FAIL (exit code 1) with the first element that fails and the one with the largest
    error. NaN fails.
    """
    import os

    from tilewright.errors import InputError, UsageError
    from tilewright.formats.validate import TOLERANCE, validate
    from tilewright.formats.validate_images import holds_images, validate_images
    from tilewright.formats.validate_volumes import is_volume, validate_volumes

    for what, path in (("output", output), ("reference", reference)):
        if not os.path.exists(path):
            raise InputError(f"no such {what}", path=path)
        if path.lower().endswith((".png", ".bmp")):
            raise UsageError("pictures are not compared: their pixels are rounded", path=path,
                             remedy="draw to .npy or .txt, and compare those")  # fmt: skip
    if holds_images(output) and holds_images(reference):
        result = validate_images(output, reference, tolerance=TOLERANCE if tolerance is None else tolerance)
    elif is_volume(output) and is_volume(reference):
        result = validate_volumes(output, reference, **({} if tolerance is None else {"tolerance": tolerance}))
    else:
        result = validate(output, reference, tolerance=TOLERANCE if tolerance is None else tolerance)
    verdict = f"Validation...{'PASS' if result.passed else 'FAIL'}\n  {result.detail}"
    show_json(result) if json else show(verdict)
    raise typer.Exit(0 if result.passed else 1)
