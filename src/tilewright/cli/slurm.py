"""`tilewright slurm`: one of the jobs as a batch script."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Annotated

from typer import Argument, Option

from tilewright.cli._options import verb
from tilewright.cli._output import say, show

CONTEXT = {"allow_interspersed_args": False}  # what stands behind the verb is the verb's


@dataclass
class Options:
    """One field per option."""

    command: Annotated[
        list[str],
        Argument(
            metavar="VERB ...",
            help="The command of the job with its options: generate, score, classify, embed, draw or convolve. Leave "
            "out --engine.",
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
    from typer import BadParameter

    from tilewright.runtime.engines.slurm import MOST, Request, largest_array, script, submit

    if options.submit and options.script is None:
        raise BadParameter("the script has to lie somewhere", param_hint="--script")
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
    most = largest_array() if request.array else MOST
    text = script(request, most)
    if options.script is None:
        show(text.rstrip("\n"))
        return

    from tilewright.errors import UsageError
    from tilewright.formats.atomic import AtomicFile
    from tilewright.formats.files import InputFile

    if os.path.isfile(options.script):
        with InputFile(options.script, "script") as there:
            start = bytearray(min(there.size, 2))
            there.read_into(start, 0)
        if start not in (b"", b"#!"):
            raise UsageError("is there, and is no script", path=options.script, remedy="choose another name")
    with AtomicFile(options.script) as file:
        file.write(os.fsencode(text))
    say(f"Written to {options.script}")
    if options.submit:
        say(f"Submitted: {', '.join(submit(request, options.script, most))}")
