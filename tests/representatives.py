"""Representative cases of a matrix run in the gate, or, where they are long, are drawn for it; the
rest are marked slow and run with `make test-slow`.
"""

import hashlib
import os
import subprocess
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

KINDS_OF_METHOD = ("apple", "ditto", "fedala", "fedavg", "feddyn", "fedadam", "ifca", "scaffold")
"""One method for each kind of state: copies of others, own models, gates, none, a server's, an
optimizer's, clusters.
"""


def representatives(cases: Iterable[Any], kept: Collection[Any]) -> list[Any]:
    """The cases as parameters, with all but the kept ones marked slow; a tuple is a case of several
    names.

    A kept case must be in the matrix.
    """
    cases = list(cases)
    assert all(case in cases for case in kept)
    return [_parameter(case, case in kept) for case in cases]


def drawn(
    cases: Iterable[Any], count: int = 1, group: Callable[[Any], object] = lambda _: ""
) -> list[Any]:
    """The cases as parameters, with all but ``count`` of each group marked slow.

    The commit's tree draws which: each change runs others, and a tree always the same.
    """
    cases, places = list(cases), defaultdict(list)
    for place, case in enumerate(cases):
        places[group(case)].append(place)
    kept = {place for own in places.values() for place in sorted(own, key=_rank)[:count]}
    return [_parameter(case, place in kept) for place, case in enumerate(cases)]


@cache
def seed() -> str:
    """What draws: ``POMONA_TEST_SEED``, else the tree of the commit, which stays the same when the
    commit is rebased.
    """
    chosen = os.environ.get("POMONA_TEST_SEED")
    if not chosen:
        asked = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD^{tree}"]
        found = subprocess.run(asked, capture_output=True, text=True, check=False)
        chosen = found.stdout.strip()[:12] or "no commit"
    return chosen


def number(purpose: str) -> int:
    """A number of 32 bits from the seed, one for each purpose."""
    return int.from_bytes(hashlib.sha256(f"{seed()} {purpose}".encode()).digest()[:4], "big")


def _rank(place: int) -> int:
    return number(f"place {place}")


def _parameter(case: Any, kept: bool) -> Any:
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=() if kept else pytest.mark.slow)
