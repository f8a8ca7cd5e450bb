"""A job as a batch script of Slurm: the same command, which goes on where the last run was stopped.

Two kinds. A step of MPI: `srun` starts the ranks of `--engine mpi`. An array: each of its tasks runs its part of the
shards as soon as there is a place for it, then helps the other tasks (`--part K/N+`). A last job waits for all of them
and makes the output. If Slurm allows fewer tasks per array (MaxArraySize), there are several arrays.

Slurm asks the script to stop some time before the limit (`--signal`). The script hands the signal on, the job ends in
order with exit code 75, and the script asks Slurm to queue it again. It does the same if a rank was killed.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass

from tilewright.errors import InternalError, ResourceError, UsageError

VERBS = ("generate", "score", "classify", "embed", "draw", "convolve")
OURS = ("--engine", "--grace", "--part", "--workers")  # options of the command that the script gives it
EARLY = 15  # seconds before the end of the grace time: processes end
RESTARTS = 100  # by time limits and preemption; each runs what the ones before left
MOST = 1001  # tasks of an array, if Slurm does not tell; its own default
KILLED = 5  # restarts after which one that was killed is not queued again: a record that does it is known by then


@dataclass(frozen=True)
class Request:
    """What is asked of Slurm. command: a verb and its options. tasks: ranks of MPI, or with `array` tasks of an array.

    nodes, cores, gpus, time: of Slurm's --nodes, --cpus-per-task, --gpus-per-task, --time, None: as the site likes.
    more: other options of sbatch, "partition=long". launcher: what starts ranks. grace: seconds for the end in order.
    throttle: tasks of an array that run at a time; None: any number.
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
        if self.throttle is not None and not self.array:
            raise UsageError("the throttle limits the tasks of an array", remedy="add --array, or leave out --throttle")
        for text in (*self.more, self.time or "", self.launcher):
            if not re.fullmatch(r"[\w=:,./@%+*\[\]() -]*", text):
                raise UsageError(f"{text!r} cannot stand in a batch script: it has unusual characters")


def script(request: Request, most: int = MOST) -> str:
    """The text of the batch script, for bash. most: tasks that an array may have. Raises UsageError."""
    request.check()
    asked = [f"job-name=tilewright-{request.command[0]}", *_resources(request)]
    asked += ["requeue", "open-mode=append", f"signal=B:USR1@{request.grace + EARLY}", *request.more]
    lines = "".join(f"#SBATCH --{line.lstrip('-')}\n" for line in asked)
    here, run = shlex.quote(os.getcwd()), shlex.join([sys.executable, "-m", "tilewright", *request.command])
    return f"""#!/bin/bash
{lines}
# Written by `tilewright slurm`. Submit it again to go on with a job that was stopped: what is done is kept.
{_how(request, most)}
cd -- {here} || exit 4
command=({run} --grace {request.grace})
{_start(request)}

asked=
limit=
step=
ask() {{ while kill -USR1 "$step"; do sleep 1; done; }}  # once may be too soon: between its fork and its exec
stop() {{ asked=yes; if [ "$step" ]; then ask > /dev/null 2>&1 & fi; }}
trap 'limit=yes; stop' USR1
trap stop TERM
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
if [ "$asked" ] && [ -z "$limit" ]; then  # SIGTERM: by preemption, or by scancel, after which Slurm says COMPLETING
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
    """(first part, value of sbatch's --array) of each array. most: tasks that one may have."""
    throttle = f"%{request.throttle}" if request.throttle else ""
    firsts = range(0, request.tasks, most)
    return [(first, f"0-{min(most, request.tasks - first) - 1}{throttle}") for first in firsts]


def _how(request: Request, most: int) -> str:
    """The comment that says how to submit an array."""
    if not request.array:
        return ""
    lines: list[str] = []
    names: list[str] = []
    for number, (first, tasks) in enumerate(arrays(request, most)):
        after = f"--dependency=afterany:${names[-1]} " if request.throttle and names else ""
        names.append(f"id{number}")
        lines.append(f"#   {names[-1]}=$(sbatch --parsable {after}--array={tasks} SCRIPT {first})\n")
    lines.append(f"#   sbatch --dependency=afterany:{':'.join('$' + name for name in names)} SCRIPT\n")
    return f"# {request.tasks} parts, and a last job that makes the output:\n{''.join(lines)}"


def _start(request: Request) -> str:
    if request.array:  # in workers of their own: one that dies is replaced
        return (
            "command+=(--engine local)\n"
            '[ -z "${SLURM_ARRAY_TASK_ID:-}" ] || '  # else this is the last job
            f'command+=(--part "$(("${{1:-0}}" + SLURM_ARRAY_TASK_ID))/{request.tasks}+")'
        )
    return (
        "export SLURM_KILL_BAD_EXIT=1  # else srun waits for ranks whose MPI could not begin\n"
        f'command=({request.launcher} "${{command[@]}}" --engine mpi)'
    )


def largest_array() -> int:
    """The tasks that an array may have here, as Slurm says; MOST if there is no Slurm."""
    try:
        done = subprocess.run(["scontrol", "show", "config"], capture_output=True, text=True, check=False)
    except OSError:
        return MOST
    found = re.search(r"^MaxArraySize\s*=\s*([1-9]\d*)\s*$", done.stdout, re.MULTILINE)
    return int(found[1]) if found else MOST


def submit(request: Request, path: str, most: int = MOST) -> list[str]:
    """Hands the script at `path` to sbatch; the numbers of the jobs. most: tasks that an array may have.

    Raises ResourceError, InternalError.
    """
    if not request.array:
        return [_sbatch(path)]
    jobs: list[str] = []
    for first, tasks in arrays(request, most):
        after = [f"--dependency=afterany:{jobs[-1]}"] if request.throttle and jobs else []
        jobs.append(_sbatch(path, *after, f"--array={tasks}", first=first))
    return [*jobs, _sbatch(path, f"--dependency=afterany:{':'.join(jobs)}")]


def _sbatch(path: str, *options: str, first: int | None = None) -> str:
    """first: the part of the array's first task."""
    command = ["sbatch", "--parsable", *options, path, *([] if first is None else [str(first)])]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        remedy = "submit the script where there is Slurm"
        raise ResourceError("there is no sbatch on this machine", path=path, remedy=remedy) from error
    if done.returncode:
        said = done.stderr.strip() or f"exit code {done.returncode}"
        raise InternalError(f"sbatch refuses: {said}", path=path, remedy="see `sbatch --help` and --sbatch")
    return done.stdout.strip().partition(";")[0]  # "ID;CLUSTER"
