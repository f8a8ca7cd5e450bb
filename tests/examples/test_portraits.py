"""portraits: the shipped files, what they say and what tilewright draws with them; and the programs that train it."""

import importlib
import re
import sys
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.models.noise import noise

torch = pytest.importorskip("torch")
torch.set_num_threads(1)  # two tests at once have a core each

ROOT = Path(__file__).resolve().parents[2]
PORTRAITS = ROOT / "src" / "tilewright" / "data" / "models" / "portraits"


@pytest.fixture
def script(monkeypatch):
    """The programs of examples/train by name."""
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "train"))
    return importlib.import_module


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    """float32 (48, 64, 64, 3), from -1 to 1."""
    return tw.load(PORTRAITS).generate(noise(1, 0, 48, 100))


def test_the_files_are_few_and_small():
    files = {path.name: path.stat().st_size for path in PORTRAITS.iterdir()}
    assert files.keys() == {"README.md", "config.json", "model.safetensors"}
    assert sum(files.values()) <= 4_000_000


def test_the_card_says_what_one_must_know():
    text = (PORTRAITS / "README.md").read_text("utf-8")
    assert all(re.search(rf"^{key}: .", text, re.M) for key in ("task", "figures", "data", "license", "seed"))
    sections = re.findall(r"^## (.*)", text, re.M)
    assert sections == ["Data", "Figures", "Recipe", "What it is not good for", "Licence"]
    assert "{" not in text, "a figure was not filled in"


def test_the_images_are_pytorchs(images, script):
    net = script("check_portraits").torch_net(PORTRAITS)
    with torch.no_grad():
        theirs = net(torch.tensor(noise(1, 0, 48, 100))[..., None, None]).permute(0, 2, 3, 1).numpy()
    assert np.abs(images - theirs).max() < 1e-4


def test_the_images_are_bright_and_no_two_alike(images, script):
    assert images.shape == (48, 64, 64, 3) and images.dtype == np.float32
    assert images.std(0).mean() > 0.35  # of drawn faces: 0.4
    flat = torch.tensor(images.reshape(48, -1))
    apart = torch.cdist(flat, flat) / flat.shape[1] ** 0.5
    assert apart[~torch.eye(48, dtype=bool)].min() > 0.1


def test_they_are_near_drawn_faces_and_noise_is_not(images, script):
    figures, drawn = script("portraits_figures"), torch.tensor(script("faces").draw(3, 0, 96))
    made = torch.tensor(np.clip((images + 1) * 127.5, 0, 255).astype(np.uint8))
    one, other = figures.features(drawn[:48]), figures.features(drawn[48:])
    middle, spread = one.mean(0), one.std(0) + 1e-6

    def distance(x: torch.Tensor) -> float:
        return figures.energy_distance((x - middle) / spread, (other - middle) / spread)

    random = torch.randint(0, 256, made.shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    darker = (made.float() / 2).to(torch.uint8)
    of_made = distance(figures.features(made))
    assert abs(distance(one)) < 1
    assert of_made < 3 < distance(figures.features(darker)) < distance(figures.features(random))


def test_a_face_depends_on_its_seed_and_number(script):
    faces = script("faces")
    some = faces.draw(5, 30, 8)
    assert some.shape == (8, 64, 64, 3) and some.dtype == np.uint8
    assert np.array_equal(some[3:5], faces.draw(5, 33, 2))
    assert not np.array_equal(some, faces.draw(6, 30, 8))
    assert faces.grid(some, 4).shape == (128, 256, 3)
    assert np.array_equal(faces.grid(some, 4)[64:, :64], some[4])


def test_training_writes_a_model(script, tmp_path, monkeypatch, capsys):
    sizes = "--faces 48 --held-out 64 --channels 8 --critic 8 --batch 8 --steps 2 --device cpu --again 1"
    monkeypatch.setattr(sys, "argv", ["portraits.py", str(tmp_path / "made"), *sizes.split()])
    script("portraits").main()
    assert '"seeds": "1, 2"' in capsys.readouterr().out
    images = tw.load(tmp_path / "made").generate(noise(1, 0, 2, 100))
    assert images.shape == (2, 64, 64, 3) and np.isfinite(images).all()
    assert "{" not in (tmp_path / "made" / "README.md").read_text("utf-8")
    assert (tmp_path / "made.png").stat().st_size > 0
