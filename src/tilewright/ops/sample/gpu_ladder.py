"""sample's rung on a GPU. run(logits, scores, numbers, words, tokens): torch tensors; logits and scores, which have a
row's penalties and banned tokens in them, float32 (n, V), contiguous, V below 2^31; see `operands.Rules`."""

from tilewright.ops._ladder import Ladder
from tilewright.ops._needs import engine, on

PREFER = ("tile.search",)


def declare(ladder: Ladder) -> None:
    """Add the rung; nothing is imported before it runs."""
    idea = "no order: the score at which a target is reached is searched for, by sums over all tokens"
    ladder.rung("tile.search", after=None, needs=(on("cuda", "float32"), engine("tile")), idea=idea)(_search)


def _search(logits, scores, numbers, words, tokens) -> None:
    from tilewright.ops.sample.tile.search import run

    run(logits, scores, numbers, words, tokens)
