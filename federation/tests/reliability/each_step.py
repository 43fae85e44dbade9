"""Kill one process of a small federation before, or after, each of its steps on the disk.

    export PYTHONPATH=tests:federation/tests
    python federation/tests/reliability/each_step.py --case sums --process server --stride 11

The silo or server comes back at once, so that every silo must have the bits of the undisturbed
federation. ``scheduled.py`` draws what is tried in turn here.
"""

import argparse
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from shutil import copytree

import pytest
from scheduled import CASES, Killed, Killer, ScheduledBus, broken_rules, differ, prepared, served

from federation_in_process import loaded
from pomona.core.rng import stream
from pomona_federation.flower_apps import handled
from pomona_federation.messages.message_bus import Undelivered
from pomona_federation.server import handshake, message_exchange, outgoing_messages
from pomona_federation.unused_uplinks import Reason


@dataclass
class StepKiller(Killer):
    """Kills ``target`` at half step ``moment`` from 1: odd before a step, even after it."""

    target: str = ""
    moment: int = 0
    counts: Counter = field(default_factory=Counter)

    def step(self, act, *args, **options):
        """Do a step, or die before or after it."""
        if self.working in self.dead:
            raise Killed
        self.counts[self.working] += 1
        half = 2 * self.counts[self.working] - 1 if self.working == self.target else 0
        if half and half == self.moment:
            self.dead.add(self.working)
            raise Killed
        result = act(*args, **options)
        if half and half + 1 == self.moment:
            self.dead.add(self.working)
            raise Killed
        return result


class PromptBus(ScheduledBus):
    """Delivers everything once; a silo that was killed is back at once."""

    def _served(self, node, message):
        try:
            with self.killer.process(self.kits[node].name):
                return handled(self.kits[node], message)
        except Killed:
            return Undelivered(Reason.WORKER_ENDED, "", retry=True)


def play(case, target="", moment=0):
    """One federation: its killer, its models and every broken rule."""
    with tempfile.TemporaryDirectory() as folder:
        return _play(case, StepKiller(target=target, moment=moment), Path(folder) / "kits")


def _play(case, killer, kits):
    federation, _ = prepared(case)
    copytree(federation.kits, kits)
    nodes = {10 + i: kits / name for i, name in enumerate(federation.names)}
    bus = PromptBus(nodes, stream(1, "each step"), killer, trouble=0.0)
    with pytest.MonkeyPatch.context() as patch:
        for module in (handshake, message_exchange, outgoing_messages):
            patch.setattr(module, "monotonic", lambda: bus.clock)
        with killer.watching(patch):
            ended = any(served(kits / "server", bus, None) for _ in range(3))
    broken = broken_rules(case, federation, kits, bus) if ended else ["it did not end"]
    paths = {n: kits / n / "state/models/personal.safetensors" for n in federation.names}
    return killer, loaded(paths), broken


def main():
    """Kill at every ``stride``-th moment; exit code 1 if any changes a bit or breaks a rule."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--case", default="fedavg", choices=CASES)
    parser.add_argument("--process", default="server")
    parser.add_argument("--stride", type=int, default=1)
    options = parser.parse_args()
    killer, whole, broken = play(options.case)
    moments = range(1, 2 * killer.counts[options.process] + 1, options.stride)
    for moment in moments:
        _, models, rules = play(options.case, options.process, moment)
        changed = [n for n in whole if n not in models or differ(models[n], whole[n])]
        broken += [f"moment {moment}: {rules} {changed}"] if rules or changed else []
    sys.stdout.write(f"{len(moments)} kills: {broken or 'equal bits'}\n")
    sys.exit(bool(broken))


if __name__ == "__main__":
    main()
