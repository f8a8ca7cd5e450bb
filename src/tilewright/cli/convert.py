"""`tilewright convert SRC DST`: the same weights in another layout."""

from __future__ import annotations

from typing import Annotated

import typer

from tilewright.cli._output import say


def convert(
    source: Annotated[str, typer.Argument(metavar="SRC", help="A directory, the course's file, or a state dict.")],
    destination: Annotated[
        str, typer.Argument(metavar="DST", help="A directory; where SRC is one, the course's file.")
    ],
    force: Annotated[bool, typer.Option("--force", help="Replace what lies at DST.")] = False,
) -> None:
    """Convert a model: the course's file (params.bin, model_parameters.bin, network.bin) to a directory with
    config.json and model.safetensors, or such a directory back.

    \b
    tilewright convert params.bin sentiment

    A headerless file has room for one set of sizes only, the course's. PyTorch's state dict is converted to a
    directory, too: .safetensors, or .pt, .pth, .ckpt and pytorch_model.bin, which PyTorch reads with weights_only in a
    process of its own. Of a GPT-2 or a TextCNN, config.json has to lie beside it; its tokenizer is copied. Of a DCGAN
    it is the generator's (netG): it says no strides, so layers are taken to double the size, and config.json can be
    edited. The weights are checked and copied bit for bit; the result appears when it is whole.
    """
    import time

    from tilewright.runtime.convert.models import convert

    start = time.perf_counter()
    written = convert(source, destination, force=force)
    say(f"{destination}: {written:,} bytes of weights...Done! ({time.perf_counter() - start:.3f} sec)")
