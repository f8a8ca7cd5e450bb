"""The metadata of a TIFF that is copied from an input to an output: resolution, description, and that of ImageJ, OME or
tifffile."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree  # expat refuses entities that expand without limit; DOCTYPE is refused here
from dataclasses import dataclass, field
from typing import Any

import numpy as np

MAX_METADATA = 16 << 20  # bytes of text that are copied
OF_THE_VALUES = {"ImageJ", "images", "slices", "channels", "frames", "hyperstack", "min", "max", "Ranges", "LUTs"}
OF_SHAPED = {"shape", "axes", "truncated"}  # keys of tifffile's JSON that describe the file itself
DESCRIBED = {"generic", "uniform", "shaped"}  # tifffile's kinds of series whose description is a text of the user
OME_TYPES = {"float32": "float", "float64": "double"}


@dataclass(frozen=True)
class TiffMetadata:
    """resolution: (x, y) as TIFF's fractions, per `unit` (TIFF's number; None: not given). imagej: tifffile's dict.
    ome: XML. shaped: tifffile's JSON, if there are neither of these. description: of the first page, if it is none of
    the three. lost: what could not be read."""

    resolution: tuple[tuple[int, int], tuple[int, int]] | None = None
    unit: int | None = None
    imagej: dict[str, Any] = field(default_factory=dict)
    ome: str = ""
    shaped: dict[str, Any] = field(default_factory=dict)
    description: str = ""
    lost: str | None = None

    def __bool__(self) -> bool:
        return self != TiffMetadata()


def read_metadata(tiff: Any) -> TiffMetadata:
    """The metadata of an open `tifffile.TiffFile`. If it cannot be read, the values still can."""
    try:
        tags = tiff.pages[0].tags
        fractions = [tags[name].value if name in tags else None for name in ("XResolution", "YResolution")]
        valid = all(f and len(f) == 2 and min(f) > 0 for f in fractions) and fractions != [(1, 1), (1, 1)]
        unit = int(tags["ResolutionUnit"].value) if "ResolutionUnit" in tags else None
        imagej = {k: v for k, v in (tiff.imagej_metadata or {}).items() if k not in OF_THE_VALUES}
        shaped = {k: v for k, v in (tiff.shaped_metadata or ({},))[0].items() if k not in OF_SHAPED}
        ome = tiff.ome_metadata or ""
        description, lost = ("", None) if ome else _description(tiff)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError) as error:
        return TiffMetadata(lost=f"the metadata ({type(error).__name__}: it cannot be read)")
    size = tuple(fractions) if valid else None
    unit = unit if valid and unit in (1, 2, 3) else None
    return TiffMetadata(size, unit, imagej, ome, shaped, description, lost)  # type: ignore[arg-type]


def _description(tiff: Any) -> tuple[str, str | None]:
    """(the first page's description if it is neither ImageJ's nor tifffile's, what is lost of the descriptions)."""
    page, kind = tiff.pages[0], tiff.series[0].kind
    text = page.description
    if not text or text in (page.imagej_description, page.shaped_description):
        return "", None
    if kind not in DESCRIBED or page.is_imagej:  # otherwise the output would be read as a file of that kind
        return "", f"the image description, which is that of a file of kind {kind!r}"
    if len(text) > MAX_METADATA:
        return "", f"the image description of {len(text):,} characters"
    more = tiff.pages[1].aspage().description if len(tiff.pages) > 1 else ""
    return text, "the image descriptions of the pages after the first" if more not in ("", text) else None


def options_for(
    found: TiffMetadata, shape: tuple[int, ...], dtype: np.dtype, *, big: bool
) -> tuple[dict[str, Any], str | None]:
    """(what `tifffile.imwrite` gets for it, what is lost). big: a BigTIFF, which ImageJ does not read."""
    options: dict[str, Any] = {"metadata": {"axes": "ZYX", **found.shaped}}
    options |= {"description": found.description.encode()} if found.description else {}
    if found.resolution:
        options["resolution"] = found.resolution
        options |= {"resolutionunit": found.unit} if found.unit else {}
    if found.ome:
        text = None if len(found.ome) > MAX_METADATA else _ome_of(found.ome, shape, dtype)
        if text is None:
            return options, "the OME metadata, which is not that of one stack"
        return options | {"metadata": None, "description": text}, None
    if not found.imagej:
        return options, found.lost
    words = dict(found.imagej)
    if len(words.get("Labels", ())) != shape[0]:
        words.pop("Labels", None)
    if dtype == np.float32 and not big and len(repr(words)) <= MAX_METADATA:
        return options | {"imagej": True, "metadata": {"axes": "ZYX", **words}}, None
    options["metadata"] |= {k: words[k] for k in ("spacing", "unit") if k in words}
    return options, f"ImageJ's metadata but for the voxel size: ImageJ reads no TIFF {'above 4 GB' if big else dtype}"


def _ome_of(text: str, shape: tuple[int, ...], dtype: np.dtype) -> bytes | None:
    """The XML with the output's shape and type. None if it does not describe one stack with one channel."""
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        return None
    try:
        root = ElementTree.fromstring(text.encode())  # noqa: S314 - without a DOCTYPE there are no entities
    except (ElementTree.ParseError, ValueError):
        return None
    space = root.tag[: root.tag.find("}") + 1]
    if space:
        ElementTree.register_namespace("", space[1:-1])
    every = list(root.iter(f"{space}Pixels"))
    if len(every) != 1:
        return None
    pixels = every[0]
    root.attrib.pop("UUID", None)  # it identified the input's file
    for name in ("TiffData", "BinData", "MetadataOnly"):
        for child in pixels.findall(f"{space}{name}"):
            pixels.remove(child)
    D, H, W = (str(n) for n in shape)
    if any(pixels.get(f"Size{axis}", "1").strip() != "1" for axis in "CT"):
        return None
    pixels.attrib.pop("SignificantBits", None)
    pixels.attrib.update(SizeZ=D, SizeY=H, SizeX=W, SizeC="1", SizeT="1", BigEndian="false", DimensionOrder="XYZCT")
    pixels.set("Type", OME_TYPES[dtype.name])
    data = ElementTree.Element(f"{space}TiffData", IFD="0", PlaneCount=D)
    index = next((i for i, c in enumerate(pixels) if c.tag == f"{space}Plane"), len(pixels))
    pixels.insert(index, data)
    return b'<?xml version="1.0" encoding="UTF-8"?>' + ElementTree.tostring(root, encoding="unicode").encode()
