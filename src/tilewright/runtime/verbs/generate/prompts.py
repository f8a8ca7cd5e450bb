"""The prompts of a generation job as a plan counts them, and the operations that they take."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.models.gpt2 import GPT2Config


@dataclass(frozen=True)
class Prompts:
    """How many there are, and their tokens: of all together, of the longest one."""

    count: int
    tokens: int
    longest: int

    def first(self, count: int) -> Prompts:
        """As many of them, or all, of the same mean length."""
        count = min(count, self.count)
        return Prompts(count, -(-self.tokens * count // max(self.count, 1)), self.longest)


def flops(config: GPT2Config, prompts: Prompts, tokens: int) -> float:
    """Operations of all prompts: every position through every layer, the output matrix for the new tokens alone."""
    C, n = config.n_embd, prompts.count
    positions = prompts.tokens + n * (tokens - 1)
    seen = positions * (positions / max(1, n) + 1) / 2  # keys that queries look at, were all prompts of one length
    layers = config.n_layer * (positions * (8 * C * C + 4 * C * config.width) + 4 * C * seen)
    return float(layers + 2 * config.vocab_size * C * n * tokens)
