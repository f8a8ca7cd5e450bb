"""`tilewright draw`, and the models for it, as a user meets them."""

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import save_file

from dcgan_models import netg, netg_images

SIZES = ("--z-size", "5", "--base-size", "2", "--channels", "6,4,3", "--kernel", "4")  # 8 x 8 pixels


@pytest.fixture(name="model")
def _model(run, rng):
    """A small model in `m`, noise in `z.npy` and `in.txt`; the command line's first words."""
    assert run("init", "dcgan", "m", "--seed", "3", *SIZES)[0] == 0
    z = rng.standard_normal((9, 5)).astype(np.float32)
    np.save("z.npy", z)
    with open("in.txt", "w") as file:
        file.write("9\n" + "\n".join(" ".join(repr(float(x)) for x in row) for row in z))
    return ("draw", "--model", "m")


def one_paragraph(errors):
    lines = errors.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("Error: "), errors
    return lines[0]


def test_the_familiar_shape(run, model):
    code, out, errors = run(*model, "-i", "in.txt", "-o", "out.txt", "--image", "out.bmp", "--threads", "2")
    lines = out.splitlines()
    assert code == 0 and "Error" not in errors
    assert (
        " Model:      DCGAN, m" in lines
        and " Output:     out.txt, out.bmp" in lines
        and " Device:     cpu, 2 threads" in lines
    )
    assert "Checking input: 9 images...Done!" in out and "Generating 9 images...Done!" in out
    elapsed = next(float(line.split()[2]) for line in lines if line.startswith("Elapsed time: "))
    rate = next(line for line in lines if line.startswith("Throughput: ") and line.endswith(" (images/sec)"))
    assert float(rate.split()[1]) == pytest.approx(9 / elapsed, rel=0.01)
    with open("out.txt") as file:
        assert file.readline() == "9\n" and len(file.readline().split(" ")) == 8 * 8 * 3 + 1
    assert os.path.getsize("out.bmp") == 54 + 3 * 24 * 24
    code, out, _ = run(*model, "-i", "z.npy", "-o", "out.npy", "-a", "out.txt", "-v", "-n", "4")
    assert code == 0 and "Validation...PASS" in out and np.load("out.npy").shape == (4, 8, 8, 3)
    np.save("zeros.npy", np.zeros((9, 8, 8, 3), np.float32))
    code, out, _ = run(*model, "-i", "z.npy", "-o", "out.npy", "--validate", "zeros.npy", "--restart")
    assert code == 1 and "Validation...FAIL" in out and "image 0, row 0, column 0, channel 0 is" in out


def test_validate(run, model):
    run(*model, "-i", "z.npy", "-o", "a.npy")
    run(*model, "-i", "z.npy", "-o", "a.txt")
    code, out, _ = run("validate", "a.txt", "a.npy")
    assert code == 0 and out.startswith("Validation...PASS\n  1,728 compared; the largest error is ")
    images = np.load("a.npy")
    images[7, 1, 2, 0] += 0.1
    np.save("b.npy", images)
    code, out, _ = run("validate", "a.txt", "b.npy")
    assert code == 1 and "image 7, row 1, column 2, channel 0 is" in out
    assert run("validate", "a.txt", "b.npy", "--tolerance", "0.2")[0] == 0


def test_json(run, model):
    code, out, errors = run(*model, "-n", "3", "--seed", "5", "-o", "out.png", "--json", "--batch-size", "2")
    report = json.loads(out)
    assert code == 0 and "...Done!" in errors and "random noise, seed 5" in errors
    assert (report["verb"], report["records"], report["input"], report["exit_code"]) == ("draw", 3, None, 0)
    with Image.open("out.png") as picture:
        assert picture.size == (16, 16)
    code, out, _ = run(*model, "-i", "gone.npy", "-o", "out.png", "--json")
    assert code == 3 and json.loads(out)["error"]["message"] == "no such input"


def test_a_range_of_random_images_is_that_of_a_larger_run(run, model):
    run(*model, "-n", "3", "--seed", "5", "-o", "few.npy")
    run(*model, "--count", "8", "--seed", "5", "-o", "many.npy", "--dtype", "float32")
    assert np.load("few.npy").tobytes() == np.load("many.npy")[:3].tobytes()
    run(*model, "-n", "3", "-o", "zero.npy")
    run(*model, "-n", "3", "-o", "none.npy", "--seed", "0")
    assert np.load("zero.npy").tobytes() == np.load("none.npy").tobytes() != np.load("few.npy").tobytes()


def test_a_directory_of_pictures(run, model):
    assert run(*model, "-i", "z.npy", "-o", "faces/")[0] == 0
    assert sorted(os.listdir("faces")) == [f"{i:05d}.png" for i in range(9)]


def test_pytorchs_example_end_to_end(run, rng):
    model, z = netg(8, 4, 3), rng.standard_normal((3, 8)).astype(np.float32)
    save_file(model.state_dict(), "netG.safetensors")
    np.save("z.npy", z)
    np.save("answers.npy", netg_images(model, z))
    code, out, _ = run("convert", "netG.safetensors", "m")
    assert code == 0 and "bytes of weights...Done!" in out
    code, out, _ = run("draw", "-p", "m", "-i", "z.npy", "-o", "out.txt", "--validate", "answers.npy")
    assert code == 0 and "Validation...PASS" in out
    code, _, errors = run("convert", "netG.safetensors", "x.bin")
    assert code == 2 and "a state dict is converted to a directory" in errors and not os.path.exists("x.bin")


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("-o", "out.txt"), 2, "how many images of random noise with -n"),
        (("-i", "z.npy", "-o", "out.txt", "--seed", "1"), 2, "the input has the noise"),
        (("-i", "z.npy", "-o", "out.txt", "-v"), 2, "-v compares with the answers of -a"),
        (("-i", "z.npy", "-o", "out.txt", "-n", "0"), 2, "-n"),
        (("-n", "1", "-o", "out.txt", "--dtype", "float8"), 2, "float8"),
        (("-n", "1", "-o", "out.txt", "--threads", "1000000"), 2, "1,000,000 threads"),
        (("-i", "z.npy", "-o", "out.jpeg"), 2, "images are written to .txt, .npy, .png, .bmp, or to a directory"),
        (("-i", "z.npy", "-o", "z.npy"), 2, "z.npy: the output would overwrite the input"),
        (("-i", "z.npy", "-o", "out.txt", "--image", "out.gif"), 2, "the image is no .bmp or .png file"),
        (("-i", "z.npy", "-o", "in.txt/"), 4, "is a file; a directory for"),
        (("-i", "z.npy", "-o", "out.npy", "-n", "10"), 3, "holds 9 images; 10 were asked for. Lower -n"),
        (("-i", "gone.txt", "-o", "out.npy"), 3, "gone.txt: no such input"),
        (("-i", "z.npy", "-o", "gone/out.npy"), 4, "gone/out.npy: cannot write: there is no directory"),
        (("-n", "1000000000000", "-o", "out.png"), 4, "bytes of memory"),
        (("-n", "100000000", "-o", "out.bmp"), 2, "a .bmp file holds 4,294,967,295 bytes"),
        (("-i", "z.npy", "-o", "out.npy", "--validate", "gone.txt"), 3, "no such answers"),
    ],
)
def test_mistakes(run, model, options, code, message):
    before = sorted(os.listdir("."))
    found, out, errors = run(*model, *options)
    assert found == code and message in " ".join((out + errors).replace("│", " ").split()), errors
    assert sorted(os.listdir(".")) == before


def test_init_of_a_dcgan(run, tmp_path):
    assert run("init", "dcgan", "network.bin", "--seed", "1")[0] == 0
    assert os.path.getsize("network.bin") == 20_549_132
    assert run("init", "dcgan", "a", *SIZES)[0] == run("init", "dcgan", "b", *SIZES)[0] == 0
    assert (tmp_path / "a" / "model.safetensors").read_bytes() == (tmp_path / "b" / "model.safetensors").read_bytes()
    code, _, errors = run("init", "dcgan", "c", "--channels", "3")
    assert code == 2 and "at least 2 taps and 2 numbers" in one_paragraph(errors)
    code, _, errors = run("init", "dcgan", "c", "--channels", "3,0")
    assert code == 2 and "channels is 0" in one_paragraph(errors)
    code, _, errors = run("init", "dcgan", "c", "--layers", "3")
    assert code == 2 and "dcgan has no such size" in errors
    code, _, errors = run("init", "textcnn", "c", "--kernel", "3")
    assert code == 2 and "textcnn has no such size" in errors
    code, _, errors = run("init", "dcgan", "d.bin", *SIZES)
    assert code == 3 and "z_size is 5 and the course's model has 100" in one_paragraph(errors)


def test_the_memory_of_workers_is_told(run, model):
    """That of this process alone would hide where nearly all of a job's memory is."""
    code, out, _ = run(*model, "-n", "8", "-o", "out.npy", "--shard-size", "2", "--workers", "2")
    told = re.search(
        r"Peak memory: ([\d,]+) MiB in this process; the largest worker ([\d,]+) MiB, all workers ([\d,]+) MiB\n", out
    )
    assert code == 0 and told, out
    _, largest, together = (int(figure.replace(",", "")) for figure in told.groups())
    assert 20 < largest <= together  # Python and NumPy alone take more
    report = json.loads(Path("out.npy.job/report.json").read_text())
    assert report["facts"]["worker_memory"]["largest"] >> 20 in (largest, largest - 1)
