"""Logits are held for so many sequences at a time, and how many changes no token."""

import numpy as np
import pytest

from gpt2_models import TINY, tiny
from tilewright.generation import engine
from tilewright.generation.engine import Generator, Request
from tilewright.generation.sampling import SamplingParams


@pytest.mark.parametrize(("first", "held", "most"), [(2, 1, 2), (3, 10 * 4 * TINY["vocab_size"], 10), (64, 1, 30)])
def test_the_first_part_says_how_many_rows_the_memory_holds(first, held, most, rng, monkeypatch):
    model, context = tiny(), TINY["n_positions"]
    params = SamplingParams(max_tokens=3, top_p=0.9, repetition_penalty=1.2, min_tokens=2, logprobs=2)
    requests = [Request(i, rng.integers(0, TINY["vocab_size"], 5), params) for i in range(30)]

    def answers() -> list:
        memory = 100 * model.cache_bytes(context)
        generator = Generator(model, context=context, eos_token_ids=model.stop_ids, memory=memory)
        return [repr(answer) for answer in generator.run(requests)]

    wanted, parts, logits = answers(), [], model.logits

    def counted(hidden: np.ndarray) -> np.ndarray:
        parts.append(len(hidden))
        return logits(hidden)

    monkeypatch.setattr(model, "logits", counted)
    monkeypatch.setattr(engine, "SAMPLED_ROWS", first)
    monkeypatch.setattr(engine, "LOGITS_BYTES", held)
    assert answers() == wanted
    assert parts[0] == min(first, 30) and max(parts) == most
