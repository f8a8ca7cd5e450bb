"""`tilewright validate OUT REF`: PASS or FAIL, with the worst element."""

from __future__ import annotations

from typing import Annotated

import typer

from tilewright.cli._options import Json
from tilewright.cli._output import show, show_json


def validate(
    output: Annotated[str, typer.Argument(metavar="OUT", help="The file to check.")],
    reference: Annotated[str, typer.Argument(metavar="REF", help="The correct answers, in the same format.")],
    tolerance: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            min=0,
            help="An element passes if its absolute or its relative error is at most X. A voxel passes if its error is "
            "at most X times the largest absolute value of the reference.",
            show_default="1e-3, or 5e-5 for volumes",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Compare an output with a reference. Print PASS (exit code 0) or FAIL (exit code 1).

    \b
    tilewright validate labels.jsonl expected.jsonl

    Formats: two files of 32-bit floats, of JSON lines, of images (.txt, .npy), or of volumes (.txt, .npy, .nii, .tif,
    .zarr; the two may differ in format). In JSON lines, ids, labels and errors must be equal, and logits within the
    tolerance. FAIL names the first element that is wrong and the one with the largest error; of JSON lines it counts
    all records that differ and names the first three. NaN is always wrong.

    Volumes: the error of float32 depends on the values that a filter sums, and not on the result. So one bound holds
    for all voxels: X times the largest absolute value of the reference. Give a larger X for a filter that cancels
    values far above its result.
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
