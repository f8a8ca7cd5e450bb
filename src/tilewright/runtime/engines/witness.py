"""Names the rank of a node that was killed: mpiexec ends all others within milliseconds, and then names any of them.

A process of its own, for those that are killed say nothing. Every rank is connected to it; the kernel closes the
connections of the dead in the order in which they died, and epoll tells of them in that order. Runs as a script, with
the standard library alone.
"""

import os
import secrets
import select
import socket
import subprocess
import sys
from contextlib import suppress

ALONE_SECONDS = 60.0  # after which a witness to whom nobody came goes home
BYE, ALL = b"bye\n", b"all\n"  # this rank has ended well; one has ended them all, and said why


class Witness:
    """A rank's connection to the witness of its node; where there is none, nothing happens."""

    def __init__(self, node) -> None:
        """node: the communicator of the ranks of this node, all of which come here."""
        self._socket = None
        if sys.platform != "linux":
            return
        name = node.bcast(_start() if node.rank == 0 else None)
        with suppress(OSError):
            self._socket = socket.socket(socket.AF_UNIX)
            self._socket.connect(name)

    def say(self, what: bytes) -> None:
        """A line: BYE, ALL, or who this is, "RANK PID LOG"."""
        if self._socket:
            with suppress(OSError):
                self._socket.sendall(what)


def _start() -> str:
    """Starts the witness; the name under which it is to be reached."""
    name = f"\0tilewright-{os.getpid()}-{secrets.token_hex(4)}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(name)
        server.listen(1024)
        command = [sys.executable, "-S", "-E", os.path.abspath(__file__), str(server.fileno())]
        subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[server.fileno()], start_new_session=True)
    return name


def main(fd: int) -> None:
    """Watches until all ranks have said BYE, one ALL, or one has ended without a word."""
    server = socket.socket(fileno=fd)
    poll = select.epoll()
    poll.register(fd, select.EPOLLIN)
    ranks: dict[int, tuple[socket.socket, bytearray]] = {}
    while events := poll.poll(None if ranks else ALONE_SECONDS):
        for ready, _ in events:
            if ready == fd:
                connection = server.accept()[0]
                poll.register(connection, select.EPOLLIN)
                ranks[connection.fileno()] = connection, bytearray()
                continue
            connection, said = ranks[ready]
            with suppress(ConnectionError):
                if heard := connection.recv(4096):
                    said += heard
                    continue
            if said.endswith(ALL):
                return
            if not said.endswith(BYE):
                _tell(said)
                return
            poll.unregister(connection)
            del ranks[ready]
            if not ranks:
                return


def _tell(said: bytearray) -> None:
    """Says who has ended, on stderr and in the job's log."""
    rank, pid, log = [*said.decode(errors="replace").rstrip("\n").split(" ", 2), "", "", ""][:3]
    what = f"rank {rank or '?'} on {os.uname().nodename}: process {pid or '?'} was ended from outside\n"
    if log:
        with suppress(OSError), open(log, "a", opener=lambda path, flags: os.open(path, flags | os.O_NOFOLLOW)) as file:
            file.write(what)
    sys.stderr.write(what)


if __name__ == "__main__":
    main(int(sys.argv[1]))
