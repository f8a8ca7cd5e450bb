"""The manifests of the guide for clusters, and the container file."""

import os
import re
import subprocess
import sys

import pytest

from docs_pages import DOCS, ROOT, blocks

PAGE = DOCS / "guide" / "cluster.md"
FILES = {block.title: block.text for block in blocks(PAGE) if block.title}
JOBS = ("parts.yaml", "last.yaml")


def parsed(name):
    import yaml  # a dependency of transformers and of MkDocs

    return yaml.safe_load(FILES[name])


def container(name):
    """The only container of a manifest's pods."""
    (found,) = parsed(name)["spec"]["template"]["spec"]["containers"]
    return found


@pytest.mark.parametrize("name", JOBS)
def test_a_manifest_is_a_job_whose_volumes_exist(name):
    job = parsed(name)
    pod = job["spec"]["template"]["spec"]
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
    assert {mount["name"] for mount in container(name)["volumeMounts"]} == {one["name"] for one in pod["volumes"]}
    assert pod["restartPolicy"] in ("Never", "OnFailure")
    grace = int(re.search(r"--grace (\d+)", container(name)["args"][0])[1])
    assert grace + 10 <= pod["terminationGracePeriodSeconds"]


def test_the_parts_are_those_of_an_indexed_job():
    spec = parsed("parts.yaml")["spec"]
    assert spec["completionMode"] == "Indexed" and spec["parallelism"] <= spec["completions"]
    assert f'"$JOB_COMPLETION_INDEX/{spec["completions"]}+"' in container("parts.yaml")["args"][0]
    assert spec["template"]["spec"]["restartPolicy"] == "Never"  # a podFailurePolicy needs it
    names = {
        rule["onExitCodes"]["containerName"] for rule in spec["podFailurePolicy"]["rules"] if "onExitCodes" in rule
    }
    assert names == {container("parts.yaml")["name"]}


@pytest.mark.long
def test_the_commands_of_all_manifests_make_one_output(tmp_path):
    """Each as its pod or node runs it, in one folder; most parts find nothing to do."""
    (tmp_path / "reviews.txt").write_text("".join(f"A fine film, number {n}.\n" for n in range(100)))
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "tilewright"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m tilewright "$@" --shard-size 500\n')
    program.chmod(0o755)
    task = parsed("labels.yaml")
    assert set(task) == {"name", "num_nodes", "resources", "volumes", "run"} and list(task["volumes"]) == ["/data"]
    sky = task["run"].replace("cd /data", f"cd {tmp_path}")
    commands = [
        ([*container("parts.yaml")["command"], *container("parts.yaml")["args"]], {"JOB_COMPLETION_INDEX": "3"}),
        (["sh", "-c", sky], {"SKYPILOT_NODE_RANK": "7", "SKYPILOT_NUM_NODES": str(task["num_nodes"])}),
        ([*container("last.yaml")["command"], *container("last.yaml")["args"]], {}),
    ]
    paths = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    said = ""
    for command, more in commands:
        env = {
            **os.environ,
            "PATH": f"{program.parent}:{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(paths),
            **more,
        }
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        said += done.stdout
        assert done.returncode == 0, done.stdout + done.stderr
    assert "Part 3 of 8 has ended, 5 of 5 shards are new" in said and "All 5 shards were there" in said
    assert len((tmp_path / "labels.jsonl").read_text().splitlines()) == 100


def test_the_container_file_copies_what_the_build_needs():
    """And installs extras that exist; the files that it copies are those that .dockerignore lets in."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    text = (ROOT / "Dockerfile").read_text()
    copied = {word for line in re.findall(r"^COPY (.*) /src\S*$", text, re.MULTILINE) for word in line.split()}
    assert copied == {"pyproject.toml", "src", project["readme"], *project["license-files"]}
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert let_in == copied
    extras = {name for found in re.findall(r"/src\[([\w,]+)\]", text) for name in found.split(",")}
    assert extras <= set(project["optional-dependencies"]) and {"cpu", "gpu"} <= set(re.findall(r" AS (\w+)", text))
