"""GPT-2: text generation by a stack of causal transformer layers.

    x = wte[id] + wpe[position]
    a layer:  x += proj(attention(LN1(x)));  x += out(gelu(in(LN2(x))))
    logits = LN(x) @ wte.T

Computed by `decoder.py`. Source: Radford et al., "Language Models are Unsupervised Multitask Learners", 2019.
"""

import math
from collections.abc import Mapping
from typing import ClassVar

from tilewright.models.decoder import DecoderModel
from tilewright.models.decoder_config import DecoderConfig, EndWeights, LayerWeights, Network, Weights

MODEL_TYPE = "gpt2"
PREFIX = "transformer."
TIES = (
    ("lm_head.weight", "wte.weight"),
)  # the output matrix is the embedding's, whether a checkpoint contains it twice or not
MASKS = (".attn.bias", ".attn.masked_bias")  # causal masks, which old checkpoints contain


class GPT2Config(DecoderConfig, frozen=True, kw_only=True):
    """Sizes of a GPT-2, by Hugging Face's names; the defaults are the 124M model. Fields that have no effect on the
    result are ignored. Raises ValueError for sizes that do not make a network, and for variants that are not supported.
    """

    title: ClassVar[str] = "GPT-2"
    aliases: ClassVar[Mapping[str, str]] = {
        "hidden_size": "n_embd", "max_position_embeddings": "n_positions", "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    }  # fmt: skip

    model_type: str = MODEL_TYPE
    vocab_size: int = 50257
    n_positions: int = 1024
    n_embd: int = 768
    n_layer: int = 12
    n_head: int = 12
    n_inner: int | None = None
    activation_function: str = "gelu_new"
    layer_norm_epsilon: float = 1e-5
    scale_attn_weights: bool = True
    scale_attn_by_inverse_layer_idx: bool = False
    add_cross_attention: bool = False
    tie_word_embeddings: bool = True
    eos_token_id: int | list[int] | None = 50256

    def __post_init__(self):
        self.check(MODEL_TYPE, "n_positions", "n_layer", "n_embd", "n_head", "n_inner")
        self.check_heads("n_embd", "n_head")
        self.check_activation("activation_function")
        self.check_eps("layer_norm_epsilon")
        if self.add_cross_attention:
            raise ValueError("add_cross_attention is true; cross attention is not supported")

    @property
    def width(self) -> int:
        """Width of the feed-forward layer."""
        return 4 * self.n_embd if self.n_inner is None else self.n_inner

    @property
    def network(self) -> Network:
        return Network(
            self.n_positions, self.vocab_size, self.n_embd, self.width, self.n_layer, self.n_head,
            self.activation_function, self.layer_norm_epsilon, self.n_embd,
        )  # fmt: skip

    def scale(self, i: int) -> float:
        """The factor of layer i's scores."""
        scale = 1 / math.sqrt(self.n_embd // self.n_head) if self.scale_attn_weights else 1.0
        return scale / (i + 1) if self.scale_attn_by_inverse_layer_idx else scale

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every weight, in the order of the course's model_parameters.bin."""
        C, W = self.n_embd, self.width
        shapes: dict[str, tuple[int, ...]] = {}
        for i in sorted(range(self.n_layer), key=str):  # 0, 1, 10, 11, 2: that file sorts layers as text
            shapes |= {
                f"h.{i}.attn.c_attn.bias": (3 * C,), f"h.{i}.attn.c_attn.weight": (C, 3 * C),
                f"h.{i}.attn.c_proj.bias": (C,), f"h.{i}.attn.c_proj.weight": (C, C),
                f"h.{i}.ln_1.bias": (C,), f"h.{i}.ln_1.weight": (C,),
                f"h.{i}.ln_2.bias": (C,), f"h.{i}.ln_2.weight": (C,),
                f"h.{i}.mlp.c_fc.bias": (W,), f"h.{i}.mlp.c_fc.weight": (C, W),
                f"h.{i}.mlp.c_proj.bias": (C,), f"h.{i}.mlp.c_proj.weight": (W, C),
            }  # fmt: skip
        shapes |= {"ln_f.bias": (C,), "ln_f.weight": (C,)}
        return shapes | {"wpe.weight": (self.n_positions, C), "wte.weight": (self.vocab_size, C)}

    def own_name(self, name: str) -> str | None:
        """The model's name of a checkpoint's tensor; None for one that holds no weights of its own."""
        return own_name(name)

    def layer(self, weights: Weights, i: int) -> LayerWeights:
        """The weights of layer i."""

        def pair(name: str):
            return weights[f"h.{i}.{name}.weight"], weights[f"h.{i}.{name}.bias"]

        return LayerWeights(*map(pair, ("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj")))

    def ends(self, weights: Weights) -> EndWeights:
        """The weights before and after the layers."""
        return EndWeights(weights["wte.weight"], weights["wpe.weight"], (weights["ln_f.weight"], weights["ln_f.bias"]))


def own_name(name: str) -> str | None:
    """The model's name of a checkpoint's tensor; None for one that holds no weights of its own."""
    name = name.removeprefix(PREFIX)
    return None if name.endswith(MASKS) else name


class GPT2(DecoderModel):
    """A GPT-2 ready to run on this machine's CPU or GPU, see `DecoderModel`."""

    config: GPT2Config
