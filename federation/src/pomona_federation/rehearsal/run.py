"""``pomona deploy rehearse``: the whole federation on this machine, and a simulation of the same
samples.

Real processes of a server and of silos, with TLS and keys, started as administrators start them.
The result is the difference between the personal models of the two, and the cost of a round.
"""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import tomli_w
import torch
from safetensors.torch import load_file

from pomona.cli.output import about
from pomona.core.errors import PomonaError, QuorumError
from pomona.core.files import MAX_LOG_BYTES, content, opened
from pomona.core.registry import own_code_folders
from pomona.core.toml import read_file
from pomona.record.result import Result
from pomona.record.run_folder import load
from pomona.scenario import Scenario
from pomona.simulation import simulate
from pomona.storage.run_status import Status, read_status
from pomona_federation.agreement import Federation
from pomona_federation.named_code import named_code
from pomona_federation.provision.provision import provision
from pomona_federation.rehearsal.inputs import data_section, federation_file, write_rows
from pomona_federation.supervision.supervisor import (
    adopt,
    disown,
    end,
    environment,
    process_tree,
    reap,
)

Log = Callable[[str], None]
PROCESSES = {
    "SuperLink": "pomona_federation.superlink",
    "node": "pomona_federation.silo.node",
    "ServerApp": "flwr-serverapp",
    "worker": "pomona_federation.silo.worker",
    "supervisor": "-m pomona s",
}
LIMIT = 1200.0  # seconds without a committed round


@dataclass(frozen=True)
class Rehearsal:
    """Result of a rehearsal.

    Attributes:
        difference: by silo, the largest absolute difference between its personal model's numbers
            and the simulator's.
        started: seconds from the first process to the start of the first round.
        seconds, simulated_seconds: of each round, deployed and simulated.
        bytes_down, bytes_up: of each round, all silos.
        memory: by role of process, the largest resident memory of one process in bytes, sampled
            every 0.2 s.
        folder: kits, logs and records.
    """

    difference: dict[str, float]
    started: float
    seconds: tuple[float, ...]
    simulated_seconds: tuple[float, ...]
    bytes_down: tuple[int, ...]
    bytes_up: tuple[int, ...]
    memory: dict[str, int]
    folder: Path

    @property
    def largest(self) -> float:
        """Largest difference over all silos."""
        return max(self.difference.values())


@dataclass
class LocalFederation:
    """A federation with kits on this machine, and its processes.

    ``names`` are the silos; ``simulation`` is the scenario whose rows are in their files.
    """

    folder: Path
    names: tuple[str, ...]
    simulation: Scenario
    memory: dict[str, int] = field(default_factory=dict)
    _processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def server(self) -> Path:
        """The server's kit."""
        return self.folder / "kits" / "server"

    def silo(self, name: str) -> Path:
        """A silo's kit."""
        return self.folder / "kits" / name

    def start(self, name: str, wrapper: Sequence[str] = ()) -> None:
        """Start the server, or a silo by name, as its administrator does; with a wrapper command,
        if any.
        """
        role, kit = ("server", self.server) if name == "server" else ("silo", self.silo(name))
        with (self.folder / f"{name}.log").open("ab") as file:
            command = [*wrapper, sys.executable, "-m", "pomona", role, "start", f"--folder={kit}"]
            study = Federation.read(self.server / "federation.toml").study
            own_code = named_code(study.run) if study else []
            import_path = [*sys.path, *map(str, own_code_folders() if own_code else ())]
            env = environment(self.folder) | {"PYTHONPATH": os.pathsep.join(import_path)}
            self._processes[name] = subprocess.Popen(
                command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True, env=env
            )

    def process(self, name: str) -> subprocess.Popen[bytes]:
        """The process of a started supervisor."""
        return self._processes[name]

    def find(self, role: str, name: str) -> list[psutil.Process]:
        """Return the processes of a role that a supervisor has started."""
        tree = process_tree(self._processes[name].pid) if name in self._processes else {}
        return [
            process for process, command in tree.items() if process_role(process, command) == role
        ]

    @property
    def status(self) -> Status | None:
        """The server's last status."""
        return read_status(self.server / "run")

    def wait(
        self,
        condition: Callable[[Status], bool],
        seconds: float = LIMIT,
        poll: Callable[[], None] = lambda: None,
    ) -> Status:
        """Wait until the status satisfies a condition; ``poll`` is called meanwhile.

        Raises QuorumError after ``seconds`` without a committed round, or if the server ends.
        """
        limit, reached = time.monotonic() + seconds, 0
        while time.monotonic() < limit:
            self._record_memory()
            status = self.status
            if status and condition(status):
                return status
            if status and status.round > reached:
                limit, reached = time.monotonic() + seconds, status.round
            code = self._processes["server"].poll()
            if code is not None and not (self.status and condition(self.status)):
                raise self._failure(f"the rehearsal's server ended with code {code}")
            poll()
            time.sleep(0.2)
        raise self._failure(f"the rehearsal made no progress within {seconds:.0f} s")

    def require_alive(self) -> None:
        """Raise QuorumError, with its last line, for a silo that has ended with an error."""
        for name in self.names:
            if code := self._processes[name].poll():
                raise self._failure(f"{name} ended with code {code}", name)

    def _failure(self, reason: str, name: str = "server") -> QuorumError:
        log = self.folder / f"{name}.log"
        lines = content(log, MAX_LOG_BYTES).decode(errors="replace").strip().splitlines()
        last_line = f" ({lines[-1]})" if lines else ""
        return QuorumError(f"{reason}{last_line}; see {log}")

    def _record_memory(self) -> None:
        """Record the largest memory of each role of process."""
        for supervisor in self._processes.values():
            for process, command in process_tree(supervisor.pid).items():
                with suppress(psutil.Error):
                    if role := process_role(process, command):
                        self.memory[role] = max(process.memory_info().rss, self.memory.get(role, 0))

    def close(self) -> None:
        """End every process started here, with all its descendants."""

        def living() -> Collection[psutil.Process]:
            reap([p.pid for p in self._processes.values()])
            return [
                process
                for p in self._processes.values()
                if p.poll() is None
                for process in process_tree(p.pid)
            ]

        end(living, patience=10.0)
        for process in self._processes.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(5.0)


def process_role(process: psutil.Process, command: str) -> str:
    """The role of a deployment's process; "ClientApp" for a fork of a worker, "" for others, and
    for one that has just ended.
    """
    try:
        signs = f"pomona_federation.{process.name()} {command}"  # a fork's command is its parent's
        role = next((role for role, sign in PROCESSES.items() if sign in signs), "")
        parent = process.parent() if role == "worker" else None
        return "ClientApp" if parent and PROCESSES["worker"] in " ".join(parent.cmdline()) else role
    except psutil.Error:
        return ""


@contextmanager
def local_federation(scenario: Scenario, folder: Path, **options: Any) -> Iterator[LocalFederation]:
    """Kits in a folder for the clients of a scenario, each with its own rows; all processes end on
    exit.
    """
    adopt()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "federation.toml"
    path.write_text(
        federation_file(scenario, f"127.0.0.1:{free_ports(1)[0]}", **options), encoding="utf-8"
    )
    provision(path, folder / "kits")
    names = tuple(s["name"] for s in read_file(path)["silo"])
    files = {
        n: write_rows(scenario, i, (folder / "kits" / n / "data").absolute())
        for i, n in enumerate(names)
    }
    for name in names:
        silo_file = folder / "kits" / name / "silo.toml"
        settings = read_file(silo_file)
        section = data_section(scenario, {name: files[name]})
        silo_file.write_text(tomli_w.dumps({**settings, "data": section}), encoding="utf-8")
    local = LocalFederation(folder, names, scenario)
    with ExitStack() as closing:
        closing.callback(disown)
        closing.callback(local.close)
        yield local


def rehearse(
    scenario: Scenario, folder: Path, log: Log = lambda _: None, **options: Any
) -> Rehearsal:
    """Deploy the clients of a scenario on this machine, simulate it too, and compare.

    Args:
        scenario: its clients become silos.
        folder: for kits, logs and records; new.
        log: called with progress messages.
        options: keys of ``federation.toml`` to override, such as ``wire``.

    Raises:
        QuorumError: the federation ended before its last round; the message has its exit code.
        PomonaError: it could not start.
    """
    with local_federation(scenario, folder, **options) as local:
        start_time, last_round = time.time(), 0
        log(f"{len(local.names)} silos and the server start on loopback")
        for name in ("server", *local.names):
            local.start(name)

        def is_finished(status: Status) -> bool:
            nonlocal last_round
            if status.round > last_round:
                last_round = status.round
                seconds, rounds = time.time() - start_time, scenario.config.rounds
                left = about(seconds / last_round * (rounds - last_round))
                log(f"round {last_round} of {rounds} committed after {seconds:.0f} s{left}")
            return status.state != "running"

        status = local.wait(is_finished, poll=local.require_alive)
        memory = dict(local.memory)
    if status.state != "finished":
        raise QuorumError(
            f"the federation ended with code {status.code}: {status.reason}; see {folder}"
        )
    log("the simulator on the same seeds")
    simulation = simulate(local.simulation, folder / "simulation")
    deployed = load(local.server / "run")
    return Rehearsal(
        differences(local, simulation),
        _seconds_to_first_round(local.server / "run", start_time),
        tuple(r.seconds for r in deployed.rounds),
        tuple(r.seconds for r in simulation.rounds),
        tuple(sum(r.bytes_down) for r in deployed.rounds),
        tuple(sum(r.bytes_up) for r in deployed.rounds),
        memory,
        folder,
    )


def differences(local: LocalFederation, simulation: Result) -> dict[str, float]:
    """By silo, the largest difference between its personal model and the simulator's."""
    assert simulation.folder
    by_silo = {}
    for i, name in enumerate(local.names):
        deployed = load_file(local.silo(name) / "state" / "models" / "personal.safetensors")
        simulated = load_file(simulation.folder / "models" / f"client-{i:02d}.safetensors")
        if deployed.keys() != simulated.keys():
            raise PomonaError(
                f"{name} has a model whose tensors differ from the simulator's; report this"
            )
        by_silo[name] = max(
            float((deployed[k].double() - simulated[k].double()).abs().max()) for k in deployed
        )
        if by_silo[name] == 0 and not all(torch.equal(deployed[k], simulated[k]) for k in deployed):
            raise PomonaError(
                f"{name} has a model that differs from the simulator's in signs of zero; report "
                "this"
            )
    return by_silo


def _seconds_to_first_round(folder: Path, start_time: float) -> float:
    """Seconds until the record was opened, the earliest start of the first round."""
    with opened(folder / "events.jsonl") as file:
        return float(json.loads(file.readline())["time"]) - start_time


def free_ports(n: int) -> list[int]:
    """Return ``n`` free ports of this machine."""
    with ExitStack() as open_:
        sockets = [open_.enter_context(socket.socket()) for _ in range(n)]
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in sockets]
