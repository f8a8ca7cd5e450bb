"""A job as a batch script of Slurm: the same command, which goes on where the last run was stopped.

Two kinds. A step of MPI: `srun` starts the ranks of `--engine mpi`. An array: each of its tasks runs its part of the
shards (`--part K/N`) as soon as there is a place for it, and a last job, which waits for them, does what they left and
makes the output. Slurm asks the script to stop some time before the limit (`--signal`); it hands the signal on, the job
ends in order with exit code 75, and the script asks Slurm to queue it again. So it does where a rank was killed.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass

from tilewright.errors import InternalError, ResourceError, UsageError

VERBS = ("generate", "score", "classify", "draw", "convolve")
OURS = ("--engine", "--grace", "--part", "--workers")  # options of the command that the script gives it
EARLY = 15  # seconds before the end of the grace time: processes end
RESTARTS = 100  # by time limits and preemption; each runs what the ones before left
KILLED = 5  # restarts after which one that was killed is not queued again: a record that does it is known by then


@dataclass(frozen=True)
class Request:
    """What is asked of Slurm. command: a verb and its options. tasks: ranks of MPI, or with `array` tasks of an array.

    nodes, cores, gpus, time: of Slurm's --nodes, --cpus-per-task, --gpus-per-task, --time, None: as the site likes.
    more: other options of sbatch, "partition=long". launcher: what starts ranks. grace: seconds for the end in order.
    """

    command: tuple[str, ...]
    tasks: int = 1
    array: bool = False
    nodes: int | None = None
    cores: int | None = None
    gpus: int | None = None
    time: str | None = None
    more: tuple[str, ...] = ()
    launcher: str = "srun"
    grace: int = 60

    def check(self) -> None:
        """Raises UsageError for a command that is no job, and for what Slurm would misunderstand."""
        if not self.command or self.command[0] not in VERBS:
            raise UsageError(
                f"{' '.join(self.command[:1])!r} is no job; it must be one of {', '.join(VERBS)}",
                remedy="give one, as in tilewright slurm -n 8 generate ...",
            )
        for option in OURS:
            if any(word == option or word.startswith(f"{option}=") for word in self.command):
                remedy = "leave it out: --tasks, --array and --grace of `tilewright slurm` decide it"
                raise UsageError(f"the script gives the command its {option}", remedy=remedy)
        for text in (*self.more, self.time or "", self.launcher):
            if not re.fullmatch(r"[\w=:,./@%+*\[\]() -]*", text):
                raise UsageError(f"{text!r} cannot stand in a batch script: it has unusual characters")


def script(request: Request) -> str:
    """The text of the batch script, for bash. Raises UsageError."""
    request.check()
    asked = [f"job-name=tilewright-{request.command[0]}", *_resources(request)]
    asked += ["requeue", "open-mode=append", f"signal=B:USR1@{request.grace + EARLY}", *request.more]
    lines = "".join(f"#SBATCH --{line.lstrip('-')}\n" for line in asked)
    here, run = shlex.quote(os.getcwd()), shlex.join([sys.executable, "-m", "tilewright", *request.command])
    return f"""#!/bin/bash
{lines}
# Written by `tilewright slurm`. Submit it again to go on with a job that was stopped: what is done is kept.
{_how(request)}
cd -- {here} || exit 4
command=({run} --grace {request.grace})
{_start(request)}

asked=
step=
ask() {{ while kill -USR1 "$step"; do sleep 1; done; }}  # once may be too soon: between its fork and its exec
stop() {{ asked=yes; if [ "$step" ]; then ask > /dev/null 2>&1 & fi; }}
trap stop USR1 TERM
"${{command[@]}}" &
step=$!
[ -z "$asked" ] || stop  # the signal came before the step
for _ in 1 2 3 4; do  # a signal ends a wait, and not the job
    wait "$step"
    code=$?
    [ "$code" = 138 ] || [ "$code" = 143 ] || break
done

again=0  # times that it may have been queued again
[ "$code" -gt 128 ] && again={KILLED}
[ "$code" = 75 ] && again={RESTARTS}
[ "$asked" ] && [ "$code" -gt 128 ] && again={RESTARTS}  # so srun tells of ranks that the end of one has ended
if [ "${{SLURM_RESTART_COUNT:-0}}" -lt "$again" ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
"""


def _resources(request: Request) -> list[str]:
    tasks = 1 if request.array else request.tasks
    named = {"nodes": request.nodes, "ntasks": tasks, "cpus-per-task": request.cores, "gpus-per-task": request.gpus}
    return [f"{name}={value}" for name, value in {**named, "time": request.time}.items() if value is not None]


def _how(request: Request) -> str:
    if not request.array:
        return ""
    last = request.tasks - 1
    return (
        f"# An array of {request.tasks}, and a last job that makes the output:\n"
        f"#   id=$(sbatch --parsable --array=0-{last} SCRIPT) && sbatch --dependency=afterany:$id SCRIPT\n"
    )


def _start(request: Request) -> str:
    if request.array:
        return (
            '[ -z "${SLURM_ARRAY_TASK_ID:-}" ] || '
            f'command+=(--part "$SLURM_ARRAY_TASK_ID/{request.tasks}")  # else this is the last job'
        )
    return f'command=({request.launcher} "${{command[@]}}" --engine mpi)'


def submit(request: Request, path: str) -> list[str]:
    """Hands the script at `path` to sbatch; the numbers of the jobs. Raises ResourceError, InternalError."""
    first = _sbatch(path, *([f"--array=0-{request.tasks - 1}"] if request.array else []))
    return [first, _sbatch(path, f"--dependency=afterany:{first}")] if request.array else [first]


def _sbatch(path: str, *options: str) -> str:
    command = ["sbatch", "--parsable", *options, path]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        remedy = "submit the script where there is Slurm"
        raise ResourceError("there is no sbatch on this machine", path=path, remedy=remedy) from error
    if done.returncode:
        said = done.stderr.strip() or f"exit code {done.returncode}"
        raise InternalError(f"sbatch refuses: {said}", path=path, remedy="see `sbatch --help` and --sbatch")
    return done.stdout.strip().partition(";")[0]  # "ID;CLUSTER"
