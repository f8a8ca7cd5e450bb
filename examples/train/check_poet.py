"""Compares tilewright's inference with transformers': python examples/train/check_poet.py shakespeare.txt DIR

Both compute the loss of poet's weights on all of the held-out text, the last tenth. Ends with 1 if they differ by more
than their orders of summing can explain. Needs torch and transformers.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import torch
from text import encoded, held_out_of, nats
from tokenizers import Tokenizer

import tilewright as tw
from tilewright.ops.attention import span

TOLERANCE = {"float32": 1e-5, "float16": 1e-3, "bfloat16": 1e-3}  # nats a character


def logits_of(model, ids: np.ndarray) -> np.ndarray:
    """float32 (B, T, V) of ids int64 (B, T): a position of every window at a time, as text is generated."""
    B, T = ids.shape
    work, caches = model.backend.workspace(), model.attention.caches(B, T)
    out = np.empty((B, T, model.config.vocab_size), np.float32)
    for t in range(T):
        spans = np.array([span(b, t, 1, b) for b in range(B)], np.int64)
        batch = model.attention.batch(ids[:, t], np.full(B, t), caches, spans)
        out[:, t] = model.backend.numpy(model.logits(model.forward(batch, work)))
    return out


def main() -> int:
    """Reads the command line and compares."""
    from transformers import GPT2LMHeadModel

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", type=Path, help="shakespeare.txt")
    parser.add_argument("folder", type=Path, help="the model directory")
    parser.add_argument("--device", default="cpu", help="of tilewright; transformers computes on the CPU")
    parser.add_argument("--dtype", default="float32", choices=TOLERANCE)
    given = parser.parse_args()
    text = held_out_of(given.text.read_text("utf-8"))
    ids = encoded(Tokenizer.from_file(str(given.folder / "tokenizer.json")), text)
    ours = tw.load(given.folder, device=given.device, dtype=given.dtype)
    theirs = GPT2LMHeadModel.from_pretrained(given.folder, dtype=torch.float32).eval()
    losses = {
        "tilewright": lambda x: torch.from_numpy(logits_of(ours, x.numpy())),
        "transformers": lambda x: theirs(x, use_cache=False).logits,
    }
    context = ours.config.n_positions
    found = {}
    for name, logits in losses.items():
        found[name] = nats(logits, ids, context, context // 2) / len(text)
        print(f"{name}: {found[name]:.7f} nats a character, {len(ids) - 1} tokens, {len(text)} characters")
    difference = abs(found["tilewright"] - found["transformers"])
    print(f"difference: {difference:.1e}")
    return int(not difference <= TOLERANCE[given.dtype])


if __name__ == "__main__":
    sys.exit(main())
