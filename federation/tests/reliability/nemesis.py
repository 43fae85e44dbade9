"""A federation of five real silos for as long as one likes, while a seeded nemesis kills, pauses,
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
AFTER = 1200.0  # seconds without a committed round, with all processes there, that are a fault


@dataclass
class Arena:
    """A federation, its lines and clocks, and what its operator has done."""

    local: object
    rounds: int
    together: int = 2  # open studies: the server ends with the last
    lines: dict = field(default_factory=dict)
    clocks: dict = field(default_factory=dict)
    scenarios: dict = field(default_factory=dict)
    done: Counter = field(default_factory=Counter)
    faults: list = field(default_factory=list)
    until: float = 0.0
    due: float = 0.0  # when the studies are looked at again
    down: set = field(default_factory=set)  # what is to stay down for now
    began: float = field(default_factory=time.monotonic)
    sampled: float = -growth.EVERY
    progress: tuple = ()  # committed rounds, and since when there are so many

    def __post_init__(self):
        self.progress = (0, self.began)

    @property
    def everybody(self):
        """The server and the silos."""
        return ("server", *self.local.names)

    @property
    def samples(self):
        """The file of what the processes and folders take."""
        return self.local.folder.parent / "samples.csv"

    def start(self, who):
        """Start a supervisor, with its own clock if it has one."""
        more, _ = self.clocks.get(who, ({}, None))
        with pytest.MonkeyPatch.context() as patch:
            for name, value in more.items():
                patch.setenv(name, value)
            self.local.start(who)

    def operate(self, seconds):
        """Be the operator for some seconds."""
        limit = time.monotonic() + seconds
        while True:
            self._restart()
            if time.monotonic() > self.due:
                self._administer()
                self._watch()
                self.due = time.monotonic() + 5.0
            if time.monotonic() > self.sampled + growth.EVERY:
                self.sampled = time.monotonic()
                hours = (self.sampled - self.began) / 3600
                growth.append_sample(self.samples, hours, self.local, self.everybody)
            if time.monotonic() >= limit:
                return
            time.sleep(0.5)

    def next_round(self, most):
        """Be the operator until another round is committed, or for some seconds at most."""
        limit, before = time.monotonic() + most, self.progress[0]
        while self.progress[0] == before and time.monotonic() < limit:
            self.operate(1.0)

    def _restart(self):
        for who in self.everybody:
            code = self.local.process(who).poll()
            if code is not None and who not in self.down:
                self.done[f"{'server' if who == 'server' else 'silo'} ended with {code}"] += 1
                self.start(who)

    def _administer(self):
        queue = StudyQueue(self.local.server)
        for study in queue.all:
            said = read_status(study.folder)
            if said and said.state == "failed":
                self.done[f"a study failed with code {said.code}"] += 1
                say(f"{study.name} failed with code {said.code}: {said.reason}")
                if said.code != 7:
                    self.faults.append(f"{study.name} ended with code {said.code}: {said.reason}")
                queue.resume(study.name)
        if len(queue.open) < self.together and time.monotonic() < self.until:
            self._submit(queue)
        for name in self.local.names:
            known = StudyDecisions(self.local.silo(name))
            for pending in known.all:
                if pending.status == "pending":
                    known.decide(pending, True, "Dr. North")

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
        at = sum(status.round for status in statuses if status)
        if at > self.progress[0] or self.down:
            self.progress = (at, time.monotonic())
        elif time.monotonic() > self.progress[1] + AFTER:
            self.faults.append(f"no round within {AFTER:.0f} s after {at} rounds")
            self.progress = (at, time.monotonic())

    @property
    def folders(self):
        """The server's folders of studies by name."""
        return {study.name: study.folder for study in StudyQueue(self.local.server).all}

    # What the nemesis does; each heals what it has done.

    def kill(self, draw):
        """SIGKILL of a process, of a whole silo, or of the server's machine."""
        kind = draw.choice(
            ["silo", "node", "worker", "ClientApp", "machine", "supervisor", *OWNERS]
        )
        who = self._owner(kind, draw)
        found = self._processes(kind, who)
        for process in found:
            with suppress(psutil.Error):
                process.kill()
        if kind in {"silo", "machine", "supervisor"} and found:
            self.down = {who}
            self.operate(draw.uniform(0, 15))
            self.down = set()
        return f"kill {kind}", bool(found)

    def pause(self, draw):
        """SIGSTOP of a process or of a whole silo, for up to 75 seconds."""
        kind = draw.choice(["silo", "node", "worker", "ClientApp", *OWNERS])
        found = self._processes(kind, self._owner(kind, draw))
        for process in found:
            with suppress(psutil.Error):
                process.send_signal(signal.SIGSTOP)
        self.operate(draw.choice([3.0, 20.0, 75.0]))
        for process in found:
            with suppress(psutil.Error):
                process.send_signal(signal.SIGCONT)
        return f"pause {kind}", bool(found)

    def line(self, draw):
        """One or three silos' lines are slow and lossy, cut again and again, or dark."""
        how = str(draw.choice(["slow", "cut", "dark"]))
        change = {
            "slow": {"delay": 0.1, "rate": 50e3, "lost": 0.05, "again": 1.0},
            "cut": {"cut": 2e4},
            "dark": {"dark": True},
        }[how]
        names = draw.permutation(self.local.names)[: draw.choice([1, 3])]
        for name in names:
            vars(self.lines[name]).update(change)
        self.operate(draw.uniform(10, 60))
        for name in names:
            vars(self.lines[name]).update({k: getattr(Line, k) for k in change})
        return f"line {how}", True

    def clock(self, draw):
        """One clock steps, and is set right."""
        who = draw.choice(sorted(self.clocks))
        _, jump = self.clocks[who]
        jump(int(draw.choice([-3600, -100, -20, 20, 100, 3600])))
        self.operate(draw.uniform(5, 30))
        jump(0)
        return f"clock of {'the server' if who == 'server' else 'a silo'}", True

    def _owner(self, kind, draw):
        silo = str(draw.choice(self.local.names))
        if kind == "supervisor":
            return str(draw.choice(["server", silo]))
        return "server" if kind == "machine" else OWNERS.get(kind, silo)

    def _processes(self, kind, who):
        top = self.local.process(who)
        if top.poll() is not None:
            return []
        if kind in {"silo", "machine"}:
            return list(process_tree(top.pid))
        return [psutil.Process(top.pid)] if kind == "supervisor" else self.local.find(kind, who)


def scenario_of(run, rounds, silos):
    """A study's run as a scenario, on the same rows as all others."""
    rows = {"data": {"name": "digits", "train_limit": 80 * silos, "test_limit": 30 * silos}}
    return Scenario.prepare(settings(clients=silos, rounds=rounds, **rows, **run))


def say(text):
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
            home = home_of(arena.local.silo(silo), name)
            if k not in theirs or not last_visit(home, status.round):
                continue  # a simulation keeps the models of its last round alone
            ours = load_file(home / "models" / "personal.safetensors")
            compared += 1
            if any(not ours[key].equal(theirs[k][key]) for key in theirs[k]):
                different.append(f"{name}: {silo} has another model than the simulation")
    return compared, different


def home_of(kit, name):
    """A silo's folder of a study."""
    known = StudyDecisions(kit)
    return kit / "state" if name == KIT else known.folder(known.lookup(name))


def last_visit(home, number):
    """Whether a silo had the last visit, which brings the final models."""
    path = home / "rounds.jsonl"
    return path.exists() and f'"round": {number + 1}, "trained": false' in path.read_text()


def main():
    """Run, judge, print; exit code 1 if a rule was broken."""
    words = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    words.add_argument("--minutes", type=float, default=60.0)
    words.add_argument("--seed", type=int, default=time.time_ns() % 2**31)
    words.add_argument("--rounds", type=int, default=6)
    words.add_argument("--silos", type=int, default=5)
    words.add_argument("--calm", action="store_true")
    words.add_argument("--out", type=Path)
    given = words.parse_args()
    out = given.out or Path(tempfile.mkdtemp(prefix="nemesis-"))
    draw, began, events = stream(given.seed, "nemesis"), time.monotonic(), Counter()
    say(f"seed {given.seed}, {given.minutes:g} minutes, in {out}")
    with ExitStack() as closing:
        kit = scenario_of(STUDIES["apple"], given.rounds, given.silos)
        kept = {k: v for k, v in TERMS.items() if k != "decide"}
        local = closing.enter_context(local_federation(kit, out / "local", **kept))
        arena = Arena(local, given.rounds, until=began + 60 * given.minutes)
        arena.scenarios[KIT] = kit
        for name in local.names:
            arena.lines[name] = closing.enter_context(between(Line(), local, [name]))
        for who in () if given.calm else ("server", local.names[-1]):
            (out / f"clock-{who}").mkdir()
            arena.clocks[who] = jumping_clock(out / f"clock-{who}")
        for who in arena.everybody:
            arena.start(who)
        while time.monotonic() < arena.until:
            if given.calm:
                arena.operate(30.0)
            else:
                act = [arena.kill, arena.pause, arena.line, arena.clock][
                    draw.choice(4, p=[0.45, 0.2, 0.2, 0.15])
                ]
                event, hit = act(draw)
                events[event] += hit
                say(f"{event}{'' if hit else ' (nothing there)'}; {arena.progress[0]} rounds")
                arena.next_round(RECOVERY)
                arena.operate(draw.uniform(0, 10))
        say("no further studies; the open ones run to their end")
        limit = time.monotonic() + 1800
        while StudyQueue(local.server).open and time.monotonic() < limit:
            arena.operate(5.0)
        if left := [study.name for study in StudyQueue(local.server).open]:
            arena.faults.append(f"studies {left} did not end")
    judge(arena, events, time.monotonic() - began, given.seed)


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
    say(f"seed {seed}: {seconds / 60:.0f} minutes, {sum(events.values())} events: {dict(events)}")
    say(
        f"{finished} of {len(runs)} studies finished, {arena.progress[0]} rounds, {absent} absences, "
        f"{lines} audit lines, {compared} models compared; operator: {dict(arena.done)}"
    )
    for line in growth.growing(arena.samples):
        say(line)
    for line in broken:
        say(f"BROKEN {line}")
    say(f"{len(broken)} rules broken")
    sys.exit(bool(broken))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # its processes end with it
    main()
