"""Where a job runs: what each thing that a GPU needs says when it is missing, and what it says when it fails."""

import numpy as np
import pytest
import torch

from gpu import ON_GPU
from tilewright.errors import ResourceError, UsageError
from tilewright.hardware import GPU, no_gpu
from tilewright.runtime import devices
from tilewright.runtime.devices import gpu_faults, place_for
from tilewright.runtime.jobs.settings import Settings
from tilewright.runtime.verbs.classify import ClassifyJob, classify

WORKS = {"cpu": None, "simt": None, "tile": None, "torch": None, "mpi": None}


@pytest.fixture
def gpu(monkeypatch):
    """A machine with all that a GPU needs, as far as anyone can tell."""
    monkeypatch.setattr(devices, "no_gpu", lambda: None)
    monkeypatch.setattr(devices, "gpus", lambda: (GPU("NVIDIA X", 1, 1, 1, (9, 0), "12.4"),))
    monkeypatch.setattr(devices, "engines", lambda: dict(WORKS))
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)


@pytest.mark.parametrize("device", ["cuda", "auto"])
def test_the_gpu_is_taken_where_all_is_there(gpu, device):
    assert place_for(device) == "cuda"
    assert place_for("cpu") == "cpu"


LACKS = {
    "this machine has no NVIDIA driver": ("no_gpu", lambda: "this machine has no NVIDIA driver (libcuda.so.1)"),
    "No module named 'torch'": ("engines", lambda: WORKS | {"torch": "No module named 'torch'"}),
    "No module named 'triton'": ("engines", lambda: WORKS | {"tile": "No module named 'triton'"}),
    "No module named 'numba_cuda'": ("engines", lambda: WORKS | {"simt": "No module named 'numba_cuda'"}),
    "is built for the CPU alone": ("torch.version.cuda", None),
    "compute capability is 7.5, they need 8.0": ("gpus", lambda: (GPU("Tesla T4", 1, 1, 1, (7, 5), "13.0"),)),
    "built for CUDA 13.0, and the driver knows CUDA up to 12.4": ("torch.cuda.is_available", lambda: False),
}


@pytest.mark.parametrize("says", LACKS)
def test_what_is_missing_is_said_with_what_to_do(gpu, monkeypatch, says):
    name, value = LACKS[says]
    monkeypatch.setattr(name if name.startswith("torch") else f"tilewright.runtime.devices.{name}", value)
    with pytest.raises(ResourceError) as caught:
        place_for("cuda")
    assert says in str(caught.value)
    remedy = caught.value.remedy
    assert (
        "driver, or install" in remedy or 'device="cpu", --device cpu on the command line' in remedy
    )  # for both readers
    assert place_for("auto") == "cpu"


@pytest.mark.skipif(no_gpu() is None, reason="a GPU is here")
def test_this_machine_without_a_gpu_says_so():
    with pytest.raises(ResourceError, match="no GPU to run on: "):
        place_for("cuda")
    assert place_for("auto") == "cpu"


def test_another_word_is_refused():
    with pytest.raises(UsageError, match="device is 'gpu'; cpu, cuda, auto are"):
        place_for("gpu")


def test_what_only_a_gpu_has_is_refused_on_the_cpu(gpu, monkeypatch):
    assert place_for("auto", "float16") == "cuda"
    with pytest.raises(UsageError, match=r"float16 is for a GPU, and this runs on the CPU\. Use bfloat16"):
        place_for("cpu", "float16")
    monkeypatch.setattr(devices, "no_gpu", lambda: "this machine has none")
    with pytest.raises(UsageError, match="runs on the CPU; there is no GPU to run on: this machine has none"):
        place_for("auto", "float16")


class CudaAPIError(Exception):
    """Stands in for numba-cuda's, which its simulator does not have."""


@pytest.mark.parametrize(
    "fault",
    [
        torch.AcceleratorError("illegal memory access\nCUDA kernel errors might be reported later"),
        RuntimeError("Triton Error [CUDA]: illegal memory access"),
        CudaAPIError("[700] illegal memory access"),
    ],
    ids=["torch", "triton", "numba"],
)
def test_a_fault_of_the_gpu_is_an_error_of_the_machine(fault):
    with pytest.raises(ResourceError, match=r"the GPU failed: .*illegal memory access\. Run"), gpu_faults():
        raise fault


def test_a_gpu_without_memory_is_an_error_of_the_machine():
    fault = torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate much. And more about settings.")
    with pytest.raises(ResourceError, match=r"has too little memory: CUDA out of memory\. Stop what"), gpu_faults():
        raise fault


def test_an_error_of_ours_that_came_of_it_says_more():
    with pytest.raises(ResourceError, match=r"does not fit\. Give the token table less"), gpu_faults():
        try:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory.")
        except torch.cuda.OutOfMemoryError as error:
            raise ResourceError("the batch does not fit", remedy="give the token table less") from error


def test_another_error_stays_what_it_is():
    with pytest.raises(RuntimeError, match="mine"), gpu_faults():
        raise RuntimeError("mine")


@pytest.fixture
def job(tmp_path, model, sentences):
    """job(output, **options) on the small model, with fields of ClassifyJob and of Settings."""

    def made(output, table_path=None, **given):
        paths = model, str(tmp_path / "in.bin"), str(tmp_path / output)
        return ClassifyJob(*paths, table_path=table_path, settings=Settings(**given))

    return made


@pytest.mark.skipif(no_gpu() is None, reason="a GPU is here")
def test_a_job_for_a_missing_gpu_leaves_nothing(job, tmp_path):
    with pytest.raises(ResourceError, match="no GPU"):
        classify(job("out.bin", device="cuda"))
    assert not (tmp_path / "out.bin").exists()
    assert classify(job("out.bin", device="auto")).records == 40


def test_a_gpus_table_is_not_kept(gpu, job, tmp_path):
    with pytest.raises(UsageError, match="--keep-table is for the CPU"):
        classify(job("out.bin", device="cuda", table_path=str(tmp_path / "table")))


@pytest.mark.skipif(not ON_GPU, reason="it takes a GPU: TILEWRIGHT_GPU=1")
def test_a_job_gives_the_same_answers_on_the_gpu(job, tmp_path):
    for batch in (40, 7):
        classify(job(f"gpu{batch}.bin", device="cuda", batch_size=batch))
    classify(job("cpu.bin"))
    whole, parts, here = (np.fromfile(tmp_path / f"{name}.bin", "<f4") for name in ("gpu40", "gpu7", "cpu"))
    assert np.array_equal(whole, parts)
    assert np.allclose(whole, here, atol=1e-5)
