"""`tilewright models`, and names where --model is an option."""

import json

import pytest

from named_stand_ins import stand_ins
from tilewright.runtime import named_models


@pytest.fixture(autouse=True)
def _shipped(tmp_path, monkeypatch):
    stand_ins(tmp_path / "shipped")
    monkeypatch.setattr(named_models, "FOLDER", tmp_path / "shipped")


def test_the_list(run, tmp_path):
    code, text, _ = run("models")
    assert code == 0 and [line.split()[0] for line in text.splitlines() if line[:1].strip()] == [*named_models.NAMES]
    assert "figures  1 of 2" in text and "licence  MIT" in text and "hidden" not in text
    (tmp_path / "poet").write_text("")
    assert "hidden   by ./poet" in run("models")[1]
    found = json.loads(run("models", "--json")[1])["models"]
    assert [one["name"] for one in found] == [*named_models.NAMES] and found[0]["hidden"] is True


@pytest.mark.parametrize(
    ("verb", "text", "output"),
    [
        (["generate", "--model", "poet"], "To be\n", "verse.txt"),
        (["classify", "--model", "critic"], "Good.\nBad.\n", "labels.jsonl"),
        (["draw", "--model", "portraits", "-n", "4"], None, "grid.png"),
    ],
)
def test_every_job_knows_them(run, tmp_path, verb, text, output):
    given = []
    if text:
        (tmp_path / "in.txt").write_text(text)
        given = ["-i", "in.txt"]
    code, _, errors = run(*verb, *given, "-o", output)
    assert (code, errors) == (0, "") and (tmp_path / output).stat().st_size


def test_a_wrong_name(run):
    code, text, errors = run("draw", "--model", "potraits", "-n", "1", "-o", "x.png", "--json")
    assert code == 3 and "Error: potraits: no such model" in errors and "poet, critic, portraits" in errors
    assert json.loads(text)["error"]["path"] == "potraits"


def test_an_output_that_would_hide_the_model(run, tmp_path):
    code, _, errors = run("draw", "--model", "portraits", "-n", "2", "-o", "portraits/")
    assert code == 2 and "the output would hide the named model" in errors and not (tmp_path / "portraits").exists()


def test_a_directory_that_hides_a_model_and_is_none(run, tmp_path):
    (tmp_path / "poet").mkdir()
    (tmp_path / "in.txt").write_text("To be\n")
    code, _, errors = run("generate", "--model", "poet", "-i", "in.txt", "-o", "out.txt")
    assert code == 3 and "hides the named model of the same name" in errors and "Rename it" in errors


def test_convert_knows_them(run, tmp_path):
    assert run("convert", "portraits", "network.bin")[0] in (0, 3)  # only the course's sizes fit into its file
    assert "no such model" not in run("convert", "portraits", "network.bin")[2]
