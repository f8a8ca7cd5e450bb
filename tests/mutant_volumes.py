"""Every kind of volume file and of kernel file that the product reads, as kinds of `mutant_kinds`."""

import os
from collections.abc import Callable
from pathlib import Path

import nibabel
import numcodecs
import numpy as np
import tifffile
import zarr

from mutating import Kind, at
from tilewright.errors import InputError
from tilewright.formats.course_volumes import read_text_kernel
from tilewright.formats.volume_formats import form_of, open_volume

SHAPE = (6, 8, 8)
RNG = np.random.default_rng(5)
VALUES = RNG.integers(0, 9, SHAPE).astype(np.float32)


def _volume(path: str) -> bytes:
    with open_volume(path) as volume:
        volume.finite = False
        if volume.shape[0] * volume.shape[1] * volume.shape[2] > 1 << 24:
            raise InputError("absent chunks make it large without a file that is")
        read = volume.load(np.dtype(np.float32)).tobytes()
        form_of("out" + (".nii" if ".nii" in path else os.path.splitext(path)[1]), volume.shape, volume.dtype
                if volume.dtype.name in ("float32", "float64") else np.dtype(np.float32), volume)  # fmt: skip
        return read


def _of_volume(name: str, *write: Callable[[str], object]) -> Callable[[Path], Kind]:
    def kind(folder: Path) -> Kind:
        seeds = []
        for one in write:
            one(str(folder / name))
            seeds.append((folder / name).read_bytes())
        return Kind(seeds, at(folder / name, lambda: _volume(str(folder / name))), text=name.endswith(".txt"))

    return kind


def _npy(path: str, array: np.ndarray) -> None:
    np.save(path, array)


def _nifti(kind: type, dtype: type = np.int16) -> Callable[[str], object]:
    def write(path: str) -> None:
        image = kind(VALUES.astype(dtype), np.diag([1.0, 2.0, 3.0, 1.0]))
        image.header.set_slope_inter(2.0, 1.0)
        image.header.extensions.append(nibabel.nifti1.Nifti1Extension("comment", b"kept"))
        nibabel.save(image, path)

    return write


def _tiff(**options: object) -> Callable[[str], object]:
    return lambda path: tifffile.imwrite(path, VALUES.astype(np.uint16), photometric="minisblack", **options)


def _text_volume(path: str) -> None:
    Path(path).write_text("2 3 4 " + " ".join(f"{x:.3f}" for x in RNG.random(24)))


def _text_kernel(folder: Path) -> Kind:
    path = folder / "kernel.txt"
    seed = b"3 " + b" ".join(b"%.2f" % x for x in RNG.random(27))
    return Kind([seed], at(path, lambda: read_text_kernel(str(path)).tobytes()), text=True)


def _zarr_metadata(version: int, **options: object) -> Callable[[Path], Kind]:
    def kind(folder: Path) -> Kind:
        path = folder / "v.zarr"
        zarr.create_array(str(path), shape=SHAPE, dtype="f4", chunks=(4, 4, 4), zarr_format=version,
                          attributes={"units": "mm"}, overwrite=True, **options)[...] = VALUES  # fmt: skip
        name = path / ("zarr.json" if version == 3 else ".zarray")
        return Kind([name.read_bytes()], at(name, lambda: _volume(str(path))), text=True)

    return kind


def _zarr_chunk(version: int, codec: object, **options: object) -> Callable[[Path], Kind]:
    def kind(folder: Path) -> Kind:
        path = folder / "v.zarr"
        seeds = []
        for values in (VALUES, np.arange(VALUES.size, dtype=np.float32).reshape(SHAPE)):
            zarr.create_array(str(path), shape=SHAPE, dtype="f4", zarr_format=version, overwrite=True,
                              **{"chunks": SHAPE, "compressors": codec, **options})[...] = values  # fmt: skip
            name = path / ("c/0/0/0" if version == 3 else "0.0.0")
            seeds.append(name.read_bytes())
        return Kind(seeds, at(name, lambda: _volume(str(path))))

    return kind


BLOSC = {
    f"zarr {version} blosc {name} {shuffle}": _zarr_chunk(
        version,
        numcodecs.Blosc(name, 5, number, 256) if version == 2
        else zarr.codecs.BloscCodec(cname=name, clevel=5, shuffle=shuffle, typesize=4, blocksize=256),
    )
    for version in (2, 3)
    for name in ("lz4", "lz4hc", "blosclz", "zlib", "zstd")
    for number, shuffle in enumerate(("noshuffle", "shuffle", "bitshuffle"))
}  # fmt: skip
VOLUME_KINDS: dict[str, Callable[[Path], Kind]] = {
    "npy volume": _of_volume("v.npy", lambda p: _npy(p, VALUES), lambda p: _npy(p, np.asfortranarray(VALUES, ">i2"))),
    "nifti 1": _of_volume("v.nii", _nifti(nibabel.Nifti1Image)),
    "nifti 2": _of_volume("v.nii", _nifti(nibabel.Nifti2Image, np.float32)),
    "nifti 1 gzip": _of_volume("v.nii.gz", _nifti(nibabel.Nifti1Image)),
    "nifti 2 gzip": _of_volume("v.nii.gz", _nifti(nibabel.Nifti2Image)),
    "tiff": _of_volume("v.tif", _tiff(), _tiff(byteorder=">", bigtiff=True), _tiff(metadata=None)),
    "tiff deflated": _of_volume("v.tif", _tiff(compression="zlib"), _tiff(compression="zlib", tile=(16, 16))),
    "tiff metadata": _of_volume(
        "v.tif",
        lambda p: tifffile.imwrite(p, VALUES, imagej=True, metadata={"axes": "ZYX", "spacing": 2.0, "Info": "a"}),
        lambda p: tifffile.imwrite(p, VALUES, ome=True, metadata={"axes": "ZYX", "PhysicalSizeZ": 2.0}),
    ),
    "text volume": _of_volume("v.txt", _text_volume),
    "text kernel": _text_kernel,
    "zarr 2 metadata": _zarr_metadata(2),
    "zarr 3 metadata": _zarr_metadata(3),
    "zarr 3 shards metadata": _zarr_metadata(3, shards=(8, 8, 8)),
    **BLOSC,
    "zarr 2 zstd": _zarr_chunk(2, numcodecs.Zstd()),
    "zarr 2 gzip": _zarr_chunk(2, numcodecs.GZip()),
    "zarr 2 zlib": _zarr_chunk(2, numcodecs.Zlib()),
    "zarr 2 lz4": _zarr_chunk(2, numcodecs.LZ4()),
    "zarr 2 none": _zarr_chunk(2, None),
    "zarr 3 zstd": _zarr_chunk(3, zarr.codecs.ZstdCodec()),
    "zarr 3 gzip": _zarr_chunk(3, zarr.codecs.GzipCodec()),
    "zarr 3 crc32c": _zarr_chunk(3, (zarr.codecs.ZstdCodec(), zarr.codecs.Crc32cCodec())),
    "zarr 3 shard": _zarr_chunk(3, zarr.codecs.BloscCodec(), chunks=(3, 4, 4), shards=SHAPE),
    "zarr 3 transposed": _zarr_chunk(3, None, filters=(zarr.codecs.TransposeCodec(order=(2, 1, 0)),)),
}
