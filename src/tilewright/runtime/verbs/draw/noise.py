"""The input of `tilewright draw`: noise from a file or from a seed."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.formats.tables import Rows, Table, open_table
from tilewright.models.dcgan import DCGANConfig
from tilewright.models.noise import noise
from tilewright.runtime.verbs.draw.job import DrawJob


class RandomNoise:
    """Random noise from a seed, with the methods of an open noise file."""

    def __init__(self, seed: int, count: int, width: int) -> None:
        self.total, self.bytes = count, 4 * count * width
        self._seed, self._width = seed, width

    def close(self) -> None:
        """Do nothing, because no file is open."""

    def batches(self, size: int, rows: range) -> Iterator[Rows]:
        """Yield these rows of noise in order, `size` at a time."""
        for first in range(rows.start, rows.stop, size):
            n = min(size, rows.stop - first)
            yield Rows(noise(self._seed, first, n, self._width), 4 * (first + n) * self._width)


Source = Table | RandomNoise


def open_input(job: DrawJob, config: DCGANConfig, *, checked: bool) -> Source:
    """Open the job's noise. checked: read the whole file and check every value. Raises InputError and ResourceError."""
    if job.input is None:
        return RandomNoise(job.seed, job.count or 0, config.z_size)
    return open_table(job.input, shape=(config.z_size,), count=job.count, checked=checked)
