"""GPT-2 in PyTorch, to be trained: the architecture of tilewright's models/gpt2.py, its parameters by the same names.

Source: Radford et al., "Language Models are Unsupervised Multitask Learners", 2019.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn


class Layer(nn.Module):
    """x (B, T, width) -> the same shape: each position looks at those before it, then at itself."""

    def __init__(self, width: int, heads: int, dropout: float):
        super().__init__()
        self.heads, self.rate = heads, dropout
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = nn.ModuleDict({"c_attn": nn.Linear(width, 3 * width), "c_proj": nn.Linear(width, width)})
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(width, 4 * width), "c_proj": nn.Linear(4 * width, width)})
        self.drop = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        B, T, C = x.shape
        qkv = self.attn["c_attn"](self.ln_1(x)).view(B, T, 3, self.heads, C // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # (B, H, T, D) each
        rate = self.rate if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=rate, is_causal=True)
        x = x + self.drop(self.attn["c_proj"](y.transpose(1, 2).reshape(B, T, C)))
        h = F.gelu(self.mlp["c_fc"](self.ln_2(x)), approximate="tanh")
        return x + self.drop(self.mlp["c_proj"](h))


class GPT2(nn.Module):
    """ids int64 (B, T), T at most `context` -> logits (B, T, vocabulary)."""

    def __init__(self, vocabulary: int, context: int, layers: int, width: int, heads: int, dropout: float = 0.0):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.drop = nn.Dropout(dropout)
        self.h = nn.ModuleList(Layer(width, heads, dropout) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:  # what is added to x counts 2 * layers times
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * layers if "c_proj" in name else 1))
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.drop(self.wte(ids) + self.wpe.weight[: ids.shape[1]])
        for layer in self.h:
            x = layer(x)
        return self.ln_f(x) @ self.wte.weight.T

    def saved(self) -> dict[str, torch.Tensor]:
        """The parameters as checkpoints of GPT-2 have them: matrices (in, out), float16."""
        turned = {k: v.T if ".c_" in k and v.ndim == 2 else v for k, v in self.state_dict().items()}
        return {name: value.half().cpu().contiguous() for name, value in turned.items()}
