"""A store of objects for tests: in this process's memory, or a real S3 server on this machine."""

import logging
import os
import urllib.request
from contextlib import contextmanager

BUCKET = "s3://bucket"


def memory(monkeypatch):
    """The store of every URL is this process's memory from now on; returns obstore's client of it."""
    from obstore.store import MemoryStore

    from tilewright.runtime.stores import objects

    client = MemoryStore()
    monkeypatch.setattr(objects, "open_bucket", lambda bucket, bulk=False: client)
    return client


@contextmanager
def s3_server():
    """The environment of processes that reach an S3 server (moto's), which has the bucket of BUCKET."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it says each request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        address = "http://{}:{}".format(*server.get_host_and_port())
        made = urllib.request.Request(f"{address}/{BUCKET.removeprefix('s3://')}", method="PUT")  # noqa: S310
        urllib.request.urlopen(made).close()  # noqa: S310 - both are this machine's own server
        yield os.environ | {
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": address,
            "AWS_ALLOW_HTTP": "true",
        }
    finally:
        server.stop()
