"""`tilewright slurm`: one of the jobs as a batch script."""

from __future__ import annotations

import glob
import os
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, BadParameter, Option

from tilewright.cli._options import verb
from tilewright.cli._output import say, show

if TYPE_CHECKING:
    from tilewright.runtime.engines.slurm import Request

CONTEXT = {"allow_interspersed_args": False}  # what stands behind the verb is the verb's


@dataclass
class Options:
    """One field per option."""

    command: Annotated[
        list[str],
        Argument(
            metavar="VERB ...",
            help="The command of the job with its options: generate, score, classify, embed, draw or convolve. Leave "
            "out --engine, --workers, --grace and --part.",
        ),
    ]
    tasks: Annotated[
        int, Option("--tasks", "-n", metavar="N", min=1, help="Number of MPI ranks, or of array tasks with --array.")
    ] = 1
    array: Annotated[
        bool,
        Option(
            "--array",
            help="Use a job array instead of MPI. Each task starts when Slurm has free cores. A last job writes the "
            "output.",
        ),
    ] = False
    throttle: Annotated[
        int | None,
        Option(metavar="N", min=1, help="With --array: run at most N tasks at a time.", show_default="as many as fit"),
    ] = None
    nodes: Annotated[int | None, Option(metavar="N", min=1, help="Number of nodes.", show_default="Slurm's")] = None
    cores: Annotated[int | None, Option(metavar="N", min=1, help="Cores per task.", show_default="Slurm's")] = None
    gpus: Annotated[int | None, Option(metavar="N", min=1, help="GPUs per task.", show_default="none")] = None
    time: Annotated[
        str | None, Option(metavar="LIMIT", help="Time limit, as in 04:00:00.", show_default="the partition's")
    ] = None
    sbatch: Annotated[
        list[str] | None,
        Option(metavar="NAME=VALUE", help="An option of sbatch, as in partition=long. Repeat for several."),
    ] = None
    launcher: Annotated[
        str, Option(metavar="COMMAND", help="The command that starts MPI ranks, as in 'srun --mpi=pmix' or mpiexec.")
    ] = "srun"
    grace: Annotated[
        int,
        Option(
            metavar="SECONDS",
            min=5,
            help="How long the job may take to stop. Slurm tells it so long, and 15 s more, before the time limit.",
        ),
    ] = 60
    script: Annotated[
        str | None, Option("--script", metavar="FILE", help="Write the script to FILE.", show_default="stdout")
    ] = None
    submit: Annotated[bool, Option("--submit", help="Submit the script with sbatch; needs --script.")] = False


@verb(Options)
def slurm(options: Options) -> None:
    """Write a Slurm batch script that runs a job on many nodes, and resumes it after time limits and preemption.

    \b
    tilewright slurm -n 8 --time 04:00:00 --script job.sh classify --model critic -i in.jsonl -o out.jsonl

    Slurm sends a signal before the time limit. The job then saves its finished shards, and the script submits itself
    again. --array needs no MPI: each task computes its part of the shards, then helps the others.
    """
    from tilewright.runtime.engines.slurm import Request

    if options.submit and options.script is None:
        raise BadParameter("it needs a file for the script; give --script FILE", param_hint="--submit")
    request = Request(
        command=tuple(options.command),
        tasks=options.tasks,
        array=options.array,
        nodes=options.nodes,
        cores=options.cores,
        gpus=options.gpus,
        time=options.time,
        more=tuple(options.sbatch or ()),
        launcher=options.launcher,
        grace=options.grace,
        throttle=options.throttle,
    )
    request.check()
    job, *given = options.command
    _parsed(job, given, lambda inner: _made(options, request, inner))


def _parsed(job: str, given: list[str], use: Any) -> None:
    """Calls `use` with the options of the job's command. A wrong option ends the process as the verb itself does."""
    from tilewright.cli import HELP, Verb, _app

    module = import_module(f"tilewright.cli.{job}")

    @verb(module.Options)
    def command(options: Any) -> None:
        use(options)

    command.__name__, command.__doc__ = job, getattr(module, job).__doc__
    app = _app()
    app.command(job, cls=Verb, help=None, context_settings=HELP)(command)
    app(args=given, prog_name=f"tilewright slurm {job}")


def _made(options: Options, request: Request, job: Any) -> None:
    """Write the script, and submit it if --submit is given. job: the options of the job's command."""
    from tilewright.runtime.engines.slurm import MOST, largest_array, script, submit

    _check_output(request, job.output)
    most = largest_array() if request.array else MOST
    text = script(request, most)
    if options.script is None:
        show(text.rstrip("\n"))
    else:
        _write(options.script, text)
    if job.input and not _is_found(job.input):
        say(f"Warning: the input {os.path.abspath(job.input.removeprefix('@'))} is not on this machine", err=True)
    if options.submit and options.script:
        say(f"Submitted: {', '.join(submit(request, options.script, most))}")


def _check_output(request: Request, output: str) -> None:
    """Raises UsageError for an output in a store: neither MPI nor the parts of an array can write it."""
    from tilewright.errors import UsageError
    from tilewright.runtime.stores.urls import is_url, local_path

    if is_url(output) and local_path(output) is None:
        what = "a job array" if request.array else "the engine mpi"
        remedy = f"run the command itself in one Slurm job, and `tilewright work {output}` in any number of others"
        raise UsageError(f"{what} needs a local output, and the output is a URL", path=output, remedy=remedy)


def _is_found(path: str) -> bool:
    """True if the input is on this machine, or cannot be checked here because it is a URL."""
    from tilewright.runtime.stores.urls import is_url

    return is_url(path) or os.path.exists(path.removeprefix("@")) or os.path.exists(path) or bool(glob.glob(path))


def _write(path: str, text: str) -> None:
    """Write the script. Raises UsageError if there is a file that is no script."""
    from tilewright.errors import UsageError
    from tilewright.formats.atomic import AtomicFile
    from tilewright.formats.files import InputFile

    if os.path.isfile(path):
        with InputFile(path, "script") as there:
            start = bytearray(min(there.size, 2))
            there.read_into(start, 0)
        if start not in (b"", b"#!"):
            raise UsageError("is there, and is no script", path=path, remedy="choose another name")
    with AtomicFile(path) as file:
        file.write(os.fsencode(text))
    say(f"Written to {path}")
