"""NIfTI volumes, .nii and .nii.gz. nibabel reads and writes the headers. The values are read by position, or through a
stream of the exact length that the header states. So a compressed file cannot expand beyond it.

The axes are those of nibabel's array: (i, j, k). In the file i varies fastest.
"""

from __future__ import annotations

import gzip
import io
import logging
import math
import struct
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tilewright.errors import InputError, brief
from tilewright.formats.atomic import AtomicFile
from tilewright.formats.files import InputFile
from tilewright.formats.gzip_files import GzipByPosition, GzipStream
from tilewright.formats.magic import kind_of_bytes
from tilewright.formats.names import suffix_of, volume_advice
from tilewright.formats.packages import package
from tilewright.formats.raw_volumes import RawForm, RawVolume
from tilewright.formats.volumes import PIECE_BYTES, ArrayVolume, Shape, Volume, check_memory, check_shape
from tilewright.formats.voxels import VoxelSize, voxel_size

LEAST_HEADER = (352, 544)  # bytes of the headers of NIfTI-1 and NIfTI-2, with the four that announce extensions
HEADER_SIZES = (348, 540)  # the first field of NIfTI-1 and NIfTI-2
MGH = b"\0\0\0\1"  # the first bytes of FreeSurfer's volumes: their version
MAX_HEADER = 16 << 20  # bytes before the values: header and extensions
DEFLATE_RATIO = 1032  # one byte of gzip can expand to so many
HOLD = 0.75  # share of the memory; the rest is for tiles
NIFTI1_SIZES = 1 << 15  # sizes have 16 bits in NIfTI-1


def open_nifti(path: str, what: str, *, memory: int | None = None, headers: bool = False) -> Volume:
    """A .nii or .nii.gz file, read box by box. Values are scaled as the header says. headers: see `open_volume`.

    A .nii.gz file stays compressed in memory if it takes at most HOLD of `memory`. A larger one is expanded once to
    make an index of positions, and again as its boxes are read.

    Raises InputError for a header that nibabel cannot read, for a file whose size differs from the header's, or for
    other than three dimensions (further ones of size 1 are dropped). Raises ResourceError if the index does not fit
    into `memory` bytes, or if nibabel is missing.
    """
    file = InputFile(path, what)
    try:
        if not path.lower().endswith(".gz"):
            head = _PlainStream(file)
            header, shape, dtype, offset = _header(path, head)
            _check_size(file, shape, dtype, offset)
            return _described(RawVolume(file, shape, dtype, offset, fortran=True), header)
        _check_compressed(file)
        stream = GzipStream(file)
        header, shape, dtype, offset = _header(path, stream)
        _check_gzip_size(file, shape, dtype)
        needed = math.prod(shape) * dtype.itemsize
        if memory is not None and needed > HOLD * memory:
            gzipped = GzipByPosition(stream, offset + needed)
            check_memory(path, gzipped.held, memory)
            if not headers:
                gzipped.index()
            volume = RawVolume(gzipped, shape, dtype, offset, fortran=True)
            volume.unit, volume.held = (*shape[:2], 1), gzipped.held
            return _described(volume, header)
        with file:
            if headers:
                return _described(ArrayVolume(path, np.broadcast_to(np.zeros((), dtype), shape)), header)
            values = np.empty(math.prod(shape), dtype)
            stream.read_into(values.view(np.uint8).data)
            stream.expect_end()
        return _described(ArrayVolume(path, values.reshape(shape[::-1]).T), header)
    except BaseException:
        file.close()
        raise


def nifti_form(path: str, shape: Shape, dtype: np.dtype, like: Volume) -> RawForm | GzipForm:
    """A NIfTI file with the header, affine and extensions of `like`, if that is NIfTI. Otherwise the affine has the
    size of the voxels of `like`, or is the identity."""
    nibabel = package("nibabel.spatialimages", "NIfTI")
    header = like.header if isinstance(like.header, nibabel.Nifti1Header) else None
    if header is None:
        header = (nibabel.Nifti1Header if max(shape) < NIFTI1_SIZES else nibabel.Nifti2Header)()
        voxels = voxel_size(like) or VoxelSize((1.0, 1.0, 1.0), "unknown")
        header.set_data_shape(shape)
        header.set_zooms(voxels.sizes)
        header.set_xyzt_units(voxels.unit)
        header.set_sform(np.diag([*voxels.sizes, 1.0]), code="aligned")
    header = header.as_byteswapped("<")
    header.set_data_shape(shape)
    header.set_data_dtype(np.dtype(dtype))
    header.set_slope_inter(1, 0)
    header["cal_max"] = header["cal_min"] = 0  # they described the input's values
    header.set_data_offset(0)  # write_to sets it to the end of the extensions
    stream = io.BytesIO()
    header.write_to(stream)
    data = stream.getvalue().ljust(int(header["vox_offset"]), b"\0")
    return GzipForm(data) if path.lower().endswith(".gz") else RawForm(shape, dtype, data, fortran=True)


@dataclass(frozen=True)
class GzipForm:
    """A gzip file with a header and a volume in Fortran order."""

    head: bytes
    unit: ClassVar[Shape] = (1, 1, 1)
    axis: ClassVar[int] = 2

    def encode(self, slab: np.ndarray) -> Iterator[bytes]:
        """The numbers of planes along x, not compressed. They are compressed when they are joined."""
        step = max(1, PIECE_BYTES // (math.prod(slab.shape[:2]) * slab.itemsize))
        for first in range(0, slab.shape[2], step):
            yield np.ascontiguousarray(slab[:, :, first : first + step].T).tobytes()

    def encoder(self, file: AtomicFile) -> GzipEncoder:
        """A writer that compresses the header and the numbers after it."""
        return GzipEncoder(file, self.head)


class GzipEncoder:
    """Compresses what it is given."""

    def __init__(self, file: AtomicFile, head: bytes) -> None:
        self._stream = gzip.GzipFile("", "wb", 1, file, mtime=0)  # type: ignore[call-overload]
        self._stream.write(head)

    def write(self, block: bytes | memoryview) -> None:
        self._stream.write(block)

    def finish(self) -> None:
        self._stream.close()


class _PlainStream:
    """The bytes of a file from its start."""

    def __init__(self, file: InputFile) -> None:
        self.file, self.position = file, 0

    def read(self, count: int) -> bytes:
        data = bytearray(min(count, self.file.size - self.position))
        self.file.read_into(data, self.position)
        self.position += len(data)
        return bytes(data)


def _header(path: str, stream: Any) -> tuple[Any, Shape, np.dtype, int]:
    """(nibabel's header with its extensions, shape, dtype, byte of the first value)."""
    nibabel = package("nibabel.spatialimages", "NIfTI")
    head = stream.read(LEAST_HEADER[0])
    kinds = dict(zip(HEADER_SIZES, (nibabel.Nifti1Header, nibabel.Nifti2Header), strict=True))
    order = _byte_order(head)
    if order is None:
        raise _no_nifti(path, head)
    if head[344:347] == b"ni1":
        raise InputError("is half of a pair of .hdr and .img files", path=path, remedy="convert it to one .nii file")
    kind = kinds[struct.unpack(f"{order}i", head[:4])[0]]
    least = LEAST_HEADER[kind is nibabel.Nifti2Header]
    head += stream.read(least - len(head))
    if len(head) < least:
        what = f"has {len(head):,} bytes; the header alone takes {least:,}"
        raise InputError(what, path=path, remedy="copy or download the file again: it was cut short")
    fields = np.frombuffer(head, kind.template_dtype.newbyteorder(order), 1)
    offset = float(fields["vox_offset"][0])
    if not least <= offset <= MAX_HEADER or offset % 1:
        raise InputError(
            f"the header says that the data begins at byte {offset:,}; it must be from {least} to {MAX_HEADER:,}",
            path=path,
        )
    head += stream.read(int(offset) - len(head))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # nibabel warns of extensions with odd sizes, and keeps them
            header = kind.from_fileobj(io.BytesIO(head), check=False)
            header.check_fix(logger=_silent)
        shape, dtype = tuple(int(n) for n in header.get_data_shape()), header.get_data_dtype()
    except (nibabel.spatialimages.HeaderDataError, *_DAMAGE) as error:
        raise InputError(f"the header cannot be read: {brief(error)}", path=path) from error
    while len(shape) > 3 and shape[-1] == 1:
        shape = shape[:-1]
    return header, check_shape(path, shape, dtype), dtype, int(offset)


def _byte_order(head: bytes) -> str | None:
    """The byte order, "<" or ">", of a file that begins with these bytes. None if it is no NIfTI file."""
    if len(head) < LEAST_HEADER[0]:
        return None
    return next((order for order in "<>" if struct.unpack(f"{order}i", head[:4])[0] in HEADER_SIZES), None)


def _check_compressed(file: InputFile) -> None:
    """Raises InputError for a .nii.gz file that is a plain NIfTI file."""
    if _byte_order(_PlainStream(file).read(LEAST_HEADER[0])) is not None:
        what = "is a NIfTI file that is not compressed, and its name ends with .gz"
        raise InputError(what, path=file.path, remedy=f"rename it to {file.path[:-3]}")


def _no_nifti(path: str, head: bytes) -> InputError:
    """The error for a file that is no NIfTI file: what it is instead, and what to do."""
    if head.startswith(b"\x1f\x8b"):
        what = "is compressed with gzip, and its name does not end with .gz"
        return InputError(what, path=path, remedy=f"rename it to {path}.gz")
    if head.startswith(MGH):
        mgz = f"{path[: -len(suffix_of(path) or '')]}.mgz"
        what = "is no NIfTI file but a volume of FreeSurfer (.mgz or .mgh)"
        return InputError(what, path=path, remedy=f"rename it to {mgz}, and {volume_advice(mgz)}")
    kind = kind_of_bytes(head)
    what = f"it is {kind}" if kind else f"it begins with {head[:4]!r}, not with the size of a header, 348 or 540"
    return InputError(f"is no NIfTI file: {what}", path=path, remedy="convert it to NIfTI, or save its array as .npy")


def _check_size(file: InputFile, shape: Shape, dtype: np.dtype, offset: int) -> None:
    expected = offset + math.prod(shape) * dtype.itemsize
    if file.size != expected:
        raise InputError(
            f"the header states {dtype} {shape} from byte {offset:,}, which takes {expected:,} bytes; "
            f"the file has {file.size:,}",
            path=file.path,
            remedy="copy or download the file again: it was cut short or is damaged",
        )


def _check_gzip_size(file: InputFile, shape: Shape, dtype: np.dtype) -> None:
    needed, most = math.prod(shape) * dtype.itemsize, DEFLATE_RATIO * file.size
    if needed > most:
        what = (
            f"the header states {dtype} {shape}, {needed:,} bytes; the file's {file.size:,} expand to at most {most:,}"
        )
        raise InputError(what, path=file.path, remedy="copy or download the file again: it was cut short or is damaged")


def _scale(path: str, header: Any) -> tuple[float, float] | None:
    slope, intercept = float(header["scl_slope"]), float(header["scl_inter"])
    if slope == 0 or not math.isfinite(slope):
        return None
    if not math.isfinite(intercept):
        what = f"the header's scl_inter is {intercept}; a finite number is wanted"
        raise InputError(what, path=path, remedy="set it to the number that is added to each value, mostly 0")
    return None if (slope, intercept) == (1.0, 0.0) else (slope, intercept)


def _described(volume: RawVolume | ArrayVolume, header: Any) -> Volume:
    volume.header, volume.scale = header, _scale(volume.path, header)
    return volume


_DAMAGE = (ValueError, TypeError, KeyError, IndexError, OverflowError, RuntimeError, struct.error)
_silent = logging.Logger("tilewright.nifti", logging.CRITICAL + 1)  # errors are raised, not written to stderr
