"""The drawing job end to end: the course's files, right images in any batches; bad input costs no earlier output."""

import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from compare import compare
from dcgan_models import torch_images
from tilewright.bench.workloads.dcgan_reference import reference_images as reference
from tilewright.errors import InputError, Interrupted, ResourceError, UsageError
from tilewright.formats.images import pixels
from tilewright.models import dcgan
from tilewright.models.dcgan import DCGANConfig
from tilewright.runtime.convert.models import convert, init_dcgan
from tilewright.runtime.jobs.settings import Settings
from tilewright.runtime.load import read_weights
from tilewright.runtime.verbs.draw import DrawJob, draw
from tilewright.runtime.verbs.draw import job as job_module
from tilewright.runtime.verbs.draw import worker as worker_module

AGAIN = Settings(restart=True)
SIZES = {"z_size": 7, "size": 2, "channels": (8, 6, 5, 3), "kernel": 5}  # 16 x 16 pixels


@pytest.fixture(name="model")
def _model(tmp_path):
    init_dcgan(str(tmp_path / "model"), 3, **SIZES)
    return str(tmp_path / "model")


@pytest.fixture(name="z")
def _z(tmp_path, rng):
    """float32 (20, 7), also in `in.npy` and, to 6 places, in `in.txt`."""
    z = np.round(rng.uniform(-1, 1, (20, 7)), 6).astype(np.float32)
    np.save(tmp_path / "in.npy", z)
    (tmp_path / "in.txt").write_text("20\n" + "".join(" ".join(f"{x:f}" for x in row) + "\n" for row in z))
    return z


@pytest.fixture(name="run")
def _run(tmp_path, model, z, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda fd: None)  # nine a job, of milliseconds each

    def call(input="in.npy", output="out.npy", image=None, settings=AGAIN, **options):
        paths = {"input": input and str(tmp_path / input), "image": image and str(tmp_path / image)}
        given = {name: options.pop(name) for name in Settings.__dataclass_fields__ if name in options}
        settings = replace(settings, **given)
        return draw(DrawJob(model=model, output=f"{tmp_path}/{output}", **paths, settings=settings, **options))

    return call


def names(tmp_path):
    return sorted(set(os.listdir(tmp_path)) - {"model", "in.npy", "in.txt"})


def test_images_are_right(tmp_path, model, z, run):
    report = run()
    config, weights = read_weights(model)
    compare(np.load(tmp_path / "out.npy"), reference(config, weights, z), 1e-5)
    assert (report.records, report.errors, report.exit_code) == (20, 0, 0)
    assert {"check", "load", "prepare", "compile", "run", "write", "total"} <= report.seconds.keys()
    assert report.records_per_second > 0 and names(tmp_path) == ["out.npy", "out.npy.job"]


def test_the_course_network(tmp_path, rng):
    """network.bin and .txt in, .txt and .bmp out: the course's check, 1e-4 of float64, and what PyTorch draws."""
    network, given, output = (str(tmp_path / name) for name in ("network.bin", "input.txt", "output.txt"))
    assert init_dcgan(network, 5) == os.path.getsize(network) == 20_549_132
    (tmp_path / "input.txt").write_text("3\n" + " ".join(f"{x:f}" for x in rng.uniform(-1, 1, 300)))
    z = np.loadtxt(given, skiprows=1, dtype=np.float32).reshape(3, 100)
    config, weights = read_weights(network)
    exact = reference(config, weights, z)
    lines = [" ".join(f"{x:.4f}" for x in image.ravel()) + " " for image in exact]
    (tmp_path / "answer.txt").write_text("\n".join(["3", *lines]) + "\n")
    report = draw(DrawJob(network, given, output, f"{tmp_path}/output.bmp", answers=f"{tmp_path}/answer.txt"))
    assert report.validation.passed and report.validation.checked == 3 * 64 * 64 * 3
    found = (tmp_path / "output.txt").read_text()
    assert found.startswith("3\n") and found.count("\n") == 4 and found.count(" \n") == 3
    values = np.array(found.split()[1:], np.float64).reshape(exact.shape)
    assert np.abs(values - exact).max() < 1e-4
    draw(DrawJob(network, given, f"{tmp_path}/out.npy"))
    compare(np.load(tmp_path / "out.npy"), torch_images(config, weights, z), 1e-5)
    with Image.open(tmp_path / "output.bmp") as picture:
        grid = np.asarray(picture)
    assert grid.shape == (128, 128, 3)
    assert np.array_equal(grid[64:, :64], pixels(np.load(tmp_path / "out.npy"))[2]) and not grid[64:, 64:].any()


def test_the_course_network_as_a_directory(tmp_path):
    init_dcgan(str(tmp_path / "network.bin"), 5)
    convert(str(tmp_path / "network.bin"), str(tmp_path / "m"))
    convert(str(tmp_path / "m"), str(tmp_path / "back.bin"))
    assert (tmp_path / "back.bin").read_bytes() == (tmp_path / "network.bin").read_bytes()
    for model in ("network.bin", "m"):
        draw(DrawJob(f"{tmp_path}/{model}", None, f"{tmp_path}/{model}.npy", count=2, seed=4))
    assert (tmp_path / "m.npy").read_bytes() == (tmp_path / "network.bin.npy").read_bytes()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_batches_change_no_bits(tmp_path, run, dtype):
    run(dtype=dtype, output="out.txt", image="out.png")
    expected = [(tmp_path / name).read_bytes() for name in ("out.txt", "out.png")]
    for batch, size in ((1, None), (7, 3), (19, 20), (64, 1)):
        settings = Settings(restart=True, shard_size=size)
        assert run(dtype=dtype, output="out.txt", image="out.png", batch_size=batch, settings=settings).computed == 20
        assert [(tmp_path / name).read_bytes() for name in ("out.txt", "out.png")] == expected


def test_text_noise_is_the_same_noise(tmp_path, run):
    run("in.txt", "a.npy")
    run("in.npy", "b.npy")
    assert (tmp_path / "a.npy").read_bytes() == (tmp_path / "b.npy").read_bytes()


def test_count_is_the_beginning(tmp_path, run):
    run()
    run(output="few.npy", count=5)
    assert np.load(tmp_path / "few.npy").tobytes() == np.load(tmp_path / "out.npy")[:5].tobytes()


def test_random_noise(tmp_path, run):
    run(None, "few.npy", count=5, seed=9)
    run(None, "many.npy", count=33, seed=9, batch_size=8)
    run(None, "other.npy", count=5, seed=10)
    few, many, other = (np.load(tmp_path / f"{name}.npy") for name in ("few", "many", "other"))
    assert few.tobytes() == many[:5].tobytes() != other.tobytes() and many.shape == (33, 16, 16, 3)


def test_every_kind_of_output(tmp_path, run):
    run()
    tiles = pixels(np.load(tmp_path / "out.npy"))
    for output in ("grid.png", "grid.bmp"):
        run(output=output)
        with Image.open(tmp_path / output) as picture:
            found = np.asarray(picture)
        assert found.shape == (4 * 16 if output == "grid.png" else 5 * 16, 5 * 16, 3)
        assert np.array_equal(found[16:32, 64:80], tiles[9])
    run(output="faces/", count=7)
    run(output="faces", count=3)
    assert sorted(os.listdir(tmp_path / "faces")) == ["00000.png", "00001.png", "00002.png"]
    with Image.open(tmp_path / "faces" / "00002.png") as picture:
        assert np.array_equal(np.asarray(picture), tiles[2])


def test_a_directory_with_other_files_is_not_replaced(tmp_path, run):
    (tmp_path / "faces").mkdir()
    (tmp_path / "faces" / "thesis.tex").write_text("x")
    with pytest.raises(ResourceError, match=r"holds other files.*thesis\.tex"):
        run(output="faces")
    assert os.listdir(tmp_path / "faces") == ["thesis.tex"]


def test_validation(tmp_path, run):
    run(output="answer.npy")
    assert run(output="out.txt", answers=str(tmp_path / "answer.npy")).exit_code == 0
    wrong = np.load(tmp_path / "answer.npy")
    wrong[4, 3, 2, 1] += 0.25
    np.save(tmp_path / "answer.npy", wrong)
    report = run(output="out.txt", answers=str(tmp_path / "answer.npy"))
    assert report.exit_code == 1 and "image 4, row 3, column 2, channel 1" in report.validation.detail
    assert run(output="out.npy", answers=str(tmp_path / "answer.npy"), count=4).exit_code == 0
    assert run(output="out.txt", answers=str(tmp_path / "answer.npy"), tolerance=0.3).exit_code == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"output": "out.jpg"}, r"images are written to \.txt, \.npy, \.png, \.bmp, or to a directory"),
        ({"output": "in.npy"}, "would overwrite the input"),
        ({"image": "in.npy"}, r"the image is no \.bmp or \.png file"),
        ({"output": "out.png", "image": "out.png"}, "the image would overwrite the output"),
        ({"output": "model"}, "would overwrite the model"),
        ({"input": None}, "there is no input"),
        ({"input": "in.jsonl"}, r"the input is no \.txt or \.npy file"),
        ({"output": "out.png", "answers": "in.npy"}, "cannot be compared"),
        ({"output": "out.npy", "answers": "in.bmp"}, "cannot be compared"),
        ({"input": None, "output": "out.bmp", "count": 10**8}, r"a \.bmp file holds 4,294,967,295 bytes"),
    ],
)
def test_wrong_usage(tmp_path, run, options, message):
    with pytest.raises(UsageError, match=message):
        run(**options)
    assert names(tmp_path) == []


@pytest.mark.parametrize("size", [20_549_131, 20_549_133, 0, 4])
def test_a_network_of_another_size(tmp_path, size):
    with open(tmp_path / "network.bin", "wb") as file:
        file.truncate(size)
    with pytest.raises(
        InputError, match=rf"have {size:,} bytes; the course's model takes exactly .*20,549,132 \(dcgan"
    ):
        draw(DrawJob(f"{tmp_path}/network.bin", None, f"{tmp_path}/out.npy", count=1))


def test_a_network_with_nan(tmp_path):
    init_dcgan(str(tmp_path / "network.bin"), 1)
    with open(tmp_path / "network.bin", "r+b") as file:
        file.seek(4 * 8192)
        file.write(np.array([np.nan], "<f4").tobytes())
    with pytest.raises(InputError, match=r"tensor proj\.weight holds nan at \[1, 0\]"):
        draw(DrawJob(f"{tmp_path}/network.bin", None, f"{tmp_path}/out.npy", count=1))
    assert os.listdir(tmp_path) == ["network.bin"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"channels": 8', '"channels": 9', r"tensor proj\.weight is \(7, 32\); the configuration requires \(7, 36\)"),
        ('"channels": 8', '"channels": 1000000000', r"makes 2 x 2 pixels of 1000000000 channels"),
        (
            '"kernel": 5',
            '"kernel": 4',
            r"tensor convs\.0\.weight is \(5, 5, 6, 8\); the configuration requires \(4, 4, 6, 8\)",
        ),
        ('"stride": 2', '"stride": 1000000000', "makes 1000000002 x 1000000002 pixels"),
        ('"stride": 2', '"stride": 2.5', r"field layers\[0\]\.stride: .*expected int, got float"),
        ('"z_size": 7', '"z_size": "7"', "field z_size: .*expected int, got str"),
        ('"z_size": 7', '"z_size": 7, "steps": 3', "steps"),
        ('"z_size": 7', '"z_size": 8', r"the input has shape \(20, 7\); \(n, 8\) is wanted"),
        ('"bias": true', '"bias": false', r"tensor 'proj\.bias' \(32,\) is not part of the model"),
        (
            '"dcgan"',
            '"gan"',
            "model_type is 'gan'; textcnn, gpt2, opt, gpt_neox, dcgan, bert, roberta, distilbert can be loaded",
        ),
        ("{", "[", "no valid model's configuration"),
    ],
)
def test_configurations_that_lie(tmp_path, model, run, old, new, message):
    path = tmp_path / "model" / "config.json"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(InputError, match=message):
        run()
    assert names(tmp_path) == []


def test_a_header_that_lies(tmp_path, run):
    path = tmp_path / "model" / "model.safetensors"
    content = path.read_bytes()
    for damaged in (content[:-4], content[:100], (2**63).to_bytes(8, "little") + content[8:]):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=r"model\.safetensors"):
            run()
    assert names(tmp_path) == []


def test_noise_of_another_width(tmp_path, run):
    np.save(tmp_path / "in.npy", np.zeros((3, 8), np.float32))
    with pytest.raises(InputError, match=r"the input has shape \(3, 8\); \(n, 7\) is wanted"):
        run()
    (tmp_path / "in.txt").write_text("3\n" + "0 " * 24)
    with pytest.raises(InputError, match="3 images of 7 numbers are 21, and at least 24 follow"):
        run("in.txt")
    assert names(tmp_path) == []


def test_too_little_memory(tmp_path, run, monkeypatch):
    with pytest.raises(ResourceError, match=r"1,000,000,000 images, .* take .* bytes of memory; .* are free"):
        run(None, "out.png", count=10**9)
    with pytest.raises(ResourceError, match="take"):
        run(None, "out.npy", image="out.png", count=10**9)
    monkeypatch.setattr(job_module, "available_memory", lambda: 1000)
    with pytest.raises(ResourceError, match="1,000 are free"):
        run()
    assert names(tmp_path) == []


@pytest.mark.parametrize("output", ["out.npy", "out.txt"])
def test_a_disk_that_is_too_small_is_found_before_the_work(tmp_path, run, output):
    with pytest.raises(ResourceError, match=r"take [\d,]+ bytes or more; the disk has [\d,]+ left"):
        run(None, output, count=10**13)
    assert names(tmp_path) == []


def test_what_is_finished_needs_no_room(run, monkeypatch):
    monkeypatch.setattr(job_module, "room", lambda output: 0)
    with pytest.raises(ResourceError, match="the disk has 0 left"):
        run(None, "out.npy", count=4)
    with monkeypatch.context() as patch:
        patch.setattr(job_module, "room", lambda output: 1 << 40)
        run(None, "out.npy", count=4)
    assert run(None, "out.npy", count=4, settings=Settings()).computed == 0


def test_pictures_of_other_channels(tmp_path):
    init_dcgan(str(tmp_path / "m"), 1, z_size=4, size=2, channels=(3, 5), kernel=4)
    for output in ("out.png", "out.bmp", "faces/"):
        with pytest.raises(UsageError, match="have 5 channels; pictures have 1 or 3"):
            draw(DrawJob(f"{tmp_path}/m", None, f"{tmp_path}/{output}", count=2))
    draw(DrawJob(f"{tmp_path}/m", None, f"{tmp_path}/out.npy", count=2))
    assert np.load(tmp_path / "out.npy").shape == (2, 4, 4, 5)


def test_images_that_are_not_finite(tmp_path, model, run, monkeypatch):
    (tmp_path / "out.npy").write_bytes(b"earlier")
    to_pixels = dcgan.to_pixels

    def poisoned(images, *rest):
        images[-1, 0, 0, 0] = np.nan
        to_pixels(images, *rest)

    monkeypatch.setattr(dcgan, "to_pixels", poisoned)
    with pytest.raises(InputError, match=r"image 6 \(from 0\) is not finite"):
        run(batch_size=7, image="out.bmp")
    assert (tmp_path / "out.npy").read_bytes() == b"earlier" and names(tmp_path) == ["out.npy"]


def test_an_output_that_cannot_be_written_is_found_before_the_work(tmp_path, run, monkeypatch):
    monkeypatch.setattr(worker_module, "read_weights", None)  # would be a TypeError
    with pytest.raises(ResourceError, match="there is no directory"):
        run(output="gone/out.npy")
    with pytest.raises(ResourceError, match="there is no directory"):
        run(image="gone/out.png")
    assert names(tmp_path) == []


def test_a_signal(tmp_path, run, monkeypatch, capfd):
    forward, calls = dcgan.DCGAN.forward, []

    def interrupted(self, z, **options):
        calls.append(None)
        if len(calls) == 4:
            os.kill(os.getpid(), signal.SIGTERM)
        forward(self, z, **options)

    assert threading.current_thread() is threading.main_thread()
    monkeypatch.setattr(dcgan.DCGAN, "forward", interrupted)
    size = Settings(shard_size=4)
    with pytest.raises(Interrupted, match="stopped by SIGTERM"):
        run(output="faces/", image="out.png", batch_size=2, settings=size)
    said = "SIGTERM: stopping: finishing the shards in progress, for at most 20 s (--grace); press Ctrl-C to stop now\n"
    assert said in capfd.readouterr().err
    assert names(tmp_path) == ["faces.job"]
    report = run(output="faces/", image="out.png", batch_size=2, settings=size)
    assert 0 < report.computed < 20 and len(os.listdir(tmp_path / "faces")) == 20


def test_memory_does_not_grow_with_the_images(tmp_path, model):
    """Ten times as many, to .npy: peak memory grows by less than 10 %."""
    code = (
        "import sys; from tilewright.runtime.jobs.settings import Settings; "
        "from tilewright.runtime.verbs.draw import DrawJob, draw; sixty = Settings(batch_size=64); "
        "print(draw(DrawJob(sys.argv[1], None, sys.argv[2], count=int(sys.argv[3]), settings=sixty)).peak_memory)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

    def peak(count):
        command = [sys.executable, "-c", code, model, str(tmp_path / f"{count}.npy"), str(count)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
        return int(done.stdout)

    peak(64)
    few, many = peak(2000), peak(20_000)
    assert many < 1.1 * few, (few, many)


def test_the_default_sizes_are_the_courses():
    assert DCGANConfig().batch_on("cpu") >= 16
