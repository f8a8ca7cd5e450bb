"""Writes shards of images, and makes the outputs from them. A .npy file, and a folder with one picture per image, are
written in place; text is written as a stream. One picture of all images is made from 8-bit pixels, which a shard stores
after its text."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from tilewright.formats.atomic import AtomicDirectory, AtomicFile, Headed, check_writable
from tilewright.formats.images import (
    GridEncoder,
    array_header,
    kind_of,
    pixels,
    png_name,
    png_names,
    png_of,
    text_header,
    text_of,
)
from tilewright.runtime.jobs.directory import Attempt, JobDirectory, Record
from tilewright.runtime.jobs.durable import check_space
from tilewright.runtime.jobs.pieces import Placing
from tilewright.runtime.jobs.placed import PlacedFile, PlacedTree
from tilewright.runtime.jobs.sinks import FileSink, Section, Sink, deliver
from tilewright.runtime.jobs.stop import Stop
from tilewright.runtime.jobs.task import Totals

PICTURES = (".bmp", ".png")


@dataclass(frozen=True)
class ImageOutputs:
    """The outputs of a draw job. output, image: paths; image may be None. count: of images. shape: of one image."""

    output: str
    image: str | None
    count: int
    shape: tuple[int, int, int]

    @property
    def paths(self) -> list[str]:
        """Paths of all outputs, the job's own first."""
        return [os.path.realpath(path) for path in (self.output, self.image) if path]

    @property
    def pixels_alone(self) -> bool:
        """True if all outputs are pictures, which need only the 8-bit pixels of the images."""
        return kind_of(self.output) in (*PICTURES, "/")

    @property
    def keeps_pixels(self) -> bool:
        """True if a shard stores the pixels of its images, for one picture of all images."""
        return self.image is not None or kind_of(self.output) in PICTURES

    @property
    def pixel_bytes(self) -> int:
        """The bytes of an image's pixels."""
        return math.prod(self.shape)

    def check(self, *, write: bool = True) -> None:
        """Raises ResourceError if an output cannot be written. write=False: do only the checks that write nothing."""
        for path in filter(None, (self.output, self.image)):
            if kind_of(path) == "/":
                self._folder(path)
            elif write:
                AtomicFile(path).__enter__().discard()
            else:
                check_writable(path)

    def _folder(self, path: str) -> AtomicDirectory:
        folder = AtomicDirectory(path, png_names(path), "a run's numbered .png")
        folder.check_replaceable()
        return folder

    @contextmanager
    def writing(self, out: Attempt, first: int) -> Iterator[Callable[[np.ndarray], None]]:
        """Within the block: a function write(images) for the images of the shard `out`, in order.

        first: the number of the shard's first image. The images may be 8-bit pixels, see `pixels_alone`.
        """
        with Placing(out) as placing:
            writer = _ShardWriter(self, out, placing, first)
            yield writer
            out.write(writer.pixels_of_text)

    def offset(self, number: int) -> int:
        """The byte at which an image begins in a .npy file."""
        return len(array_header(self.count, self.shape)) + 4 * number * math.prod(self.shape)

    def assemble(self, directory: JobDirectory, totals: Totals, stop: Stop) -> list[tuple[int, str]]:
        """Make the outputs from the shards. Returns the bytes and the sha256 of each output."""
        sinks = [self._sink(directory, totals, stop)]
        if self.image:
            sinks.append(self._grid(directory, self.image))
        return deliver(directory, totals.shards, sinks, stop)

    def _sink(self, directory: JobDirectory, totals: Totals, stop: Stop) -> Sink:
        kind = kind_of(self.output)
        if kind in PICTURES:
            return self._grid(directory, self.output)
        if kind == ".npy":
            values = 4 * self.count * math.prod(self.shape)
            return PlacedFile(directory, array_header(self.count, self.shape), values, b"", stop.check)
        if kind == "/":
            folder = self._folder(directory.output)
            return PlacedTree(directory, {}, folder, stop.check, lambda n: map(png_name, directory.shard(n).rows))
        check_space(directory.output, totals.size)
        joined = FileSink(directory.output, partial(Headed, header=text_header(self.count)))
        return Section(joined, directory, lambda record: (0, record.size - self._pixels(record)))

    def _grid(self, directory: JobDirectory, path: str) -> Sink:
        grid = FileSink(path, lambda file: GridEncoder(file, self.count, self.shape, kind_of(path)))
        return Section(grid, directory, lambda record: (record.size - self._pixels(record), record.size))

    def _pixels(self, record: Record) -> int:
        return record.records * self.pixel_bytes if self.keeps_pixels else 0


@dataclass
class _ShardWriter:
    """Writes a shard's images in order. first: the number of the next image.

    pixels_of_text: for a text output, the pixels of the images so far; they are written after the text.
    """

    outputs: ImageOutputs
    out: Attempt
    placing: Placing
    first: int
    pixels_of_text: bytearray = field(default_factory=bytearray)

    def __call__(self, images: np.ndarray) -> None:
        kind = kind_of(self.outputs.output)
        if kind == ".txt":
            self.out.write(text_of(images))
        elif kind == ".npy":
            self.placing.write(self.outputs.offset(self.first), np.ascontiguousarray(images, "<f4").data)
        elif kind == "/":
            numbered = enumerate(pixels(images), start=self.first)
            self.placing.files((png_name(number), partial(png_of, picture)) for number, picture in numbered)
        if self.outputs.keeps_pixels:
            block = np.ascontiguousarray(pixels(images)).data
            if kind == ".txt":
                self.pixels_of_text.extend(block.cast("B"))
            else:
                self.out.write(block)
        self.first += len(images)
