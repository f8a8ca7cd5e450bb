"""`generate(errors="record")`: a bad prompt gives an error, and all others are continued as without it."""

import pytest

from gpt2_models import tiny
from tilewright.errors import UsageError
from tilewright.generation import language_model
from tilewright.generation.engine import Engine
from tilewright.generation.sampling import SamplingParams
from tilewright.generation.sequences import Request


class InBlocks:
    """An engine that takes blocks of requests, as that of a GPU does."""

    takes_blocks = True

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def run(self, blocks):
        for block in blocks:
            assert block.prompts
            yield from self.engine.run(Request(id, ids, block.params) for id, ids in zip(*block[:2], strict=True))


@pytest.mark.parametrize("blocks", [False, True])
def test_errors_may_be_recorded_in_the_place_of_their_prompts(monkeypatch, blocks):
    """All other prompts have the completions that they have in a list without a bad one, drawn ones too."""
    monkeypatch.setattr(language_model, "BLOCK", 3)
    model, params = tiny(), SamplingParams(temperature=1, max_tokens=4)
    if blocks:
        engine = model.engine
        monkeypatch.setattr(model, "engine", lambda **options: InBlocks(engine(**options)))
    prompts = [[], [1, 2], [97], "text", [3], [4, 5, 6], [1.5], [7]]
    good = [1, 4, 5, 7]
    found = list(model.generate(prompts, params, errors="record"))
    assert [output.error is None for output in found] == [i in good for i in range(8)]
    for i, output in enumerate(found):
        assert output.error is None or str(output.error).startswith(f"prompt {i} (counted from 0)")
    alone = list(model.generate([prompts[i] for i in good], params, ids=good))
    assert [found[i] for i in good] == alone
    assert [len(list(model.generate(bad, errors="record"))) for bad in ([], [[]], [[], "a", []])] == [0, 1, 3]
    with pytest.raises(UsageError, match="errors is None"):
        model.generate([], errors=None)


def test_as_many_ids_as_prompts_are_wanted():
    model, params = tiny(), SamplingParams(temperature=0, max_tokens=2)
    for prompts, ids, says in (
        ([[1], [2]], [7], "ids ends after 1, prompts does not"),
        ([[1]], [7, 8, 9], "prompts ends after 1, ids does not"),
    ):
        with pytest.raises(UsageError, match=says):
            list(model.generate(prompts, params, ids=ids))

    def broken():
        yield [1]
        raise ValueError("the reader's own error")

    with pytest.raises(ValueError, match="the reader's own error"):
        list(model.generate(broken(), params, ids=[1, 2]))
