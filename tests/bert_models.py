"""Random BERT, RoBERTa and DistilBERT classifiers with tokenizers, saved by transformers as users save theirs."""

from pathlib import Path

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import AutoModelForSequenceClassification, PreTrainedTokenizerFast

WORDS = ["film", "the", "a", "good", "bad", "dull", "very", "plot", "##s", "##ly", "is", "not", ".", "!"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
NAMED = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
UNKNOWN = {"unk_token": "[UNK]"}
VOCABULARY = 97  # more than the tokenizer's
SIZES = (("hidden_size", "dim"), ("num_hidden_layers", "n_layers"), ("num_attention_heads", "n_heads"),
         ("intermediate_size", "hidden_dim"), ("hidden_act", "activation"))  # fmt: skip


def random_config(family: str, rng: np.random.Generator) -> transformers.PretrainedConfig:
    """A small configuration of random sizes; "bert", "roberta" or "distilbert"."""
    heads = int(rng.choice([1, 2, 3, 4]))
    labels = int(rng.integers(2, 6))
    sizes = {
        "hidden_size": heads * int(rng.choice([8, 12, 16, 32])), "num_hidden_layers": int(rng.integers(1, 4)),
        "num_attention_heads": heads, "intermediate_size": int(rng.integers(8, 150)),
        "hidden_act": str(rng.choice(["gelu", "gelu_new", "relu"])),
    }  # fmt: skip
    shared = {"vocab_size": VOCABULARY, "num_labels": labels, "id2label": {i: f"label {i}" for i in range(labels)}}
    if family == "distilbert":
        return transformers.DistilBertConfig(**{theirs: sizes[ours] for ours, theirs in SIZES}, **shared,
                                             max_position_embeddings=70)  # fmt: skip
    if family == "roberta":
        return transformers.RobertaConfig(**sizes, **shared, max_position_embeddings=72, pad_token_id=1)
    return transformers.BertConfig(**sizes, **shared, max_position_embeddings=70, layer_norm_eps=1e-6)


def tokenizer() -> PreTrainedTokenizerFast:
    """A WordPiece tokenizer of a few words, which adds [CLS] and [SEP]."""
    library = Tokenizer(models.WordPiece({word: i for i, word in enumerate(SPECIAL + WORDS)}, **UNKNOWN))
    library.normalizer, library.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    library.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=library, model_max_length=70, **NAMED, **UNKNOWN)


def saved(family: str, seed: int, folder: Path, **fields):
    """(transformers' model, its tokenizer), both saved to the folder. fields: of the configuration."""
    rng = np.random.default_rng(seed)
    config = random_config(family, rng)
    for name, value in fields.items():
        setattr(config, name, value)
    torch.manual_seed(seed)
    model = AutoModelForSequenceClassification.from_config(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.1 * torch.randn_like(weight)  # biases and norms are constant otherwise
    model.save_pretrained(folder)
    words = tokenizer()
    words.save_pretrained(folder)
    return model, words


def random_texts(n: int, seed: int = 0) -> list[str]:
    """Texts of 1 to 100 words, some longer than the models take."""
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice([word for word in WORDS if "#" not in word], rng.integers(1, 101))) for _ in range(n)]
