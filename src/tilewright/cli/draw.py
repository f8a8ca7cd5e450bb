"""`tilewright draw`: noise in, images out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from typer import Option

from tilewright.cli._jobs import JobOptions, Speaker, device_row, settings_of
from tilewright.cli._options import Device, verb
from tilewright.cli._output import banner, say, show_part, show_report, summary

if TYPE_CHECKING:
    from tilewright.runtime.verbs.draw import DrawJob


@dataclass(kw_only=True)
class Options(JobOptions):
    """One field an option."""

    model: Annotated[
        str, Option("--model", "-p", metavar="PATH", help="A name such as portraits, a directory, or network.bin.")
    ]
    output: Annotated[str, Option("--output", "-o", metavar="FILE", help="Images: .txt, .npy, .png, .bmp, or DIR/.")]
    input: Annotated[
        str | None,
        Option(
            "--input",
            "-i",
            metavar="FILE",
            help="Noise: .npy (n, 100), or .txt: n and n x 100 numbers; random without.",
        ),
    ] = None
    image: Annotated[str | None, Option(metavar="FILE", help="A grid of all images, too: .bmp or .png.")] = None
    count: Annotated[
        int | None, Option("--count", "-n", min=1, help="How many images; with -i, the first N of it.")
    ] = None
    seed: Annotated[int | None, Option(min=0, max=2**63 - 1, help="Seed of the random noise; 0 unless given.")] = None
    dtype: Annotated[Literal["float32", "bfloat16", "float16"], Option(help="Precision; float16 on a GPU only.")] = (
        "float32"
    )
    device: Device = "auto"
    threads: Annotated[int | None, Option(min=1, help="CPU threads; one a core unless given.")] = None
    batch_size: Annotated[int | None, Option(min=1, max=1 << 20, help="Images a batch; changes no bits.")] = None
    shard_size: Annotated[str | None, Option(metavar="IMAGES", help="Of a new job: images a shard.")] = None
    max_errors: Annotated[int | None, Option(hidden=True)] = None
    validate: Annotated[str | None, Option(metavar="FILE", help="Compare the output with FILE; FAIL exits 1.")] = None
    answers: Annotated[str | None, Option("--answers", "-a", metavar="FILE", help="What -v compares with.")] = None
    check: Annotated[bool, Option("-v", help="Compare with the file of -a, as --validate does.")] = False
    tolerance: Annotated[float, Option(min=0, help="Largest min(absolute, relative) error that passes.")] = 1e-3
    rung: Annotated[list[str] | None, Option(metavar="OP=RUNG", help="Force a kernel; may be repeated.")] = None
    json: Annotated[bool, Option("--json", help="One JSON object on stdout, text on stderr.")] = False


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

    The output's name says what it is: the course's .txt, .npy (n, height, width, channels), one picture with all images
    (.png or .bmp), or a directory (DIR/) with a .png an image; a value x from -1 to 1 becomes the 8-bit pixel
    int((x + 1) / 2 * 255). One picture keeps all its pixels in memory: 3 bytes each and, for .png, 4 more (`plan`
    counts them; what does not fit is refused). Noise in a .txt is the number of images, then as many
    numbers an image as the model takes (100), with any white space between. Random noise belongs to the seed and the
    image's number: the first 10 of 1,000 images are the 10 of another run. Outputs appear when they are whole; until
    then earlier ones stay, and OUT.job/ keeps what is done: the same command goes on.
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
