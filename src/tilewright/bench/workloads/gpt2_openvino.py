"""GPT-2 in OpenVINO: a stateful graph, whose keys and values stay inside the library between two steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tilewright.bench.peers.openvino import compiled
from tilewright.errors import UsageError
from tilewright.models.gpt2 import GPT2Config

Weights = Mapping[str, np.ndarray]
APPROXIMATE = {"gelu_new": "TANH", "gelu_pytorch_tanh": "TANH", "gelu": "ERF"}


class OpenVinoGPT2:
    """The compiled graph. Raises ImportError without OpenVINO, UsageError for a variant that is not built here."""

    def __init__(self, config: GPT2Config, weights: Weights, dtype: str):
        if config.activation_function not in APPROXIMATE or config.scale_attn_by_inverse_layer_idx:
            raise UsageError("openvino: this GPT-2 variant is not built for the comparison")
        self._request = compiled(_graph(config, weights), dtype).create_infer_request()

    def generate(self, prompts: np.ndarray, tokens: int, batch: int, top_k: int = 1) -> np.ndarray:
        """int64 (n, tokens): the best tokens. prompts: int (n, L). Raises UsageError for sampling."""
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


def _graph(config: GPT2Config, weights: Weights) -> Any:
    """The `openvino.Model` of (ids, positions, beam) -> (logits, best)."""
    import openvino
    from openvino import opset13 as op
    from openvino.op.util import Variable, VariableInfo

    C, H, eps = config.n_embd, config.n_head, config.layer_norm_epsilon
    D = C // H

    def given(name: str, kind: type, shape: list[int]) -> Any:
        node = op.parameter(shape, kind, name=name)
        node.output(0).get_tensor().set_names({name})
        return node

    def constant(value: Any) -> Any:
        return op.constant(np.array(value, order="C"))

    def w(name: str) -> Any:
        return constant(np.asarray(weights[name], np.float32))

    def normed(x: Any, name: str) -> Any:
        shaped = op.mvn(x, constant(np.array([-1], np.int64)), True, eps, "INSIDE_SQRT")
        return op.add(op.multiply(shaped, w(f"{name}.weight")), w(f"{name}.bias"))

    def affine(x: Any, name: str) -> Any:
        return op.add(op.matmul(x, constant(np.asarray(weights[f"{name}.weight"]).T), False, True), w(f"{name}.bias"))

    def heads(x: Any) -> Any:  # (n, L, C) -> (n, H, L, D)
        split = op.reshape(x, constant(np.array([0, 0, H, D], np.int64)), True)
        return op.transpose(split, constant(np.array([0, 2, 1, 3], np.int64)))

    ids, positions = given("ids", np.int64, [-1, -1]), given("positions", np.int64, [-1, -1])
    beam, sinks = given("beam", np.int32, [-1]), []
    zero, one = constant(np.array(0, np.int64)), constant(np.array(1, np.int64))
    n = op.gather(op.shape_of(ids), constant(np.array([0], np.int64)), zero)
    empty_shape = op.concat([n, *(constant(np.array([size], np.int64)) for size in (H, 0, D))], 0)
    empty = op.broadcast(constant(np.array(0, np.float32)), empty_shape)

    def remembered(new: Any, name: str) -> Any:
        """The keys or values of all positions so far, kept in the library."""
        info = VariableInfo()
        info.data_shape, info.data_type, info.variable_id = (
            openvino.PartialShape([-1, H, -1, D]),
            openvino.Type.f32,
            name,
        )
        variable = Variable(info)
        before = op.gather(op.read_value(empty, variable), beam, zero)
        both = op.concat([before, new], 2)
        sinks.append(op.assign(both, variable))
        return both

    x = op.add(op.gather(w("wte.weight"), ids, zero), op.gather(w("wpe.weight"), positions, zero))
    mask = None
    for i in range(config.n_layer):
        qkv = op.split(affine(normed(x, f"h.{i}.ln_1"), f"h.{i}.attn.c_attn"), constant(np.array(2, np.int64)), 3)
        q, k, v = (heads(part) for part in qkv.outputs())
        k, v = remembered(k, f"{i}.keys"), remembered(v, f"{i}.values")
        if mask is None:  # (n, 1, L, S): a query attends to keys up to its own position
            length = op.gather(op.shape_of(k), constant(np.array(2, np.int64)), zero)
            keys = op.range(zero, length, one, "i64")
            seen = op.less_equal(keys, op.unsqueeze(positions, constant(np.array([2], np.int64))))
            hidden = op.select(seen, constant(np.array(0, np.float32)), constant(np.array(-65504, np.float32)))
            mask = op.unsqueeze(hidden, constant(np.array([1], np.int64)))
        scale = constant(np.array(D**-0.5 if config.scale_attn_weights else 1.0, np.float32))
        y = op.scaled_dot_product_attention(q, k, v, mask, scale)
        y = op.reshape(op.transpose(y, constant(np.array([0, 2, 1, 3], np.int64))), constant(np.array([0, 0, C])), True)
        x = op.add(x, affine(y, f"h.{i}.attn.c_proj"))
        u = op.gelu(affine(normed(x, f"h.{i}.ln_2"), f"h.{i}.mlp.c_fc"), APPROXIMATE[config.activation_function])
        x = op.add(x, affine(u, f"h.{i}.mlp.c_proj"))
    last = op.gather(x, constant(np.array(-1, np.int64)), one)  # (n, C)
    logits = op.matmul(normed(last, "ln_f"), w("wte.weight"), False, True)
    best = op.topk(logits, one, 1, "max", "value", "i64")
    logits.output(0).get_tensor().set_names({"logits"})
    best.output(1).get_tensor().set_names({"best"})
    results = [op.result(logits.output(0)), op.result(best.output(1))]
    return openvino.Model(results, sinks, [ids, positions, beam], "gpt2")
