"""Mutants of every kind of file that the product parses: `mutating` says what holds of each."""

import random
import zlib

import pytest

from mutant_kinds import KINDS
from mutating import mutants, survey

FEW = {"blosc": 24, "zarr": 60}  # of kinds that are many


def _surveyed(name, folder, count, capsys):
    kind = KINDS[name](folder)
    seed = zlib.crc32(name.encode()) + count
    known = {kind.read(data) for data in kind.seeds} if kind.sealed else None
    found = survey(kind.read, mutants(random.Random(seed), kind.seeds, count, text=kind.text), known=known)
    with capsys.disabled():
        print(f"\n{name}: {count:,} mutants, {dict(found.counts)}", end="")
    assert sum(found.counts.values()) == count
    assert not found.wrong, f"{name}, seed {seed}: {[(what, data[:200]) for what, data in found.wrong[:5]]}"
    assert found.counts["refused"] or name in ("text prompts",), found.counts


@pytest.mark.parametrize("name", KINDS)
def test_mutants(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    count = next((n for word, n in FEW.items() if word in name), 200)
    _surveyed(name, tmp_path, count, capsys)


@pytest.mark.long
@pytest.mark.parametrize("name", KINDS)
def test_many_mutants(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    _surveyed(name, tmp_path, 2_000 if "blosc" in name else 10_000, capsys)
