"""`tilewright draw`: noise in, images out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from tilewright.cli._jobs import JobOptions, Speaker, device_row, settings_of
from tilewright.cli._options import (
    FILES,
    MACHINE,
    RUNS,
    Answers,
    Check,
    Device,
    Dtype,
    Json,
    Rungs,
    Threads,
    Tolerance,
    Validate,
    verb,
)  # fmt: skip
from tilewright.cli._output import banner, say, show_part, show_report, summary

if TYPE_CHECKING:
    from tilewright.runtime.verbs.draw import DrawJob


@dataclass(kw_only=True)
class Options(JobOptions):
    """One field per option."""

    model: Annotated[
        str,
        Option(
            "--model",
            "-p",
            metavar="PATH",
            help="A name such as portraits, a model directory, or network.bin.",
            rich_help_panel=FILES,
        ),
    ]
    output: Annotated[
        str,
        Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Where to write the images: .npy or .txt for their values, .png or .bmp for one picture of all "
            "images, DIR/ for one .png per image.",
            rich_help_panel=FILES,
        ),
    ]
    input: Annotated[
        str | None,
        Option(
            "--input",
            "-i",
            metavar="FILE",
            help="The noise from which images are drawn: .npy (n, 100), or .txt with n and then n x 100 numbers.",
            show_default="random noise",
            rich_help_panel=FILES,
        ),
    ] = None
    image: Annotated[
        str | None,
        Option(metavar="FILE", help="Also write all images as one picture: .bmp or .png.", rich_help_panel=FILES),
    ] = None
    count: Annotated[
        int | None,
        Option(
            "--count",
            "-n",
            metavar="N",
            min=1,
            help="Number of images. With -i: use only the first N rows of noise.",
            rich_help_panel=FILES,
        ),
    ] = None
    seed: Annotated[
        int | None,
        Option(
            metavar="N", min=0, max=2**63 - 1, help="Seed of the random noise.", show_default="0", rich_help_panel=FILES
        ),
    ] = None
    dtype: Dtype = "float32"
    device: Device = "auto"
    threads: Threads = None
    batch_size: Annotated[
        int | None,
        Option(
            metavar="N",
            min=1,
            max=1 << 20,
            help="Images per batch. It changes no result.",
            show_default="depends on the size of an image",
            rich_help_panel=MACHINE,
        ),
    ] = None
    shard_size: Annotated[
        str | None,
        Option(metavar="IMAGES", help="Images per shard of a new job.", rich_help_panel=RUNS),
    ] = None
    max_errors: Annotated[int | None, Option(hidden=True)] = None
    validate: Validate = None
    answers: Answers = None
    check: Check = False
    tolerance: Tolerance = 1e-3
    rung: Rungs = None
    json: Json = False


def job_of(options: Options) -> DrawJob:
    """What the options ask for. Raises BadParameter for those that do not go together."""
    if options.check != bool(options.answers) and not (options.check and options.validate):
        raise typer.BadParameter("-v and -a FILE go together", param_hint="-v")
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
        answers=options.validate or options.answers,
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

    Noise: a .txt input is the number of images, then the noise of each image (100 numbers), separated by white space.
    Random noise depends only on the seed and the image's number. So the first 10 of 1,000 images are those of a run
    with -n 10.

    Outputs appear when they are complete; until then earlier outputs stay. Finished shards are saved in OUTPUT.job: the
    same command resumes a job that was stopped.
    """
    job = job_of(options)

    from tilewright.runtime.verbs.draw import draw

    report = draw(job, Speaker(options, lambda: _banner(options)))
    show_part("draw", options, report)
    if not report.lead:
        raise typer.Exit(report.exit_code)
    say(summary(report, report.records, report.records_per_second, "images"), err=options.json)
    if options.json:
        show_report("draw", options, report)
    raise typer.Exit(report.exit_code)


def _banner(options: Options) -> str:
    rows = {
        "Model": f"DCGAN, {options.model}",
        "Input": options.input or f"random noise, seed {options.seed or 0}",
        "Output": f"{options.output}, {options.image}" if options.image else options.output,
        "Images": "all" if options.count is None else f"{options.count:,}",
        "Precision": options.dtype,
        **device_row(options),
    }
    return banner("draw", rows)
