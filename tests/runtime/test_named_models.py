"""Names of models: what each means, where a path of that name comes first, and that a wrong one lists them."""

import pytest

import tilewright as tw
from named_stand_ins import stand_ins
from tilewright.errors import InputError
from tilewright.runtime import named_models
from tilewright.runtime.named_models import NAMES, model_path


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty current directory; the package's models are stand-ins."""
    stand_ins(tmp_path / "models")
    monkeypatch.setattr(named_models, "FOLDER", tmp_path / "models")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def test_a_name_is_a_model(here):
    for name in NAMES:
        assert model_path(name) == str(named_models.FOLDER / name)
    text = next(iter(tw.load("poet").generate(["To be"], tw.SamplingParams(max_tokens=3, seed=1)))).outputs[0].text
    assert isinstance(text, str)
    assert [set(one) for one in tw.load("critic").classify(["A film.", "x" * 100])] == [
        {"label", "score", "logits"}
    ] * 2
    assert tw.load("portraits").generate([[0.5] * 100]).shape == (1, 16, 16, 3)


def test_what_lies_here_comes_first(here):
    (here / "poet").mkdir()
    assert model_path("poet") == "poet" and model_path("./critic") == "./critic"
    assert [model.hidden for model in named_models.named_models()] == [True, False, False]
    with pytest.raises(InputError, match=r"^poet: this directory has no config.json, and hides the named model"):
        tw.load("poet")


def test_a_wrong_name_lists_the_names(here, monkeypatch):
    for wrong in ("poett", "Poet", "params.bin", ""):
        with pytest.raises(InputError, match=r"no such model.*: .*poet, critic, portraits.*`tilewright models`"):
            tw.load(wrong)
    with pytest.raises(InputError, match=r"^poett: no such model \(did you mean poet\?\): "):
        tw.load("poett")
    monkeypatch.setattr(named_models, "FOLDER", here / "none")
    with pytest.raises(InputError, match="this installation lacks it"):
        tw.load("poet")
    assert named_models.named_models() == []


@pytest.mark.parametrize("name", ["gpt2", "openai-community/gpt2"])
def test_a_model_of_hugging_face_is_downloaded_by_its_own_command(here, name):
    command = f"`hf download {name} config.json model.safetensors tokenizer.json --local-dir gpt2`"
    with pytest.raises(InputError, match=rf"^{name}: no such model: .*tilewright downloads nothing.*{command}"):
        tw.load(name)


def test_a_model_in_the_current_directory_is_suggested(here):
    (here / "my-gpt2").mkdir()
    (here / "my-gpt2/config.json").touch()
    with pytest.raises(InputError, match=r"^my-gpt: no such model \(did you mean my-gpt2\?\): ") as caught:
        tw.load("my-gpt")
    assert "hf download" not in str(caught.value)


@pytest.mark.parametrize("name", ["params.bin", "./gpt2", "models/gpt2", "a/b/gpt2"])
def test_a_path_is_no_model_of_hugging_face(here, name):
    (here / "models").mkdir()
    with pytest.raises(InputError, match="no such model") as caught:
        tw.load(name)
    assert "hf download" not in str(caught.value)


CARDS = {"none": None, "empty": "", "no front": "# x\ntask: x\n", "other": "---\ntask x\nother: 1\npath: /etc\n"}


@pytest.mark.parametrize("card", CARDS.values(), ids=CARDS)
def test_a_card_may_say_less(here, card):
    path = named_models.FOLDER / "poet" / named_models.CARD
    path.unlink() if card is None else path.write_text(card)
    poet, critic, _ = named_models.named_models()
    assert (poet.name, poet.task, poet.path) == ("poet", "", str(named_models.FOLDER / "poet")) and poet.bytes > 1000
    assert (critic.task, critic.figures, critic.license) == ("does something", "1 of 2", "MIT")


def test_those_that_come_along():
    """All three are there, small enough together, with a card that says the same kind of things."""
    found = named_models.named_models()
    assert [model.name for model in found] == [*NAMES] and sum(model.bytes for model in found) <= 24e6
    for model in found:
        assert model.task[:1].islower() and model.data and model.license and int(model.seed) >= 0
        assert any(letter.isdigit() for letter in model.figures)
    poet, critic, portraits = (tw.load(model.path) for model in found)
    assert poet.tokenizer.decode(poet.tokenizer.encode("O \U0001f3ad!")) == "O \U0001f3ad!"
    labels = [answer["label"] for answer in critic.classify(["A warm, funny film.", "A dull, lazy mess."])]
    assert labels == ["positive", "negative"]
    assert portraits.config.image_shape == (64, 64, 3)
