"""`tilewright convert SRC DST`: the same weights in another layout."""

from __future__ import annotations

from typing import Annotated

import typer

from tilewright.cli._output import say


def convert(
    source: Annotated[
        str, typer.Argument(metavar="SRC", help="A model directory, a headerless .bin file, or a PyTorch state dict.")
    ],
    destination: Annotated[
        str,
        typer.Argument(metavar="DST", help="The new model directory; a headerless .bin file if SRC is a directory."),
    ],
    force: Annotated[bool, typer.Option("--force", help="Replace an existing DST.")] = False,
) -> None:
    """Convert a model to a directory with config.json and model.safetensors, or such a directory to a headerless
    .bin file.

    \b
    tilewright convert params.bin sentiment

    Headerless .bin files are those of a university course: params.bin (TextCNN), model_parameters.bin (GPT-2) and
    network.bin (DCGAN). Only models with the sizes of that course fit in them.

    PyTorch's state dicts (.safetensors, .pt, .pth, .ckpt, pytorch_model.bin) are converted to a directory. PyTorch
    reads them in a separate process, with weights_only. All but a DCGAN need their config.json in the same
    directory; the tokenizer is copied. For a DCGAN, give the generator's weights (netG). They do not contain the
    strides: every layer is assumed to double the size, and config.json can be edited.

    The weights are checked and copied bit for bit. DST appears when it is complete.
    """
    import time

    from tilewright.runtime.convert.models import convert

    start = time.perf_counter()
    written = convert(source, destination, force=force)
    say(f"{destination}: {written:,} bytes of weights...Done! ({time.perf_counter() - start:.3f} sec)")
