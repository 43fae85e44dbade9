"""Fuzzer for everything that Pomona reads from others: a named one-line error, "absent", or a valid
result.

The gate runs a few inputs that the commit draws; ``make fuzz`` runs new ones for a given time, and
keeps those that fail.
"""

import hashlib
import os
import sys
import time
from collections import Counter
from pathlib import Path

import kits  # noqa: F401 - fills TARGETS, as do the others
import messages  # noqa: F401
import pytest
import receiving  # noqa: F401
import records  # noqa: F401
import samples  # noqa: F401
from guard import outcome
from hypothesis import HealthCheck, Phase, given, seed, settings
from targets import TARGETS
from worlds import World

from representatives import number

pytestmark = pytest.mark.long

FINDS, ROOT = Path(".hypothesis") / "found", Path(__file__).parents[3]
CHECKS = list(HealthCheck)


@pytest.fixture(scope="session")
def foreign(tmp_path_factory):
    return World(tmp_path_factory.mktemp("fuzz"))


@pytest.fixture
def attack(request, foreign):
    """The target's inputs, and the outcome of one."""
    inputs, act = request.param.attack(foreign)
    return inputs, lambda data: outcome(act, data, foreign.outside)


every = pytest.mark.parametrize("attack", TARGETS, ids=lambda target: target.name, indirect=True)
"""The targets."""


def attacked(attack, counts, **options):
    """A hypothesis test of a target that counts the outcomes."""
    inputs, outcome_of = attack

    @settings(deadline=None, suppress_health_check=CHECKS, **options)
    @given(inputs)
    def test(data):
        try:
            counts[outcome_of(data)] += 1
        except BaseException:
            counts["a fault"] += 1
            counts.failing_input = data  # the last one is the smallest
            raise

    return test


class Counts(Counter):
    """Inputs by outcome."""

    failing_input = b""


@every
def test_some_inputs(attack, request):
    counts = Counts()
    target = request.node.callspec.params["attack"]
    seed(number(target.name))(
        attacked(attack, counts, max_examples=target.examples, database=None)
    )()


def test_the_document_counts_the_targets():
    assert (
        f"Each of its {len(TARGETS)} targets"
        in (ROOT / "docs/internals/fault-tables.md").read_text()
    )


@pytest.mark.fuzz
@every
def test_inputs_for_as_long_as_asked(attack, request, capsys):
    """Each target has its share of the minutes; a broken one keeps its smallest input in
    ``.hypothesis/found``.
    """
    counts, share = Counts(), 60 * float(os.environ.get("MINUTES", "60")) / len(TARGETS)
    deadline, phases = time.monotonic() + share, (Phase.generate, Phase.shrink)
    name = request.node.callspec.params["attack"].name
    try:
        while time.monotonic() < deadline:
            test = attacked(attack, counts, max_examples=50, database=None, phases=phases)
            seed(time.time_ns())(test)()
    except BaseException:
        FINDS.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256(counts.failing_input).hexdigest()[:8]
        file = FINDS / f"{name.replace(' ', '-').replace('/', '-')}-{digest}"
        file.write_bytes(counts.failing_input)
        raise
    finally:
        with capsys.disabled():
            tally = ", ".join(f"{n} {k}" for k, n in sorted(counts.items()))
            sys.stdout.write(f"\n{name}: {counts.total()} inputs, {tally}\n")
