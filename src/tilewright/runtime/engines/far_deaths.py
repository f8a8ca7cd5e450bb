"""Reports of deaths on nodes that do not see the job's directory, to the witness of rank 0's node (witness.py).

That witness listens on a TCP port while the job runs. A report is one line: its HMAC with a key that only the ranks of
the job know, and JSON. So nobody else can blame a shard. The witness runs this file, too: it imports only the standard
library.
"""

import hmac
import json
import secrets
import socket
from contextlib import suppress
from typing import Any

SECONDS = 2.0  # that one address, and one report, may take
MOST_TEXT = 4096  # characters of a text in a report: a crash comes with a stack of Python
MOST_BYTES = 1 << 16  # of a report


def new_key() -> str:
    """A key for one job."""
    return secrets.token_hex(16)


def listening() -> socket.socket:
    """A server on a free port of all addresses of this node. Raises OSError."""
    if socket.has_dualstack_ipv6():
        with suppress(OSError):  # a kernel without IPv6
            return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", 0))


def home_of(port: int, key: str) -> str:
    """How other nodes reach the server of this node, as text for `send`."""
    import psutil

    families = socket.AF_INET, socket.AF_INET6
    found = [(address.family, address.address) for each in psutil.net_if_addrs().values() for address in each]
    known = [address for family, address in found if family in families and "%" not in address]
    order = sorted(dict.fromkeys(known), key=lambda address: (address.startswith("127.") or address == "::1", address))
    return json.dumps({"addresses": order, "port": port, "key": key})


def send(home: str, report: dict[str, Any]) -> bool:
    """Send a report to the first address that accepts it; False if none does."""
    told = json.loads(home)
    body = json.dumps({name: value[:MOST_TEXT] if isinstance(value, str) else value for name, value in report.items()})
    for address in told["addresses"]:
        with suppress(OSError), socket.create_connection((address, told["port"]), SECONDS) as connection:
            connection.settimeout(SECONDS)
            connection.sendall(f"{_signature(told['key'], body)} {body}\n".encode())
            if connection.recv(1):
                return True
    return False


def receive(server: socket.socket, key: str) -> dict[str, Any] | None:
    """The next report; None for a connection of others, or without a whole report."""
    heard = b""
    with suppress(OSError, ValueError, RecursionError):
        connection = server.accept()[0]
        with connection:
            connection.settimeout(SECONDS)
            while not heard.endswith(b"\n") and len(heard) < MOST_BYTES and (part := connection.recv(MOST_BYTES)):
                heard += part
            signature, _, body = heard.decode().rstrip("\n").partition(" ")
            if not hmac.compare_digest(signature.encode(), _signature(key, body).encode()):
                return None
            connection.sendall(b"\n")
            report = json.loads(body)
            return report if isinstance(report, dict) else None
    return None


def _signature(key: str, body: str) -> str:
    return hmac.new(key.encode(), body.encode(), "sha256").hexdigest()
