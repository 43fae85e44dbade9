"""A federation of five real silos for a given time, while a seeded nemesis kills, pauses,
cuts, slows and misdates its processes; then the history checker and the simulator judge it.

    export PYTHONPATH=tests:federation/tests
    python federation/tests/reliability/nemesis.py --minutes 60 --seed 1 [--calm] [--out FOLDER]

An operator, as a person would, starts again what was killed, accepts studies at the silos, and
resumes a study that has lost its quorum. There are always two open studies, as the server ends with
the last. ``--calm``: no nemesis, for growth of memory and files, which is in ``samples.csv``.
"""

import argparse
import os
import signal
import sys
import tempfile
import time
import tomllib
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
import tomli_w
from history import by_run, read_history, violations
from safetensors.torch import load_file

import growth
from federation_in_process import PRIVATE, settings
from jumping_clock import jumping_clock
from pomona.core.rng import stream
from pomona.record.run_folder import load
from pomona.scenario import Scenario
from pomona.storage.run_status import read_status
from pomona_federation.rehearsal.inputs import federation_file
from pomona_federation.rehearsal.run import local_federation
from pomona_federation.server.study_queue import StudyQueue
from pomona_federation.silo.study_decisions import StudyDecisions
from pomona_federation.study import KIT
from pomona_federation.supervision.supervisor import process_tree
from real_federation import simulated
from troubled_line import Line, between

TERMS = {"deadline": 240.0, "patience": 120.0, "wait": 600.0, "quorum": 3, "decide": 900.0}
NOISE = {key: value for key, value in PRIVATE.items() if key != "seed"}
SUMS = {"secure_aggregation": {"max_norm": 20.0, "minimum": 3}}
IN_SUMS = {**NOISE, "honest": 2, "acknowledge": [*NOISE["acknowledge"], "noise-of-others"]}
STUDIES = {
    "apple": {"method": {"name": "apple", "budget": 1}},
    "sums": {"method": "fedavg", **SUMS},
    "private": {"method": "fedavg", "privacy": NOISE},
    "fedala": {"method": "fedala"},
    "ditto-sums": {"method": "ditto", **SUMS},
    "private-sums": {
        "method": "fedavg",
        **SUMS,
        "privacy": IN_SUMS,
        "largest_share": 1.0,
        "local_steps": 1,
        "batch_size": 300,
    },
    "scaffold": {"method": "scaffold"},
}
OWNERS = dict.fromkeys(("SuperLink", "ServerApp"), "server")
RECOVERY = 300.0  # seconds within which the next event comes, whether a round is committed or not
STALLED = 1200.0  # seconds without a committed round, with all processes there, that are a fault


@dataclass
class Arena:
    """A federation, its lines and clocks, and what its operator has done."""

    local: object
    rounds: int
    open_studies: int = 2  # open studies: the server ends with the last
    lines: dict = field(default_factory=dict)
    clocks: dict = field(default_factory=dict)
    scenarios: dict = field(default_factory=dict)
    operations: Counter = field(default_factory=Counter)
    faults: list = field(default_factory=list)
    deadline: float = 0.0
    next_check: float = 0.0  # when the studies are checked again
    stopped: set = field(default_factory=set)  # owners that stay down for now
    start_time: float = field(default_factory=time.monotonic)
    sampled: float = -growth.EVERY
    progress: tuple = ()  # committed rounds, and since when there are so many

    def __post_init__(self):
        self.progress = (0, self.start_time)

    @property
    def owners(self):
        """The server and the silos."""
        return ("server", *self.local.names)

    @property
    def samples(self):
        """The file of what the processes and folders take."""
        return self.local.folder.parent / "samples.csv"

    def start(self, owner):
        """Start a supervisor, with its own clock if it has one."""
        environment, _ = self.clocks.get(owner, ({}, None))
        with pytest.MonkeyPatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            self.local.start(owner)

    def operate(self, seconds):
        """Be the operator for some seconds."""
        limit = time.monotonic() + seconds
        while True:
            self._restart()
            if time.monotonic() > self.next_check:
                self._administer()
                self._watch()
                self.next_check = time.monotonic() + 5.0
            if time.monotonic() > self.sampled + growth.EVERY:
                self.sampled = time.monotonic()
                hours = (self.sampled - self.start_time) / 3600
                growth.append_sample(self.samples, hours, self.local, self.owners)
            if time.monotonic() >= limit:
                return
            time.sleep(0.5)

    def next_round(self, timeout):
        """Be the operator until another round is committed, or for some seconds at most."""
        limit, committed = time.monotonic() + timeout, self.progress[0]
        while self.progress[0] == committed and time.monotonic() < limit:
            self.operate(1.0)

    def _restart(self):
        for owner in self.owners:
            code = self.local.process(owner).poll()
            if code is not None and owner not in self.stopped:
                self.operations[
                    f"{'server' if owner == 'server' else 'silo'} ended with {code}"
                ] += 1
                self.start(owner)

    def _administer(self):
        queue = StudyQueue(self.local.server)
        for study in queue.all:
            status = read_status(study.folder)
            if status and status.state == "failed":
                self.operations[f"a study failed with code {status.code}"] += 1
                log(f"{study.name} failed with code {status.code}: {status.reason}")
                if status.code != 7:
                    self.faults.append(
                        f"{study.name} ended with code {status.code}: {status.reason}"
                    )
                queue.resume(study.name)
        if len(queue.open) < self.open_studies and time.monotonic() < self.deadline:
            self._submit(queue)
        for name in self.local.names:
            decisions = StudyDecisions(self.local.silo(name))
            for pending in decisions.all:
                if pending.status == "pending":
                    decisions.decide(pending, True, "Dr. North")

    def _submit(self, queue):
        number = len(self.scenarios)
        label, run = list(STUDIES.items())[number % len(STUDIES)]
        name = f"{label}-{number:03d}"
        scenario = scenario_of(run, self.rounds, len(self.local.names))
        tree = tomllib.loads(federation_file(scenario, "127.0.0.1:1"))
        path = self.local.folder / f"{name}.toml"
        path.write_text(
            tomli_w.dumps({"name": name, **TERMS, "run": tree["run"], "task": tree["task"]})
        )
        queue.submit(path)
        self.scenarios[name] = scenario

    def _watch(self):
        statuses = [read_status(folder) for folder in self.folders.values()]
        committed = sum(status.round for status in statuses if status)
        if committed > self.progress[0] or self.stopped:
            self.progress = (committed, time.monotonic())
        elif time.monotonic() > self.progress[1] + STALLED:
            self.faults.append(f"no round within {STALLED:.0f} s after {committed} rounds")
            self.progress = (committed, time.monotonic())

    @property
    def folders(self):
        """The server's folders of studies by name."""
        return {study.name: study.folder for study in StudyQueue(self.local.server).all}

    # What the nemesis does; each heals what it has done.

    def kill(self, draw):
        """SIGKILL of a process, of a whole silo, or of the server's machine."""
        target = draw.choice(
            ["silo", "node", "worker", "ClientApp", "machine", "supervisor", *OWNERS]
        )
        owner = self._owner(target, draw)
        processes = self._processes(target, owner)
        for process in processes:
            with suppress(psutil.Error):
                process.kill()
        if target in {"silo", "machine", "supervisor"} and processes:
            self.stopped = {owner}
            self.operate(draw.uniform(0, 15))
            self.stopped = set()
        return f"kill {target}", bool(processes)

    def pause(self, draw):
        """SIGSTOP of a process or of a whole silo, for up to 75 seconds."""
        target = draw.choice(["silo", "node", "worker", "ClientApp", *OWNERS])
        processes = self._processes(target, self._owner(target, draw))
        for process in processes:
            with suppress(psutil.Error):
                process.send_signal(signal.SIGSTOP)
        self.operate(draw.choice([3.0, 20.0, 75.0]))
        for process in processes:
            with suppress(psutil.Error):
                process.send_signal(signal.SIGCONT)
        return f"pause {target}", bool(processes)

    def line(self, draw):
        """One or three silos' lines are slow and lossy, cut again and again, or dark."""
        trouble = str(draw.choice(["slow", "cut", "dark"]))
        change = {
            "slow": {"delay": 0.1, "rate": 50e3, "lost": 0.05, "resend": 1.0},
            "cut": {"cut": 2e4},
            "dark": {"dark": True},
        }[trouble]
        names = draw.permutation(self.local.names)[: draw.choice([1, 3])]
        for name in names:
            vars(self.lines[name]).update(change)
        self.operate(draw.uniform(10, 60))
        for name in names:
            vars(self.lines[name]).update({k: getattr(Line, k) for k in change})
        return f"line {trouble}", True

    def clock(self, draw):
        """One clock steps, and is set right."""
        owner = draw.choice(sorted(self.clocks))
        _, jump = self.clocks[owner]
        jump(int(draw.choice([-3600, -100, -20, 20, 100, 3600])))
        self.operate(draw.uniform(5, 30))
        jump(0)
        return f"clock of {'the server' if owner == 'server' else 'a silo'}", True

    def _owner(self, target, draw):
        silo = str(draw.choice(self.local.names))
        if target == "supervisor":
            return str(draw.choice(["server", silo]))
        return "server" if target == "machine" else OWNERS.get(target, silo)

    def _processes(self, target, owner):
        top = self.local.process(owner)
        if top.poll() is not None:
            return []
        if target in {"silo", "machine"}:
            return list(process_tree(top.pid))
        return (
            [psutil.Process(top.pid)] if target == "supervisor" else self.local.find(target, owner)
        )


def scenario_of(run, rounds, silos):
    """A study's run as a scenario, on the same rows as all others."""
    rows = {"data": {"name": "digits", "train_limit": 80 * silos, "test_limit": 30 * silos}}
    return Scenario.prepare(settings(clients=silos, rounds=rounds, **rows, **run))


def log(text):
    """Print a line with the time."""
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stdout.flush()


def models_differ(arena, patch):
    """The finished studies and silos whose models are not the simulation's; and how many were
    compared.
    """
    compared, different = 0, []
    for name, scenario in arena.scenarios.items():
        folder = arena.folders.get(name)
        status = read_status(folder) if folder else None
        if not status or status.state != "finished" or scenario.config.privacy:
            continue
        cohorts = {r.round: r.cohort for r in load(folder).rounds}
        theirs = simulated(scenario, cohorts, arena.local.folder / "simulated" / name, patch)
        for k, silo in enumerate(arena.local.names):
            study_folder = silo_folder(arena.local.silo(silo), name)
            if k not in theirs or not last_visit(study_folder, status.round):
                continue  # a simulation keeps the models of its last round alone
            ours = load_file(study_folder / "models" / "personal.safetensors")
            compared += 1
            if any(not ours[key].equal(theirs[k][key]) for key in theirs[k]):
                different.append(f"{name}: {silo} has another model than the simulation")
    return compared, different


def silo_folder(kit, name):
    """A silo's folder of a study."""
    decisions = StudyDecisions(kit)
    return kit / "state" if name == KIT else decisions.folder(decisions.lookup(name))


def last_visit(folder, number):
    """Whether a silo had the last visit, which brings the final models."""
    path = folder / "rounds.jsonl"
    return path.exists() and f'"round": {number + 1}, "trained": false' in path.read_text()


def main():
    """Run, judge, print; exit code 1 if a rule was broken."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**31)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--silos", type=int, default=5)
    parser.add_argument("--calm", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    folder = options.out or Path(tempfile.mkdtemp(prefix="nemesis-"))
    draw, start_time, events = stream(options.seed, "nemesis"), time.monotonic(), Counter()
    log(f"seed {options.seed}, {options.minutes:g} minutes, in {folder}")
    with ExitStack() as closing:
        kit = scenario_of(STUDIES["apple"], options.rounds, options.silos)
        timeouts = {k: v for k, v in TERMS.items() if k != "decide"}
        local = closing.enter_context(local_federation(kit, folder / "local", **timeouts))
        arena = Arena(local, options.rounds, deadline=start_time + 60 * options.minutes)
        arena.scenarios[KIT] = kit
        for name in local.names:
            arena.lines[name] = closing.enter_context(between(Line(), local, [name]))
        for owner in () if options.calm else ("server", local.names[-1]):
            (folder / f"clock-{owner}").mkdir()
            arena.clocks[owner] = jumping_clock(folder / f"clock-{owner}")
        for owner in arena.owners:
            arena.start(owner)
        while time.monotonic() < arena.deadline:
            if options.calm:
                arena.operate(30.0)
            else:
                act = [arena.kill, arena.pause, arena.line, arena.clock][
                    draw.choice(4, p=[0.45, 0.2, 0.2, 0.15])
                ]
                event, hit = act(draw)
                events[event] += hit
                log(f"{event}{'' if hit else ' (nothing there)'}; {arena.progress[0]} rounds")
                arena.next_round(RECOVERY)
                arena.operate(draw.uniform(0, 10))
        log("no further studies; the open ones run to their end")
        limit = time.monotonic() + 1800
        while StudyQueue(local.server).open and time.monotonic() < limit:
            arena.operate(5.0)
        if left := [study.name for study in StudyQueue(local.server).open]:
            arena.faults.append(f"studies {left} did not end")
    judge(arena, events, time.monotonic() - start_time, options.seed)


def judge(arena, events, seconds, seed):
    """Print what happened, and every broken rule."""
    configs = {name: scenario.config for name, scenario in arena.scenarios.items()}
    sums = {n: c.secure_aggregation.minimum for n, c in configs.items() if c.secure_aggregation}
    private = frozenset(name for name, config in configs.items() if config.privacy)
    history = read_history(arena.local.folder / "kits", arena.local.names, sums, private)
    with pytest.MonkeyPatch.context() as patch:
        compared, different = models_differ(arena, patch)
    broken = [*violations(history), *different, *arena.faults]
    lines = len(history.server) + sum(len(s.audit) for s in history.silos.values())
    absent = sum(len(e["absent"]) for e in history.server if e["event"] == "round")
    runs = by_run(history.server)
    finished = sum(any(e["event"] == "finished" for e in run) for run in runs.values())
    log(f"seed {seed}: {seconds / 60:.0f} minutes, {sum(events.values())} events: {dict(events)}")
    log(
        f"{finished} of {len(runs)} studies finished, {arena.progress[0]} rounds, {absent} absences, "
        f"{lines} audit lines, {compared} models compared; operator: {dict(arena.operations)}"
    )
    for line in growth.growing(arena.samples):
        log(line)
    for line in broken:
        log(f"BROKEN {line}")
    log(f"{len(broken)} rules broken")
    sys.exit(bool(broken))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # its processes end with it
    main()
