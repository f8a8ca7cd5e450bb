"""OPT: text generation by a stack of causal transformer layers, from 125M to 66B weights.

    x = embed_tokens[id] + embed_positions[position + 2]
    a layer:  x += out_proj(attention(LN1(x)));  x += fc2(relu(fc1(LN2(x))))
    logits = LN(x) @ embed_tokens.T

In OPT-350m a norm follows each sum instead, `project_in` widens a token's row, and `project_out` narrows x before the
output matrix. Galactica is an OPT, too, without biases. Computed by `decoder.py`. Source: Zhang et al., "OPT: Open
Pre-trained Transformer Language Models", 2022.
"""

from typing import ClassVar

import msgspec
import numpy as np

from tilewright.models.decoder import DecoderModel
from tilewright.models.decoder_config import DecoderConfig, EndWeights, LayerWeights, Network, Pair, Weights

MODEL_TYPE = "opt"
PREFIX = "model."
TOKENS, HEAD = "decoder.embed_tokens.weight", "lm_head.weight"
TIES = ((HEAD, TOKENS),)  # unless tie_word_embeddings is false
OFFSET = 2  # the table of positions starts with two rows that are never read
EPS = 1e-5  # of the norms; the configuration has no field for it


class OPTConfig(DecoderConfig, frozen=True, kw_only=True):
    """Sizes of an OPT, by Hugging Face's names; the defaults are the 125M model. Fields that have no effect on the
    result are ignored. Raises ValueError for sizes that do not make a network, and for variants that are not supported.
    """

    title: ClassVar[str] = "OPT"

    model_type: str = MODEL_TYPE
    vocab_size: int = 50272
    hidden_size: int = 768
    num_hidden_layers: int = 12
    ffn_dim: int = 3072
    max_position_embeddings: int = 2048
    num_attention_heads: int = 12
    do_layer_norm_before: bool = True
    remove_final_layer_norm: bool = msgspec.field(default=False, name="_remove_final_layer_norm")
    word_embed_proj_dim: int | None = None
    activation_function: str = "relu"
    enable_bias: bool = True
    layer_norm_elementwise_affine: bool = True
    tie_word_embeddings: bool = True
    eos_token_id: int | list[int] | None = 2

    def __post_init__(self):
        self.check(
            MODEL_TYPE, "max_position_embeddings", "num_hidden_layers", "hidden_size", "num_attention_heads", "ffn_dim",
            "word_embed_proj_dim",
        )  # fmt: skip
        self.check_heads("hidden_size", "num_attention_heads")
        self.check_activation("activation_function")
        if self.remove_final_layer_norm and self.do_layer_norm_before:
            raise ValueError("_remove_final_layer_norm is true; a network without its last norm is not supported")

    @property
    def network(self) -> Network:
        return Network(
            self.max_position_embeddings, self.vocab_size, self.hidden_size, self.ffn_dim, self.num_hidden_layers,
            self.num_attention_heads, self.activation_function, EPS, self.word_embed_proj_dim or self.hidden_size,
            norms_after=not self.do_layer_norm_before, affine=self.layer_norm_elementwise_affine, joins=True,
        )  # fmt: skip

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every weight."""
        C, W, E = self.hidden_size, self.ffn_dim, self.network.embedding
        shapes: dict[str, tuple[int, ...]] = {
            TOKENS: (self.vocab_size, E),
            "decoder.embed_positions.weight": (self.max_position_embeddings + OFFSET, C),
        }
        if E != C:
            shapes |= {"decoder.project_in.weight": (C, E), "decoder.project_out.weight": (E, C)}

        def norm(name: str) -> None:
            if self.layer_norm_elementwise_affine:
                shapes.update({f"{name}.weight": (C,), f"{name}.bias": (C,)})

        def linear(name: str, outputs: int, inputs: int) -> None:
            shapes[f"{name}.weight"] = (outputs, inputs)
            if self.enable_bias:
                shapes[f"{name}.bias"] = (outputs,)

        for i in range(self.num_hidden_layers):
            at = f"decoder.layers.{i}"
            for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
                linear(f"{at}.self_attn.{name}", C, C)
            norm(f"{at}.self_attn_layer_norm")
            linear(f"{at}.fc1", W, C)
            linear(f"{at}.fc2", C, W)
            norm(f"{at}.final_layer_norm")
        if self.do_layer_norm_before:
            norm("decoder.final_layer_norm")
        return shapes if self.tie_word_embeddings else shapes | {HEAD: (self.vocab_size, E)}

    def own_name(self, name: str) -> str | None:
        """The model's name of a checkpoint's tensor."""
        return name.removeprefix(PREFIX)

    def layer(self, weights: Weights, i: int) -> LayerWeights:
        """The weights of layer i."""
        at = f"decoder.layers.{i}"

        def linear(*names: str) -> Pair:
            weight = [weights[f"{at}.{name}.weight"] for name in names]
            bias = [weights[f"{at}.{name}.bias"] for name in names] if self.enable_bias else None
            if len(names) == 1:
                return weight[0].T, None if bias is None else bias[0]
            return np.concatenate(weight).T, None if bias is None else np.concatenate(bias)

        return LayerWeights(
            self._norm(weights, f"{at}.self_attn_layer_norm"),
            linear("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            linear("self_attn.out_proj"),
            self._norm(weights, f"{at}.final_layer_norm"),
            linear("fc1"),
            linear("fc2"),
        )

    def ends(self, weights: Weights) -> EndWeights:
        """The weights before and after the layers."""
        project = [weights[f"decoder.{name}.weight"].T if self.network.projects else None
                   for name in ("project_in", "project_out")]  # fmt: skip
        norm = self._norm(weights, "decoder.final_layer_norm") if self.do_layer_norm_before else None
        positions = weights["decoder.embed_positions.weight"][OFFSET:]
        return EndWeights(weights[TOKENS], positions, norm, weights.get(HEAD), project[0], project[1])

    def _norm(self, weights: Weights, name: str) -> Pair:
        return weights.get(f"{name}.weight"), weights.get(f"{name}.bias")


class OPT(DecoderModel):
    """An OPT ready to run on this machine's CPU or GPU, see `DecoderModel`."""

    config: OPTConfig
