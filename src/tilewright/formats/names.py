"""The kind of a file by the end of its name, and what to do about names of other kinds."""

from __future__ import annotations

import os

from tilewright.errors import UsageError

VOLUMES = (".txt", ".npy", ".nii", ".nii.gz", ".tif", ".tiff", ".zarr")
RECORDS = (".jsonl", ".parquet", ".txt", ".bin")  # files of answers
TEXTS = (".jsonl", ".csv", ".tsv", ".txt")  # files of prompts and sentences that may be compressed
INPUTS = (*TEXTS, ".parquet", ".bin")  # files of prompts and sentences
COMPRESSED = (".gz", ".zst")
_LINES = "write it as .jsonl, one JSON object per line"
_SHEET = "save it as .parquet, or as .jsonl, one JSON object per line"
_UNPACK = "unpack it first: files are read by position"
_TEXT = "save its text as .txt, one record per line, or as .jsonl"
ADVICE = {
    **dict.fromkeys((".csv", ".tsv", ".psv", ".xls", ".xlsx", ".ods"), _SHEET),
    ".json": f"{_LINES}: jq -c '.[]' FILE.json > FILE.jsonl",
    **dict.fromkeys((".ndjson", ".jsonlines", ".ldjson", ".jl"), "rename it to .jsonl"),
    **dict.fromkeys((".gz", ".zst", ".bz2", ".xz", ".lz4", ".zip", ".tar", ".tgz", ".7z", ".br"), _UNPACK),
    **dict.fromkeys((".xml", ".yaml", ".yml", ".toml", ".avro", ".orc", ".arrow", ".feather", ".pq"), _SHEET),
    **dict.fromkeys((".md", ".rst", ".html", ".htm", ".pdf", ".doc", ".docx", ".log", ".tex", ".rtf", ".text"), _TEXT),
    ".npy": "write token ids as .bin: array.astype('<i4').tofile(NAME)",
}
CONVERT = "python -c \"import nibabel; nibabel.save(nibabel.load('{name}'), '{stem}.nii.gz')\""
VOLUME_ADVICE = {
    **dict.fromkeys((".mgz", ".mgh", ".img", ".hdr"), f"convert it to NIfTI: {CONVERT}"),
    ".dcm": "convert the series to NIfTI with dcm2niix",
    **dict.fromkeys((".nrrd", ".nhdr", ".mha", ".mhd"), "convert it to NIfTI, for instance with SimpleITK"),
    **dict.fromkeys((".npz", ".h5", ".hdf5", ".mat"), "save its array with numpy.save as .npy"),
}


def ending(path: str | os.PathLike[str]) -> str:
    """The last suffix of a name in lower case, with its dot; "" if it has none."""
    return os.path.splitext(os.fspath(path))[1].lower()


def plain_name(path: str | os.PathLike[str]) -> str:
    """The name without the suffix for compression."""
    name = os.fspath(path)
    return os.path.splitext(name)[0] if name.endswith(COMPRESSED) else name


def kind_of_records(path: str | os.PathLike[str]) -> str:
    """The kind of an input of records, by its name: one of INPUTS; ".bin" for all other names."""
    if kind := getattr(path, "kind", None):  # a list of files has it
        return str(kind)
    name = os.fspath(path)
    plain = plain_name(name)
    kinds = INPUTS if plain == name else TEXTS
    return next((kind for kind in kinds if plain.endswith(kind)), ".bin")


def check_records_name(
    path: str | os.PathLike[str], what: str, kinds: tuple[str, ...] = RECORDS, *, folders: bool = False
) -> None:
    """Raises UsageError unless the name ends with one of `kinds`, because only a .bin file is read as binary numbers.
    An input may be one of INPUTS.

    what: the word for the file in messages. A file that is missing, a directory or a device is refused when it is
    opened. folders: the output may be a folder, whose name ends with a slash.
    """
    name = os.fspath(path)
    if what == "input":
        kinds = INPUTS
        if plain_name(name) != name and plain_name(name).endswith(TEXTS):
            return
    if name.endswith(kinds) or not (os.path.isfile(name) or (what == "output" and not os.path.lexists(name))):
        return
    found = ending(name)
    *most, last = (f"{kind} (raw 32-bit numbers)" if kind == ".bin" else kind for kind in kinds)
    said = f"ends with {os.path.splitext(name)[1]}" if found else "has no suffix"
    rule = f"{', '.join(most)} and {last} are known" if most else f"{last} is wanted"
    remedy = f"rename it to {found}" if found in kinds else ADVICE.get(found, "choose one of these")
    if what == "output":
        remedy = "choose one of these"
        if folders and not found:
            remedy += f", or write {name}/ for a folder of such files"
    raise UsageError(f"the name of the {what} {said}; {rule}", path=name, remedy=remedy)


def advice(path: str | os.PathLike[str], otherwise: str) -> str:
    """What to do about a compressed or renamed file; `otherwise` for all others."""
    remedy = ADVICE.get(ending(path))
    return remedy if remedy == _UNPACK else otherwise


def suffix_of(path: str) -> str | None:
    """The suffix of VOLUMES with which `path` ends, in lower case; ".zarr" for a directory; None for others."""
    name = os.fspath(path).rstrip("/").lower()
    found = next((suffix for suffix in sorted(VOLUMES, key=len, reverse=True) if name.endswith(suffix)), None)
    return ".zarr" if found is None and os.path.isdir(path) else found


def axes_of(path: str | os.PathLike[str]) -> str:
    """The usual names of the three axes in a volume's format, in their order."""
    return "(i, j, k)" if suffix_of(os.fspath(path)) in (".nii", ".nii.gz") else "(z, y, x)"


def volume_advice(path: str) -> str | None:
    """How to convert a file of a format that tilewright does not read. None for all others."""
    stem = os.path.splitext(path)[0]
    remedy = VOLUME_ADVICE.get(ending(path))
    return remedy and remedy.format(name=path, stem=stem)


def check_suffix(path: str, what: str) -> str:
    """`suffix_of(path)`. If it is None, raises UsageError with the list of formats, or with how to convert the file."""
    found = suffix_of(path)
    if found is None:
        formats = f"choose a name that ends with {', '.join(VOLUMES[:-1])} or {VOLUMES[-1]}"
        if what != "output" and (convert := volume_advice(path)) is not None:
            raise UsageError(f"{ending(path)} is no format of volumes that is read", path=path, remedy=convert)
        raise UsageError(f"the name of the {what} does not say its format", path=path, remedy=advice(path, formats))
    return found
