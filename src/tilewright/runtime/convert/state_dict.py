"""Converts PyTorch's state dicts: a decoder or a TextCNN with its config.json (`checkpoints.py`), or a DCGAN generator
(`netG` of the well-known example).

A generator's modules are sorted by name: transposed convolutions and batch-norms alternate. A state dict does not hold
strides and paddings. The first layer is assumed to turn one pixel into K x K (stride 1, padding 0). Each other layer is
assumed to double the size (stride 2, padding (K - 1) // 2, and output_padding 1 where K is odd). config.json contains
these values, and can be edited.
"""

from __future__ import annotations

import importlib.util
import os
import re
import struct
import subprocess
import sys
import tempfile
import zipfile

import numpy as np

from tilewright.errors import InputError, ResourceError
from tilewright.formats import safetensors
from tilewright.formats.blocks import check_finite
from tilewright.formats.files import InputFile
from tilewright.models.bert_config import BUFFERS as ENCODER_BUFFERS
from tilewright.models.dcgan import DCGANConfig, DCGANLayer, check_variances
from tilewright.models.gpt2 import MASKS
from tilewright.models.gpt_neox import BUFFERS
from tilewright.runtime.convert import checkpoints, torch_child
from tilewright.runtime.load import Config

NO_WEIGHTS = ("num_batches_tracked", *MASKS, *BUFFERS, *ENCODER_BUFFERS)  # names of tensors that are not weights
TIMEOUT = 600  # seconds for PyTorch to start and to read a file
FLOATS = ("float32", "bfloat16", "float16", "float64")
NORM = ("bias", "weight", "running_mean", "running_var")

Module = dict[str, np.ndarray]


def read_state_dict(path: str) -> tuple[Config, dict[str, np.ndarray]]:
    """Read the configuration and the float32 weights of a state dict: a .safetensors file, or one that PyTorch saved.

    PyTorch reads a pickle with weights_only, in a separate process. For models other than a DCGAN, the config.json
    beside the file is read, too. Raises InputError for a file without a supported model, and ResourceError if PyTorch
    is not installed.
    """
    if path.lower().endswith(".safetensors"):
        tensors = _read(path)
    else:
        with tempfile.TemporaryDirectory(prefix="tilewright-convert-") as folder:
            converted = os.path.join(folder, "state.safetensors")
            _unpickle(path, converted)
            tensors = {name: array.copy() for name, array in _read(converted, path).items()}
    for name, array in tensors.items():
        check_finite(name, array, path)
    if kind := checkpoints.kind_of(tensors, path):
        return checkpoints.with_configuration(tensors, kind, path)
    modules = _modules(tensors, path)
    try:
        config = _config(modules, path)
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"not a generator that is supported: {error}", path=path) from error
    weights = _weights(config, modules)
    check_variances(weights, path)
    return config, weights


def _read(path: str, shown: str | None = None) -> dict[str, np.ndarray]:
    """Read every floating-point tensor as float32. Raises InputError, in which the file is called `shown`."""
    with InputFile(path, "state dict") as file:
        arrays = safetensors.map_tensors(file, safetensors.read_header(file))
    for name, array in arrays.items():
        if array.dtype.name not in FLOATS and not name.endswith(NO_WEIGHTS):
            raise InputError(f"tensor {name[:200]!r} is {array.dtype.name}; {', '.join(FLOATS)} are read",
                             path=shown or path)  # fmt: skip
    with np.errstate(over="ignore"):
        return {name.removeprefix("module."): array.astype(np.float32, copy=False)
                for name, array in arrays.items() if array.dtype.name in FLOATS}  # fmt: skip


def _unpickle(path: str, converted: str) -> None:
    """Let PyTorch read `path` and write `converted`, a safetensors file."""
    with InputFile(path, "state dict") as file:
        size = file.size
    _check_archive(path, size)
    if importlib.util.find_spec("torch") is None:
        raise ResourceError("PyTorch is not installed, and only PyTorch reads this file", path=path,
                            remedy="install it, pip install torch, or save the state dict as .safetensors")  # fmt: skip
    command = [sys.executable, "-P", torch_child.__file__, path, converted, str(size)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=TIMEOUT, check=False)
    except subprocess.TimeoutExpired as error:
        raise InputError(f"PyTorch did not read it in {TIMEOUT} seconds", path=path) from error
    if done.returncode != 0 or not os.path.exists(converted):
        last = (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1]
        raise InputError(f"PyTorch cannot read it as weights: {last[:300]}", path=path,
                         remedy="save model.state_dict() alone, with torch.save")  # fmt: skip


def _check_archive(path: str, size: int) -> None:
    """Raises InputError for an archive that would expand: PyTorch stores tensors uncompressed, so it is damaged."""
    try:
        if not zipfile.is_zipfile(path):
            return
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error, OSError) as error:
        raise InputError(f"not a complete archive: {error}", path=path) from error
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries) or sum(e.file_size for e in entries) > size:
        raise InputError("is compressed, or its entries overlap; PyTorch writes no such archive", path=path)


def _modules(tensors: Module, path: str) -> list[tuple[str, Module]]:
    """(name, tensors) of the modules in the network's order: convolution, norm, convolution, ..., convolution."""
    found: dict[str, Module] = {}
    for full, array in tensors.items():
        prefix, _, own = full.rpartition(".")
        found.setdefault(prefix, {})[own] = array
    ordered = sorted(
        found.items(), key=lambda item: [int(p) if p.isdigit() else p for p in re.split(r"(\d+)", item[0])]
    )
    for i, (name, module) in enumerate(ordered):
        wanted = NORM if i % 2 else ("weight",)
        missing = [own for own in wanted if own not in module]
        kind = "batch-norm" if i % 2 else "transposed convolution"
        if missing or (i % 2 == 0 and module["weight"].ndim != 4):
            has = ", ".join(f"{own} {array.shape}" for own, array in module.items())
            raise InputError(f"module {name[:200]!r} has {has}; as number {i + 1} a {kind} is wanted", path=path,
                             remedy="alternate convolutions and batch-norms, and end with a convolution")  # fmt: skip
    if len(ordered) < 3 or len(ordered) % 2 == 0:
        raise InputError(f"holds {len(ordered)} modules with weights; a convolution, then pairs of batch-norm and "
                         "convolution are wanted", path=path)  # fmt: skip
    return ordered


def _config(modules: list[tuple[str, Module]], path: str) -> DCGANConfig:
    """Derive the configuration. Raises InputError if the shapes of successive modules do not match."""
    convs, norms = modules[::2], modules[1::2]
    made = None
    for name, module in convs:
        inputs, _, height, width = module["weight"].shape
        if height != width:
            raise InputError(f"{name} has a kernel of {height} x {width}; only square kernels are supported", path=path)
        if made not in (None, inputs):
            raise InputError(f"{name} takes {inputs} channels, and the layer before makes {made}", path=path)
        made = module["weight"].shape[1]
        _check_vectors(name, module, ("bias",), made, path)
    for (name, module), (_, before) in zip(norms, convs, strict=False):
        _check_vectors(name, module, NORM, before["weight"].shape[1], path)
    z_size, channels, size, _ = convs[0][1]["weight"].shape
    return DCGANConfig(
        z_size=z_size, size=size, channels=channels,
        layers=tuple(_layer(*module["weight"].shape[1:3]) for _, module in convs[1:]),
        bias=any("bias" in module for _, module in convs),
    )  # fmt: skip


def _check_vectors(name: str, module: Module, vectors: tuple[str, ...], channels: int, path: str) -> None:
    for own in vectors:
        if own in module and module[own].shape != (channels,):
            raise InputError(f"tensor {name}.{own} is {module[own].shape}; ({channels},) is wanted", path=path)


def _layer(channels: int, kernel: int) -> DCGANLayer:
    before = (kernel - 1) // 2
    return DCGANLayer(channels=channels, kernel=kernel, stride=2, padding=(before, kernel - 2 - before))


def _weights(config: DCGANConfig, modules: list[tuple[str, Module]]) -> dict[str, np.ndarray]:
    """Convert the tensors to float32 arrays with the names and layouts of `config.tensor_shapes()`."""
    weights: dict[str, np.ndarray] = {}
    for i, (_, module) in enumerate(modules):
        if i % 2:
            weights |= {f"norms.{i // 2}.{own}": module[own] for own in NORM}
            continue
        name, kernel = ("proj" if i == 0 else f"convs.{i // 2 - 1}"), module["weight"]  # (in, out, K, K)
        bias = module.get("bias", np.zeros(kernel.shape[1], np.float32))
        if i == 0:
            weights["proj.weight"] = kernel.transpose(0, 2, 3, 1).reshape(config.z_size, -1)
            bias = np.tile(bias, config.size**2)
        else:
            weights[f"{name}.weight"] = kernel.transpose(2, 3, 1, 0)
        if config.bias:
            weights[f"{name}.bias"] = bias
    return {name: weights[name] for name in config.tensor_shapes()}
