"""Volumes written for tests in every format, tile by tile, as the job of volumes lays them out."""

import os
from contextlib import contextmanager

import numpy as np

from tilewright.formats.atomic import AtomicFile
from tilewright.formats.raw_volumes import RawForm
from tilewright.formats.volume_formats import form_of
from tilewright.formats.volumes import ArrayVolume
from tilewright.formats.zarr_volumes import ZarrForm, check_zarr


class Written:
    """What `creating` yields: write(start, tile), with tiles on multiples of `unit`."""

    def __init__(self, path, form, shape, dtype):
        self.path, self.form, self.unit = path, form, form.unit
        self.array = np.zeros(shape, dtype)
        self.files = dict(form.metadata) if isinstance(form, ZarrForm) else {}

    def write(self, start, tile):
        self.array[tuple(slice(a, a + n) for a, n in zip(start, tile.shape, strict=True))] = tile
        if isinstance(self.form, ZarrForm):
            found = dict(self.form.encode(start, tile))
            assert not found.keys() & self.files.keys(), "a chunk is written once"
            self.files |= found

    def save(self):
        form = self.form
        if isinstance(form, ZarrForm):
            with check_zarr(self.path) as temporary:
                for name, content in self.files.items():
                    os.makedirs(os.path.dirname(os.path.join(temporary, name)), exist_ok=True)
                    with open(os.path.join(temporary, name), "wb") as file:
                        file.write(content)
        elif isinstance(form, RawForm):
            with open(self.path, "wb") as file:
                file.write(form.head + b"\xff" * (form.size - len(form.head) - len(form.tail)) + form.tail)
                file.flush()
                for offset, numbers in form.runs_of((0, 0, 0), self.array):
                    os.pwrite(file.fileno(), numbers.tobytes(), offset)
        else:
            with AtomicFile(self.path) as file:
                encoder = form.encoder(file)
                for block in form.encode(self.array):
                    encoder.write(block)
                encoder.finish()


@contextmanager
def creating(path, shape, dtype, like):
    """`with creating("v.nii", shape, dtype, like) as output: output.write(start, tile)`."""
    output = Written(path, form_of(path, shape, np.dtype(dtype), like), shape, dtype)
    yield output
    output.save()


def save(path, array, like=None):
    """A volume of float32 or float64."""
    with creating(path, array.shape, array.dtype, like or ArrayVolume("a", array)) as output:
        step = output.unit
        for z in range(0, array.shape[0], step[0]) if isinstance(output.form, ZarrForm) else (0,):
            planes = array[z : z + step[0]] if isinstance(output.form, ZarrForm) else array
            output.write((z, 0, 0), np.ascontiguousarray(planes))
