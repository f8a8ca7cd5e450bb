"""Compares tilewright's inference with PyTorch's: python examples/train/check_critic.py DATA DIR

Both label the sentences of the test, a tenth of DATA, by critic's weights in DIR: tilewright from the text on, PyTorch
from ids that Hugging Face's `tokenizers` cut and filled up. Ends with 1 if a label or the accuracy differs, a logit by
more than 1e-4, or the loss by more than 1e-5. Needs torch, tokenizers and safetensors.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import torch
from critic import Recipe, TextCNN, accuracy_and_loss, encoded, sentences_of
from safetensors.torch import load_file
from tokenizers import Tokenizer

import tilewright as tw

LOGIT, LOSS = 1e-4, 1e-5  # the orders of summing differ; seen: 2e-6 and 3e-8


def pytorch(folder: Path) -> TextCNN:
    """The model of a directory, as it was trained."""
    weights = {name: value.float() for name, value in load_file(folder / "model.safetensors").items()}
    filters, width, _ = weights["convs.0.weight"].shape
    model = TextCNN(Recipe(width=width, filters=filters), len(weights["embedding.weight"])).eval()
    model.load_state_dict(weights)
    return model


def main() -> int:
    """Reads the command line and compares."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="the directory of reviews.pos and reviews.neg")
    parser.add_argument("folder", type=Path, help="the model directory")
    parser.add_argument("--device", default="cpu", help="of tilewright; PyTorch computes on the CPU")
    given = parser.parse_args()
    sentences, labels, parts = sentences_of(given.data)
    test = [sentence for sentence, part in zip(sentences, parts, strict=True) if part == 0]
    wanted = torch.from_numpy(labels[parts == 0])
    model, ids = pytorch(given.folder), encoded(Tokenizer.from_file(str(given.folder / "tokenizer.json")), test)
    with torch.no_grad():
        theirs = model(ids)
    answers = tw.load(given.folder, device=given.device).classify(test)
    ours = torch.tensor(np.array([answer["logits"] for answer in answers]), dtype=torch.float32)
    figures = [accuracy_and_loss(logits, wanted) for logits in (ours, theirs)]
    for name, (accuracy, loss) in zip(("tilewright", "PyTorch"), figures, strict=True):
        print(f"{name}: {accuracy:.4%} of {len(test)} sentences right, loss {loss:.7f}")
    apart = (ours - theirs).abs().max().item()
    labels_apart = int((ours.argmax(1) != theirs.argmax(1)).sum())
    print(f"largest difference of a logit: {apart:.1e}; labels that differ: {labels_apart}")
    same = figures[0][0] == figures[1][0] and abs(figures[0][1] - figures[1][1]) <= LOSS
    return int(not same or labels_apart > 0 or apart > LOGIT)


if __name__ == "__main__":
    sys.exit(main())
