"""The kits' images and compose files with podman: a federation of two containers, from build to
stop.

The image is that of the kit, with the libraries of its lock; the base image and the libraries are
downloaded where the machine does not have them.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import yaml

from agreement_file import agreement
from pomona.storage.run_status import read_status
from pomona_federation.provision.provision import provision
from pomona_federation.rehearsal.run import free_ports

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
BASE = "python:3.11-slim"  # what the kits' Dockerfile begins with
ROUNDS = 2
SILO = """name = "north"
[data]
label_column = "label"
classes = ["a", "b"]
[[data.clients]]
name = "north"
train = "data/train.csv"
test = "data/test.csv"
"""


def ran(*command, folder=None, seconds=1200.0):
    env = os.environ | {"POMONA_UID": str(os.getuid()), "POMONA_GID": str(os.getgid())}
    return subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=seconds, check=False
    )


def output(*command, **options):
    process = ran(*command, **options)
    assert process.returncode == 0, f"{command}: {process.stdout[-2000:]}{process.stderr[-2000:]}"
    return process.stdout


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    pytest.importorskip("hatchling", reason="Pomona's wheels are built without a download")
    for program in ("podman", "podman-compose"):
        if not shutil.which(program):
            pytest.skip(f"needs {program}")
    compose = re.search(
        r"podman-compose version (\d+)\.(\d+)", output("podman-compose", "--version")
    )
    if tuple(map(int, compose.groups())) < (1, 1):
        pytest.skip(
            "needs podman-compose 1.1: older ones join a network beside the machine's, which "
            "podman refuses"
        )
    tried = ran("podman", "run", "--rm", "--network", "host", BASE, "true", seconds=600)
    if tried.returncode:
        pytest.skip(f"no container of {BASE} runs here: {tried.stderr.strip()[-300:]}")
    folder = tmp_path_factory.mktemp("wheels")
    build = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation")
    output(*build, "--wheel-dir", folder, ROOT, ROOT / "federation")
    return folder


def table(rows, seed):
    x = np.random.Generator(np.random.PCG64(seed)).normal(size=(rows, 4))
    lines = (f"{','.join(map(str, row))},{'a' if row[0] > 0 else 'b'}\n" for row in x)
    return "p,q,r,s,label\n" + "".join(lines)


def container(kit):
    """Name and image of a kit's container, from its compose file."""
    ((service),) = yaml.safe_load((kit / "compose.yaml").read_text())["services"].values()
    return service["container_name"], service["image"]


@pytest.fixture
def kits(wheels, tmp_path):
    (tmp_path / "federation.toml").write_text(agreement(free_ports(1)[0], ["north"], rounds=ROUNDS))
    kits_folder = tmp_path / "kits"
    provision(tmp_path / "federation.toml", kits_folder, wheels)
    (kits_folder / "north" / "silo.toml").write_text(SILO)
    for number, name in enumerate(("train", "test")):
        (kits_folder / "north" / "data" / f"{name}.csv").write_text(table(80, number))
    yield kits_folder
    for folder in (kits_folder / "server", kits_folder / "north"):
        ran("podman-compose", "down", folder=folder)
        ran("podman", "rmi", "--force", container(folder)[1])


def test_a_federation_in_containers_trains_and_each_ends_without_a_restart(kits):
    server, north = kits / "server", kits / "north"
    for kit in (server, north):
        output("podman-compose", "up", "--build", "--detach", folder=kit)
    deadline = time.monotonic() + 300
    while (status := read_status(server / "run")) is None or status.state != "finished":
        logs = (
            ran("podman", "logs", container(server)[0]),
            ran("podman", "logs", container(north)[0]),
        )
        assert time.monotonic() < deadline, [log.stdout + log.stderr for log in logs]
        time.sleep(1)
    assert status.round == ROUNDS
    assert (north / "state" / "models" / "personal.safetensors").exists()
    output("podman", "wait", container(server)[0], seconds=60)
    output("podman", "stop", "--time", "90", container(north)[0], seconds=120)
    for kit in (server, north):
        name, image = container(kit)
        (description,) = json.loads(output("podman", "inspect", name))
        assert description["State"]["ExitCode"] == 0, "nothing that would be restarted"
        assert description["RestartCount"] == 0
        assert description["HostConfig"]["ReadonlyRootfs"]
        files = output(
            "podman",
            "run",
            "--rm",
            "--network",
            "host",
            image,
            "sh",
            "-c",
            "ls -A / /wheels; ls -A /kit || true",
        )
        assert not {"keys", "certs", "federation.toml"} & set(files.split()), "no kit in the image"
    assert json.loads((north / "state" / "node" / "node.json").read_bytes())["state"] == "stopped"
