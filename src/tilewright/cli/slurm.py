"""`tilewright slurm`: one of the four jobs as a batch script."""

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
    """One field an option."""

    command: Annotated[list[str], Argument(metavar="VERB ...", help="A job as it is typed, without --engine.")]
    tasks: Annotated[int, Option("--tasks", "-n", min=1, help="Ranks of MPI; with --array, tasks of the array.")] = 1
    array: Annotated[
        bool, Option("--array", help="No MPI: an array, whose tasks start as places come free, and a last job.")
    ] = False
    nodes: Annotated[int | None, Option(min=1, help="Nodes.")] = None
    cores: Annotated[int | None, Option(min=1, help="Cores a task.")] = None
    gpus: Annotated[int | None, Option(min=1, help="GPUs a task.")] = None
    time: Annotated[str | None, Option(metavar="LIMIT", help="As in 04:00:00.")] = None
    sbatch: Annotated[
        list[str] | None, Option(metavar="NAME=VALUE", help="Any option of sbatch, as in partition=long; repeat it.")
    ] = None
    launcher: Annotated[str, Option(help="What starts ranks: srun, or as in 'srun --mpi=pmix', mpiexec.")] = "srun"
    grace: Annotated[int, Option(min=5, help="Seconds before the time limit that a run has to end in order.")] = 60
    script: Annotated[str | None, Option("--script", metavar="FILE", help="Where to write it, instead of here.")] = None
    submit: Annotated[bool, Option("--submit", help="Hand it to sbatch; needs --script.")] = False


@verb(Options)
def slurm(options: Options) -> None:
    """Write a batch script for Slurm that runs a job on many nodes, and goes on after time limits and preemption.

    The script asks Slurm for a signal before the time limit, lets the job end in order, and queues itself again; what
    is done is kept. --array needs no MPI: a task runs its part of the shards, and a last job makes the output.
    """
    from typer import BadParameter

    from tilewright.runtime.engines.slurm import Request, script, submit

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
    )
    text = script(request)
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
        say(f"Submitted: {', '.join(submit(request, options.script))}")
