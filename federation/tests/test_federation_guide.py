"""Runs every block of the guide to a federation between two machines, each machine being a folder
on loopback.

Differences from the guide: the server's address is a free one of this machine. Blocks for root are
not run; those that install are run separately, with this environment's libraries in place of a
download.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import time
import venv
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from docs_blocks import Block, blocks

from settings_pages import of_files

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guides" / "federation.md"
ADDRESS = "fl.example.org:8443"
FILE = re.compile(r"# (\S+\.(?:toml|py))\n")
LIMIT = 1800.0  # seconds for all of it
ROUNDS = 100  # rounds in the guide


def machine(block: Block) -> str:
    """The machine of a block, from the table at the top of the guide."""
    return re.match(r"on ([A-Z])\b", block.reason)[1]


def sections(folder: Path) -> list[tuple[str, list[Block]]]:
    """Titles and blocks of the guide's parts, in order."""
    titled_blocks = []
    for section in re.split(r"^## ", GUIDE.read_text(), flags=re.MULTILINE):
        path = folder / "part.md"
        path.write_text(section)
        titled_blocks.append((section.partition("\n")[0], blocks(path)))
    return titled_blocks


class Play:
    """The machines and their processes."""

    def __init__(self, folder, port):
        self.folder, self.server = folder, f"127.0.0.1:{port}"
        self.background, self.until = [], time.monotonic() + LIMIT
        (folder / "stick").mkdir()
        for name in "ABC":
            (folder / name).mkdir()
            (folder / name / "stick").symlink_to(folder / "stick")

    def run(self, block: Block) -> None:
        """Write a file, or run commands line by line."""
        homes = re.match(r"on ([ABC])(?:, ([ABC]) and ([ABC]))?", block.reason).groups()
        for folder in filter(None, homes):
            self._run(block, self.folder / folder)

    def _run(self, block: Block, folder: Path) -> None:
        if block.language != "sh":
            path = folder / FILE.match(block.text)[1]
            text = block.text.replace(ADDRESS, self.server)
            path.write_text(text)
            return
        env = dict(
            os.environ,
            PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            OMP_NUM_THREADS="1",
        )
        for line in block.text.splitlines():
            arguments = line.split()
            if arguments[0] == "cd" and len(arguments) == 2:
                folder = folder / arguments[1]
            elif line.endswith("&"):
                self._start(line.rstrip("& "), folder, env)
            elif "--watch" in arguments:
                self._watch(line, folder, env)
            else:
                left = self.until - time.monotonic()
                process = subprocess.run(
                    ["bash", "-euc", line], cwd=folder, env=env, timeout=left, check=False
                )
                assert process.returncode == 0, f"{block.position}: {line}"

    def _start(self, line: str, folder: Path, env: dict[str, str]) -> None:
        with (self.folder / "log.txt").open("ab") as log:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {line}"],
                cwd=folder,
                env=env,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.background.append(process)

    def _watch(self, line: str, folder: Path, env: dict[str, str]) -> None:
        """Watch for a while, then press Ctrl-C."""
        process = subprocess.Popen(
            ["bash", "-c", f"exec {line}"],
            cwd=folder,
            env=env,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        first = process.stdout.readline()
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=30)
        assert process.returncode == 0
        assert b"clinics" in first + output

    def status(self) -> dict:
        """Output of `pomona server status --json`."""
        command = [sys.executable, "-m", "pomona", "server", "status", "--json"]
        return json.loads(
            subprocess.run(command, cwd=self.folder / "A", check=True, capture_output=True).stdout
        )

    def wait(self, condition) -> None:
        """Wait for a condition on the server's status."""
        while not condition(self.status()):
            log = (self.folder / "log.txt").read_text()
            assert time.monotonic() < self.until, log
            assert any(p.poll() is None for p in self.background), log
            time.sleep(1)

    def close(self) -> None:
        """End the remaining processes: supervisors end everything that they started."""
        for process in self.background:
            if process.poll() is None:
                process.terminate()
        for process in self.background:
            with suppress(subprocess.TimeoutExpired):
                process.wait(30)
            if process.poll() is None:
                process.kill()
                process.wait()


def test_every_block_is_for_a_machine_and_every_file_is_valid(tmp_path):
    from pomona_federation.agreement import Federation
    from pomona_federation.silo.settings import SiloFile
    from pomona_federation.study import read_study

    names = []
    for _, items in sections(tmp_path):
        for block in items:
            assert machine(block) in "ABCWIR"
            if block.language == "toml":
                path = tmp_path / FILE.match(block.text)[1].replace("/", "-")
                path.write_text(block.text)
                read = {
                    "federation.toml": Federation.load,
                    "STUDY.toml": read_study,
                    "policy.toml": policy,
                    "kits-server-server.toml": server,
                }
                names.append(read.get(path.name, SiloFile.load)(path).name)
    assert names == [
        "clinics",
        "north",
        "south",
        "server",
        "west",
        "second",
        "policy",
        "cross",
        "tune",
    ]
    federation = Federation.load(tmp_path / "federation.toml")
    study = read_study(tmp_path / "STUDY.toml")
    federation.terms_of(study).require_computable()


def test_the_table_has_the_machines_of_all_blocks(tmp_path):
    all_blocks = [block for _, items in sections(tmp_path) for block in items]
    machines = re.findall(r"^\| \*\*([A-Z])\*\* \|", GUIDE.read_text(), flags=re.MULTILINE)
    assert sorted(machines) == sorted({machine(block) for block in all_blocks})


def policy(path: Path):
    """A silo's rules, under a name; the reference that the guide names explains all of them."""
    from pomona_federation.silo.consent_rules import ConsentPolicy

    assert ConsentPolicy.load(path.parent)
    assert "federation-files.md#policytoml" in GUIDE.read_text()
    table = of_files().partition("\n## policy.toml\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == set(
        ConsentPolicy.model_fields
    )
    return SimpleNamespace(name="policy")


def server(path: Path):
    """A server's own settings, under a name."""
    from pomona.core.toml import read_file
    from pomona_federation.server.settings import ServerFile

    assert ServerFile.model_validate(read_file(path)).notify
    return SimpleNamespace(name="server")


@pytest.fixture
def play(tmp_path):
    """A play without machines."""
    pytest.importorskip("flwr")
    from pomona_federation.rehearsal.run import free_ports
    from pomona_federation.supervision.supervisor import process_tree

    guide_play = Play(tmp_path, free_ports(1)[0])
    yield guide_play
    guide_play.close()
    below = [command for command in process_tree(os.getpid()).values() if str(tmp_path) in command]
    assert not below, "something still runs"


def answers(play) -> bool:
    """Whether the server answers."""
    from pomona.core.errors import ProtocolError
    from pomona_federation.address import Address
    from pomona_federation.agreement import Federation
    from pomona_federation.silo.http_client import ServerRoute
    from pomona_federation.silo.server_requests import ask_health

    kit = play.folder / "A" / "kits" / "server"
    with suppress(ProtocolError):
        federation = Federation.read(kit / "federation.toml")
        ask_health(ServerRoute(Address.parse(federation.server), kit / "certs" / "ca.crt"))
        return True
    return False


def state_of(status: dict, silo: str) -> str:
    return next((row["state"] for row in status["silos"] if row["silo"] == silo), "")


READY = {  # what must be so before a part begins; people see it in `pomona server status`
    "Start a silo with a CSV file (A)": lambda p: p.wait(lambda _: answers(p)),
    "Monitor": lambda p: p.wait(lambda s: s["round"] >= 1),
    "Add a silo while it runs (C, A)": lambda p: p.wait(lambda s: s["round"] >= 2 and answers(p)),
    "Renew a silo's key (B, A)": lambda p: p.wait(lambda s: state_of(s, "west") == "present"),
    "Revoke a silo": lambda p: p.wait(lambda s: state_of(s, "south") == "present"),
    "Results": lambda p: p.wait(lambda s: s["state"] == "finished"),
}
SKIPPED = ("Install, everywhere", "Studies and consent", "As a service")


@pytest.mark.slow
def test_two_strangers_and_a_third(play, tmp_path):
    """From nothing to models in two silos, one silo added and one revoked on the way."""
    for title, items in sections(tmp_path):
        if title in SKIPPED:
            continue
        READY.get(title, lambda _: None)(play)
        for block in items:
            play.run(block)
        if title == "Start a silo with a CSV file (A)":
            assert play.status()["round"] == 0, "quorum is both"
    status = play.status()
    assert (status["state"], status["round"]) == ("finished", ROUNDS)
    silos = {row["silo"]: row for row in status["silos"]}
    assert silos["west"]["joined"] > 2
    assert not (play.folder / "B/south/keys/next.key").exists()
    assert silos["south"]["state"] == "revoked"
    assert silos["south"]["left"] < ROUNDS
    with tarfile.open(play.folder / "C/west-kept.tar") as archive:
        archive.extractall(play.folder / "kept", filter="data")
    north, west = play.folder / "A/kits/north/state", play.folder / "kept/state"
    for state in (north, west):
        assert "own test data" in (state / "report.md").read_text()
    assert json.loads((north / "node" / "node.json").read_text())["state"] == "stopped"
    assert not list((play.folder / "C/west").rglob("*.key"))
    good(play.folder / "A")
    assert (play.folder / "A/kits/server/run/report.html").exists()


def good(folder: Path) -> None:
    """Check that north's model recognises its digits: all 600 of its rows, most of them training
    rows.
    """
    import numpy as np

    from pomona.personal import PersonalModel

    table = np.loadtxt(folder / "table.csv", delimiter=",", skiprows=1, dtype=np.float32)
    model = PersonalModel.load(folder / "kits/north/state/models/personal.safetensors")
    predictions = model.outputs(table[:, :-1]).argmax(1).numpy()
    assert (predictions == table[:, -1]).mean() > 0.6  # ten classes; chance is 0.1


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """Build the wheel with the guide's own line; pip downloads no library."""
    pytest.importorskip("hatchling", reason="the wheel is built without a download")
    folder = tmp_path_factory.mktemp("wheels")
    (first, *_) = install_blocks(folder, "W")
    build, copy = first.text.strip().splitlines()
    output_of(build.replace(" wheels ", f" {folder}/wheels ") + " --no-build-isolation", ROOT)
    output_of(copy.replace(" wheels/", f" {folder}/wheels/"), ROOT)
    return folder / "wheels"


def install_blocks(folder: Path, letter: str) -> list[Block]:
    (steps,) = (items for title, items in sections(folder) if title == SKIPPED[0])
    return [block for block in steps if machine(block) == letter]


def output_of(line: str, folder: Path) -> str:
    """A line with pip kept from downloading: this environment's libraries are used."""
    env = dict(os.environ, PIP_NO_DEPS="1", PIP_NO_INDEX="1", PIP_DISABLE_PIP_VERSION_CHECK="1")
    path = f"{Path(sys.executable).parent}:{env['PATH']}"
    command = ["bash", "-euc", line]
    process = subprocess.run(
        command, cwd=folder, env=env | {"PATH": path}, check=False, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1], ids=["with internet", "without"])
def test_the_wheel_installs_and_has_all_that_kits_need(number, wheels, tmp_path):
    (tmp_path / "wheels").symlink_to(wheels)
    block = install_blocks(tmp_path, "I")[number]
    create, libraries, install, listing = block.text.strip().splitlines()
    assert create == "python3 -m venv pomona-env"
    # of whatever Python runs the tests
    venv.create(tmp_path / "pomona-env", with_pip=True, symlinks=True)
    (site,) = (tmp_path / "pomona-env").glob("lib/python*/site-packages")
    assert libraries.endswith("--require-hashes --requirement wheels/requirements.lock")
    output_of(install, tmp_path)
    (site / "libraries.pth").write_text(
        "\n".join(p for p in sys.path if p.endswith("site-packages")) + "\n"
    )
    assert "federat" in output_of(listing, tmp_path)
    installed = site / "pomona_federation"
    assert (installed / "provision" / "templates" / "silo.toml.jinja").exists()
    assert (installed / "provision" / "templates" / "app" / "pyproject.toml.jinja").exists()
