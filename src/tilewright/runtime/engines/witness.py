"""Finds out which MPI rank of a node died first. mpiexec kills the other ranks within milliseconds, and may then name
any of them.

The witness is a separate process, because a killed rank cannot report anything. Every rank has four connections to it.
On the first the rank reports which shard and record it runs. To the second the signal handler writes each signal at
once. The other two carry no data. When a rank dies, the kernel closes them. epoll reports the closed connections of
several ranks in the order of their deaths. (It may report a connection with unread data too early, so these carry
none.) mpiexec notices a death when the kernel closes one of MPI's descriptors, and then kills the other ranks. Some
kernels close a dead process's descriptors in ascending order, others in descending order. So one of the two silent
connections has a lower descriptor than MPI's, and the other a higher one.

An abstract socket has no permissions. So the witness closes connections of other users, and ignores malformed lines.
Its process imports only the standard library and far_deaths.py.

On a node that does not see the job's directory, the witness reports to the witness of rank 0's node, which writes the
log. mpiexec may kill a rank of rank 0's node before such a report arrives. So the witness there waits FAR_SECONDS for
the report of a crash before it blames a rank that was only killed.
"""

import faulthandler
import fcntl
import json
import os
import re
import secrets
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
from contextlib import suppress
from typing import Any

from tilewright.runtime.engines.far_deaths import home_of, listening, new_key, receive, send

FAR_SECONDS = 1.0
ALONE_SECONDS = 60.0  # after which a witness without connections exits
HIGH = 512  # above MPI's descriptors, and below 1024, the usual limit of a process
ROOT = __file__.rpartition(__name__.replace(".", os.sep))[0]  # the directory of the package
LOG, DEATHS = "ranks.log", "deaths.jsonl"  # in the job's logs: messages about dead ranks, and the shards they ran
ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)  # requests to stop; SIGKILL may follow
SIGNALS = b"signals"  # the first bytes of a connection for signals
CRASH = b"crash"  # the first bytes of a connection for the C-level crash handler
CRASHES = {
    "Segmentation fault": "SIGSEGV", "Bus error": "SIGBUS", "Aborted": "SIGABRT",
    "Floating point exception": "SIGFPE", "Illegal instruction": "SIGILL",
}  # fmt: skip
CRASH_BYTES = 1 << 14  # the most bytes of the crash handler's text, a Python stack trace
FIRST = re.compile(rb"(\d{1,10}) (signals|crash|)")  # the first line of a connection: PID and kind
FIELDS: dict[str, tuple[type, ...]] = {  # the fields that a rank sends, see `Witness.tell`
    "rank": (int,), "pid": (int,), "logs": (str,), "log_size": (int,), "shard": (int, type(None)),
    "record": (int, type(None)), "stopping": (bool,), "calm": (bool,), "all": (bool,), "folder": (str, type(None)),
    "listen": (str,), "home": (str,),
}  # fmt: skip
WHY = "killed or crashed"  # the cause for a rank that ended without a message


class Witness:
    """A rank's connections to the witness of its node. Without a witness, calls do nothing."""

    _crash: socket.socket | None = None

    def __init__(self, node, low: int) -> None:
        """Every rank of the node must call this. node: the communicator of the node's ranks. low: a descriptor that was
        opened before MPI's; it is replaced by a connection.
        """
        self._socket = None
        self._silent = [low]
        self._signals: socket.socket | None = None
        self._earlier = -1  # the descriptor to which signals were written before
        self.record: int | None = None  # the record that was reported last
        if sys.platform != "linux":
            return
        name = node.bcast(_start() if node.rank == 0 else None)
        with suppress(OSError):
            with connected(name) as silent:
                os.dup2(silent.fileno(), low, inheritable=False)
            with connected(name) as silent:
                self._silent.append(fcntl.fcntl(silent.fileno(), fcntl.F_DUPFD_CLOEXEC, HIGH))
            self._signals = connected(name, SIGNALS)
            self._signals.setblocking(False)
            with suppress(ValueError):  # raised outside the main thread, which receives no signals
                self._earlier = signal.set_wakeup_fd(self._signals.fileno(), warn_on_full_buffer=False)
            if not faulthandler.is_enabled():
                self._crash = connected(name, CRASH)
                faulthandler.enable(self._crash.fileno(), all_threads=False)
            self._socket = connected(name)

    def tell(self, **what: Any) -> None:
        """Send the fields of this rank that have changed.

        rank, pid: its identity. logs, log_size: the folder of the job's logs, and the size of ranks.log. shard, record:
        what it runs now, or None. stopping=True: it was asked to stop, so a kill is expected. calm=True: it exits
        normally. all=True: it stops all ranks, and has reported why. folder: the node's temporary folder, which the
        witness removes if a rank dies. home: where this node reports deaths, see `listen`.
        """
        self.record = what.get("record", self.record)
        if self._socket:
            with suppress(OSError):
                self._socket.sendall(json.dumps(what).encode() + b"\n")

    def listen(self) -> str:
        """Make this node's witness take reports of other nodes. Returns where they send them; "" if it cannot."""
        key, heard = new_key(), b""
        self.tell(listen=key)
        with suppress(OSError):
            while self._socket and not heard.endswith(b"\n") and (part := self._socket.recv(16)):
                heard += part
        return home_of(int(heard), key) if heard.strip(b"0\n") else ""

    def close(self) -> None:
        """Report that this rank exits normally."""
        self.tell(calm=True)
        for fd in self._silent:
            os.close(fd)
        if self._signals:
            with suppress(ValueError):
                signal.set_wakeup_fd(self._earlier)
            self._signals.close()
        if self._crash:
            faulthandler.disable()
            self._crash.close()
        if self._socket:
            self._socket.close()


def connected(name: str, kind: bytes = b"") -> socket.socket:
    """Open a connection to the witness. name: of its socket. kind: SIGNALS, CRASH, or b"" for other connections.

    Raises OSError if there is no witness, or if it belongs to another user.
    """
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(ALONE_SECONDS)
        connection.connect(name)
        connection.sendall(b"%d %s\n" % (os.getpid(), kind))
        if not connection.recv(1):  # the witness has accepted the connection
            raise ConnectionAbortedError(name)
        connection.settimeout(None)
    except OSError:
        connection.close()
        raise
    return connection


def _start() -> str:
    """Start the witness. Returns the name of its socket."""
    name = f"\0tilewright-{os.getpid()}-{secrets.token_hex(4)}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(name)
        server.listen(1024)
        code = f"import sys; sys.path.insert(0, {ROOT!r}); from tilewright.runtime.engines.witness import main"
        command = [sys.executable, "-S", "-E", "-c", f"{code}; main({server.fileno()})"]
        subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[server.fileno()], start_new_session=True)
    return name


class _Rank:
    """The witness's end of one connection of a rank.

    pid: of the rank; 0 before the first line has arrived. known: the received fields; empty for other kinds of
    connection. asked: a signal asked the rank to stop.
    """

    def __init__(self, connection: socket.socket, peer: int) -> None:
        """peer: the PID that the kernel reports; 0 for a process of another PID namespace (container)."""
        self._connection, self._buffer, self._peer = connection, b"", peer
        connection.setblocking(False)
        self.pid = 0
        self.kind = b""
        self.known: dict[str, Any] = {}
        self.asked = False
        self.crash = b""  # the text of its crash handler

    def hear(self) -> bool:
        """Read everything that has arrived. False: the connection is closed, or does not belong to a rank."""
        while True:
            try:
                heard = self._connection.recv(1 << 16)
            except BlockingIOError:
                return True
            except ConnectionError:
                heard = b""
            if not self._take(heard) or not heard:
                return False

    def answer(self, number: int) -> None:
        with suppress(OSError):
            self._connection.send(b"%d\n" % number)

    def close(self) -> None:
        self._connection.close()

    def _take(self, heard: bytes) -> bool:
        self._buffer += heard
        if not self.pid and b"\n" in self._buffer:
            who, _, self._buffer = self._buffer.partition(b"\n")
            first = FIRST.fullmatch(who)
            if not first:
                return False
            self.pid, self.kind = self._peer or int(first[1]), first[2]
        if self.kind == SIGNALS:
            self.asked = self.asked or any(number in self._buffer for number in ASKING)
            self._buffer = b""
        elif self.kind == CRASH:
            self.crash, self._buffer = (self.crash + self._buffer)[:CRASH_BYTES], b""
        elif self.pid:
            *lines, self._buffer = self._buffer.split(b"\n")
            for line in lines:
                if told := _told(line):
                    self.known.update(told, pid=self.pid)
        return True


def _told(line: bytes) -> dict[str, Any]:
    """The fields of a received line; empty if no rank would write such a line."""
    try:
        told = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(told, dict) or any(type(value) not in FIELDS.get(name, ()) for name, value in told.items()):
        return {}
    return told


def _accept(server: socket.socket) -> tuple[socket.socket, _Rank] | None:
    """Accept a connection of this user; close those of others."""
    connection = server.accept()[0]
    peer, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if user != os.geteuid():
        connection.close()
        return None
    with suppress(OSError):
        connection.send(b"\n")
    return connection, _Rank(connection, peer)


def main(fd: int) -> None:
    """Watch until all ranks have exited normally, one has stopped all of them, or one has died without a message."""
    server = socket.socket(fileno=fd)
    poll = select.epoll()
    poll.register(fd, select.EPOLLIN)
    there: dict[int, _Rank] = {}
    gone: list[_Rank] = []  # ranks that closed their connection for messages
    far = _Far()
    while events := poll.poll(None if there else ALONE_SECONDS):
        for ready, _ in events:
            if ready == far.fileno():
                far.hear([*there.values(), *gone])
            elif ready == fd:
                if accepted := _accept(server):
                    connection, rank = accepted
                    poll.register(connection, select.EPOLLIN)
                    there[connection.fileno()] = rank
            elif there[ready].hear():
                if far.fileno() < 0 and there[ready].known.get("listen"):
                    far.open(there[ready])
                    if far.fileno() >= 0:
                        poll.register(far.fileno(), select.EPOLLIN)
            else:
                poll.unregister(ready)
                ended = there.pop(ready)
                if not ended.pid:
                    ended.close()
                    continue
                if ended.known or ended.kind in (SIGNALS, CRASH):
                    gone.append(ended)
                elif _died(ended.pid, [*there.values(), *gone], far):
                    return
                if not any(rank.pid for rank in there.values()):
                    return


class _Far:
    """Reports of other nodes, once a rank has asked for them."""

    def __init__(self) -> None:
        self._server: socket.socket | None = None
        self._key = ""

    def fileno(self) -> int:
        return self._server.fileno() if self._server else -1

    def open(self, rank: _Rank) -> None:
        """Listen, and tell this rank the port; 0 if that is not possible."""
        self._key = rank.known.pop("listen")
        with suppress(OSError):
            self._server = listening()
        rank.answer(self._server.getsockname()[1] if self._server else 0)

    def hear(self, ranks: list[_Rank], *, crashes: bool = False) -> None:
        """Take one report, and note it if the log does not say yet why all ranks stop. crashes: nothing else."""
        report = receive(self._server, self._key) if self._server else None
        known = next((rank.known for rank in ranks if rank.known.get("logs")), None)
        if not report or not known or (crashes and report.get("killed")):
            return
        logs, shard, record = known["logs"], report.get("shard"), report.get("record")
        if report.get("forget"):
            forget_deaths(logs, report["shard"])
        elif log_size(logs) <= known.get("log_size", 0):
            if shard is not None:
                note_death(logs, shard, record, str(report["why"]), killed=bool(report["killed"]))
            add_line(logs, LOG, str(report["said"]))

    def wait(self, ranks: list[_Rank]) -> None:
        """Wait for the report of a crash, which is the reason why ranks of this node are killed."""
        if self._server and select.select([self._server], [], [], FAR_SECONDS)[0]:
            self.hear(ranks, crashes=True)


def _died(pid: int, ranks: list[_Rank], far: _Far) -> bool:
    """True if this process died, or if a rank has stopped all ranks. Then the witness exits."""
    for rank in ranks:
        rank.hear()
    folders = {rank.known["folder"] for rank in ranks if rank.known.get("folder")}
    if any(rank.known.get("all") for rank in ranks):  # a rank has stopped all ranks
        _remove(folders)
        return True
    known = next((rank.known for rank in ranks if rank.pid == pid and rank.known), {"pid": pid})
    if known.get("calm"):
        return False
    if any(rank.asked for rank in ranks if rank.pid == pid):
        known = {**known, "stopping": True}
    crash = b"".join(rank.crash for rank in ranks if rank.pid == pid).decode("ascii", "replace")
    if not crash:
        far.wait(ranks)
    _tell(known, crash)
    _remove(folders)
    return True


def _remove(folders: set[str]) -> None:
    """Remove the job's temporary folders on this node. Ranks that still run can read the files that they have open."""
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def _tell(known: dict, crash: str) -> None:
    """Report the rank that died, on stderr and in the job's logs, unless another node has already reported the cause.

    crash: the text of the crash handler; empty if the process was killed from outside.
    """
    logs = known.get("logs")
    if logs and log_size(logs) > known.get("log_size", 0):
        return
    what = f"rank {known.get('rank', '?')} on {os.uname().nodename}: process {known.get('pid', '?')} "
    name = next((name for words, name in CRASHES.items() if f": {words}\n" in crash), "")
    what += f"crashed: {name}" if name else f"was {WHY}"
    what += ", after a signal had asked it to stop\n" if known.get("stopping") else "\n"
    shard = None if known.get("stopping") else known.get("shard")
    if known.get("home"):
        death = {"shard": shard, "record": known.get("record"), "why": name or WHY, "killed": not name}
        send(known["home"], death | {"said": what + crash})
    elif logs:
        if shard is not None:
            note_death(logs, shard, known.get("record"), name or WHY, killed=not name)
        add_line(logs, LOG, what + crash)
    sys.stderr.write(f"{what}{crash}Run the same command again: the finished shards are saved\n")


def log_size(logs: str) -> int:
    """Bytes of the log."""
    with suppress(OSError, ValueError):
        return os.lstat(os.path.join(logs, LOG)).st_size
    return 0


def note_death(logs: str, shard: int, record: int | None, why: str, *, killed: bool = False) -> None:
    """Note for the next run that a rank died while it ran this shard. record: the record that ran alone, if any.

    killed: by a signal from outside.
    """
    add_line(logs, DEATHS, json.dumps({"shard": shard, "record": record, "why": why, "killed": killed}) + "\n")


def forget_deaths(logs: str, shard: int) -> None:
    """Note for the next run that it may try all records of this shard again."""
    add_line(logs, DEATHS, json.dumps({"shard": shard, "record": None, "why": "", "forget": True}) + "\n")


def add_line(logs: str, name: str, line: str) -> bool:
    """Append a line to a file in the job's logs. Returns False after an error, because the job stops anyway."""
    with suppress(OSError, ValueError):  # ValueError: a name with a NUL byte
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(os.path.join(logs, name), flags, 0o666)
        os.write(fd, line.encode(errors="surrogateescape"))
        os.close(fd)
        return True
    return False
