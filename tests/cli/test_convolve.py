"""`tilewright convolve` as a user meets it: the course's five cases, the familiar lines, one paragraph an error."""

import json
import os

import numpy as np
import pytest
from scipy import ndimage

from course_volumes import CASES, course_case, text
from options import replaced


@pytest.fixture
def volume(run, rng):
    """`v.npy` and `k.txt` in the working directory of `run`."""
    np.save("v.npy", rng.standard_normal((9, 10, 11)).astype(np.float32))
    with open("k.txt", "w") as file:
        file.write(text(rng.standard_normal((3, 3, 3)), 3))
    return ("convolve", "-i", "v.npy", "--kernel", "k.txt", "-o", "out.npy")


def one_paragraph(errors):
    lines = errors.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("Error: "), errors
    return lines[0]


@pytest.mark.parametrize(
    "case", [pytest.param(n, marks=[pytest.mark.long] * (n == 3)) for n in CASES]
)  # of 128 x 128 x 128
def test_the_courses_cases(run, case):
    array, weights = course_case(case)
    wanted = ndimage.correlate(array.astype(np.float64), weights.astype(np.float64), mode="constant")
    K = len(weights)
    for name, line in [("input", text(array)), ("kernel", text(weights, K)), ("expected_output", text(wanted))]:
        with open(f"{name}.txt", "w") as file:
            file.write(line)
    code, out, errors = run(
        "convolve", "-i", "input.txt", "--kernel", "kernel.txt", "-o", "output.txt", "--validate", "expected_output.txt"
    )
    assert code == 0 and "Error" not in errors and "Validation...PASS" in out
    with open("output.txt") as file:
        written = file.read()
    found = np.array(written.split(), np.float64)
    assert [*map(int, found[:3])] == [*array.shape] and written.startswith(" ".join(map(str, array.shape)) + " ")
    assert np.abs(found[3:] - wanted.reshape(-1)).max() < 1e-4 and written.endswith(" ") and "\n" not in written
    code, out, _ = run("validate", "output.txt", "expected_output.txt")
    assert code == 0 and f"{array.size:,} compared" in out


def test_the_familiar_shape(run, volume):
    code, out, errors = run(*volume, "--threads", "2", "--memory", "8G")  # of which the tests before took some
    lines = out.splitlines()
    assert code == 0 and "Error" not in errors
    assert " Kernel:     k.txt, not flipped" in lines
    assert " Mode:       constant 0 (the default of a kernel from a file)" in lines and " Threads:    2" in lines
    assert "Checking input: 9 x 10 x 11 voxels of float32...Done!" in out
    assert "Convolving 990 voxels in 1 tile of 9 x 10 x 11...Done!" in out and "Writing output...Done!" in out
    elapsed = next(float(line.split()[2]) for line in lines if line.startswith("Elapsed time: "))
    throughput = next(line for line in lines if line.startswith("Throughput: ") and line.endswith(" (voxels/sec)"))
    assert float(throughput.split()[1]) == pytest.approx(990 / elapsed, rel=0.1)
    assert any(line.startswith("Whole run: ") for line in lines) and any(
        line.startswith("Peak memory:") for line in lines
    )


def test_json(run, volume):
    code, out, errors = run(*volume, "--json", "--mode", "wrap")
    report = json.loads(out)
    assert code == 0 and out.count("\n") == 1 and "...Done!" in errors
    assert (report["verb"], report["kernel"], report["mode"], report["records"]) == ("convolve", "k.txt", "wrap", 990)
    assert report["tiles"] == 1 and report["seconds"]["run"] > 0 and report["exit_code"] == 0
    code, out, errors = run("convolve", "-i", "gone.npy", "-k", "laplace", "-o", "out.npy", "--json")
    report = json.loads(out)
    assert code == report["exit_code"] == 3 and report["error"]["path"] == "gone.npy"


def test_validation_that_fails(run, volume):
    run(*volume)
    np.save("ref.npy", np.load("out.npy") + 1)
    code, out, _ = run(*volume, "--validate", "ref.npy")
    assert code == 1 and "Validation...FAIL" in out and "voxel [0, 0, 0] is" in out
    code, out, _ = run("validate", "out.npy", "ref.npy")
    assert code == 1 and "voxel [0, 0, 0] is" in out
    code, out, _ = run("validate", "out.npy", "ref.npy", "--tolerance", "1.5")
    assert code == 0


def test_any_rung(run, volume):
    found = []
    for rung in ("cpu.naive", "cpu.rows"):
        assert run(*volume, "--restart", "--rung", f"conv3d={rung}")[0] == 0
        found.append(np.load("out.npy"))
    assert np.abs(found[0] - found[1]).max() < 1e-5
    code, _, errors = run(*volume, "--restart", "--rung", "conv3d=cpu.separable")
    assert code == 2 and "no outer product" in errors


WRONG = [
    (["--mode", "periodic"], 2, "'periodic' is not one of 'reflect', 'constant', 'nearest', 'mirror', 'wrap'"),
    (["--kernel", "mean:3"], 2, "'mean:3' is no kernel. Give one of gaussian:SIGMA, box:SIZE"),
    (["--dtype", "float16"], 2, "float16"),
    (["--memory", "many"], 2, "'many' is no size"),
    (["--cval", "1e300"], 2, "cval is 1e+300; it is too large for float32. Use --dtype float64"),
    (["--kernel", "large.npy"], 3, "large.npy: a tap is too large for float32"),
    (["--threads", "1000000"], 2, "1,000,000 threads"),
    (
        ["-o", "out.bmp"],
        2,
        "out.bmp: the name of the output does not say its format. Choose a name that ends with .txt, .npy",
    ),
    (["-o", "v.npy"], 2, "v.npy: the output would overwrite the input"),
    (["-i", "short.txt"], 3, "short.txt: its sizes ask for 2 x 2 x 2 = 8 values; the file holds 7"),
    (["-i", "nan.txt"], 3, "nan.txt, value 5, byte 16: 'nan' is no finite number"),
    (["--kernel", "even.txt"], 3, "even.txt, its first number: the kernel's size is 2"),
    (["--kernel", "box:11"], 3, "v.npy: the kernel box:11 is 11 x 11 x 11 and the volume 9 x 10 x 11"),
    (["-i", "pickle.npy"], 3, "pickle.npy: holds objects, which are pickles and never loaded"),
    (["-i", "four.npy"], 3, "four.npy: the volume has 4 dimensions, (1, 2, 3, 4)"),
    (["-i", "complex.npy"], 3, "complex.npy: holds <c16"),
    (["-i", "cut.npy"], 3, "cut.npy: the header states float32 (9, 10, 11)"),
    (["-i", "cut.nii.gz"], 3, "cut.nii.gz: is no gzip file or damaged|cut.nii.gz: is no NIfTI file"),
    (["-i", "cut.tif"], 3, "cut.tif: tifffile cannot read it"),
    (["--validate", "gone.txt"], 3, "gone.txt: no such answers"),
    (["--memory", "1M"], 4, "bytes; 0 are left beside the program. Give more --memory, about "),
    (["-o", "gone/out.npy"], 4, "there is no directory"),
]


@pytest.mark.parametrize(("options", "code", "message"), WRONG)
def test_one_paragraph_and_nothing_half_written(run, volume, options, code, message):
    good = np.load("v.npy")
    for name, content in {
        "short.txt": b"2 2 2 1.00 2.00 3.00 4.00 5.00 6.00 7.00",
        "nan.txt": b"2 2 2 1 2 3 4 5 nan 7 8",
        "even.txt": b"2 1 1 1 1 1 1 1 1",
        "cut.nii.gz": b"\x1f\x8b\x08\0",
        "cut.tif": b"II*\0\x08\0\0\0",
    }.items():
        with open(name, "wb") as file:
            file.write(content)
    np.save("pickle.npy", np.array([{"a": 1}]), allow_pickle=True)
    np.save("large.npy", np.full((3, 3, 3), 1e300))
    np.save("four.npy", np.zeros((1, 2, 3, 4)))
    np.save("complex.npy", np.zeros((3, 3, 3), complex))
    np.save("cut.npy", good)
    os.truncate("cut.npy", os.path.getsize("cut.npy") - 4)
    np.save("out.npy", good[:1])
    before = {name: os.path.getmtime(name) for name in os.listdir(".")}
    found, out, errors = run(*replaced(volume, *options), "--force")
    assert found == code and any(part in out + errors for part in message.split("|")), out + errors
    if code != 2 or errors.startswith("Error: "):
        one_paragraph("\n".join(line for line in errors.splitlines() if line.startswith("Error")))
    assert {name: os.path.getmtime(name) for name in os.listdir(".")} == before


def test_the_banner_says_what_stands_outside(run, volume):
    """The rule in force, where it comes from, and whether the kernel is flipped."""
    at = volume.index("--kernel") if "--kernel" in volume else volume.index("-k")
    named = [*volume[: at + 1], "gaussian:1", *volume[at + 2 :]]
    code, out, _ = run(*named)
    assert code == 0 and " Mode:       reflect (the default of scipy.ndimage)" in out.splitlines()
    assert " Kernel:     gaussian:1, as scipy.ndimage.gaussian_filter" in out.splitlines()
    code, out, _ = run(*named, "--mode", "mirror", "--restart")
    assert code == 0 and " Mode:       mirror" in out.splitlines()
