"""GPT-NeoX: text generation by a stack of causal transformer layers, such as Pythia's of 14M to 12B weights.

    x = embed_in[id]
    a layer:  x += dense(attention(rope(q), rope(k), v) of LN1(x)) + 4h_to_h(gelu(h_to_4h(LN2(x))))
    logits = LN(x) @ embed_out.T

Both parts of a layer read the same x, unless `use_parallel_residual` is false. A quarter of each head is rotated.
Computed by `decoder.py`. Sources: Black et al., "GPT-NeoX-20B", 2022; Biderman et al., "Pythia", 2023.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from tilewright.models.decoder import DecoderModel
from tilewright.models.decoder_config import DecoderConfig, EndWeights, LayerWeights, Network, Pair, Weights

MODEL_TYPE = "gpt_neox"
PREFIX = "gpt_neox."
TOKENS, HEAD = "embed_in.weight", "embed_out.weight"
HEAD_SINCE_5 = "lm_head.weight"  # the name of HEAD in files that transformers 5 has written
TIES = ((HEAD, TOKENS),)  # if tie_word_embeddings is true
BUFFERS = (".attention.bias", ".attention.masked_bias", "rotary_emb.inv_freq")  # of old checkpoints; no weights
THETA, FACTOR = 10000.0, 0.25  # if the configuration does not give them
ROPE_FIELDS = ("rope_type", "type", "rope_theta", "partial_rotary_factor")


class GPTNeoXConfig(DecoderConfig, frozen=True, kw_only=True):
    """Sizes of a GPT-NeoX, by Hugging Face's names; the defaults are the 20B model. Fields that have no effect on the
    result are ignored. Raises ValueError for sizes that do not make a network, and for variants that are not supported.
    """

    title: ClassVar[str] = "GPT-NeoX"

    model_type: str = MODEL_TYPE
    vocab_size: int = 50432
    hidden_size: int = 6144
    num_hidden_layers: int = 44
    num_attention_heads: int = 64
    intermediate_size: int = 24576
    hidden_act: str = "gelu"
    max_position_embeddings: int = 2048
    layer_norm_eps: float = 1e-5
    use_parallel_residual: bool = True
    attention_bias: bool = True
    rotary_pct: float | None = None
    rotary_emb_base: float | None = None
    partial_rotary_factor: float | None = None
    rope_theta: float | None = None
    rope_parameters: dict[str, Any] | None = None
    rope_scaling: dict[str, Any] | None = None
    head_dim: int | None = None
    tie_word_embeddings: bool = False
    eos_token_id: int | list[int] | None = 2

    def __post_init__(self):
        self.check(
            MODEL_TYPE, "max_position_embeddings", "num_hidden_layers", "hidden_size", "num_attention_heads",
            "intermediate_size",
        )  # fmt: skip
        self.check_heads("hidden_size", "num_attention_heads")
        self.check_activation("hidden_act")
        self.check_eps("layer_norm_eps")
        head_size = self.hidden_size // self.num_attention_heads
        if self.head_dim not in (None, head_size):
            raise ValueError(
                f"head_dim is {self.head_dim}; hidden_size / num_attention_heads, {head_size}, is supported"
            )
        self._check_rope("rope_parameters", self.rope_parameters)
        self._check_rope("rope_scaling", self.rope_scaling)
        theta, factor = self.theta, self.rotary_factor
        if not 0 < theta < float("inf"):
            raise ValueError(f"rotary_emb_base is {theta}; a finite number above 0 is wanted")
        if not (0 <= factor <= 1 and 2 * -(-int(head_size * factor) // 2) <= head_size):
            raise ValueError(f"rotary_pct is {factor}, and a head has {head_size} elements: pairs of them are rotated")

    def _check_rope(self, field: str, given: dict[str, Any] | None) -> None:
        """Raises ValueError for any kind of rotation but the default one."""
        rope = given or {}
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind != "default":
            raise ValueError(f"{field}: rope_type is {str(kind)[:50]!r}; only 'default' is supported")
        if unknown := [name for name in rope if name not in ROPE_FIELDS]:
            raise ValueError(f"{field}: {unknown[0][:50]!r} is not known; {', '.join(ROPE_FIELDS)} are")
        for name in ("rope_theta", "partial_rotary_factor"):
            if not isinstance(rope.get(name, 0.0), float | int) or isinstance(rope.get(name), bool):
                raise ValueError(f"{field}: {name} is {str(rope[name])[:50]!r}; a number is wanted")

    def _one_of(self, default: float, name: str, fields: Sequence[str]) -> float:
        """The value on which the fields and the `name` in both dictionaries agree."""
        found = {field: getattr(self, field) for field in fields}
        found |= {f"{field}: {name}": (getattr(self, field) or {}).get(name)
                  for field in ("rope_parameters", "rope_scaling")}  # fmt: skip
        given = {field: float(value) for field, value in found.items() if value is not None}
        if len(set(given.values())) > 1:
            both = " and ".join(f"{field} {value:g}" for field, value in given.items())
            raise ValueError(f"{both} contradict each other; one value is wanted")
        return next(iter(given.values()), default)

    @property
    def theta(self) -> float:
        """The base of the frequencies."""
        return self._one_of(THETA, "rope_theta", ("rotary_emb_base", "rope_theta"))

    @property
    def rotary_factor(self) -> float:
        """The part of each head that is rotated."""
        return self._one_of(FACTOR, "partial_rotary_factor", ("rotary_pct", "partial_rotary_factor"))

    @property
    def network(self) -> Network:
        rotary = int(self.hidden_size // self.num_attention_heads * self.rotary_factor)
        return Network(
            self.max_position_embeddings, self.vocab_size, self.hidden_size, self.intermediate_size,
            self.num_hidden_layers, self.num_attention_heads, self.hidden_act, self.layer_norm_eps, self.hidden_size,
            positions=False, joins=True, parallel=self.use_parallel_residual, rotary=rotary, theta=self.theta,
        )  # fmt: skip

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every weight."""
        C, W, V = self.hidden_size, self.intermediate_size, self.vocab_size
        shapes: dict[str, tuple[int, ...]] = {TOKENS: (V, C)}

        def linear(name: str, outputs: int, inputs: int, *, bias: bool = True) -> None:
            shapes[f"{name}.weight"] = (outputs, inputs)
            if bias:
                shapes[f"{name}.bias"] = (outputs,)

        for i in range(self.num_hidden_layers):
            at = f"layers.{i}"
            for name in ("input_layernorm", "post_attention_layernorm"):
                shapes |= {f"{at}.{name}.weight": (C,), f"{at}.{name}.bias": (C,)}
            linear(f"{at}.attention.query_key_value", 3 * C, C, bias=self.attention_bias)
            linear(f"{at}.attention.dense", C, C, bias=self.attention_bias)
            linear(f"{at}.mlp.dense_h_to_4h", W, C)
            linear(f"{at}.mlp.dense_4h_to_h", C, W)
        shapes |= {"final_layer_norm.weight": (C,), "final_layer_norm.bias": (C,)}
        return shapes if self.tie_word_embeddings else shapes | {HEAD: (V, C)}

    def own_name(self, name: str) -> str | None:
        """The model's name of a checkpoint's tensor; None for one that holds no weights of its own."""
        name = name.removeprefix(PREFIX)
        return None if name.endswith(BUFFERS) else HEAD if name == HEAD_SINCE_5 else name

    def layer(self, weights: Weights, i: int) -> LayerWeights:
        """The weights of layer i."""

        def pair(name: str) -> tuple[np.ndarray, np.ndarray | None]:
            name = f"layers.{i}.{name}"
            return weights[f"{name}.weight"], weights.get(f"{name}.bias")

        def linear(name: str) -> Pair:
            weight, bias = pair(name)
            return weight.T, bias

        weight, bias = pair("attention.query_key_value")
        qkv = self._apart(weight).T, None if bias is None else self._apart(bias)
        return LayerWeights(
            pair("input_layernorm"), qkv, linear("attention.dense"), pair("post_attention_layernorm"),
            linear("mlp.dense_h_to_4h"), linear("mlp.dense_4h_to_h"),
        )  # fmt: skip

    def _apart(self, rows: np.ndarray) -> np.ndarray:
        """Rows that are stored head by head, each with query, key and value -> the queries of all heads, the keys, the
        values."""
        H = self.num_attention_heads
        by_head = rows.reshape(H, 3, self.hidden_size // H, *rows.shape[1:])
        return by_head.swapaxes(0, 1).reshape(rows.shape)

    def ends(self, weights: Weights) -> EndWeights:
        """The weights before and after the layers."""
        norm = weights["final_layer_norm.weight"], weights["final_layer_norm.bias"]
        return EndWeights(weights[TOKENS], None, norm, weights.get(HEAD))


class GPTNeoX(DecoderModel):
    """A GPT-NeoX ready to run on this machine's CPU or GPU, see `DecoderModel`."""

    config: GPTNeoXConfig
