"""Trains critic, a small TextCNN, on sentences of film reviews: python examples/train/critic.py DATA critic

DATA holds reviews.pos and reviews.neg, the sentence polarity set of Pang and Lee (2005): 10,662 sentences, one a line;
it is not in this repository. A tenth is the test. Writes DIR/config.json, model.safetensors (float16), tokenizer.json
and README.md. `--folds 10` trains and tests a model for each tenth, which is how results on this set are given.

A minute or two a model. So few sentences are soon learnt by heart: hence dropout of words, embeddings and features, an
average of the weights, and an embedding that begins with naive Bayes (after NBSVM: Wang and Manning, 2012).
"""

import argparse
import json
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.numpy import save_file
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

PAD, UNKNOWN = 0, 1  # token ids
KERNELS, LABELS = (3, 5, 7, 9), ("negative", "positive")
PARTS = 10  # of the sentences; one is the test
WORD = r"\w+(?:'\w+)*|[^\w\s]"  # isn't is one word, a mark of punctuation is one
PLAIN = {"[\u2018\u2019\x91\x92]": "'", "[\u201c\u201d\x93\x94]": '"', "[\u2010-\u2015\x96\x97]": "-"}  # a typewriter's


@dataclass(frozen=True)
class Recipe:
    """Sizes and settings; each is an option of the command."""

    vocabulary: int = 8000
    length: int = 64  # tokens; one review in a thousand has more
    width: int = 96  # of an embedding
    filters: int = 64  # a branch
    rounds: int = 6  # through the sentences
    batch: int = 64
    rate: float = 1e-3  # of Adam, falling to nothing along a line
    unknown: float = 0.1  # probability that a word is replaced by the unknown one
    drop_embedding: float = 0.3
    drop_features: float = 0.5
    prior: float = 0.6  # scale of the embedding's first number: a token's log odds, by naive Bayes
    average: float = 0.998  # share of the old average weights a step
    seed: int = 1


class TextCNN(nn.Module):
    """tilewright's TextCNN, its tensors under the same names; dropout in training."""

    def __init__(self, recipe: Recipe, vocabulary: int) -> None:
        super().__init__()
        self.recipe = recipe
        self.embedding = nn.Embedding(vocabulary, recipe.width, padding_idx=PAD)
        self.embedding.weight.data *= 0.1  # of N(0, 1)
        self.convs = nn.ModuleList(nn.Conv1d(recipe.width, recipe.filters, K) for K in KERNELS)
        self.linears = nn.ModuleList([nn.Linear(recipe.filters * len(KERNELS), len(LABELS))])

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """int64 (B, L) -> (B, 2)."""
        hidden = torch.rand(ids.shape, device=ids.device) < self.recipe.unknown * self.training
        ids = ids.masked_fill(hidden & (ids != PAD), UNKNOWN)
        x = F.dropout(self.embedding(ids), self.recipe.drop_embedding, self.training).transpose(1, 2)  # (B, C, L)
        x = torch.cat([F.relu(conv(x)).amax(2) for conv in self.convs], 1)  # (B, branches * O)
        return self.linears[0](F.dropout(x, self.recipe.drop_features, self.training))


def sentences_of(data: Path) -> tuple[list[str], np.ndarray, np.ndarray]:
    """(sentences, labels, the part from 0 to PARTS - 1 that each belongs to), always the same."""
    files = [(data / name).read_text("utf-8").strip().split("\n") for name in ("reviews.neg", "reviews.pos")]
    labels = np.repeat([0, 1], [len(file) for file in files])
    parts = np.random.default_rng(0).permutation(len(labels)) % PARTS
    return [line.strip() for file in files for line in file], labels, parts


def trained_tokenizer(sentences: list[str], recipe: Recipe) -> Tokenizer:
    """WordPiece in lower case, without accents; sentences get `length` tokens, what is longer is cut behind."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=100))  # noqa: S106
    steps = [normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase()]
    steps += [normalizers.Replace(Regex(marks), mark) for marks, mark in PLAIN.items()]
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(WORD), "removed", invert=True)
    letters = sorted(set("".join(map(tokenizer.normalizer.normalize_str, sentences))) - {" "})
    tokens = ["[PAD]", "[UNK]", *(f"##{letter}" for letter in letters)]  # left to the library, their order is random
    options = {"vocab_size": recipe.vocabulary, "min_frequency": 2, "show_progress": False}
    tokenizer.train_from_iterator(sentences, trainers.WordPieceTrainer(special_tokens=tokens, **options))
    content = json.loads(tokenizer.to_str())
    del content["added_tokens"][2:]  # which in a text would be themselves
    tokenizer = Tokenizer.from_str(json.dumps(content))
    tokenizer.enable_truncation(recipe.length)
    tokenizer.enable_padding(length=recipe.length, pad_id=PAD)
    return tokenizer


def encoded(tokenizer: Tokenizer, sentences: list[str]) -> torch.Tensor:
    """int64 (n, L)."""
    return torch.tensor([encoding.ids for encoding in tokenizer.encode_batch(sentences)])


def log_odds(ids: torch.Tensor, labels: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """(vocabulary,): log of how much more often a token is in a positive sentence; 0 for padding."""
    there = torch.zeros(len(ids), vocabulary, device=ids.device).scatter_(1, ids, 1.0)
    counts = torch.stack([there[labels == label].sum(0) + 1 for label in (0, 1)])
    negative, positive = (counts / counts.sum(1, keepdim=True)).log()
    return (positive - negative).index_fill(0, torch.tensor(PAD, device=ids.device), 0.0)


def train(recipe: Recipe, sentences: list[str], labels: np.ndarray, device: str):
    """(tokenizer, model) of these sentences; its weights are the average, rounded to float16."""
    torch.manual_seed(recipe.seed)
    tokenizer = trained_tokenizer(sentences, recipe)
    ids, wanted = encoded(tokenizer, sentences).to(device), torch.tensor(labels, device=device)
    model = TextCNN(recipe, tokenizer.get_vocab_size()).to(device)
    model.embedding.weight.data[:, 0] = recipe.prior * log_odds(ids, wanted, tokenizer.get_vocab_size())
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(recipe.average)).eval()
    optimizer = torch.optim.Adam(model.parameters(), recipe.rate, fused=True)
    steps = recipe.rounds * (len(ids) // recipe.batch)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, steps)
    for _ in range(recipe.rounds):
        for some in torch.randperm(len(ids), device=device).split(recipe.batch)[: steps // recipe.rounds]:
            F.cross_entropy(model(ids[some]), wanted[some]).backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            average.update_parameters(model)
    model.load_state_dict({name: value.half().float() for name, value in average.module.state_dict().items()})
    return tokenizer, model.eval()


def accuracy_and_loss(logits: torch.Tensor, labels: torch.Tensor) -> tuple[float, float]:
    """The share of sentences whose label is right, and the mean cross-entropy in nats."""
    return (logits.argmax(1) == labels).double().mean().item(), F.cross_entropy(logits.double(), labels).item()


def tested(data: Path, device: str, recipe: Recipe, part: int):
    """(accuracy, loss and number of one part's sentences by a model of all others, its tokenizer, its weights)."""
    torch.set_num_threads(1)  # layers as small as these wait for a second thread longer than they compute
    sentences, labels, parts = sentences_of(data)
    test, others = ([sentences[i] for i in np.flatnonzero(some)] for some in (parts == part, parts != part))
    tokenizer, model = train(recipe, others, labels[parts != part], device)
    with torch.no_grad():
        logits = model(encoded(tokenizer, test).to(device)).cpu()
    accuracy, loss = accuracy_and_loss(logits, torch.from_numpy(labels[parts == part]))
    print(f"part {part}, seed {recipe.seed}: {accuracy:.2%} of {len(test)} right, loss {loss:.4f}", flush=True)
    weights = {name: value.half().cpu().numpy() for name, value in model.state_dict().items()}
    return (accuracy, loss, len(test)), tokenizer, weights


def write(folder: Path, recipe: Recipe, tokenizer: Tokenizer, weights: dict, figures: dict) -> None:
    """The model directory."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "model_type": "textcnn", "vocab_size": tokenizer.get_vocab_size(), "sequence_length": recipe.length,
        "hidden_size": recipe.width, "num_filters": recipe.filters, "kernel_sizes": KERNELS, "hidden_sizes": [],
        "num_labels": len(LABELS), "pad_token_id": PAD, "id2label": dict(enumerate(LABELS)),
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    save_file(weights, folder / "model.safetensors")
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    card = (Path(__file__).parent / "critic.md").read_text("utf-8")
    (folder / "README.md").write_text(card.format(**asdict(recipe), **figures), "utf-8")


def figures_of(found: list, folds: int, device: str) -> dict:
    """What the card says about the models of `tested`: first one for each fold, then one for each further seed."""
    (accuracy, loss, tests), _, weights = found[0]
    rates = 100 * np.array([row[0][0] for row in found])
    of_folds, of_seeds = rates[:folds], rates[[0, *range(folds, len(rates))]]
    return {
        "accuracy": 100 * accuracy, "loss": loss, "tests": tests, "folds": folds, "seeds": len(of_seeds),
        "mean": of_folds.mean(), "deviation": of_folds.std(), "low": of_folds.min(), "high": of_folds.max(),
        "seeds_low": of_seeds.min(), "seeds_high": of_seeds.max(), "parameters": sum(map(np.size, weights.values())),
        "device": torch.cuda.get_device_name() if device == "cuda" else "a CPU",
    }  # fmt: skip


def main() -> None:
    """Reads the command line, trains and tests, writes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="the directory of reviews.pos and reviews.neg")
    parser.add_argument("folder", type=Path, help="the model directory to write")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--folds", type=int, default=1, help="tenths to test a model on; that of the first is written")
    parser.add_argument("--seeds", type=int, default=1, help="models for the first tenth, each of another seed")
    for field in fields(Recipe):
        parser.add_argument("--" + field.name.replace("_", "-"), type=type(field.default), default=field.default)
    given = parser.parse_args()
    recipe = Recipe(**{field.name: getattr(given, field.name) for field in fields(Recipe)})
    jobs = [(recipe, part) for part in range(given.folds)]
    jobs += [(replace(recipe, seed=recipe.seed + i), 0) for i in range(1, given.seeds)]
    found = [tested(given.data, given.device, *job) for job in jobs]
    print(json.dumps(figures := figures_of(found, given.folds, given.device)))
    write(given.folder, recipe, *found[0][1:], figures)


if __name__ == "__main__":
    main()
