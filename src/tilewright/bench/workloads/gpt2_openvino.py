"""GPT-2 in OpenVINO: a stateful graph, so keys and values stay inside the library between two steps. The import raises
ImportError if OpenVINO is missing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from openvino import Model, PartialShape, Type
from openvino import opset13 as op
from openvino.op.util import Variable, VariableInfo

from tilewright.bench.peers.openvino import compiled
from tilewright.errors import UsageError
from tilewright.models.gpt2 import GPT2Config

Weights = Mapping[str, np.ndarray]
APPROXIMATE = {"gelu_new": "TANH", "gelu_pytorch_tanh": "TANH", "gelu": "ERF"}


class OpenVinoGPT2:
    """The compiled graph. Raises UsageError for a configuration that this module does not support."""

    def __init__(self, config: GPT2Config, weights: Weights, dtype: str):
        if config.activation_function not in APPROXIMATE or config.scale_attn_by_inverse_layer_idx:
            raise UsageError("openvino: this GPT-2 variant is not built for the comparison")
        self._request = compiled(_graph(config, weights), dtype).create_infer_request()

    def generate(self, prompts: np.ndarray, tokens: int, batch: int, top_k: int = 1) -> np.ndarray:
        """The best tokens, int64 (n, tokens), of prompts int (n, L). Raises UsageError for sampling."""
        if top_k > 1:
            raise UsageError("openvino: only the best token is chosen here")
        parts = [self._together(prompts[i : i + batch], tokens) for i in range(0, len(prompts), batch)]
        return np.concatenate(parts)

    def logits(self, prompts: np.ndarray) -> np.ndarray:
        """float32 (n, V) after the last position."""
        self._request.reset_state()
        self._step(prompts.astype(np.int64), 0)
        return self._request.get_tensor("logits").data.copy()

    def _together(self, prompts: np.ndarray, tokens: int) -> np.ndarray:
        self._request.reset_state()
        found, ids, position = [], prompts.astype(np.int64), 0
        for _ in range(tokens):
            self._step(ids, position)
            position += ids.shape[1]
            ids = self._request.get_tensor("best").data.astype(np.int64).copy()
            found.append(ids)
        return np.hstack(found)

    def _step(self, ids: np.ndarray, position: int) -> None:
        n, L = ids.shape
        positions = np.tile(np.arange(position, position + L, dtype=np.int64), (n, 1))
        self._request.infer({"ids": ids, "positions": positions, "beam": np.arange(n, dtype=np.int32)})


class _Builder:
    """The nodes of the graph, built from a GPT-2's weights. sinks: the nodes that store keys and values."""

    def __init__(self, config: GPT2Config, weights: Weights):
        self.config, self.weights = config, weights
        self.sinks: list[Any] = []
        self.ids, self.positions = self.given("ids", np.int64, [-1, -1]), self.given("positions", np.int64, [-1, -1])
        self.beam = self.given("beam", np.int32, [-1])
        shape = op.gather(op.shape_of(self.ids), _constant([0]), _constant(0))  # (n,)
        sizes = (config.n_head, 0, config.n_embd // config.n_head)
        empty = op.concat([shape, *(_constant([size]) for size in sizes)], 0)
        self.nothing = op.broadcast(op.constant(np.float32(0)), empty)

    def given(self, name: str, kind: type, shape: list[int]) -> Any:
        """Add an input to the graph."""
        node = op.parameter(shape, kind, name=name)
        node.output(0).get_tensor().set_names({name})
        return node

    def w(self, name: str) -> Any:
        return op.constant(np.array(self.weights[name], np.float32, order="C"))

    def normed(self, x: Any, name: str) -> Any:
        shaped = op.mvn(x, _constant([-1]), True, self.config.layer_norm_epsilon, "INSIDE_SQRT")
        return op.add(op.multiply(shaped, self.w(f"{name}.weight")), self.w(f"{name}.bias"))

    def affine(self, x: Any, name: str) -> Any:
        matrix = op.constant(np.array(np.asarray(self.weights[f"{name}.weight"]).T, np.float32, order="C"))
        return op.add(op.matmul(x, matrix, False, True), self.w(f"{name}.bias"))

    def heads(self, x: Any) -> Any:
        """(n, L, C) -> (n, H, L, D)."""
        H = self.config.n_head
        split = op.reshape(x, _constant([0, 0, H, self.config.n_embd // H]), True)
        return op.transpose(split, _constant([0, 2, 1, 3]))

    def remembered(self, new: Any, name: str) -> Any:
        """The keys or values of all positions up to now, which stay inside the library."""
        info, H = VariableInfo(), self.config.n_head
        info.data_shape = PartialShape([-1, H, -1, self.config.n_embd // H])
        info.data_type, info.variable_id = Type.f32, name
        variable = Variable(info)
        both = op.concat([op.gather(op.read_value(self.nothing, variable), self.beam, _constant(0)), new], 2)
        self.sinks.append(op.assign(both, variable))
        return both

    def mask(self, keys: Any) -> Any:
        """float32 (n, 1, L, S): 0 for the keys up to a query's own position."""
        length = op.gather(op.shape_of(keys), _constant(2), _constant(0))
        seen = op.less_equal(
            op.range(_constant(0), length, _constant(1), "i64"), op.unsqueeze(self.positions, _constant([2]))
        )
        hidden = op.select(seen, op.constant(np.float32(0)), op.constant(np.float32(-65504)))
        return op.unsqueeze(hidden, _constant([1]))

    def attention(self, i: int, x: Any) -> Any:
        qkv = op.split(self.affine(self.normed(x, f"h.{i}.ln_1"), f"h.{i}.attn.c_attn"), _constant(2), 3)
        q, k, v = (self.heads(part) for part in qkv.outputs())
        k, v = self.remembered(k, f"{i}.keys"), self.remembered(v, f"{i}.values")
        C, H = self.config.n_embd, self.config.n_head
        scale = op.constant(np.float32((H / C) ** 0.5 if self.config.scale_attn_weights else 1.0))
        y = op.transpose(op.scaled_dot_product_attention(q, k, v, self.mask(k), scale), _constant([0, 2, 1, 3]))
        return self.affine(op.reshape(y, _constant([0, 0, C]), True), f"h.{i}.attn.c_proj")


def _constant(value: int | list[int]) -> Any:
    return op.constant(np.array(value, np.int64))


def _graph(config: GPT2Config, weights: Weights) -> Any:
    """The `openvino.Model` of (ids, positions, beam) -> (logits, best)."""
    build = _Builder(config, weights)
    x = op.add(
        op.gather(build.w("wte.weight"), build.ids, _constant(0)),
        op.gather(build.w("wpe.weight"), build.positions, _constant(0)),
    )
    for i in range(config.n_layer):
        x = op.add(x, build.attention(i, x))
        u = build.affine(build.normed(x, f"h.{i}.ln_2"), f"h.{i}.mlp.c_fc")
        x = op.add(x, build.affine(op.gelu(u, APPROXIMATE[config.activation_function]), f"h.{i}.mlp.c_proj"))
    last = op.gather(x, _constant(-1), _constant(1))  # (n, C)
    logits = op.matmul(build.normed(last, "ln_f"), build.w("wte.weight"), False, True)
    best = op.topk(logits, _constant(1), 1, "max", "value", "i64")
    logits.output(0).get_tensor().set_names({"logits"})
    best.output(1).get_tensor().set_names({"best"})
    results = [op.result(logits.output(0)), op.result(best.output(1))]
    return Model(results, build.sinks, [build.ids, build.positions, build.beam], "gpt2")
