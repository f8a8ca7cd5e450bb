"""A job in an S3 server on this machine, and workers that are killed and replaced all the time.

python tests/tools/fleet.py [SHARDS] [SECONDS] [WORKERS] [KILL_EVERY]

SHARDS shards of four numbers, each SECONDS long; WORKERS processes. One of them, perhaps the one that leads, is killed
with -9 every KILL_EVERY seconds, and another started. Prints what was lost, and the sha256 beside that of one process.
"""

import contextlib
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS.parent / "src")]

import obstore  # noqa: E402
from obstore.store import S3Store  # noqa: E402

import cloud  # noqa: E402
import toy_jobs  # noqa: E402

URL = f"{cloud.BUCKET}/fleet/out"
CODE = f"import sys; sys.path[:0] = {[str(TESTS), str(TESTS.parent / 'src')]!r}; import toy_jobs; toy_jobs.main()"


def start(path, environment, seconds, **more):
    """A process that leads the job, or with joins=True one that joins it."""
    said = {"input": f"{path}/in", "output": URL, "engine": "inline", "knobs": {"slow": seconds / 4}, **more}
    with open(f"{path}/log", "ab") as log:
        return subprocess.Popen([sys.executable, "-c", CODE, json.dumps(said)], env=environment, stdout=log, stderr=log)


def main(shards=200, seconds=1.0, workers=16, kill_every=10.0):
    """Returns the exit code: 0 if no byte differs."""
    with tempfile.TemporaryDirectory() as path, cloud.s3_server() as environment:
        environment |= {"TILEWRIGHT_OBJECTS": f"{path}/copies"}
        squares = toy_jobs.numbers(f"{path}/in", 4 * shards)
        client = S3Store("bucket", endpoint=environment["AWS_ENDPOINT_URL"], access_key_id="test", region="us-east-1",
                         secret_access_key="test", client_options={"allow_http": True})  # noqa: S106  # fmt: skip
        begin, kills, leads, ended = time.monotonic(), 0, 1, 0
        lead = start(path, environment, seconds)
        fleet, next_kill = [], time.monotonic() + kill_every
        while lead.poll() != 0:
            if lead.returncode is not None:
                leads += 1
                lead = start(path, environment, seconds)
            ended += sum(one.poll() == 0 for one in fleet)  # the job has no shard left for them
            fleet = [one for one in fleet if one.poll() is None]
            begun = obstore.list(client, prefix="fleet/out.job/manifest.json")
            if any(begun) or fleet or time.monotonic() - begin > 20:
                fleet += [
                    start(path, environment, seconds, joins=True) for _ in range(workers - 1 - ended - len(fleet))
                ]
            if time.monotonic() > next_kill:
                chosen, next_kill = random.randrange(workers), time.monotonic() + kill_every
                if chosen <= len(fleet):  # the lead is one of them to the end; at the end it alone merges
                    [lead, *fleet][chosen].send_signal(signal.SIGKILL)
                    kills += 1
            time.sleep(0.5)
        wall = time.monotonic() - begin
        for one in fleet:
            with contextlib.suppress(subprocess.TimeoutExpired):
                one.wait(30)
            one.kill()
        output = bytes(obstore.get(client, "fleet/out").bytes())
        report = json.loads(bytes(obstore.get(client, "fleet/out.job/report.json").bytes()))
        sums = [hashlib.sha256(content).hexdigest()[:16] for content in (output, squares)]
        lost = 4 * shards - report["records"]
        print(f"{shards:,} shards of {seconds:g} s, {workers} workers, {kills} kills, {leads} leads, {wall:.0f} s")
        print(f"records lost or twice: {lost}; sha256 {sums[0]}, of one process {sums[1]}")
        print(Path(f"{path}/log").read_text()[-2000:] if os.environ.get("SHOW") else "", end="")
        return int(output != squares or lost != 0)


if __name__ == "__main__":
    sys.exit(main(*(kind(word) for kind, word in zip((int, float, int, float), sys.argv[1:], strict=False))))
