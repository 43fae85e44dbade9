"""Small federations in this process, one a seed, whose messages a seeded scheduler delays,
reorders, repeats and loses, and whose server and silos it kills between any two steps on the disk.

    export PYTHONPATH=tests:federation/tests
    python federation/tests/reliability/scheduled.py --minutes 60 --seed 1     seeds from 1 on
    python federation/tests/reliability/scheduled.py --seed 17 --only          one seed again

The real round loop, kits, silos and files; only Flower and the clock are the scheduler's. A killed
process does nothing more to its files. Each federation ends healed; then the history checker judges
it, and its models are those of the simulation in which the same silos are absent.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from history import read_history, violations

from federation_in_process import PRIVATE, Federation, loaded, settings
from pomona.core.errors import QuorumError
from pomona.core.membership import Membership
from pomona.core.rng import stream
from pomona.record.run_folder import load
from pomona.scenario import Scenario
from pomona.storage.run_status import read_status
from pomona_federation.flower_apps import handled
from pomona_federation.messages.message_bodies import SumRequest
from pomona_federation.messages.message_bus import Undelivered
from pomona_federation.server import handshake, message_exchange, outgoing_messages
from pomona_federation.server.member_registry import ROSTER
from pomona_federation.server.server_app import coordinate
from pomona_federation.silo.round_store import EVALUATION
from pomona_federation.study import KIT
from pomona_federation.unused_uplinks import Reason
from real_federation import simulated

ROUNDS = 3
SUMS = {"secure_aggregation": {"max_norm": 20.0, "minimum": 2}}
CASES = {
    "fedavg": {"method": "fedavg"},
    "apple": {"method": {"name": "apple", "budget": 1}},
    "sums": {"method": "fedavg", **SUMS},
    "private": {"method": "fedavg", "privacy": PRIVATE, "insecure": True},
    "scaffold": {"method": "scaffold"},
    "private sums": {
        "method": "fedavg",
        "secure_aggregation": {"max_norm": 20.0, "minimum": 3},
        "privacy": {
            **PRIVATE,
            "honest": 2,
            "acknowledge": [*PRIVATE["acknowledge"], "noise-of-others"],
        },
        "largest_share": 1.0,
        "local_steps": 1,
        "batch_size": 300,
        "insecure": True,
    },
    "ditto in sums": {"method": "ditto", **SUMS},
}
STEPS = ("fsync", "write", "replace", "rename", "unlink", "link", "ftruncate", "truncate")
TRIES = 12  # of a server, of which the last ones are undisturbed


class Killed(BaseException):
    """A process is killed here."""


@dataclass
class Killer:
    """Kills the process at work before or after one of its steps on the disk; a killed one takes
    no further step.
    """

    remaining: dict = field(default_factory=dict)  # process -> steps until it is killed
    dead: set = field(default_factory=set)
    working: str = "server"
    steps: int = 0

    def step(self, act, *args, **options):
        """Do a step, or die before or after it."""
        self.steps += 1
        process = self.working
        if process in self.dead:
            raise Killed
        if process not in self.remaining:
            return act(*args, **options)
        self.remaining[process] -= 0.5
        if self.remaining[process] <= 0:
            self._die(process)
        result = act(*args, **options)
        self.remaining[process] -= 0.5
        if self.remaining[process] <= 0:
            self._die(process)
        return result

    def _die(self, process):
        self.dead.add(process)
        del self.remaining[process]
        raise Killed

    @contextmanager
    def process(self, name, steps=None):
        """Be another process, to be killed after some steps, if it gets that far."""
        previous, self.working = self.working, name
        self.dead.discard(name)
        if steps:
            self.remaining[name] = steps
        try:
            yield
        finally:
            self.working = previous
            self.remaining.pop(name, None)

    @contextmanager
    def watching(self, patch):
        """Count the steps of this process."""
        for name in STEPS:
            act = getattr(os, name)
            patch.setattr(os, name, lambda *a, _act=act, **o: self.step(_act, *a, **o))
        yield self


@dataclass
class ScheduledBus:
    """Carries messages when the scheduler says; ``trouble``: how much of it there is, 0 for none.

    ``clock`` is that of the server. A silo does one message at a time, in the order of delivery.
    """

    kits: dict
    draw: object
    killer: Killer
    trouble: float
    clock: float = 0.0
    in_transit: list = field(default_factory=list)  # (time, number, node, ticket, message)
    replies: dict = field(default_factory=dict)  # ticket -> (time, reply)
    offline: dict = field(default_factory=dict)  # node -> until when
    events: Counter = field(default_factory=Counter)
    keys: dict = field(default_factory=dict)  # of sums: the sums that they are in
    numbers: object = field(default_factory=count)

    def happens(self, event, share):
        """Whether a fault happens now."""
        hit = self.draw.random() < share * self.trouble
        self.events[event] += hit
        return hit

    def later(self):
        """A moment when something arrives: soon, or after others, or after the deadline."""
        delay = self.draw.exponential(1.0)
        return self.clock + delay * (60.0 if self.happens("late", 0.08) else 1.0)

    # Implementation of MessageBus.

    def online(self):
        """The nodes that are there."""
        return frozenset(n for n in self.kits if self.offline.get(n, 0.0) <= self.clock)

    def send(self, messages):
        """Schedule messages, some twice, some never."""
        tickets = []
        for outgoing in messages:
            ticket = str(next(self.numbers))
            tickets.append(ticket)
            self._note_keys(outgoing.message)
            if self.happens("lost", 0.05):
                if self.draw.random() < 0.7:  # else nothing is ever heard of it
                    self.replies[ticket] = (
                        self.later(),
                        Undelivered(Reason.NODE_RESTARTED, "", retry=True),
                    )
                continue
            for _ in range(2 if self.happens("repeated", 0.1) else 1):
                self.in_transit.append(
                    (self.later(), int(ticket), outgoing.node, ticket, outgoing.message)
                )
        return tickets

    def fetch(self, tickets):
        """Let a little time pass, and take what has come."""
        self._pass(0.05)
        arrived = [t for t in tickets if t in self.replies and self.replies[t][0] <= self.clock]
        return {ticket: self.replies.pop(ticket)[1] for ticket in sorted(arrived, key=int)}

    def wait(self, seconds):
        """Let time pass."""
        self._pass(seconds)

    def restarted(self):
        """The server is another process: answers to the last one are gone, its messages not."""
        self.replies.clear()
        self.in_transit = [(*entry[:3], "", entry[4]) for entry in self.in_transit]

    def _pass(self, seconds):
        self.clock += seconds
        while ready := [entry for entry in self.in_transit if entry[0] <= self.clock]:
            entry = min(ready)
            self.in_transit.remove(entry)
            _, _, node, ticket, message = entry
            if node not in self.online():
                self.in_transit.append((self.offline[node], *entry[1:]))
                continue
            reply = self._served(node, message)
            if ticket and ticket not in self.replies and not self.happens("answer lost", 0.04):
                self.replies[ticket] = self.later(), reply

    def _served(self, node, message):
        kit = self.kits[node]
        steps = int(self.draw.integers(1, 40)) if self.happens("silo's kill", 0.08) else None
        try:
            with self.killer.process(kit.name, steps):
                return handled(kit, message)
        except Killed:
            self.events["silo killed"] += 1
            if self.draw.random() < 0.3:
                self.offline[node] = self.clock + self.draw.exponential(8.0)
            return Undelivered(Reason.WORKER_ENDED, "", retry=True)

    def _note_keys(self, message):
        if message.message_type == SumRequest.message_type:
            request = message.read(SumRequest, SumRequest)
            for mask_key in request.keys.values():
                self.keys.setdefault(mask_key.key, set()).add((request.number, tuple(request.keys)))


@cache
def prepared(case):
    """Kits of a case, made once, and its scenario."""
    folder = Path(tempfile.mkdtemp(prefix="scheduled-kits-"))
    run = dict(CASES[case])
    options = {"insecure": True} if run.pop("insecure", False) else {}
    config = settings(
        rounds=ROUNDS,
        model={"name": "mlp", "hidden": [2]},
        data={"name": "digits", "train_limit": 90, "test_limit": 60},
        **run,
    )
    federation = Federation(
        folder, config, deadline=30.0, patience=10.0, wait=20.0, quorum=2, **options
    )
    return federation, Scenario.prepare(federation.simulation)


@cache
def expected(case, cohorts, joins):
    """The simulation's models, with silos that join where they joined, as pairs of place and round
    (None for one that never came), and absent where they are in no round's cohort.
    """
    federation, scenario = prepared(case)
    if joins:
        membership = Membership(
            joins={index: first for index, first in joins if first},
            unseen=tuple(index for index, first in joins if not first),
        )
        scenario = Scenario.prepare(
            federation.simulation.model_copy(update={"membership": membership})
        )
    folder = Path(tempfile.mkdtemp(prefix="scheduled-simulation-"))
    with pytest.MonkeyPatch.context() as patch:
        models = simulated(scenario, dict(cohorts), folder, patch)
    shutil.rmtree(folder)
    return {federation.names[client]: model for client, model in models.items()}


def play(seed, folder):
    """One federation; what happened in it, and every broken rule."""
    draw = stream(seed, "schedule")
    case = list(CASES)[int(draw.integers(len(CASES)))]
    federation, _ = prepared(case)
    shutil.copytree(federation.kits, folder / "kits")
    kits = {10 + i: folder / "kits" / name for i, name in enumerate(federation.names)}
    killer = Killer()
    bus = ScheduledBus(kits, draw, killer, trouble=float(draw.choice([0.5, 1.0, 2.0])))
    kills = iter(draw.integers(1, 400, size=int(draw.integers(0, 4))).tolist())
    broken = []
    with pytest.MonkeyPatch.context() as patch:
        for module in (handshake, message_exchange, outgoing_messages):
            patch.setattr(module, "monotonic", lambda: bus.clock)
        with killer.watching(patch):
            for number in range(TRIES):
                if number >= TRIES - 3:
                    bus.trouble, bus.offline = 0.0, {}
                if served(folder / "kits" / "server", bus, next(kills, None)):
                    break
            else:
                broken.append("it did not end")
    broken += broken_rules(case, federation, folder / "kits", bus)
    return case, bus, broken


def served(kit, bus, steps):
    """Whether the server has run its study to the end, and was not killed before."""
    try:
        with bus.killer.process("server", steps):
            coordinate(kit, bus, KIT, pause=0.5)
    except Killed:
        bus.events["server killed"] += 1
    except QuorumError:
        bus.events["quorum lost"] += 1
    bus.restarted()
    status = read_status(kit / "run")
    return bool(status) and status.state == "finished"


def broken_rules(case, federation, kits, bus):
    """Every broken rule of a federation that has ended."""
    run = CASES[case]
    sums = {KIT: s["minimum"]} if (s := run.get("secure_aggregation")) else {}
    private = frozenset({KIT} if "privacy" in run else ())
    broken = violations(read_history(kits, federation.names, sums, private))
    broken += [
        f"a mask's key is in {len(used)} sums" for used in bus.keys.values() if len(used) > 1
    ]
    cohorts = tuple((r.round, r.cohort) for r in load(kits / "server/run").rounds)
    roster = json.loads((kits / "server/run" / ROSTER).read_text())["silos"]
    first = {i: number for number, cohort in reversed(cohorts) for i in cohort}
    joins = tuple(  # in sums a newcomer begins with the first one that it is in
        (i, first.get(i) if sums else silo["joined"])
        for i, silo in enumerate(roster)
        if silo["joined"] != 1
    )
    theirs = expected(case, cohorts, joins)
    if federation.simulation.method.method().card.headline[1] == "trained":
        # one that never came is adapted there; here it has the model of its training, if any
        theirs = {n: m for n, m in theirs.items() if federation.names.index(n) in first}
    models = {n: kits / n / "state/models/personal.safetensors" for n in federation.names}
    for name, ours in loaded(models).items():
        last = kits / name / "state/checkpoints" / EVALUATION  # kept once the model is saved
        if not last.exists() or json.loads(last.read_text())["answer"]["number"] <= ROUNDS:
            bus.events["without the last visit"] += 1
        elif name not in theirs:  # absent in the last round, whose models alone it keeps, or in all
            bus.events["not in the simulation"] += 1
        elif differ(ours, theirs[name]):
            broken.append(f"{name} has another model than the simulation")
    return broken


def differ(ours, theirs):
    """Whether any bit of two models differs."""
    return any(not ours[key].equal(theirs[key]) for key in theirs)


def main():
    """Play seeds, print each that breaks a rule; exit code 1 if any does."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", action="store_true")
    options = parser.parse_args()
    deadline, times, failures = time.monotonic() + 60 * options.minutes, [], 0
    events, cases = Counter(), Counter()
    for seed in count(options.seed):
        folder = Path(tempfile.mkdtemp(prefix=f"scheduled-{seed}-"))
        start_time = time.monotonic()
        try:
            case, bus, broken = play(seed, folder)
        except Exception:  # any fault is a finding, with its seed
            case, bus, broken = "?", None, [traceback.format_exc()]
        times.append(time.monotonic() - start_time)
        cases[case] += 1
        events += bus.events if bus else Counter()
        failures += bool(broken)
        for line in broken:
            sys.stdout.write(f"seed {seed} ({case}), in {folder}: {line}\n")
        if not broken:
            shutil.rmtree(folder)
        if options.only or time.monotonic() > deadline:
            break
        if len(times) % 100 == 0:
            sys.stdout.write(f"{len(times)} seeds, {failures} failures\n")
        sys.stdout.flush()
    sys.stdout.write(
        f"seeds {options.seed} to {seed}: {failures} failures, {1000 * np.mean(times):.0f} ms each; "
        f"{sum(events.values())} events: {dict(events)}; {dict(cases)}\n"
    )
    sys.exit(bool(failures))


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
