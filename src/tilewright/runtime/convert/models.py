"""Converts models on disk between layouts, and makes models from a seed. Only one block is in memory at a time."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from tilewright.errors import InputError, UsageError
from tilewright.formats import course
from tilewright.formats.blocks import blocks_of
from tilewright.formats.files import InputFile
from tilewright.formats.foreign_models import is_pickle
from tilewright.formats.models import COURSE_CONFIGS, write_model
from tilewright.models.dcgan import CHANNELS, KERNEL, DCGANConfig, doubling
from tilewright.models.gpt2 import GPT2Config
from tilewright.models.gpt_neox import GPTNeoXConfig
from tilewright.models.initial import random_blocks, textcnn_scale
from tilewright.models.opt import OPTConfig
from tilewright.models.textcnn import TextCNNConfig
from tilewright.runtime.convert.checkpoints import copied
from tilewright.runtime.convert.state_dict import read_state_dict
from tilewright.runtime.load import Config, parse_config, read_weights
from tilewright.runtime.process.signals import stoppable

C = TypeVar("C")
Scale = Callable[[str, tuple[int, ...]], tuple[float, float]]
PYTHIA = {"vocab_size": 50304, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12}  # Pythia-160M


def convert(source: str, destination: str, *, force: bool = False) -> int:
    """Convert a headerless .bin file or a PyTorch state dict to a model directory, or a directory to a .bin file.

    Returns the bytes of the weights. A state dict may be that of a DCGAN generator, or of another model with its
    config.json beside it. Raises InputError if the source is not a model, or if its sizes do not fit a .bin file.
    Raises ResourceError if the destination cannot be written, and UsageError for a state dict to a .bin file. Without
    `force`, raises UsageError if the destination is another file or a directory that is not empty.
    """
    with stoppable():
        is_file = not os.path.isdir(source)
        is_state_dict = is_file and _is_state_dict(source)
        if is_file:
            _check_directory(destination, force, alone=is_state_dict)
        config, weights = (read_state_dict if is_state_dict else read_weights)(source)
        tensors = [(name, array.shape, blocks_of(array)) for name, array in weights.items()]
        if not is_file:
            _check_course_sizes(config, source)
            _check_replaced(destination, force)
            course.write_weights(destination, tensors)
        else:
            others = copied(source) if is_state_dict and not isinstance(config, DCGANConfig) else {}
            write_model(destination, msgspec.to_builtins(config, str_keys=True), tensors, others)
    return _bytes(config)


def _is_state_dict(path: str) -> bool:
    """True for a .safetensors file, and for a file that PyTorch saved. False for the sizes of headerless .bin files."""
    if path.lower().endswith((".safetensors", ".pt", ".pth")):
        return True
    with InputFile(path, "model") as file:
        start = bytearray(min(file.size, 8))
        file.read_into(start, 0)
        return file.size not in COURSE_CONFIGS and is_pickle(path, bytes(start))


def init_textcnn(path: str, seed: int, *, force: bool = False, **sizes: Any) -> int:
    """Write a TextCNN with random weights to a directory, or to a file if `path` ends in .bin. Returns its bytes.

    sizes: fields of TextCNNConfig. The embedding is drawn from N(0, 1), a layer from N(0, 1 / inputs). Raises
    UsageError for invalid sizes, for sizes that a .bin file cannot hold, and, without `force`, for an existing path.
    """
    two = sizes.get("num_labels", 2) == 2
    labels = {0: "negative", 1: "positive"} if two else {}
    config = _configured(TextCNNConfig, **sizes, id2label=labels)
    return _init(path, seed, config, textcnn_scale, force)


def init_gpt2(path: str, seed: int, *, force: bool = False, **sizes: Any) -> int:
    """Write a GPT-2 with random weights, as `init_textcnn` does.

    sizes: fields of GPT2Config. Weights are drawn from N(0, 0.02**2); in the last matrix of each residual branch the
    deviation is divided by sqrt(2 layers). Norms are drawn from N(1, 0.02**2). Source: Radford et al., 2019, section
    2.3.
    """
    if sizes.get("vocab_size", math.inf) <= GPT2Config().stop_ids[0]:
        sizes = {"eos_token_id": None, **sizes}  # GPT-2's default may exceed this vocabulary
    config = _configured(GPT2Config, **sizes)

    def scale(name: str, shape: tuple[int, ...]) -> tuple[float, float]:
        ends = name.endswith("c_proj.weight")
        norm = name.startswith("ln_f") or ".ln_" in name
        return float(norm and name.endswith("weight")), 0.02 / (math.sqrt(2 * config.n_layer) if ends else 1)

    return _init(path, seed, config, scale, force)


def init_opt(path: str, seed: int, *, force: bool = False, **sizes: Any) -> int:
    """Write an OPT with random weights, scaled as in `init_gpt2`.

    sizes: fields of OPTConfig. The default of ffn_dim is 4 times hidden_size.
    """
    if "hidden_size" in sizes:
        sizes = {"ffn_dim": 4 * sizes["hidden_size"], **sizes}
    config = _configured(OPTConfig, **sizes)
    return _init(path, seed, config, _decoder_scale(config.num_hidden_layers, ("out_proj.weight", "fc2.weight")), force)


def init_gpt_neox(path: str, seed: int, *, force: bool = False, **sizes: Any) -> int:
    """Write a GPT-NeoX with random weights, as `init_opt` does.

    sizes: fields of GPTNeoXConfig. Fields that are not given have the values of Pythia-160M.
    """
    sizes = PYTHIA | {"intermediate_size": 4 * sizes.get("hidden_size", PYTHIA["hidden_size"])} | sizes
    config = _configured(GPTNeoXConfig, **sizes)
    ends = ("attention.dense.weight", "dense_4h_to_h.weight")
    return _init(path, seed, config, _decoder_scale(config.num_hidden_layers, ends), force)


def _decoder_scale(layers: int, ends: tuple[str, ...]) -> Scale:
    """The scale of `init_gpt2`. ends: suffixes of the names of the last matrices of residual branches."""

    def scale(name: str, shape: tuple[int, ...]) -> tuple[float, float]:
        norm = "norm" in name and name.endswith("weight")
        return float(norm), 0.02 / (math.sqrt(2 * layers) if name.endswith(ends) else 1)

    return scale


def init_dcgan(
    path: str,
    seed: int,
    *,
    force: bool = False,
    channels: tuple[int, ...] = CHANNELS,
    kernel: int = KERNEL,
    **sizes: Any,
) -> int:
    """Write a DCGAN generator with random weights, as `init_textcnn` does.

    channels: of the projection and of each layer; each layer doubles the image's size. sizes: other fields of
    DCGANConfig. Weights are drawn from N(0, 2 / inputs), and from N(0, 1 / inputs) in the last layer, where inputs is
    the number of products per output. Norms are drawn near the identity. (With N(0, 0.02**2), with which training
    starts, images would be gray.) Source: He et al., "Delving Deep into Rectifiers", 2015.
    """
    if kernel < 2 or len(channels) < 2:
        raise UsageError(f"kernel is {kernel} and channels are {channels}; at least 2 taps and 2 numbers are wanted")
    layers = _configured(doubling, channels=channels[1:], kernel=kernel)
    config = _configured(DCGANConfig, channels=channels[0], layers=layers, **sizes)
    last = f"convs.{len(config.layers) - 1}."

    def scale(name: str, shape: tuple[int, ...]) -> tuple[float, float]:
        if len(shape) == 1:
            return float(name.endswith((".running_var", ".weight"))), 0.02
        if name == "proj.weight":
            return 0.0, math.sqrt(2 / shape[0])
        stride = config.layers[int(name.split(".")[1])].stride
        inputs = shape[3] * max(1.0, (shape[0] / stride) ** 2)  # an output uses 1 / stride**2 of the kernel
        return 0.0, math.sqrt((1 if name.startswith(last) else 2) / inputs)

    return _init(path, seed, config, scale, force)


def _configured(kind: Callable[..., C], **sizes: object) -> C:
    try:
        return kind(**sizes)
    except ValueError as error:
        raise UsageError(str(error)) from error


def _init(path: str, seed: int, config: Config, scale: Scale, force: bool) -> int:
    """Write a random model. scale: returns (mean, standard deviation) of a tensor, given its name and shape."""
    shapes = config.tensor_shapes()
    tensors = [
        (name, shape, random_blocks(shape, seed, i, *scale(name, shape)))
        for i, (name, shape) in enumerate(shapes.items())
    ]
    with stoppable():
        if path.endswith(".bin"):
            _check_course_sizes(config, path)
            _check_replaced(path, force)
            course.write_weights(path, tensors)
        else:
            _check_directory(path, force)
            write_model(path, msgspec.to_builtins(config, str_keys=True), tensors)
    return _bytes(config)


def _check_course_sizes(config: Config, path: str) -> None:
    values = next((one for one in COURSE_CONFIGS.values() if one["model_type"] == config.model_type), None)
    if values is None:
        kinds = ", ".join(one["model_type"] for one in COURSE_CONFIGS.values())
        what = f"a file without a header holds a {kinds} of the course, and this model is a {config.model_type}"
        raise InputError(what, path=path, remedy="write it to a directory")
    wanted = parse_config(values, path)
    for name in wanted.__struct_fields__:
        if name != "id2label" and getattr(config, name) != getattr(wanted, name):
            raise InputError(
                f"{name} is {getattr(config, name)} and the course's model has {getattr(wanted, name)}; "
                "a file without a header can hold no other model",
                path=path,
                remedy="write it to a directory",
            )


def _check_replaced(path: str, force: bool) -> None:
    """Raises UsageError for a file that is not empty: it may hold weights whose training took days."""
    if not force and os.path.isfile(path) and os.path.getsize(path):
        what = f"the file exists and has {os.path.getsize(path):,} bytes, which may be weights"
        raise UsageError(
            what, path=path, remedy="choose another name, or give --force to replace it; nothing was written"
        )


def _check_directory(path: str, force: bool, *, alone: bool = False) -> None:
    """Raises UsageError for a directory that is not empty; with `alone` also for the name of a headerless .bin file."""
    if alone and path.endswith(".bin"):
        raise UsageError(
            "a state dict is converted to a directory",
            path=path,
            remedy="name a directory, and convert that to the file",
        )
    if not force and os.path.isdir(path) and os.listdir(path):
        raise UsageError("the directory exists and is not empty", path=path,
                         remedy="choose another name, or give --force to replace a model")  # fmt: skip


def _bytes(config: Config) -> int:
    return 4 * sum(math.prod(shape) for shape in config.tensor_shapes().values())
