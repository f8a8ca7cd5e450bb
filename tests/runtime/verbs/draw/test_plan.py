"""`plan draw` against what a generator holds, and what its outputs take."""

import numpy as np
import pytest

from tilewright.errors import InputError
from tilewright.ops.core.memory import LINE
from tilewright.runtime.convert.models import init_dcgan
from tilewright.runtime.jobs.settings import Settings
from tilewright.runtime.load import load
from tilewright.runtime.verbs.draw import DrawJob, draw
from tilewright.runtime.verbs.draw import plan as plan_draw
from tilewright.runtime.verbs.draw.plan import plan


@pytest.fixture
def model(tmp_path):
    init_dcgan(str(tmp_path / "m"), 3, z_size=5, channels=(32, 16, 3))
    return str(tmp_path / "m")


def parts_of(found):
    return {part.name: part.bytes for part in found.parts}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_prepared_weights_are_those_of_the_model(tmp_path, dtype):
    for kernel in (4, 5, 9):
        path = str(tmp_path / f"m{kernel}")
        init_dcgan(path, 3, z_size=5, channels=(32, 16, 3), kernel=kernel)
        placed = load(path, dtype=dtype)
        panels = [layer.data.panels.nbytes for layer, _, _ in placed.layers]
        held = placed.projection[0].data.nbytes + sum(panels)
        found = parts_of(plan(DrawJob(path, None, str(tmp_path / "out.npy"), count=4, settings=Settings(dtype=dtype))))
        assert found["weights, prepared"] == pytest.approx(held, rel=0.12 if kernel == 9 else 0.02, abs=8 * LINE), (
            kernel
        )


def test_batch_and_buffers(model, tmp_path):
    found = plan(DrawJob(model, None, str(tmp_path / "out.npy"), count=1000))
    assert found.figures["batch"] == 256 and found.figures["image"] == [16, 16, 3]
    assert parts_of(found)["between the layers"] == load(model).config.work_bytes
    assert plan(DrawJob(model, None, str(tmp_path / "out.npy"), count=9)).figures["batch"] == 9


@pytest.mark.parametrize("name", ["out.npy", "out.txt", "out.bmp", "out.png", "out/"])
def test_outputs_take_what_was_said(model, tmp_path, name):
    job = DrawJob(model, None, str(tmp_path / name) + "/" * name.endswith("/"), count=40)
    found = plan(job)
    written = draw(job).job["bytes"]
    if found.outputs.exact:
        assert found.outputs.bytes == written
    elif name == "out.txt":
        assert found.outputs.bytes == pytest.approx(written, rel=0.1)
    else:
        assert 0.8 * written <= found.outputs.bytes
    kept = sum(one.stat().st_size for one in (tmp_path / f"{name.rstrip('/')}.job" / "shards").iterdir())
    assert kept == pytest.approx(found.outputs.shards, rel=0.1, abs=1000)


def test_an_image_besides_is_in_all_figures(model, tmp_path):
    plain = plan(DrawJob(model, None, str(tmp_path / "out.txt"), count=40))
    both = plan(DrawJob(model, None, str(tmp_path / "out.txt"), image=str(tmp_path / "out.bmp"), count=40))
    assert both.outputs.bytes > plain.outputs.bytes
    assert both.outputs.shards - plain.outputs.shards == 40 * 16 * 16 * 3
    assert parts_of(both)["pictures of all images"] > 0 == parts_of(plain)["pictures of all images"]


def test_of_much_noise_nothing_but_its_header_is_read(model, tmp_path, bytes_read, monkeypatch):
    monkeypatch.setattr(plan_draw, "NOISE", 1 << 20)
    np.save(tmp_path / "z.npy", np.full((200_000, 5), np.nan, np.float32))
    job = DrawJob(model, str(tmp_path / "z.npy"), str(tmp_path / "out.npy"))
    assert plan(job).records == 200_000
    assert bytes_read(tmp_path / "z.npy") < 2 << 20
    np.save(tmp_path / "z.npy", np.zeros((200_000, 6), np.float32))
    with pytest.raises(InputError, match="shape"):
        plan(job)


@pytest.mark.parametrize(
    ("name", "noise", "message"),
    [
        ("z.npy", np.zeros((4, 6), np.float32), r"has shape \(4, 6\); \(n, 5\) is wanted"),
        ("z.npy", np.array([[0, 1, 2, 3, np.nan]]), r"image 0, number 4 .* holds nan"),
        ("z.txt", "2 1 2 3 4 5 6 7 8 9", "2 images of 5 numbers are 10, and 9 follow"),
        ("z.txt", "1 1 2 3 4 inf", "image 0, number 4 .* holds inf"),
        ("z.txt", "1 1 2 3 4 x", "'x' is no number"),
        ("z.txt", "", "is empty"),
        ("z.txt", None, "no such input"),
    ],
)
def test_noise_that_the_job_refuses_is_refused_with_its_words(model, tmp_path, name, noise, message):
    source = tmp_path / name
    if isinstance(noise, str):
        source.write_text(noise)
    elif noise is not None:
        np.save(source, noise)
    job = DrawJob(model, str(source), str(tmp_path / "out.npy"))
    said = []
    for verb in (plan, draw):
        with pytest.raises(InputError, match=message) as error:
            verb(job)
        said.append(str(error.value))
    assert said[0] == said[1]
