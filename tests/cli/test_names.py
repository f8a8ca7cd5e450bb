"""File names that are not UTF-8, or that the locale cannot spell: every verb works with them, or refuses at once."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from gpt2_models import save
from tilewright.runtime.convert.models import init_dcgan, init_textcnn

SERVER = """
import json, os, sys
from tilewright.cli import main
import tilewright.cli.generate, tilewright.cli.classify, tilewright.cli.draw, tilewright.cli.convolve
import tilewright.cli.plan, tilewright.cli.status, tilewright.cli.verify
from tilewright.runtime.verbs.classify import task
from tilewright.runtime.verbs.convolve import task
from tilewright.runtime.verbs.draw import task
from tilewright.runtime.verbs.generate import task
for line in sys.stdin:
    arguments = [os.fsdecode(bytes.fromhex(one)) for one in json.loads(line)]
    sys.stdout.flush()
    pid = os.fork()
    if not pid:
        for fd, name in ((1, "stdout"), (2, "stderr")):
            file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(file, fd)
        try:
            main(arguments)
        except SystemExit as error:
            sys.stdout.flush()
            os._exit(error.code or 0)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""
LOCALES = {
    "utf-8": {"LC_ALL": "C.UTF-8"},
    "ascii": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "ascii streams": {"LC_ALL": "C.UTF-8", "PYTHONIOENCODING": "ascii"},
}
NAMES = [b"caf\xc3\xa9", b"caf\xe9\xff", "日本\u202e".encode(), b"a\\xff b'\n"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Small models and an input of each verb, under names of their own."""
    path = tmp_path_factory.mktemp("names")
    init_textcnn(str(path / "textcnn"), 3, vocab_size=50, sequence_length=6, hidden_size=8, num_filters=5,
                 kernel_sizes=(2, 3), hidden_sizes=(7,))  # fmt: skip
    save(path / "gpt2")
    init_dcgan(str(path / "dcgan"), 3, z_size=3, size=2, channels=(4, 3), kernel=4)
    rng = np.random.default_rng(5)
    rows = rng.integers(0, 50, (12, 6), np.int32)
    rows.tofile(path / "classify.bin")
    (path / "classify.jsonl").write_text("".join(json.dumps({"tokens": row}) + "\n" for row in rows.tolist()))
    (path / "generate.jsonl").write_text("".join(json.dumps({"prompt": f"the cat {i}"}) + "\n" for i in range(6)))
    (path / "generate.txt").write_text("the cat\nthe dog\n")
    np.save(path / "draw.npy", rng.standard_normal((5, 3)).astype(np.float32))
    np.save(path / "convolve.npy", rng.standard_normal((9, 8, 7)).astype(np.float32))
    return path


class Servers:
    """A process in each locale, which forks for each command: importing costs most of a small job's time."""

    def __init__(self, place):
        self.place, self.servers, self.plain = place, {}, {}

    def __call__(self, locale, *arguments):
        """(exit code, stdout, stderr) of a command, whose arguments may be bytes."""
        if locale not in self.servers:
            plain = {k: v for k, v in os.environ.items() if not k.startswith(("LC_", "LANG", "PYTHONUTF"))}
            self.servers[locale] = subprocess.Popen(
                [sys.executable, "-c", SERVER], cwd=self.place, env=plain | LOCALES[locale] | {"TILEWRIGHT_DEBUG": ""},
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )  # fmt: skip
        server = self.servers[locale]
        server.stdin.write(json.dumps([os.fsencode(one).hex() for one in arguments]).encode() + b"\n")
        server.stdin.flush()
        code = int(server.stdout.readline())
        return code, (self.place / "stdout").read_bytes(), (self.place / "stderr").read_bytes()

    def expected(self, verb, options, form, output):
        """What the same job writes under plain names."""
        if (verb, form, output) not in self.plain:
            path = str(self.place / f"plain.{verb}.{form}")
            image = ("--image", f"{path}{output.strip('/')}.grid.png") if verb == "draw" else ()
            job = (verb, *options, "-i", f"{verb}.{form}", "-o", f"{path}{output}", "--threads", "1", *image)
            code, _, err = self("utf-8", *job)
            assert code == 0, err
            self.plain[verb, form, output] = contents(f"{path}{output}".rstrip("/"))
        return self.plain[verb, form, output]

    def close(self):
        for server in self.servers.values():
            server.stdin.close()
            assert server.wait() == 0
            server.stdout.close()


@pytest.fixture(scope="module")
def run(place):
    servers = Servers(place)
    yield servers
    servers.close()


VERBS = [
    ("generate", ("-p", "gpt2", "--max-tokens", "2"), "jsonl", ("jsonl", "txt", "parquet")),
    ("classify", ("-p", "textcnn"), "jsonl", ("jsonl", "parquet")),
    ("classify", ("-p", "textcnn"), "bin", ("bin",)),
    ("draw", ("-p", "dcgan"), "npy", ("npy", "txt", "png", "bmp", "")),
    ("convolve", ("--kernel", "box:3"), "npy", ("npy", "nii", "nii.gz", "tif", "txt", "zarr")),
]
CASES = [(verb, options, form, output) for verb, options, form, outputs in VERBS for output in outputs]
WAYS = [(locale, stem) for stem in NAMES for locale in LOCALES]
OFTEN = ("jsonl", "parquet", "bin", "npy", "png", "", "zarr", "nii.gz")  # outputs that `make test` writes
QUICK = [(case, WAYS[(5 * number + 1) % len(WAYS)]) for number, case in enumerate(CASES) if case[3] in OFTEN]
REST = [(case, way) for case in CASES for way in WAYS if (case, way) not in QUICK]
ALL = [*QUICK, *(pytest.param(*case, marks=pytest.mark.long) for case in REST)]


@pytest.mark.parametrize(("case", "way"), ALL, ids=ascii)
def test_a_job_of_any_name(place, run, tmp_path, case, way):
    """Its input, output, trace and image have such a name, in a directory of such a name; the bytes are those that
    plain names give; plan, status, verify and a second run know it."""
    (verb, options, form, output), (locale, stem) = case, way
    folder = os.fsencode(tmp_path) + b"/" + stem
    os.mkdir(folder)
    here = folder + b"/" + stem
    source, target, output = here + b".in." + form.encode(), here + b".out", f".{output}" if output else "/"
    shutil.copy(place / f"{verb}.{form}", source)
    image = ("--image", here + b".grid.png") if verb == "draw" else ()
    job = (verb, *options, "-i", source, "-o", target + output.encode(), "--threads", "1", *image)
    code, out, err = run(locale, "plan", *job, "--json")
    assert code == 0 and json.loads(out)["records"] > 0, err
    code, out, err = run(locale, *job, "--trace", here + b".trace", "--json")
    assert code == 0, err
    assert stem.decode(errors="backslashreplace") in json.loads(out)["output"]
    target = (target + output.encode()).rstrip(b"/")
    assert contents(target) == run.expected(verb, options, form, output)
    for verb in ("status", "verify"):
        code, out, err = run(locale, verb, target, "--json")
        assert code == 0 and json.loads(out)["verb"] == verb, (verb, err)
    code, out, err = run(locale, *job)
    assert code == 0 and b"Nothing to do" in out, err


def contents(path):
    """Of a file, or of all in a directory."""
    if not os.path.isdir(path):
        with open(path, "rb") as file:
            return file.read()
    return {os.fsencode(name): contents(os.path.join(path, name)) for name in os.listdir(path)}


def test_a_job_goes_on_in_another_locale(place, run, tmp_path):
    """Its names are kept as bytes: begun under ASCII, UTF-8 finds nothing to do."""
    name = os.fsencode(tmp_path) + "/é\udcff".encode(errors="surrogateescape")
    job = ("draw", "-p", "dcgan", "-n", "3", "-o", name + b".npy", "--image", name + b".png", "--threads", "1")
    for locale in ("ascii", "utf-8", "ascii streams"):
        code, out, err = run(locale, *job)
        assert code == 0 and (b"Nothing to do" in out) == (locale != "ascii"), err


def test_text_of_an_option(run, tmp_path):
    """Is UTF-8 in every locale, and other bytes are refused before the work."""
    job = ("generate", "-p", "gpt2", "-i", "generate.txt", "--max-tokens", "2", "--threads", "1", "-o")
    code, _, err = run("ascii", *job, str(tmp_path / "a.txt"), "--stop", "é".encode())
    assert code == 0, err
    code, _, err = run("ascii", *job, str(tmp_path / "b.txt"), "--stop", b"\xff")
    assert code == 2 and b"--stop is " in err and not os.path.exists(tmp_path / "b.txt.job")


def test_a_model_of_any_name(place, run, tmp_path):
    folder = os.fsencode(tmp_path) + b"/m\xe9\xff"
    os.mkdir(folder)
    for kind in ("gpt2", "textcnn", "dcgan"):
        os.symlink(os.fsencode(place / kind), folder + b"/" + kind.encode() + b"\xff")
    jobs = [("generate", "gpt2", "jsonl"), ("classify", "textcnn", "jsonl"), ("draw", "dcgan", "npy")]
    for verb, kind, form in jobs:
        job = (verb, "-p", folder + b"/" + kind.encode() + b"\xff", "-i", f"{verb}.{form}", "--threads", "1")
        code, out, err = run("ascii", *job, "-o", tmp_path / f"{verb}.{form}", "--json")
        assert code == 0 and json.loads(out), err


def test_errors_name_it(run, tmp_path):
    name = os.fsencode(tmp_path) + b"/\xff"
    for job in (("classify", "-p", "textcnn", "-i", name + b".jsonl"), ("draw", "-p", "dcgan", "-i", name + b".npy")):
        code, out, err = run(
            "ascii", *job, "-o", name + b".out.npy" if job[0] == "draw" else name + b".out.jsonl", "--json"
        )
        assert code == 3 and b"no such input" in err and b"\\udcff" in err
        assert "no such input" in json.loads(out)["error"]["message"]
    for verb in ("status", "verify"):
        assert run("utf-8", verb, name)[0] == 2
