"""`tilewright draw`: noise in, images out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from tilewright.cli._jobs import JobOptions, answers_of, model_rows, run_job, settings_of
from tilewright.cli._options import (
    Answers,
    Check,
    Dtype,
    Tolerance,
    Validate,
    of_batch_size,
    of_count,
    of_files,
    of_input,
    of_model,
    of_output,
    of_runs,
    verb,
)

if TYPE_CHECKING:
    from tilewright.runtime.verbs.draw import DrawJob


@dataclass(kw_only=True)
class Options(JobOptions):
    """One field per option."""

    model: Annotated[str, of_model(help="A name such as portraits, a model directory, or network.bin.")]
    output: Annotated[
        str,
        of_output(
            help="Where to write the images: .npy or .txt for their values, .png or .bmp for one picture of all "
            "images, DIR/ for one .png per image."
        ),
    ]
    input: Annotated[
        str | None,
        of_input(
            help="The noise from which images are drawn: .npy (n, z_size), or .txt with n and then n x z_size numbers. "
            "z_size is in the model's config.json; 100 for portraits.",
            show_default="random noise",
        ),
    ] = None
    image: Annotated[
        str | None, of_files(metavar="FILE", help="Also write all images as one picture: .bmp or .png.")
    ] = None
    count: Annotated[
        int | None, of_count(help="Number of images. With -i: use only the first N rows of noise.", show_default=True)
    ] = None
    seed: Annotated[
        int | None,
        of_files(metavar="N", min=0, max=2**63 - 1, help="Seed of the random noise.", show_default="0"),
    ] = None
    dtype: Dtype = "float32"
    batch_size: Annotated[
        int | None,
        of_batch_size(help="Images per batch. It changes no result.", show_default="depends on the size of an image"),
    ] = None
    shard_size: Annotated[str | None, of_runs(metavar="IMAGES", help="Images per shard of a new job.")] = None
    max_errors: Annotated[int | None, Option(hidden=True)] = None
    validate: Validate = None
    answers: Answers = None
    check: Check = False
    tolerance: Tolerance = 1e-3


def job_of(options: Options) -> DrawJob:
    """What the options ask for. Raises BadParameter for those that do not go together."""
    answers = answers_of(options)
    if options.input is None and options.count is None:
        raise typer.BadParameter("name an input, or say how many images of random noise with -n", param_hint="-i")
    if options.input is not None and options.seed is not None:
        raise typer.BadParameter("the input has the noise: a seed would not be used", param_hint="--seed")
    if options.max_errors is not None:
        raise typer.BadParameter("an image cannot fail alone", param_hint="--max-errors")

    from tilewright.runtime.verbs.draw import DrawJob

    return DrawJob(
        model=options.model,
        input=options.input,
        output=options.output,
        image=options.image,
        count=options.count,
        seed=options.seed or 0,
        answers=answers,
        tolerance=options.tolerance,
        settings=settings_of(options, "draw"),
    )


@verb(Options)
def draw(options: Options) -> None:
    """Draw images with a DCGAN generator.

    \b
    tilewright draw --model portraits -n 24 --seed 2 -o faces.png

    Output: .npy holds float32 (n, height, width, channels), values from -1 to 1. .txt holds the number of images, then
    one line per image. In pictures, a value x becomes the 8-bit pixel int((x + 1) / 2 * 255). One picture of all images
    is built in memory: 3 bytes per pixel, 7 for .png. `tilewright plan draw` counts them, and a picture that does not
    fit is refused.

    Noise: a .txt input is the number of images, then z_size numbers for each image, separated by white space. Random
    noise depends only on the seed and the image's number. So the first 10 of 1,000 images are those of a run with
    -n 10.

    Outputs appear when they are complete; until then earlier outputs stay. Finished shards are saved in OUTPUT.job: the
    same command resumes a job that was stopped.
    """
    run_job("draw", job_of, options, lambda: _rows(options), "images")


def _rows(options: Options) -> dict[str, str]:
    """Of the banner."""
    return model_rows(options, "Images") | {
        "Model": f"DCGAN, {options.model}",
        "Input": options.input or f"random noise, seed {options.seed or 0}",
        "Output": f"{options.output}, {options.image}" if options.image else options.output,
    }
