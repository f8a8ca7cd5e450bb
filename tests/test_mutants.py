"""Mutants of every kind of file that the product parses: `mutating` says what holds of each."""

import random
import re
import zlib

import pytest

from mutant_kinds import KINDS
from mutating import mutants, survey

USUAL = 100
FEW = {"job": 8, "blosc": 24, "zarr": 60}  # of kinds that are many
MANY = {"job": 500, "blosc": 2_000}
# in the long tests alone: further models, files of a job's directory that few mutants tell enough of, and outputs whose
# sealed files have the same fields as those of another output of their verb
LATER = re.compile(
    r"job .*(classify\.bert|embed\.kept|\.opt|\.gpt_neox)\."
    r"|job (record|content|manifest|report) .*(classify\.parquet|kept\.parquet|generate\.parquet|score\.jsonl)$"
    r"|job (record|content|manifest|report) .*\.(nii\.gz|txt|png|bmp)$"
    r"|job (record|manifest|report) .*(convolve\.zarr|draw\.npy)$"
    r"|job shard .*(kept\.parquet|txt|bmp)$"
    r"|job (place|owner|request) .*(convolve|draw)|job (place|owner|made|lines|lease) (?!forged)"
)
NAMES = [pytest.param(name, marks=pytest.mark.long if LATER.match(name) else ()) for name in KINDS]


def _surveyed(name, folder, count, capsys):
    kind = KINDS[name](folder)
    seed = zlib.crc32(name.encode()) + count
    known = {kind.read(data) for data in kind.seeds} if kind.sealed else kind.known
    found = survey(kind.read, mutants(random.Random(seed), kind.seeds, count, text=kind.text), known=known)
    with capsys.disabled():
        print(f"\n{name}: {count:,} mutants, {dict(found.counts)}", end="")
    assert sum(found.counts.values()) == count
    assert not found.wrong, f"{name}, seed {seed}: {[(what, data[:200]) for what, data in found.wrong[:5]]}"
    if kind.refuses:
        assert found.counts["refused"], found.counts


@pytest.mark.parametrize("name", NAMES)
def test_mutants(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    _surveyed(name, tmp_path, _count(name, FEW, USUAL), capsys)


def _count(name, counts, usual):
    return next((n for word, n in counts.items() if word in name.split()), usual)


@pytest.mark.long
@pytest.mark.parametrize("name", KINDS)
def test_many_mutants(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    _surveyed(name, tmp_path, _count(name, MANY, 10_000), capsys)
