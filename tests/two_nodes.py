"""Two "nodes" on one machine, for MPI: a host name and mounts of their own. Needs root, or user namespaces.

In the folder `work` of `Nodes`, node1 sees what is in its own folder node1, and node2 what is in node2.
"""

import os
import shutil
import subprocess

NAMES = ("node1", "node2")
UNSHARE = ("unshare", "--mount", "--uts")
# Stands in for ssh: mpiexec calls it with the name of a node, and the words of a command.
REMOTE = """#!/bin/sh
node=$1
shift
exec unshare --mount --uts sh -c '
    hostname "$0" && mount --bind "{folder}/$0" "{folder}/work" && cd "{folder}/work" && exec sh -c "$*"
' "$node" "$@"
"""


def missing():
    """Why there can be no such nodes here; "" if there can."""
    if not shutil.which("unshare"):
        return "unshare is not installed"
    done = subprocess.run([*UNSHARE, "true"], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else f"mounts cannot be separated here: {done.stderr.strip()}"


class Nodes:
    """The nodes, and the command that starts ranks on them."""

    def __init__(self, folder, mpiexec):
        self.folder, self.work, self._mpiexec = folder, folder / "work", str(mpiexec)
        for name in ("work", *NAMES):
            (folder / name).mkdir()
        self.first, self.second = (folder / name for name in NAMES)
        self._remote = folder / "remote"
        self._remote.write_text(REMOTE.format(folder=folder))
        self._remote.chmod(0o755)

    def command(self, each):
        """What comes before a command of which every node runs `each` copies."""
        hosts = ",".join(f"{name}:{each}" for name in NAMES)
        launcher = ["-launcher", "rsh", "-launcher-exec", str(self._remote), "-localhost", "127.0.0.1"]
        return [self._mpiexec, *launcher, "-hosts", hosts, "-n", str(each * len(NAMES))]

    def run(self, each, command, **env):
        """(exit code, stdout, stderr) of such a command, in `work`."""
        (self.folder / "tmp").mkdir(exist_ok=True)
        env = {**os.environ, "TMPDIR": str(self.folder / "tmp"), **env}
        done = subprocess.run(
            [*self.command(each), *command], cwd=self.work, env=env, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout, done.stderr
