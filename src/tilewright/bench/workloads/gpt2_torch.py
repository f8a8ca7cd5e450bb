"""GPT-2 in PyTorch, written for speed on a GPU: a static cache, torch.compile, and two CUDA graphs, one for the prompts
and one for a decode step. Tokens are greedy, or drawn from the best ones. All prompts of a batch have the same length.

cuBLAS computes the products. torch.compile fuses what is between them, layer by layer. Attention over the prompts is
`scaled_dot_product_attention`. Only the last position of a prompt is multiplied by the output matrix.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from tilewright.errors import UsageError
from tilewright.models.gpt2 import GPT2Config

MATRICES = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")


class StaticGPT2:
    """A GPT-2 for batches of prompts of one shape, with its weights in `dtype` on the GPU."""

    def __init__(self, config: GPT2Config, weights: Mapping[str, np.ndarray], dtype: str, device: str = "cuda"):
        import torch

        if config.activation_function not in ("gelu_new", "gelu_pytorch_tanh"):
            raise UsageError(f"activation_function is {config.activation_function}; this peer has no such kernel")
        self.config, self.kind, self.device = config, getattr(torch, dtype), torch.device(device)

        def tensor(name: str):
            return torch.from_numpy(np.array(weights[name], np.float32)).to(self.device, self.kind)

        self.wte, self.wpe = tensor("wte.weight"), tensor("wpe.weight")
        self.norm = tensor("ln_f.weight"), tensor("ln_f.bias")
        self.layers = [
            tuple(tensor(f"h.{i}.{name}.{part}") for name in ("ln_1", "ln_2", *MATRICES) for part in ("weight", "bias"))
            for i in range(config.n_layer)
        ]
        self.compiled = self.device.type == "cuda"
        wrap = torch.compile(dynamic=False) if self.compiled else (lambda f: f)
        self._prompt, self._step, self._next = wrap(self._prompt_layer), wrap(self._step_layer), wrap(self._next_token)
        self.graphs: dict[tuple[int, int, int, int], tuple] = {}

    def generate(self, prompts: np.ndarray, tokens: int, batch: int, top_k: int = 1) -> np.ndarray:
        """Prompts int (n, L) -> int64 (n, tokens). `batch` prompts are computed at a time; the last batch is filled up.
        top_k: see `gpt2_engines.Engine`."""
        import torch

        n = len(prompts)
        prompts = np.concatenate([prompts, prompts[: -n % batch]]) if n >= batch else prompts
        batch, found = min(batch, len(prompts)), []
        for first in range(0, len(prompts), batch):
            ids = torch.from_numpy(prompts[first : first + batch].astype(np.int64))
            found.append(self._one_batch(ids, tokens, top_k).cpu())
        return torch.cat(found)[:n].numpy()

    def _one_batch(self, ids, tokens: int, top_k: int):
        key = *ids.shape, tokens, top_k
        if key not in self.graphs:
            self.graphs.clear()  # only one static cache exists at a time
            self.graphs[key] = self._captured(*key)
        start, step, state = self.graphs[key]
        state["prompts"].copy_(ids)
        start()
        for _ in range(tokens - 1):
            step()
        return state["tokens"].clone()

    def _captured(self, B: int, L: int, tokens: int, top_k: int) -> tuple:
        """(the graph of the prompts, the graph of a step, the tensors that both use)."""
        import torch

        c, device = self.config, self.device
        shape = (c.n_layer, 2, B, c.n_head, L + tokens, c.n_embd // c.n_head)
        state = {
            "top_k": top_k,
            "cache": torch.zeros(shape, dtype=self.kind, device=device),
            "prompts": torch.zeros(B, L, dtype=torch.int64, device=device),
            "next": torch.zeros(B, dtype=torch.int64, device=device),
            "tokens": torch.zeros(B, tokens, dtype=torch.int64, device=device),
            "at": torch.zeros(1, dtype=torch.int64, device=device),
        }
        calls: list[Any] = []
        with torch.inference_mode():
            for call in (self.start, self.step):
                call(state)
                call(state)
                if not self.compiled:
                    calls.append(lambda call=call: torch.inference_mode()(call)(state))
                    continue
                torch.cuda.synchronize()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    call(state)
                calls.append(graph.replay)
        return *calls, state

    def start(self, state: dict) -> None:
        """Compute the prompts and the first token."""
        L = state["prompts"].shape[1]
        x = self.wte[state["prompts"]] + self.wpe[:L]  # (B, L, C)
        for i, layer in enumerate(self.layers):
            x = self._prompt(x, layer, state["cache"][i], self.scale(i))
        state["at"].fill_(0)
        self._note(x[:, -1], state)

    def step(self, state: dict) -> None:
        """Compute one more position."""
        at = state["at"] + (state["prompts"].shape[1] - 1)
        x = self.wte[state["next"]] + self.wpe[at]  # (B, C)
        for i, layer in enumerate(self.layers):
            x = self._step(x, layer, state["cache"][i], at, self.scale(i))
        self._note(x, state)

    def _note(self, x, state: dict) -> None:
        token = self._next(x, state["top_k"])
        state["next"].copy_(token)
        state["tokens"].index_copy_(1, state["at"].clamp(max=state["tokens"].shape[1] - 1), token[:, None])
        state["at"].add_(1)

    def scale(self, i: int) -> float:
        """The scale of layer i's scores."""
        c = self.config
        scale = math.sqrt(c.n_head / c.n_embd) if c.scale_attn_weights else 1.0
        return scale / (i + 1) if c.scale_attn_by_inverse_layer_idx else scale

    def _normed(self, x, weight, bias):
        import torch

        return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, self.config.layer_norm_epsilon)

    def _mixed(self, x, y, layer):
        """The rest of a layer, from its attention output y."""
        import torch

        (w2, b2), proj, fc, out = layer[2:4], layer[6:8], layer[8:10], layer[10:12]
        x = x + (y @ proj[0] + proj[1])
        h = torch.nn.functional.gelu(self._normed(x, w2, b2) @ fc[0] + fc[1], approximate="tanh")
        return x + (h @ out[0] + out[1])

    def _prompt_layer(self, x, layer, cache, scale: float):
        import torch

        B, L, C = x.shape
        qkv = self._normed(x, *layer[:2]) @ layer[4] + layer[5]
        q, k, v = qkv.view(B, L, 3, -1, cache.shape[-1]).permute(2, 0, 3, 1, 4).unbind(0)  # (B, H, L, D)
        cache[0, :, :, :L] = k
        cache[1, :, :, :L] = v
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
        return self._mixed(x, y.transpose(1, 2).reshape(B, L, C), layer)

    def _step_layer(self, x, layer, cache, at, scale: float):
        import torch

        B, C = x.shape
        qkv = self._normed(x, *layer[:2]) @ layer[4] + layer[5]
        q, k, v = qkv.view(B, 3, -1, cache.shape[-1]).unbind(1)  # (B, H, D)
        cache[0].index_copy_(2, at, k.unsqueeze(2))
        cache[1].index_copy_(2, at, v.unsqueeze(2))
        scores = (q.unsqueeze(2).float() * cache[0].float()).sum(-1) * scale  # (B, H, T)
        hidden = torch.arange(scores.shape[2], device=x.device) > at
        odds = scores.masked_fill(hidden, -torch.inf).softmax(dim=-1)
        y = (odds.unsqueeze(-1) * cache[1].float()).sum(2).to(x.dtype)
        return self._mixed(x, y.view(B, C), layer)

    def _next_token(self, x, top_k: int):
        import torch

        logits = self._normed(x, *self.norm) @ self.wte.T
        if top_k == 1:
            return logits.argmax(dim=-1)
        values, tokens = logits.topk(min(top_k, logits.shape[-1]), dim=-1)
        odds = values.float().softmax(dim=-1)
        drawn = (odds / torch.empty_like(odds).exponential_()).argmax(dim=-1, keepdim=True)  # multinomial would wait
        return tokens.gather(1, drawn)[:, 0]
