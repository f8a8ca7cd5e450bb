"""`--part K/N`: processes that share a job, and the command without it, which makes the output."""

import json
from pathlib import Path

import pytest

from tilewright.cli import main
from tilewright.errors import UsageError
from tilewright.runtime.convert.models import init_dcgan
from tilewright.runtime.jobs.status import status


def draw(*more):
    """The exit code of a job of 64 images in 8 shards."""
    with pytest.raises(SystemExit) as ended:
        main(["draw", "-p", "m", "-n", "64", "-o", "out.npy", "--shard-size", "8", *more])
    return ended.value.code


def test_parts_of_a_job(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    init_dcgan("m", 1, z_size=4, channels=(8, 4, 3))
    assert draw() == 0
    whole = Path("out.npy").read_bytes()
    Path("out.npy").unlink()
    assert draw("--restart", "--part", "0/3") == 2
    assert (
        draw("--part", "3") == 2
        and draw("--part", "0/3++") == 2
        and draw("--part", "+") == 2
        and draw("--part", "3/3") == 2
    )
    for path in Path("out.npy.job").rglob("*"):
        if path.is_file():
            path.unlink()
    capsys.readouterr()
    for number, count in ((0, 3), (2, 2)):
        assert draw("--part", f"{number}/3") == 0
        assert f"Part {number} of 3 is there, {count} of 8 shards are new." in capsys.readouterr().out
    assert not Path("out.npy").exists()
    assert draw() == 0 and "Resumed: 5 of 8 shards were there" in capsys.readouterr().out
    assert Path("out.npy").read_bytes() == whole


def test_a_part_that_helps(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    init_dcgan("m", 1, z_size=4, channels=(8, 4, 3))
    assert draw("--part", "1/3+") == 0
    assert "Part 1 of 3 has ended, 8 of 8 shards are new." in capsys.readouterr().out
    assert draw("--part", "0/3+", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["part"], report["computed"], report["records"]) == ("0/3+", 0, 24)
    assert draw() == 0 and "All 8 shards were there" in capsys.readouterr().out


def test_the_report_of_a_part(tmp_path, monkeypatch, capsys):
    """Of its own shards; text goes to stderr."""
    monkeypatch.chdir(tmp_path)
    init_dcgan("m", 1, z_size=4, channels=(8, 4, 3))
    for again in (False, True):
        for number, shards in ((0, 3), (2, 2)):
            assert draw("--part", f"{number}/3", "--json") == 0
            out, err = capsys.readouterr()
            report = json.loads(out)
            wanted = {"verb": "draw", "output": "out.npy", "part": f"{number}/3", "records": 8 * shards, "errors": 0}
            wanted |= {"directory": "out.npy.job", "shards": 8, "computed": 0 if again else shards, "exit_code": 0}
            assert {name: report[name] for name in wanted} == wanted and report["seconds"]["total"] > 0
            assert f"Part {number} of 3 is there" in err
    assert draw("--json") == 0 and "part" not in json.loads(capsys.readouterr().out)["job"]


def test_what_is_said_of_a_finished_job(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    init_dcgan("m", 1, z_size=4, channels=(8, 4, 3))
    assert draw() == 0 and "were there" not in capsys.readouterr().out
    assert draw() == 0 and "Nothing to do: all 8 shards and the output were there" in capsys.readouterr().out
    Path("out.npy").unlink()
    assert draw() == 0 and "Nothing to do" not in capsys.readouterr().out and Path("out.npy").exists()
    Path("out.npy.job/manifest.json").write_text("{}")
    with pytest.raises(UsageError, match=r"manifest\.json: .* Run the command"):
        status("out.npy")
