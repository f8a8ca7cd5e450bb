"""sample's rungs on a GPU. run(logits, scores, numbers, words, tokens): torch tensors; logits and scores, which have a
row's penalties and banned tokens in them, float32 (n, V), contiguous, V below 2^31; see `operands.Rules`."""

from tilewright.ops.core.ladder import Ladder
from tilewright.ops.core.needs import engine, on

PREFER = ("tile.narrow",)


def declare(ladder: Ladder) -> None:
    """Add the rungs; nothing is imported before it runs."""
    idea = "no order: the score at which a target is reached is searched for, by sums over all tokens"
    needs = (on("cuda", "float32"), engine("tile"))
    ladder.rung("tile.search", after=None, needs=needs, idea=idea)(_search)
    idea = "a range of scores is narrowed until what lies in it fits in registers, and halved there"
    ladder.rung("tile.narrow", after="tile.search", needs=needs, idea=idea)(_narrow)


def _search(logits, scores, numbers, words, tokens) -> None:
    from tilewright.ops.sample.tile.search import run

    run(logits, scores, numbers, words, tokens)


def _narrow(logits, scores, numbers, words, tokens) -> None:
    from tilewright.ops.sample.tile.narrow import run

    run(logits, scores, numbers, words, tokens)
