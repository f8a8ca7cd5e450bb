"""Hundreds of kills over all verbs and formats: the same command gives the bytes of a run that nobody has killed."""

import os

import numpy as np
import pytest

from forked_verbs import Forked
from kill_attack import CASES, NAMES, Attack, warm

pytest.importorskip("pyarrow")
SEED = 23
KILLS = 400  # of all cases together, in some minutes; TILEWRIGHT_KILLS for others


@pytest.fixture(scope="module")
def ground(cases, request):
    """(a directory with all inputs, what runs commands in it: forked_verbs.py)."""
    forked = Forked(cases, *warm("killed", request))
    yield cases, forked
    forked.close()


def attack(ground, name, kills, number, **options):
    path, forked = ground
    rng = np.random.default_rng((SEED, number, list(CASES).index(name)))
    counts = Attack(CASES[name], path / f"{number} {name}", forked, rng).run(kills, **options)
    print(f"{name}: {dict(counts)}")
    assert counts["kills"] >= kills


@pytest.mark.parametrize("name", NAMES)
def test_a_few_kills(ground, name):
    attack(ground, name, 3, 0, workers_chance=0)


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_hundreds_of_kills(ground, name):
    attack(ground, name, -(-int(os.environ.get("TILEWRIGHT_KILLS", KILLS)) // len(CASES)), 1)
