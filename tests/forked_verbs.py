"""The command line in processes that start in milliseconds: forked from one that has loaded all of it and run it once.

`python -c "import forked_verbs; forked_verbs.main()" WARM...` reads a JSON line a command, {"argv", "after", "signal"}:
the verb runs in a process group of its own, to which the signal is sent `after` seconds later; one that can be handled,
from when it is. It answers with the
exit status, as `os.waitstatus_to_exitcode` has it, and the seconds that it took to end after the signal.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import tilewright

PATHS = [str(Path(tilewright.__file__).parents[1]), str(Path(__file__).parent)]


class Forked:
    """The parent of those processes. warm: commands that are run first, one after the other, in the parent itself."""

    def __init__(self, folder, *warm):
        self.log = open(folder / "forked.log", "w+")  # noqa: SIM115 - closed with the process
        self.process = subprocess.Popen(
            [sys.executable, "-c", "import forked_verbs; forked_verbs.main()", *map(json.dumps, warm)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True, cwd=folder,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(PATHS), "TOKENIZERS_PARALLELISM": "false"},
        )  # fmt: skip

    def __call__(self, *argv, after=None, number=signal.SIGKILL):
        """(exit status, seconds from the signal to the end); after: seconds until it is sent, None: never."""
        self.process.stdin.write(json.dumps({"argv": list(map(str, argv)), "after": after, "signal": number}) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, self.said()
        return tuple(json.loads(answer))

    def said(self):
        """All that the commands have written."""
        self.log.seek(0)
        return self.log.read()

    def close(self):
        self.process.stdin.close()
        self.process.wait(20)
        self.process.stdout.close()
        self.log.close()


def main():
    from tilewright.cli import main as cli

    os.fsync = os.fstat  # only a power cut tells the difference
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for warm in sys.argv[1:]:
        try:
            cli(json.loads(warm))
        except SystemExit as end:
            assert not end.code, end.code
    for line in sys.stdin:
        said = json.loads(line)
        child = os.fork()
        if child == 0:
            _become(cli, said["argv"])
        answers.write(json.dumps(_watched(child, said["after"], said["signal"])) + "\n")
        answers.flush()


def _become(cli, argv):
    """The verb; never returns."""
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # however the tests were started
    try:
        cli(argv)
    except SystemExit as end:
        sys.stdout.flush()
        os._exit(end.code or 0)
    finally:
        os._exit(99)


def _begun(child):
    """Whether the job handles signals by now: Python itself has no handler for SIGTERM."""
    status = Path(f"/proc/{child}/status").read_text()
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    return int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1


def _watched(child, after, number):
    with contextlib.suppress(OSError):  # it has done so itself
        os.setpgid(child, child)
    begun = None  # when it could be sent the signal
    while after is not None:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status), 0.0
        if number != signal.SIGKILL and not _begun(child):
            begun = None
        elif begun is None:
            begun = time.monotonic()
        elif time.monotonic() >= begun + after:
            os.killpg(child, number)
            break
        time.sleep(0.001)
    sent = time.monotonic()
    status = os.waitpid(child, 0)[1]
    with contextlib.suppress(ProcessLookupError):  # its workers, if they are slower
        os.killpg(child, signal.SIGKILL if number == signal.SIGKILL else 0)
    return os.waitstatus_to_exitcode(status), time.monotonic() - sent
