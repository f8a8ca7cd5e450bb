"""`tilewright convolve`: a volume in, the volume filtered with a kernel out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from typer import Option

from tilewright.cli._jobs import JobOptions, bytes_of, run_job, settings_of, threads_of
from tilewright.cli._options import (
    Validate,
    of_checks,
    of_files,
    of_input,
    of_machine,
    of_output,
    of_runs,
    verb,
)

if TYPE_CHECKING:
    from tilewright.runtime.verbs.convolve import ConvolveJob

Modes = Literal[
    "reflect", "constant", "nearest", "mirror", "wrap", "grid-mirror", "grid-constant", "grid-wrap"
]  # fmt: skip
FORMATS = ".txt, .npy, .nii, .nii.gz, .tif or .zarr"


@dataclass(kw_only=True)
class Options(JobOptions):
    """One field per option."""

    input: Annotated[str, of_input(help=f"A volume: {FORMATS}.")]
    kernel: Annotated[
        str,
        of_files(
            "--kernel",
            "-k",
            metavar="KERNEL",
            help="gaussian:SIGMA and box:SIZE in voxels, one or one per axis, laplace, sobel:AXIS, a FILE.npy, or "
            "a FILE.txt with K and then K x K x K numbers.",
        ),
    ]
    output: Annotated[str, of_output(help=f"A volume: {FORMATS}.")]
    mode: Annotated[
        Modes | None,
        of_files(
            help="Values outside the volume, by scipy.ndimage's names.",
            show_default="reflect for a named kernel, constant for a file",
        ),
    ] = None
    cval: Annotated[
        float,
        of_files(
            metavar="X",
            help="The value outside the volume for --mode constant. Given alone, it implies that mode.",
        ),
    ] = 0.0
    dtype: Annotated[
        Literal["float32", "float64"] | None,
        of_machine(
            help="Precision of the sums and of the output. A GPU computes in float32 only.",
            show_default="float64 for a float64 volume, else float32",
        ),
    ] = None
    memory: Annotated[
        str | None,
        of_machine(
            metavar="SIZE",
            help="Memory of the whole process, as in 1G. It changes no result.",
            show_default="most of what is free",
        ),
    ] = None
    shard_size: Annotated[
        str | None, of_runs(metavar="PLANES", help="Planes of the volume per shard of a new job.")
    ] = None
    max_errors: Annotated[int | None, Option(hidden=True)] = None
    validate: Validate = None
    tolerance: Annotated[
        float,
        of_checks(
            metavar="X",
            min=0,
            help="A voxel passes if its error is at most X times the largest absolute value of the reference.",
        ),
    ] = 5e-5


def job_of(options: Options) -> ConvolveJob:
    """What the options ask for. Raises BadParameter for those that do not go together."""
    if options.max_errors is not None:
        raise typer.BadParameter("a volume has no records of which some may fail", param_hint="--max-errors")
    memory = bytes_of(options, "memory")

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
    """Filter a volume with a kernel: out[z] = sum over a of in[z + a - K // 2] * kernel[a], along all three axes.

    \b
    tilewright convolve -i scan.nii.gz --kernel gaussian:1.5 -o smooth.nii.gz

    Kernel: a kernel from a file is not flipped, as in scipy.ndimage.correlate. The functions named convolve of SciPy
    and tilewright.ndimage flip it: for their result, reverse the file's kernel along every axis. gaussian, box, laplace
    and sobel are scipy.ndimage's gaussian_filter, uniform_filter, laplace and sobel; the result is written as floats.
    A SIGMA of 0 leaves an axis unfiltered, as in gaussian:1.5,1.5,0.

    Formats: each file's suffix selects its format, and input and output may have different ones. Axes are (z, y, x) as
    in the array; for NIfTI, nibabel's (i, j, k). A .txt volume is D H W, then its values with six decimals; x changes
    fastest. .npy, .nii and .zarr are read and written in tiles, and may be larger than memory.

    The output appears when it is complete; until then an earlier output stays. Finished shards are saved in OUTPUT.job:
    the same command resumes a job that was stopped.
    """
    run_job("convolve", job_of, options, lambda: _rows(options), "voxels", head=lambda: _head(options))


def _head(options: Options) -> dict[str, str]:
    """What --json repeats of the options."""
    return {name: getattr(options, name) for name in ("input", "kernel", "output")} | {"mode": _mode(options)}


def _mode(options: Options) -> str:
    from tilewright.runtime.verbs.convolve.kernels import default_mode

    return options.mode or ("constant" if options.cval else default_mode(options.kernel))


def _device(given: str) -> str:
    """The device for the banner, which does not know the volume's dtype yet."""
    from tilewright.runtime.devices import place_for

    device = place_for(given)
    return f"{device} (float64: cpu)" if (given, device) == ("auto", "cuda") else device


def _rows(options: Options) -> dict[str, str]:
    """Of the banner."""
    from tilewright.runtime.verbs.convolve.kernels import function_of

    mode, function = _mode(options), function_of(options.kernel)
    said = f"{mode} {options.cval:g}" if mode.endswith("constant") else mode
    if options.mode is None:
        said += f" (the default of {'scipy.ndimage' if function else 'a kernel from a file'})"
    return {
        "Kernel": f"{options.kernel}, {f'as scipy.ndimage.{function}' if function else 'not flipped'}",
        "Input": options.input,
        "Output": options.output,
        "Mode": said,
        "Precision": options.dtype or "as the input; float32 for integers",
        "Device": _device(options.device),
        "Threads": str(threads_of(options)),
    }
