"""Whole models on disk: converted from one layout to the other, or made from a seed. One block in memory at a time."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from tilewright.errors import InputError, UsageError
from tilewright.formats import course
from tilewright.formats.blocks import blocks_of
from tilewright.formats.files import BLOCK_BYTES
from tilewright.formats.models import COURSE_CONFIG, write_model
from tilewright.models.textcnn import TextCNNConfig
from tilewright.runtime.load import parse_config, read_weights
from tilewright.runtime.signals import stoppable


def convert(source: str, destination: str) -> int:
    """params.bin -> model directory, or a directory -> params.bin; returns the bytes of the weights.

    Raises InputError for a source that is no model, or whose sizes params.bin cannot hold; ResourceError where the
    destination cannot be written.
    """
    with stoppable():
        config, weights = read_weights(source)
        tensors = [(name, array.shape, blocks_of(array)) for name, array in weights.items()]
        if os.path.isdir(source):
            _check_course_sizes(config, source)
            course.write_weights(destination, tensors)
        else:
            write_model(destination, msgspec.to_builtins(config, str_keys=True), tensors)
    return _bytes(config)


def init_textcnn(path: str, seed: int, **sizes: Any) -> int:
    """Writes a TextCNN with random weights to a directory, or to a file if `path` ends in .bin; returns their bytes.

    sizes: fields of TextCNNConfig. Raises UsageError for sizes that make no network or that a file cannot hold.
    """
    try:
        two = sizes.get("num_labels", 2) == 2
        config = TextCNNConfig(**sizes, id2label={0: "negative", 1: "positive"} if two else {})
    except ValueError as error:
        raise UsageError(str(error)) from error
    shapes = config.tensor_shapes()
    tensors = [(name, shape, random_blocks(shape, seed, i)) for i, (name, shape) in enumerate(shapes.items())]
    with stoppable():
        if path.endswith(".bin"):
            _check_course_sizes(config, path)
            course.write_weights(path, tensors)
        else:
            write_model(path, msgspec.to_builtins(config, str_keys=True), tensors)
    return _bytes(config)


def random_blocks(shape: tuple[int, ...], seed: int, tensor: int) -> Iterator[np.ndarray]:
    """float32 blocks that fill `shape`, from N(0, 1) for tensor 0, the embedding, and N(0, 1 / inputs) for the layers.

    Philox, a counter-based generator, keyed by (seed, tensor): a tensor's values depend on nothing else. A bias is
    drawn like a layer of as many inputs as it has outputs.
    """
    generator = np.random.Generator(np.random.Philox(np.random.SeedSequence(seed, spawn_key=(tensor,))))
    inputs = 1 if tensor == 0 else math.prod(shape[1:]) if len(shape) > 1 else shape[0]
    scale, left = np.float32(1 / math.sqrt(inputs)), math.prod(shape)
    while left:
        block = generator.standard_normal(min(left, BLOCK_BYTES // 4), np.float32)
        block *= scale
        left -= block.size
        yield block


def _check_course_sizes(config: TextCNNConfig, path: str) -> None:
    wanted = parse_config(COURSE_CONFIG, path)
    for name in TextCNNConfig.__struct_fields__:
        if name != "id2label" and getattr(config, name) != getattr(wanted, name):
            raise InputError(
                f"{name} is {getattr(config, name)} and the course's model has {getattr(wanted, name)}; "
                "a file without a header holds no other",
                path=path,
                hint="keep it as a model directory",
            )


def _bytes(config: TextCNNConfig) -> int:
    return 4 * sum(math.prod(shape) for shape in config.tensor_shapes().values())
