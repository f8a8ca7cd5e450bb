"""`tilewright convolve`: a volume in, the volume filtered with a kernel out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Option

from tilewright.cli._jobs import JobOptions, Speaker, settings_of, threads_of
from tilewright.cli._options import Device, parse_bytes, verb
from tilewright.cli._output import banner, say, show_json, show_part, summary

if TYPE_CHECKING:
    from tilewright.runtime.verbs.convolve import ConvolveJob

Modes = Literal[
    "reflect", "constant", "nearest", "mirror", "wrap", "grid-mirror", "grid-constant", "grid-wrap"
]  # fmt: skip
FORMATS = ".txt, .npy, .nii, .nii.gz, .tif or .zarr"


@dataclass(kw_only=True)
class Options(JobOptions):
    """One field an option."""

    input: Annotated[str, Option("--input", "-i", metavar="FILE", help=f"A volume: {FORMATS}.")]
    kernel: Annotated[
        str,
        Option(
            "--kernel",
            "-k",
            metavar="KERNEL",
            help="FILE.txt (K, then K x K x K numbers), FILE.npy, gaussian:SIGMA, box:SIZE, laplace, sobel:AXIS.",
        ),
    ]
    output: Annotated[str, Option("--output", "-o", metavar="FILE", help=f"A volume: {FORMATS}.")]
    mode: Annotated[
        Modes | None,
        Option(
            help="What stands outside the volume, as in scipy.ndimage; unless given reflect for a kernel with a name, "
            "as there, and zeros (constant) for a file."
        ),
    ] = None
    cval: Annotated[float, Option(help="What --mode constant puts there; means that mode unless one is given.")] = 0.0
    dtype: Annotated[
        Literal["float32", "float64"] | None,
        Option(help="Precision of sums and output; unless given float64 for volumes of it, else float32."),
    ] = None
    device: Device = "auto"
    threads: Annotated[int | None, Option(min=1, help="CPU threads; one a core unless given.")] = None
    memory: Annotated[
        str | None,
        Option(
            metavar="SIZE", help="Of the whole process, as in 1G; most of what is free unless given. Changes no bits."
        ),
    ] = None
    shard_size: Annotated[str | None, Option(metavar="PLANES", help="Of a new job: planes of the volume a shard.")] = (
        None
    )
    max_errors: Annotated[int | None, Option(hidden=True)] = None
    validate: Annotated[str | None, Option(metavar="FILE", help="Compare the output with FILE; FAIL exits 1.")] = None
    tolerance: Annotated[float, Option(min=0, help="Largest min(absolute, relative) error that passes.")] = 1e-4
    rung: Annotated[list[str] | None, Option(metavar="OP=RUNG", help="Force a kernel; may be repeated.")] = None
    json: Annotated[bool, Option("--json", help="One JSON object on stdout, text on stderr.")] = False


def job_of(options: Options) -> ConvolveJob:
    """What the options ask for. Raises BadParameter for those that do not go together."""
    if options.max_errors is not None:
        raise typer.BadParameter("a volume has no records of which some may fail", param_hint="--max-errors")
    memory = None if options.memory is None else parse_bytes(options.memory, "--memory")

    from tilewright.runtime.verbs.convolve import ConvolveJob

    return ConvolveJob(
        input=options.input,
        kernel=options.kernel,
        output=options.output,
        mode=options.mode,
        cval=options.cval,
        memory=memory,
        answers=options.validate,
        tolerance=options.tolerance,
        settings=settings_of(options, "convolve"),
    )


@verb(Options)
def convolve(options: Options) -> None:
    """Filter a volume with a kernel, which is not flipped: out[z] = sum over a of in[z + a - K // 2] * kernel[a].

    That is scipy.ndimage.correlate. Its convolve, and tilewright.ndimage.convolve, flip the kernel: flip a file's
    numbers along every axis for that. gaussian, box, laplace and sobel are scipy.ndimage's gaussian_filter,
    uniform_filter, laplace and sobel, computed and written as floats.

    \b
    tilewright convolve -i scan.nii.gz --kernel gaussian:1.5 -o smooth.nii.gz

    The names say the formats, and any goes to any. Axes are those of the array: (z, y, x), for NIfTI nibabel's (i, j,
    k). .npy, .nii and .zarr are read and written in tiles and may be larger than memory. The output appears when it is
    whole; until then an earlier one stays, and OUT.job/ keeps what is done: the same command goes on. As text, a volume
    is D H W and its values, x fastest, with six decimals.
    """
    job = job_of(options)

    from tilewright.runtime.verbs.convolve import convolve

    report = convolve(job, Speaker(options, lambda: _banner(options)))
    show_part("convolve", options, report)
    if not report.lead:
        raise typer.Exit(report.exit_code)
    say(summary(report, report.records, report.records_per_second, "voxels"), err=options.json)
    if options.json:
        _show(options, report)
    raise typer.Exit(report.exit_code)


def _show(options: Options, report: Any) -> None:
    head = {"verb": "convolve", **{name: getattr(options, name) for name in ("input", "kernel", "output")}}
    head["mode"] = _mode(options)
    show_json({**head, **report.as_dict(), "exit_code": report.exit_code})


def _mode(options: Options) -> str:
    from tilewright.runtime.verbs.convolve.kernels import default_mode

    return options.mode or ("constant" if options.cval else default_mode(options.kernel))


def _device(given: str) -> str:
    """The device for the banner, which does not know the volume's dtype yet."""
    from tilewright.runtime.devices import place_for

    device = place_for(given)
    return f"{device} (float64: cpu)" if (given, device) == ("auto", "cuda") else device


def _banner(options: Options) -> str:
    from tilewright.runtime.verbs.convolve.kernels import function_of

    mode, function = _mode(options), function_of(options.kernel)
    said = f"{mode} {options.cval:g}" if mode.endswith("constant") else mode
    if options.mode is None:
        said += f" (the default of {'scipy.ndimage' if function else 'a kernel from a file'})"
    rows = {
        "Kernel": f"{options.kernel}, {f'as scipy.ndimage.{function}' if function else 'not flipped'}",
        "Input": options.input,
        "Output": options.output,
        "Mode": said,
        "Precision": options.dtype or "as the input; float32 for integers",
        "Device": _device(options.device),
        "Threads": str(threads_of(options)),
    }
    return banner("convolve", rows)
