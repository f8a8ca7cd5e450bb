"""`tilewright init KIND PATH`: a model with random weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import typer
from typer import Option

from tilewright.cli._options import parse_sizes, verb
from tilewright.cli._output import say

TEXTCNN = ("vocab_size", "sequence_length", "hidden_size", "num_filters", "num_labels", "kernel_sizes", "hidden_sizes")
GPT2 = {"vocab_size": "vocab_size", "layers": "n_layer", "heads": "n_head", "width": "n_embd", "context": "n_positions"}
NEWER = {
    "vocab_size": "vocab_size", "layers": "num_hidden_layers", "heads": "num_attention_heads", "width": "hidden_size",
    "context": "max_position_embeddings",
}  # fmt: skip
BOTH, OF_TEXTCNN, OF_DCGAN = "Sizes", "Sizes of a textcnn", "Sizes of a dcgan"
OF_GPT2 = "Sizes of a gpt2, opt or gpt_neox"
DCGAN = {"z_size": "z_size", "base_size": "size", "channels": "channels", "kernel": "kernel"}


@dataclass
class Options:
    kind: Annotated[
        Literal["textcnn", "gpt2", "opt", "gpt_neox", "dcgan"],
        typer.Argument(metavar="KIND", help="Kind of model: textcnn, gpt2, opt, gpt_neox or dcgan."),
    ]
    path: Annotated[
        str, typer.Argument(metavar="PATH", help="The new model directory, or FILE.bin for a headerless file.")
    ]
    seed: Annotated[
        int,
        Option(
            metavar="N", min=0, max=2**63 - 1, help="Seed of the random weights. The same seed gives the same weights."
        ),
    ] = 0
    force: Annotated[bool, Option("--force", help="Replace an existing PATH.")] = False
    vocab_size: Annotated[
        int | None,
        Option(
            metavar="N",
            min=1,
            help="Number of tokens in the vocabulary. A dcgan has none.",
            show_default="21635 for textcnn, 50257 for gpt2, 50272 for opt, 50304 for gpt_neox",
            rich_help_panel=BOTH,
        ),
    ] = None
    sequence_length: Annotated[
        int | None,
        Option(metavar="N", min=1, help="Tokens per sentence.", show_default="16", rich_help_panel=OF_TEXTCNN),
    ] = None
    hidden_size: Annotated[
        int | None,
        Option(metavar="N", min=1, help="Width of the embedding.", show_default="4096", rich_help_panel=OF_TEXTCNN),
    ] = None
    num_filters: Annotated[
        int | None,
        Option(
            metavar="N",
            min=1,
            help="Number of filters of each kernel size.",
            show_default="1024",
            rich_help_panel=OF_TEXTCNN,
        ),
    ] = None
    kernel_sizes: Annotated[
        str | None,
        Option(metavar="LIST", help="Filter sizes, in tokens.", show_default="3,5,7,9", rich_help_panel=OF_TEXTCNN),
    ] = None
    hidden_sizes: Annotated[
        str | None,
        Option(
            metavar="LIST",
            help="Widths of the hidden linear layers.",
            show_default="2048,1024,512",
            rich_help_panel=OF_TEXTCNN,
        ),
    ] = None
    num_labels: Annotated[
        int | None, Option(metavar="N", min=1, help="Number of classes.", show_default="2", rich_help_panel=OF_TEXTCNN)
    ] = None
    layers: Annotated[
        int | None, Option(metavar="N", min=1, help="Number of layers.", show_default="12", rich_help_panel=OF_GPT2)
    ] = None
    heads: Annotated[
        int | None,
        Option(metavar="N", min=1, help="Attention heads per layer.", show_default="12", rich_help_panel=OF_GPT2),
    ] = None
    width: Annotated[
        int | None,
        Option(metavar="N", min=1, help="Width of the embedding.", show_default="768", rich_help_panel=OF_GPT2),
    ] = None
    context: Annotated[
        int | None,
        Option(
            metavar="N",
            min=1,
            help="Context length: the most tokens of a prompt and its completion together.",
            show_default="1024, 2048 for opt and gpt_neox",
            rich_help_panel=OF_GPT2,
        ),
    ] = None
    z_size: Annotated[
        int | None,
        Option(metavar="N", min=1, help="Elements of noise per image.", show_default="100", rich_help_panel=OF_DCGAN),
    ] = None
    base_size: Annotated[
        int | None,
        Option(
            metavar="N",
            min=1,
            help="Height and width before the first layer. Each layer doubles them.",
            show_default="4",
            rich_help_panel=OF_DCGAN,
        ),
    ] = None
    channels: Annotated[
        str | None,
        Option(
            metavar="LIST",
            help="Number of channels before each layer, and at last of the image.",
            show_default="512,256,128,64,3",
            rich_help_panel=OF_DCGAN,
        ),
    ] = None
    kernel: Annotated[
        int | None,
        Option(
            metavar="N",
            min=2,
            help="Height and width of each convolution kernel.",
            show_default="5",
            rich_help_panel=OF_DCGAN,
        ),
    ] = None


@verb(Options)
def init(options: Options) -> None:
    """Make a model with random weights, scaled like those of a trained model.

    \b
    tilewright init gpt2 tiny --layers 2 --heads 4 --width 64 --context 256 --vocab-size 5000

    Without options the model has the full size: 801 MB for textcnn, 498 MB for gpt2, 501 MB for opt, 649 MB for
    gpt_neox (the sizes of Pythia-160M), 21 MB for dcgan. An option of another kind of model is refused.
    """
    given = {name: value for name, value in vars(options).items() if value is not None}
    path, seed, kind, force = (given.pop(name) for name in ("path", "seed", "kind", "force"))
    sizes: dict[str, Any] = {}
    own = {"textcnn": {name: name for name in TEXTCNN}, "gpt2": GPT2, "opt": NEWER, "gpt_neox": NEWER, "dcgan": DCGAN}[
        kind
    ]
    for name, value in given.items():
        if name not in own:
            raise typer.BadParameter(f"{kind} has no such size", param_hint=f"--{name.replace('_', '-')}")
        sizes[own[name]] = parse_sizes(value) if isinstance(value, str) else value

    import time

    from tilewright.runtime.convert import models

    start = time.perf_counter()
    make = getattr(models, f"init_{kind}")
    written = make(path, seed, force=force, **sizes)
    seconds = time.perf_counter() - start
    say(f"{path}: {written:,} bytes of weights from seed {seed}...Done! ({seconds:.3f} sec)")
