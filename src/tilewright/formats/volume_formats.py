"""The formats of volumes by suffix: `open_volume` for reading, `form_of` for how an output is stored.

The module of a format is imported when the first file of it is opened, because most of them need another package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from tilewright.formats.names import check_suffix
from tilewright.formats.volumes import Shape, Volume

if TYPE_CHECKING:
    from tilewright.formats.course_volumes import TextForm
    from tilewright.formats.nifti import GzipForm
    from tilewright.formats.raw_volumes import RawForm
    from tilewright.formats.zarr_volumes import ZarrForm

    # unit: tiles at its multiples share no piece of the file; axis: along it slabs are stored one after another
    Form: TypeAlias = TextForm | GzipForm | RawForm | ZarrForm


def open_volume(path: str, what: str = "input", *, memory: int | None = None, headers: bool = False) -> Volume:
    """The volume at `path`, by its name: the course's .txt, .npy, NIfTI, a TIFF stack, or a directory of Zarr.

    memory: the most bytes that it may hold; None: no limit. .npy, .nii and Zarr are read box by box and hold none.
    headers: read only what gives the shape; in a volume that would be held in memory all values are then zeros, which
    take no memory. Raises UsageError for a name of no format. Raises InputError for a file that does not match its name
    or its header, or that is no volume of three dimensions. Raises ResourceError if memory or a package is missing.
    """
    suffix = check_suffix(path, what)
    if suffix == ".txt":
        from tilewright.formats.course_volumes import open_text

        return open_text(path, what, memory=memory, headers=headers)
    if suffix == ".npy":
        from tilewright.formats.raw_volumes import open_npy

        return open_npy(path, what)
    if suffix in (".nii", ".nii.gz"):
        from tilewright.formats.nifti import open_nifti

        return open_nifti(path, what, memory=memory, headers=headers)
    if suffix == ".zarr":
        from tilewright.formats.zarr_volumes import ZarrVolume

        return ZarrVolume(path, what)
    from tilewright.formats.tiff import open_tiff

    return open_tiff(path, what, memory=memory, headers=headers)


def form_of(path: str, shape: Shape, dtype: np.dtype, like: Volume) -> Form:
    """How a volume is stored at `path`, by its name. like: the input, whose header the output keeps if both have the
    same format.

    dtype: float32 or float64. Raises UsageError for a name of no format, ResourceError if a package is missing.
    """
    suffix, dtype = check_suffix(path, "output"), np.dtype(dtype)
    if suffix == ".txt":
        from tilewright.formats.course_volumes import TextForm

        return TextForm(shape)
    if suffix == ".npy":
        from tilewright.formats.raw_volumes import npy_form

        return npy_form(shape, dtype)
    if suffix in (".nii", ".nii.gz"):
        from tilewright.formats.nifti import nifti_form

        return nifti_form(path, shape, dtype, like)
    if suffix == ".zarr":
        from tilewright.formats.zarr_volumes import ZarrForm

        return ZarrForm(shape, dtype, like)
    from tilewright.formats.tiff import tiff_form

    return tiff_form(shape, dtype, like)
