"""`tilewright doctor` says what is there, and why the rest is not."""

import json
import os
import re
import tomllib
from pathlib import Path

import pytest

from tilewright.cli import doctor, main
from tilewright.formats.packages import install_command


@pytest.fixture
def run(capsys):
    """run("doctor", ...) -> (exit code, stdout)."""

    def call(*arguments):
        with pytest.raises(SystemExit) as caught:
            main([*arguments])
        return caught.value.code or 0, capsys.readouterr().out

    return call


def test_text_and_json_say_the_same(run):
    code, text = run("doctor")
    assert code == 0
    lines = dict(line.split(None, 1) for line in text.splitlines())
    code, output = run("doctor", "--json")
    found = json.loads(output)
    assert code == 0
    assert lines["machine"] == found["machine"]
    assert found["cpu"]["name"] in lines["CPU"]
    assert lines["vectors"] == f"{found['cpu']['lanes']} float32 lanes"
    assert set(found["cpu"]["instructions"]) == {"avx2", "fma", "avx512f", "avx512bf16", "amx-bf16"}


def test_a_missing_engine_is_a_line_with_its_reason(run, monkeypatch):
    monkeypatch.setattr("tilewright.hardware.engines", lambda: {"cpu": None, "tile": "No module named 'triton'"})
    _, text = run("doctor")
    assert "engine cpu        available\n" in text
    assert "engine tile       unavailable - No module named 'triton'\n" in text


def test_whether_a_job_could_run_on_the_gpu_is_said(run, monkeypatch):
    monkeypatch.setattr("tilewright.runtime.devices.no_gpu", lambda: "it is elsewhere")
    _, text = run("doctor")
    assert "--device cuda     does not work: there is no GPU to run on: it is elsewhere\n" in text
    monkeypatch.setattr("tilewright.runtime.devices._check_gpu", lambda: None)
    _, text = run("doctor")
    assert "--device cuda     works\n" in text


def test_the_cache_is_described_and_not_made(monkeypatch, tmp_path):
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    found = doctor.compiled()
    assert (found["state"], found["kernels"]) == ("empty: the first run compiles", 0)
    assert not (tmp_path / "cache").exists()
    folder = tmp_path / "cache" / found["directory"].rpartition("/")[2]
    folder.mkdir(parents=True, mode=0o700)
    (folder / "f.kernel").write_bytes(b"12345")
    assert doctor.compiled() == {"directory": str(folder), "state": "in use", "kernels": 1, "bytes": 5}
    with monkeypatch.context() as patch:  # root may always write
        patch.setattr(os, "access", lambda path, mode: False)
        assert doctor.compiled()["state"] == "in use, but it cannot be written: new kernels are not kept"
        patch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "other"))
        assert doctor.compiled()["state"].startswith("cannot be made: every run compiles")
    folder.chmod(0o777)
    assert doctor.compiled()["state"].startswith("refused: ")
    assert "others may write to it" in doctor.compiled()["state"]
    monkeypatch.setenv("TILEWRIGHT_CACHE", "off")
    assert doctor.compiled()["state"].startswith("off")


def test_a_library_that_is_not_there_is_named():
    found = doctor.examine()
    found["versions"] = {"python": "3.12.1", "numba": None, "nibabel": "5.2", "tifffile": None, "zarr": "3.0"}
    found["roofs"] = [
        {"threads": 2, "copy_gbytes_s": 30.25, "float32_gflops": 400.4, "bfloat16_gflops": None, "amx_gflops": 1500.0}
    ]
    found["gpu_roofs"] = {
        "copy_gbytes_s": 4277.2, "gflops": {"float32": 60000.0, "bfloat16": 736000.0}, "link_gbytes_s": {"to it": 55.04}
    }  # fmt: skip
    text = doctor.readable(found)
    assert "roofs, GPU        copy 4,277 GB/s, float32 60.0 TFLOP/s, bfloat16 736.0 TFLOP/s; to it 55.0 GB/s" in text
    assert "not installed     numba\n" in text
    assert (
        "extra volume      missing - nibabel 5.2, tifffile missing, zarr 3.0 (NIfTI, TIFF and Zarr volumes); "
        f"{install_command('volume')}\n" in text
    )
    assert "roofs, 2 threads  copy 30.2 GB/s, float32 400 GFLOP/s, AMX 1,500 GFLOP/s" in text


def test_extras_are_those_of_the_package():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    for extra, (names, _) in doctor.EXTRAS.items():
        wanted = {re.split("[<>=;]", one)[0] for one in project["optional-dependencies"][extra]} - {"numpy", "mpich"}
        assert set(names) == wanted
    ours = {re.split("[<>=]", one)[0] for one in project["dependencies"]}
    assert set(doctor.LIBRARIES) == ours | {"llvmlite"}


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "unknown"),
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (49152, "48 KiB"),
        (1 << 20, "1 MiB"),
        (25276510208, "23.5 GiB"),
    ],
)
def test_sizes_in_bytes(count, text):
    assert doctor.size_of(count) == text
