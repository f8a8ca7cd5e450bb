"""PyTorch's checkpoints of generators: the same images, and nothing else of a file is trusted."""

import os
import pickle
import subprocess
import traceback
import zipfile

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from compare import compare
from dcgan_models import netg, netg_images
from tilewright.errors import InputError, ResourceError, UsageError
from tilewright.runtime.convert import state_dict, torch_child
from tilewright.runtime.convert.models import convert
from tilewright.runtime.load import load

SIZES = {"z_size": 10, "features": 4, "channels": 3}


@pytest.fixture(name="torch_here")
def _torch_here(monkeypatch):
    """The child's function in this process, which has loaded PyTorch: every child would take 3 s to do so. The tests
    without this fixture start a child, for an old pickle and for one that tries to run code."""

    def run(command, **options):
        try:
            torch_child.main(command[3], command[4], int(command[5]))
        except (ValueError, RuntimeError, EOFError, pickle.UnpicklingError):
            return subprocess.CompletedProcess(command, 1, "", traceback.format_exc())
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(state_dict.subprocess, "run", run)


@pytest.fixture(name="z")
def _z(rng):
    return rng.standard_normal((6, 10)).astype(np.float32)


def test_the_example_at_its_own_size(tmp_path, rng):
    model, z = netg(), rng.standard_normal((4, 100)).astype(np.float32)
    save_file(model.state_dict(), tmp_path / "netG.safetensors")
    assert convert(str(tmp_path / "netG.safetensors"), str(tmp_path / "m")) == 4 * 3_578_624
    found = load(tmp_path / "m").generate(z)
    compare(found, netg_images(model, z), 1e-4)
    assert found.min() < -0.9 and found.max() > 0.9, "this test wants images that are not gray"


def nested(model):
    return {"epoch": 7, "netG": model.state_dict(), "optimizer": {"lr": 0.1}}


def parallel(model):
    return {f"module.{name}": tensor for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize(
    ("form", "ending"), [(lambda model: model.state_dict(), ".pt"), (nested, ".pth"), (parallel, ".pth")]
)
def test_pickles_are_read_by_pytorch(tmp_path, z, form, ending, torch_here):
    model = netg(**SIZES)
    path = tmp_path / f"netG{ending}"
    torch.save(form(model), path)
    convert(str(path), str(tmp_path / "m"))
    compare(load(tmp_path / "m").generate(z), netg_images(model, z), 1e-5)


def test_an_old_pickle(tmp_path, z):
    model = netg(**SIZES)
    torch.save(model.state_dict(), tmp_path / "netG.pt", _use_new_zipfile_serialization=False)
    convert(str(tmp_path / "netG.pt"), str(tmp_path / "m"))
    compare(load(tmp_path / "m").generate(z), netg_images(model, z), 1e-5)


@pytest.mark.parametrize("kernel", [2, 3, 5, 6])
def test_other_kernels_and_biases(tmp_path, z, kernel):
    """Odd kernels double the size with output_padding, as they do in PyTorch."""
    torch.manual_seed(1)
    padding, extra = (kernel - 1) // 2, kernel % 2
    if kernel == 2:
        padding = 0
    model = nn.Sequential(
        nn.ConvTranspose2d(10, 8, 3), nn.BatchNorm2d(8), nn.ReLU(),
        nn.ConvTranspose2d(8, 6, kernel, 2, padding, extra), nn.BatchNorm2d(6), nn.ReLU(),
        nn.ConvTranspose2d(6, 1, kernel, 2, padding, extra, bias=False), nn.Tanh(),
    ).eval()  # fmt: skip
    save_file(model.state_dict(), tmp_path / "g.safetensors")
    convert(str(tmp_path / "g.safetensors"), str(tmp_path / "m"))
    found = load(tmp_path / "m").generate(z)
    assert found.shape == (6, 12, 12, 1)
    compare(found, netg_images(model, z), 1e-5)


def test_half_precision(tmp_path, z):
    model = netg(**SIZES)
    expected = netg_images(model, z)
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        tensors = {name: x.to(dtype) if x.is_floating_point() else x for name, x in model.state_dict().items()}
        save_file(tensors, tmp_path / "netG.safetensors")
        convert(str(tmp_path / "netG.safetensors"), str(tmp_path / "m"), force=True)
        compare(load(tmp_path / "m").generate(z), expected, 1e-5 if dtype == torch.float64 else 0.1)


def without(name):
    return lambda tensors: tensors.pop(name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without("main.1.running_mean"), r"module 'main\.1' has .*as number 2 a batch-norm is wanted"),
        (without("main.12.weight"), "holds 8 modules with weights"),
        (without("main.0.weight"), r"module 'main\.1' has .*as number 1 a transposed convolution is wanted"),
        (lambda t: t.clear(), "holds 0 modules"),
        (lambda t: t.update({"main.3.weight": torch.zeros(31, 16, 4, 4)}), r"main\.3 takes 31 channels, .*makes 32"),
        (lambda t: t.update({"main.3.weight": torch.zeros(32, 16, 4, 5)}), "a kernel of 4 x 5"),
        (lambda t: t.update({"main.3.weight": torch.zeros(32, 16, 1, 1)}), "padding is"),
        (lambda t: t.update({"main.3.weight": torch.zeros(32, 16)}), "as number 3 a transposed convolution is wanted"),
        (lambda t: t.update({"main.4.weight": torch.zeros(15)}), r"main\.4\.weight is \(15,\); \(16,\) is wanted"),
        (lambda t: t.update({"main.4.weight": torch.full((16,), torch.nan)}), r"main\.4\.weight holds nan at \[0\]"),
        (lambda t: t.update({"main.4.weight": torch.full((16,), 1e300, dtype=torch.float64)}), "holds inf"),
        (lambda t: t.update({"main.4.weight": torch.zeros(16, dtype=torch.int32)}), "is int32; float32"),
        (lambda t: t["main.4.running_var"].sub_(9), r"running_var holds -[\d.]+ at \[0\]; a variance is not negative"),
    ],
)  # fmt: skip
def test_other_networks_are_refused(tmp_path, change, message):
    tensors = netg(**SIZES).state_dict()
    change(tensors)
    save_file(tensors, tmp_path / "netG.safetensors")
    with pytest.raises(InputError, match=message) as caught:
        convert(str(tmp_path / "netG.safetensors"), str(tmp_path / "m"))
    assert str(caught.value).startswith(str(tmp_path / "netG.safetensors"))
    assert os.listdir(tmp_path) == ["netG.safetensors"]


def test_a_file_of_the_course_is_no_destination(tmp_path):
    save_file(netg(**SIZES).state_dict(), tmp_path / "netG.safetensors")
    with pytest.raises(UsageError, match=r"x\.bin: a state dict is converted to a directory"):
        convert(str(tmp_path / "netG.safetensors"), str(tmp_path / "x.bin"))
    assert os.listdir(tmp_path) == ["netG.safetensors"]


class Hostile:
    """Its pickle makes the directory "run"."""

    def __reduce__(self):
        return os.mkdir, ("run",)


def refused(path):
    with pytest.raises(InputError, match="PyTorch cannot read it as weights") as caught:
        convert(str(path), "m")
    assert len(str(caught.value)) < 700 and "\n" not in str(caught.value)
    assert not os.path.exists("run") and not os.path.exists("m")


def test_a_pickle_runs_no_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"weight": torch.zeros(1), "x": Hostile()}, "archive.pt")
    refused("archive.pt")


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize(
    "content", [pickle.dumps({"x": Hostile()}), b"no pickle at all", b""], ids=["plain", "noise", "empty"]
)
def test_other_files_run_no_code(tmp_path, monkeypatch, content, torch_here):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.pt").write_bytes(content)
    refused("x.pt")


@pytest.mark.parametrize("value", [torch.zeros(3), {"a": 1}, [torch.zeros(2)]])
def test_a_pickle_of_something_else(tmp_path, value, torch_here):
    torch.save(value, tmp_path / "x.pt")
    with pytest.raises(InputError, match="is no state dict"):
        convert(str(tmp_path / "x.pt"), str(tmp_path / "m"))


def test_a_pickle_that_claims_more_than_it_has(tmp_path, torch_here):
    torch.save({"main.0.weight": torch.zeros(1).expand(10**6, 10**6)}, tmp_path / "x.pt")
    with pytest.raises(InputError, match="take more bytes than the file has"):
        convert(str(tmp_path / "x.pt"), str(tmp_path / "m"))


def test_a_compressed_archive(tmp_path):
    torch.save(netg(**SIZES).state_dict(), tmp_path / "x.pt")
    with zipfile.ZipFile(tmp_path / "x.pt") as stored, zipfile.ZipFile(tmp_path / "bomb.pt", "w", 8) as bomb:
        for entry in stored.infolist():
            bomb.writestr(entry.filename, stored.read(entry))
    with pytest.raises(InputError, match="is compressed, or its entries overlap"):
        convert(str(tmp_path / "bomb.pt"), str(tmp_path / "m"))


def test_without_pytorch(tmp_path, monkeypatch):
    torch.save(netg(**SIZES).state_dict(), tmp_path / "x.pt")
    monkeypatch.setattr(state_dict.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ResourceError, match=r"PyTorch is not installed.*Install it, pip install torch, or save"):
        convert(str(tmp_path / "x.pt"), str(tmp_path / "m"))


def test_pytorch_that_does_not_end(tmp_path, monkeypatch):
    torch.save(netg(**SIZES).state_dict(), tmp_path / "x.pt")

    def late(command, **options):
        raise subprocess.TimeoutExpired(command, options["timeout"])

    monkeypatch.setattr(state_dict.subprocess, "run", late)
    with pytest.raises(InputError, match="did not read it in 600 seconds"):
        convert(str(tmp_path / "x.pt"), str(tmp_path / "m"))
