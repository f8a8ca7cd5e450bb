"""Random weights, scaled like those of a trained network. The same seed gives the same weights."""

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import numpy as np

from tilewright.formats.files import BLOCK_BYTES
from tilewright.hardware import cpu


def textcnn_scale(name: str, shape: tuple[int, ...]) -> tuple[float, float]:
    """(mean, standard deviation) of a TextCNN's tensor: 1 for the embedding, 1 / sqrt(inputs) for the layers.

    A bias is drawn like a layer with as many inputs as the bias has elements.
    """
    inputs = 1 if name == "embedding.weight" else math.prod(shape[1:]) if len(shape) > 1 else shape[0]
    return 0.0, 1 / math.sqrt(inputs)


def random_blocks(
    shape: tuple[int, ...], seed: int, tensor: int, mean: float = 0.0, deviation: float = 1.0
) -> Iterator[np.ndarray]:
    """float32 blocks that fill `shape`, from N(mean, deviation**2).

    They come from Philox, a counter-based generator, with the key (seed, tensor). A tensor's values depend on nothing
    else.
    """
    generator = np.random.Generator(np.random.Philox(np.random.SeedSequence(seed, spawn_key=(tensor,))))
    left = math.prod(shape)
    while left:
        block = generator.standard_normal(min(left, BLOCK_BYTES // 4), np.float32)
        block *= np.float32(deviation)
        if mean:
            block += np.float32(mean)
        left -= block.size
        yield block


def random_textcnn(shapes: dict[str, tuple[int, ...]], seed: int) -> dict[str, np.ndarray]:
    """float32 arrays of these shapes, as `tilewright init textcnn` writes them."""

    def filled(number: int, name: str, shape: tuple[int, ...]) -> np.ndarray:
        array, end = np.empty(math.prod(shape), np.float32), 0
        for block in random_blocks(shape, seed, number, *textcnn_scale(name, shape)):
            array[end : end + block.size] = block
            end += block.size
        return array.reshape(shape)

    with ThreadPoolExecutor(cpu().cores) as pool:  # NumPy's generators release the GIL
        return dict(zip(shapes, pool.map(filled, count(), shapes.keys(), shapes.values()), strict=True))
