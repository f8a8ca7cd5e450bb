"""Writes a batch script for Slurm. It runs the job's command, and a later run of the script resumes the job.

There are two kinds of script. An MPI step: `srun` starts the ranks of `--engine mpi`. A job array: each task runs its
part of the shards as soon as Slurm starts it, and then helps the other tasks (`--part K/N+`). A last job waits for all
tasks and writes the output. If Slurm allows fewer tasks per array (MaxArraySize), several arrays are submitted.

Slurm sends the script a signal some time before the time limit (`--signal`). The script forwards it, the job stops
cleanly with exit code 75, and the script asks Slurm to queue it again. It does the same if a rank was killed.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass

from tilewright.errors import ResourceError, UsageError

VERBS = ("generate", "score", "classify", "embed", "draw", "convolve")
OURS = ("--engine", "--grace", "--part", "--workers")  # options that the script adds to the command
EARLY = 15  # seconds that are added to the grace time, for processes to exit
RESTARTS = 100  # the most restarts after time limits and preemptions; each resumes the job
MOST = 1001  # tasks of an array if `scontrol` does not report MaxArraySize: Slurm's default
KILLED = 5  # the most restarts after a rank was killed; by then a record that kills ranks has been found


@dataclass(frozen=True)
class Request:
    """What the script asks of Slurm.

    command: a verb and its options. tasks: the number of MPI ranks, or with `array` of the array's tasks. nodes, cores,
    gpus, time: values of Slurm's --nodes, --cpus-per-task, --gpus-per-task and --time; None: the site's default.
    more: other options of sbatch, such as "partition=long". launcher: the command that starts ranks. grace: seconds
    that a job may take to stop cleanly. throttle: the most tasks of an array that run at a time; None: any number.
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
    throttle: int | None = None

    def check(self) -> None:
        """Raises UsageError if the command is not a job, or if a value has characters that a script cannot hold."""
        if not self.command or self.command[0] not in VERBS:
            raise UsageError(
                f"{' '.join(self.command[:1])!r} is no job; it must be one of {', '.join(VERBS)}",
                remedy="give one, as in tilewright slurm -n 8 generate ...",
            )
        for option in OURS:
            if any(word == option or word.startswith(f"{option}=") for word in self.command):
                remedy = "leave it out: --tasks, --array and --grace of `tilewright slurm` decide it"
                raise UsageError(f"the script gives the command its {option}", remedy=remedy)
        if self.throttle is not None and not self.array:
            raise UsageError("the throttle limits the tasks of an array", remedy="add --array, or leave out --throttle")
        for text in (*self.more, self.time or "", self.launcher):
            if not re.fullmatch(r"[\w=:,./@%+*\[\]() -]*", text):
                raise UsageError(f"{text!r} cannot stand in a batch script: it has unusual characters")


def script(request: Request, most: int = MOST) -> str:
    """The text of the batch script, for bash. most: the most tasks of an array. Raises UsageError."""
    request.check()
    asked = [f"job-name=tilewright-{request.command[0]}", *_resources(request)]
    asked += ["requeue", "open-mode=append", f"signal=B:USR1@{request.grace + EARLY}", *request.more]
    lines = "".join(f"#SBATCH --{line.lstrip('-')}\n" for line in asked)
    here, run = shlex.quote(os.getcwd()), shlex.join([sys.executable, "-m", "tilewright", *request.command])
    return f"""#!/bin/bash
{lines}
# Written by `tilewright slurm`. If the job was stopped, submit this script again: finished shards are reused.
{_how(request, most)}
cd -- {here} || exit 4
command=({run} --grace {request.grace})
{_start(request)}

asked=
limit=
step=
ask() {{ while kill -USR1 "$step"; do sleep 1; done; }}  # repeated: a signal between fork and exec would be lost
stop() {{ asked=yes; if [ "$step" ]; then ask > /dev/null 2>&1 & fi; }}
trap 'limit=yes; stop' USR1
trap stop TERM
"${{command[@]}}" &
step=$!
[ -z "$asked" ] || stop  # the signal arrived before the step started
for _ in 1 2 3 4; do  # a signal interrupts `wait`, while the step goes on
    wait "$step"
    code=$?
    [ "$code" = 138 ] || [ "$code" = 143 ] || break
done
[ "$code" = 9 ] && code=137  # MPICH's mpiexec gives the number of the signal that killed a rank

again=0  # the most restarts
[ "$code" -gt 128 ] && again={KILLED}
[ "$code" = 75 ] && again={RESTARTS}
[ "$asked" ] && [ "$code" -gt 128 ] && again={RESTARTS}  # srun's exit code if stopping one rank killed the others
if [ "$asked" ] && [ -z "$limit" ]; then  # SIGTERM: by preemption, or by scancel; only scancel shows COMPLETING
    [ "$(squeue --noheader --format=%T --jobs="$SLURM_JOB_ID" 2> /dev/null)" != COMPLETING ] || again=0
fi
if [ "${{SLURM_RESTART_COUNT:-0}}" -lt "$again" ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
"""


def _resources(request: Request) -> list[str]:
    tasks = 1 if request.array else request.tasks
    named = {"nodes": request.nodes, "ntasks": tasks, "cpus-per-task": request.cores, "gpus-per-task": request.gpus}
    return [f"{name}={value}" for name, value in {**named, "time": request.time}.items() if value is not None]


def arrays(request: Request, most: int) -> list[tuple[int, str]]:
    """(number of the first part, value of sbatch's --array) of each array. most: the most tasks of an array."""
    throttle = f"%{request.throttle}" if request.throttle else ""
    firsts = range(0, request.tasks, most)
    return [(first, f"0-{min(most, request.tasks - first) - 1}{throttle}") for first in firsts]


def _how(request: Request, most: int) -> str:
    """The comment in the script that tells how to submit an array."""
    if not request.array:
        return ""
    lines: list[str] = []
    names: list[str] = []
    for number, (first, tasks) in enumerate(arrays(request, most)):
        after = f"--dependency=afterany:${names[-1]} " if request.throttle and names else ""
        names.append(f"id{number}")
        lines.append(f"#   {names[-1]}=$(sbatch --parsable {after}--array={tasks} SCRIPT {first})\n")
    lines.append(f"#   sbatch --dependency=afterany:{':'.join('$' + name for name in names)} SCRIPT\n")
    return f"# To submit {request.tasks} parts, and a last job that writes the output:\n{''.join(lines)}"


def _start(request: Request) -> str:
    if request.array:  # the local engine runs supervised workers: a worker that dies is replaced
        return (
            "command+=(--engine local)\n"
            '[ -z "${SLURM_ARRAY_TASK_ID:-}" ] || '  # else this is the last job
            f'command+=(--part "$(("${{1:-0}}" + SLURM_ARRAY_TASK_ID))/{request.tasks}+")'
        )
    return (
        "export SLURM_KILL_BAD_EXIT=1  # else srun waits for ranks whose MPI_Init failed\n"
        f'command=({request.launcher} "${{command[@]}}" --engine mpi)'
    )


def largest_array() -> int:
    """The most tasks of an array on this cluster, by `scontrol`; MOST without Slurm."""
    try:
        done = subprocess.run(["scontrol", "show", "config"], capture_output=True, text=True, check=False)
    except OSError:
        return MOST
    found = re.search(r"^MaxArraySize\s*=\s*([1-9]\d*)\s*$", done.stdout, re.MULTILINE)
    return int(found[1]) if found else MOST


def submit(request: Request, path: str, most: int = MOST) -> list[str]:
    """Submit the script at `path` with sbatch, and return the job IDs. most: the most tasks of an array.

    Raises ResourceError if there is no sbatch, or if it fails.
    """
    if not request.array:
        return [_sbatch(path)]
    jobs: list[str] = []
    for first, tasks in arrays(request, most):
        after = [f"--dependency=afterany:{jobs[-1]}"] if request.throttle and jobs else []
        jobs.append(_sbatch(path, *after, f"--array={tasks}", first=first))
    return [*jobs, _sbatch(path, f"--dependency=afterany:{':'.join(jobs)}")]


def _sbatch(path: str, *options: str, first: int | None = None) -> str:
    """Run sbatch and return the job ID. first: the number of the part that the array's first task runs."""
    command = ["sbatch", "--parsable", *options, path, *([] if first is None else [str(first)])]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        remedy = "submit the script where there is Slurm"
        raise ResourceError("there is no sbatch on this machine", path=path, remedy=remedy) from error
    if done.returncode:
        said = done.stderr.strip() or f"exit code {done.returncode}"
        remedy = "check that `sinfo` shows the cluster; if it does, correct the options that --sbatch and others give"
        raise ResourceError(f"sbatch failed: {said}", path=path, remedy=remedy)
    return done.stdout.strip().partition(";")[0]  # "ID;CLUSTER"
