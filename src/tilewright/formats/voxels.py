"""The size of a volume's voxels, converted between TIFF (metadata of ImageJ, OME or tifffile) and NIfTI."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree  # expat refuses entities that expand without limit; DOCTYPE is refused here
from fractions import Fraction
from typing import Any, NamedTuple

from tilewright.formats.names import suffix_of
from tilewright.formats.tiff_metadata import TiffMetadata
from tilewright.formats.volumes import Volume

# unit of a TIFF -> (NIfTI's name, the factor to it)
UNITS = {
    "": ("unknown", 1.0), "m": ("meter", 1.0), "cm": ("mm", 10.0), "mm": ("mm", 1.0), "nm": ("micron", 1e-3),
    **dict.fromkeys(("um", "micron", "microns", "\u00b5m", "\u03bcm", "\\u00B5m"), ("micron", 1.0)),
}  # fmt: skip
OF_NIFTI = {"meter": "m", "mm": "mm", "micron": "um"}  # NIfTI's name -> ImageJ's name
MOST = 10**6  # limit of a fraction for TIFF, whose two numbers have 32 bits


class VoxelSize(NamedTuple):
    """sizes: along the axes of the array. unit: NIfTI's name, "meter", "mm", "micron" or "unknown"."""

    sizes: tuple[float, float, float]
    unit: str


def voxel_size(like: Volume) -> VoxelSize | None:
    """The voxel size in the header of a TIFF or a NIfTI. None unless it has all three sizes and a known unit."""
    if isinstance(like.header, TiffMetadata):
        return _of_tiff(like.header)
    if like.header is None or suffix_of(like.path) not in (".nii", ".nii.gz"):
        return None
    unit = like.header.get_xyzt_units()[0]
    return _checked([float(size) for size in like.header.get_zooms()[:3]], unit if unit in OF_NIFTI else "unknown")


def as_tiff(voxels: VoxelSize) -> TiffMetadata | None:
    """ImageJ's metadata for such voxels. None for sizes that TIFF's fractions cannot hold."""
    z, y, x = voxels.sizes
    inverse = [Fraction(size).limit_denominator(MOST) for size in (x, y)]
    if not all(0 < fraction.numerator < 2**32 for fraction in inverse):
        return None
    (x_size, y_size), unit = inverse, OF_NIFTI.get(voxels.unit, "")
    resolution = (x_size.denominator, x_size.numerator), (y_size.denominator, y_size.numerator)
    return TiffMetadata(resolution, 1, {"spacing": z} | ({"unit": unit} if unit else {}))


def _of_tiff(found: TiffMetadata) -> VoxelSize | None:
    if found.ome:
        return _of_ome(found.ome)
    words: dict[str, Any] = found.imagej or found.shaped
    spacing, name = words.get("spacing"), str(words.get("unit", ""))
    if not found.resolution or not isinstance(spacing, int | float) or name not in UNITS:
        return None
    (x, x_size), (y, y_size) = found.resolution  # pixels per unit
    unit, factor = UNITS[name]
    return _checked([factor * spacing, factor * y_size / y, factor * x_size / x], unit)


def _of_ome(text: str) -> VoxelSize | None:
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        return None
    try:
        root = ElementTree.fromstring(text.encode())  # noqa: S314 - without a DOCTYPE there are no entities
        every = [one for one in root.iter() if one.tag.rpartition("}")[2] == "Pixels"]
        sizes = [float(every[0].get(f"PhysicalSize{axis}", "nan")) for axis in "ZYX"]
        units = {every[0].get(f"PhysicalSize{axis}Unit", "\u00b5m") for axis in "ZYX"}
    except (ElementTree.ParseError, ValueError, IndexError):
        return None
    if len(every) != 1 or len(units) != 1 or (name := units.pop()) not in UNITS:
        return None
    unit, factor = UNITS[name]
    return _checked([factor * size for size in sizes], unit)


def _checked(sizes: list[float], unit: str) -> VoxelSize | None:
    z, y, x = sizes
    return VoxelSize((z, y, x), unit) if all(math.isfinite(n) and n > 0 for n in sizes) else None
