"""A real Slurm on this machine: munged, slurmctld and one slurmd per node, each with ports and folders of its own.

`with Cluster(folder) as cluster:` starts it and sets SLURM_CONF, so that sbatch, srun and scancel find it. All of it
ends with the block. Needs the Debian packages slurm-wlm and munge, and no root.
"""

import contextlib
import getpass
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import time

SBIN = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol")
MISSING = [name for name in PROGRAMS if not shutil.which(name, path=SBIN)]
HANGS = 600  # seconds: of no test that passes, however busy the machine is
ENDED = {"COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "DEADLINE", "OUT_OF_MEMORY", "BOOT_FAIL"}
CONFIG = """
ClusterName=tilewright
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={socket},cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldPort={port}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SwitchType=switch/none
MpiDefault=none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/none
MaxArraySize={most}
MinJobAge=3600
ReturnToService=2
KillWait=5
SlurmdTimeout=10
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,bf_interval=1,sched_min_interval=0
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class Cluster:
    """nodes: n1, n2, ... with `cores` cores each, whatever this machine has. most: MaxArraySize."""

    def __init__(self, folder, nodes=3, cores=2, most=4):
        self.folder, self.cores, self.most = folder, cores, most
        self.nodes = [f"n{number}" for number in range(1, nodes + 1)]
        self._daemons = {}

    def __enter__(self):
        # The socket's path may have 108 bytes, and munge wants folders that nobody else can change.
        self._munge = f"/tmp/tilewright-munge-{os.getpid()}-{secrets.token_hex(3)}"  # noqa: S108
        os.makedirs(f"{self._munge}/own", mode=0o755)
        os.makedirs(self.folder / "state", exist_ok=True)
        self._earlier = os.environ.get("SLURM_CONF")
        try:
            self._write_config()
            self._start_munge()
            self._start("slurmctld", "slurmctld", "-D")
            for node in self.nodes:
                self.start_node(node)
            self.wait(lambda: self.state_of_nodes() == {"IDLE"}, "the nodes to be idle")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error):
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            for job in {job["JobId"] for job in self.jobs() if job["JobState"] not in ENDED}:
                run("scancel", job)
            self.wait(lambda: {job["JobState"] for job in self.jobs()} <= ENDED, "the jobs to end")
        for name in reversed(list(self._daemons)):
            self.kill(name, signal.SIGTERM)
        shutil.rmtree(self._munge, ignore_errors=True)
        os.environ.pop("SLURM_CONF", None)
        if self._earlier is not None:
            os.environ["SLURM_CONF"] = self._earlier

    def _write_config(self):
        port, *ports = free_ports(1 + len(self.nodes))
        rows = [
            f"NodeName={node} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs={self.cores} RealMemory=1000"
            for node, port in zip(self.nodes, ports, strict=True)
        ]
        path = self.folder / "slurm.conf"
        host = os.uname().nodename.partition(".")[0]
        path.write_text(CONFIG.format(
            host=host, user=getpass.getuser(), socket=f"{self._munge}/socket", folder=self.folder, port=port,
            most=self.most, nodes="\n".join(rows),
        ))  # fmt: skip
        os.environ["SLURM_CONF"] = str(path)

    def _start_munge(self):
        own = f"{self._munge}/own"
        os.chmod(own, 0o700)
        with open(os.open(f"{own}/key", os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
            file.write(secrets.token_bytes(128))
        files = {name: f"--{name}-file={own}/{name}" for name in ("key", "pid", "log", "seed")}
        self._start("munged", "munged", "--foreground", "--force", f"--socket={self._munge}/socket", *files.values())
        self.wait(lambda: os.path.exists(f"{self._munge}/socket"), "munged")

    def start_node(self, node):
        """Starts the daemon of a node."""
        os.makedirs(self.folder / f"spool-{node}", exist_ok=True)
        self._start(node, "slurmd", "-D", "-N", node)

    def _start(self, name, program, *options):
        with open(self.folder / f"{name}.log", "ab") as log:
            command = [shutil.which(program, path=SBIN), *options]
            self._daemons[name] = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def kill(self, name, number=signal.SIGKILL):
        """Ends a daemon: "slurmctld", "munged" or a node's name."""
        process = self._daemons.pop(name)
        process.send_signal(number)
        process.wait()

    def wait(self, done, what):
        """Returns as soon as done() is true."""
        until = time.monotonic() + HANGS
        while not done():
            for name, process in self._daemons.items():
                assert process.poll() is None, f"{name} has ended:\n{(self.folder / f'{name}.log').read_text()}"
            assert time.monotonic() < until, f"waited {HANGS} s for {what}\n{self.jobs()}"
            time.sleep(0.1)

    def state_of_nodes(self):
        """The states of all nodes, as Slurm names them."""
        said = run("scontrol", "-o", "show", "nodes", check=False)
        return set(re.findall(r" State=(\S+)", said)) or {"?"}

    def jobs(self):
        """The fields of all jobs, those of arrays one by one."""
        said = run("scontrol", "-o", "show", "jobs", check=False)
        return [dict(re.findall(r"(\w+)=(\S*)", line)) for line in said.splitlines() if line.startswith("JobId=")]

    def states(self, number):
        """The states of a job, or of the tasks of an array by their numbers."""
        jobs = [job for job in self.jobs() if number in (job["JobId"], job.get("ArrayJobId"))]
        return {job.get("ArrayTaskId", ""): job["JobState"] for job in jobs}

    def wait_for(self, *numbers):
        """Returns when all these jobs have ended; their states, by "NUMBER" or "NUMBER_TASK"."""

        def found():
            return {f"{n}_{task}".rstrip("_"): state for n in numbers for task, state in self.states(n).items()}

        self.wait(lambda: (states := found()) and set(states.values()) <= ENDED, f"jobs {numbers} to end")
        return found()


def run(*command, check=True):
    """What a command says on stdout."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not check or done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


def free_ports(count):
    """Ports that nobody listens on now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
