"""What is lost of a volume in its output: voxel size, orientation, metadata."""

from __future__ import annotations

import os

import numpy as np

from tilewright.formats.names import suffix_of
from tilewright.formats.volumes import Volume
from tilewright.formats.voxels import voxel_size

KINDS = {".nii": "NIfTI", ".nii.gz": "NIfTI", ".tif": "TIFF", ".tiff": "TIFF", ".zarr": "Zarr"}


def lost(path: str, like: Volume, dtype: np.dtype) -> str | None:
    """A sentence about what the output at `path`, of `dtype`, will not have of the input. None if nothing is lost."""
    source, target = (KINDS.get(suffix_of(name) or "", "") for name in (like.path, path))
    if source == target == "TIFF":
        from tilewright.formats.tiff import tiff_options

        _, what = tiff_options(like.shape, dtype, like)
    elif source == "Zarr":
        what = _of_zarr(like, target)
    elif source == target or not source:
        what = None
    elif {source, target} == {"TIFF", "NIfTI"} and voxel_size(like):
        what = f"the input's {'metadata' if source == 'TIFF' else 'affine and extensions'}, but for the voxel size"
    elif source == "TIFF":
        what = "the input's resolution and metadata" if like.header else None
    else:
        what = "the input's affine, voxel size and extensions"
    return f"Not kept in {os.path.basename(path.rstrip('/'))}: {what}" if what else None


def _of_zarr(like: Volume, target: str) -> str | None:
    if target != "Zarr":
        return "the input's attributes" if len(like.header.attrs) else None
    parent = os.path.dirname(os.path.abspath(like.path.rstrip("/")))
    if any(os.path.exists(os.path.join(parent, name)) for name in (".zgroup", "zarr.json")):
        return "the attributes of the input's group, such as OME-NGFF's voxel size"
    return None
