"""What stands in for the kernels of a GPT-2 on tensors of the CPU, where Triton's interpreter would take minutes."""

import math

import numpy as np
import torch

from tilewright.ops.sample import Rules, sample


class StandIns:
    """The operations in float64: sums whose order does not show once they are rounded."""

    def embedding(self, ids, table, *, positions, position_table, out):
        rows = table[ids.clamp(min=0)] + position_table[positions.long()]
        return out.copy_(rows.masked_fill(ids[:, None] < 0, math.nan))

    def layernorm(self, x, weight, bias, *, eps, out):
        x = x.double()
        variance = x.var(dim=1, correction=0, keepdim=True)
        return out.copy_((x - x.mean(dim=1, keepdim=True)) / (variance + eps).sqrt() * weight + bias)

    def prepare(self, b, *, dtype):
        return b.to(getattr(torch, dtype)).double()

    def matmul(self, a, b, *, bias=0.0, activation=None, residual=0.0, out=None):
        y = a.double() @ b + bias + residual
        y = torch.nn.functional.gelu(y, approximate="tanh") if activation else y
        return y.float() if out is None else out.copy_(y)

    def prepare_argmax(self, b, *, dtype, weights):
        return weights

    def matmul_argmax(self, a, b, out=None):
        logits = self.matmul(a, b)
        values, tokens = logits.max(dim=1)  # a NaN is the largest of all
        return (tokens, values) if out is None else (out[0].copy_(tokens), out[1].copy_(values))

    def matmul_peaks(self, a, b, *, out, peaks):
        self.matmul(a, b, out=out)

    def draw(self, logits, floats, integers, tokens, peaks):
        given = Rules(floats.numpy(), integers.numpy(), np.zeros(0, np.int64))
        tokens.copy_(torch.from_numpy(sample(logits.numpy(), given).tokens))

    def checked_spans(self, spans, cache, rows):
        return np.asarray(spans)

    def append(self, k, v, cache, spans):
        for slot, first, count, row, source in spans.tolist():
            for new, kept in ((k, cache.keys), (v, cache.values)):
                if source >= 0:
                    kept[slot, :, :first] = kept[source, :, :first]
                kept[slot, :, first : first + count] = new[row : row + count].view(count, -1, cache.D).transpose(0, 1)

    def attend(self, q, cache, spans, *, scale, new=None, out):
        if new is not None:
            self.append(*new, cache, spans)
        counts = torch.from_numpy(spans[:, 2])
        slots, first = (torch.from_numpy(spans[:, i]).repeat_interleave(counts) for i in (0, 1))
        within = torch.arange(len(q)) - torch.from_numpy(spans[:, 3]).repeat_interleave(counts)
        return out.copy_(self.looked(q, cache, slots, first + within, scale))

    def append_and_attend(self, q, k, v, cache, slots, positions, *, longest, scale, out):
        there = slots >= 0
        slots, positions = slots[there].long(), positions[there].long()
        assert not there.any() or int(positions.max()) < longest
        for new, kept in ((k, cache.keys), (v, cache.values)):
            kept[slots, :, positions] = new[there].view(-1, cache.heads, cache.D)
        out.zero_()
        out[there] = self.looked(q[there], cache, slots, positions, scale).to(out.dtype)
        return out

    def looked(self, q, cache, slots, positions, scale):
        hidden = torch.arange(cache.length) > positions[:, None]  # (n, T)
        keys, values = (
            part[slots].double().masked_fill(hidden[:, None, :, None], 0) for part in (cache.keys, cache.values)
        )
        scores = (keys @ q.double().view(len(q), cache.heads, cache.D, 1))[..., 0] * scale  # (n, H, T)
        odds = scores.masked_fill(hidden[:, None], -math.inf).softmax(dim=2)
        return (odds[:, :, None] @ values).reshape(len(q), cache.heads * cache.D)
