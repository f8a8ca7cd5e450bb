"""The engine runs any decoder: here one with rotary positions, an output matrix of its own and no norms."""

import numpy as np
import pytest

from tilewright.generation.decoder import Sizes
from tilewright.generation.language_model import LanguageModel
from tilewright.generation.sampling import SamplingParams

V, WIDTH, HEADS, LAYERS, CONTEXT = 61, 32, 2, 2, 40
D = WIDTH // HEADS


def rotated(x, positions):
    """x (R, heads * D), each pair of elements turned by an angle that grows with the position."""
    angles = np.asarray(positions)[:, None, None] / 100.0 ** np.linspace(0, 1, D // 2)  # (R, 1, D / 2)
    a, b = np.split(x.reshape(len(x), HEADS, D), 2, axis=2)
    turned = a * np.cos(angles) - b * np.sin(angles), a * np.sin(angles) + b * np.cos(angles)
    return np.concatenate(turned, axis=2).reshape(len(x), WIDTH).astype(np.float32)


class Rotary(LanguageModel):
    """Attention alone: x += attention(x)."""

    def __init__(self):
        super().__init__(Sizes(CONTEXT, V, WIDTH, LAYERS, HEADS, D), (), dtype="float32", device="cpu")
        rng = np.random.default_rng(0)
        self.table, self.output = (
            rng.standard_normal((V, WIDTH), np.float32),
            rng.standard_normal((WIDTH, V), np.float32),
        )
        self.qkv = rng.standard_normal((LAYERS, 3, WIDTH, WIDTH), np.float32) / 4

    def forward(self, batch, work):
        x = self.table[batch.ids]
        for i, (q, k, v) in enumerate(self.qkv):
            turned = [rotated(x @ weights, batch.positions) for weights in (q, k)]
            x, y = batch.attend(i, x, *turned, x @ v, 0.3, work)
            x = x + y
        return x

    def logits(self, hidden, out=None):
        return hidden @ self.output

    def best(self, hidden, out=None):
        logits = self.logits(hidden)
        return logits.argmax(axis=1), logits.max(axis=1)

    def reference(self, ids):
        """float64 (V,): the logits after the tokens, with no cache and no batch."""
        x = self.table[ids].astype(np.float64)
        for weights in self.qkv:
            q, k, v = x @ weights.astype(np.float64)
            q, k = (rotated(part, range(len(ids))).reshape(-1, HEADS, D) for part in (q, k))
            scores = np.where(np.tri(len(ids)), 0.3 * np.einsum("qhd,khd->hqk", q, k), -np.inf)
            scores = np.exp(scores - scores.max(axis=2, keepdims=True))
            weighted = np.einsum("hqk,khd->qhd", scores, v.reshape(-1, HEADS, D))
            x = x + (weighted / scores.sum(axis=2).T[:, :, None]).reshape(x.shape)
        return x[-1] @ self.output


@pytest.mark.parametrize("logprobs", [None, 1])
def test_another_decoder_generates(logprobs, rng):
    """Prompts of many lengths, some with a common prefix: each token is the best by a computation without batches."""
    model, root = Rotary(), rng.integers(0, V, 12)
    prompts = [np.concatenate([root[: rng.integers(1, 13)], rng.integers(0, V, rng.integers(1, 9))]) for _ in range(30)]
    params = SamplingParams(temperature=0, max_tokens=6, logprobs=logprobs)
    for prompt, found in zip(prompts, model.generate(prompts, params), strict=True):
        ids = prompt.tolist()
        for token in found.outputs[0].token_ids:
            wanted = model.reference(ids)
            assert wanted[token] >= wanted.max() - 1e-4 * np.abs(wanted).max()
            ids.append(token)
        assert len(ids) == len(prompt) + 6
