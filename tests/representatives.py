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


def representatives(cases: Iterable[Any], selected: Collection[Any]) -> list[Any]:
    """The cases as parameters, with all but the selected ones marked slow; a tuple is a case of
    several names.

    A selected case must be in the matrix.
    """
    cases = list(cases)
    assert all(case in cases for case in selected)
    return [_parameter(case, case in selected) for case in cases]


def drawn(
    cases: Iterable[Any], count: int = 1, group: Callable[[Any], object] = lambda _: ""
) -> list[Any]:
    """The cases as parameters, with all but ``count`` of each group marked slow.

    The commit's tree is the seed: each change runs other cases, and a tree always the same ones.
    """
    cases, indices = list(cases), defaultdict(list)
    for index, case in enumerate(cases):
        indices[group(case)].append(index)
    selected = {
        index
        for group_indices in indices.values()
        for index in sorted(group_indices, key=_rank)[:count]
    }
    return [_parameter(case, index in selected) for index, case in enumerate(cases)]


@cache
def seed() -> str:
    """The seed of the draws: ``POMONA_TEST_SEED``, else the tree of the commit, which stays the same when the
    commit is rebased.
    """
    chosen = os.environ.get("POMONA_TEST_SEED")
    if not chosen:
        command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD^{tree}"]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        chosen = result.stdout.strip()[:12] or "no commit"
    return chosen


def number(purpose: str) -> int:
    """A number of 32 bits from the seed, one for each purpose."""
    return int.from_bytes(hashlib.sha256(f"{seed()} {purpose}".encode()).digest()[:4], "big")


def _rank(index: int) -> int:
    return number(f"place {index}")


def _parameter(case: Any, is_selected: bool) -> Any:
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=() if is_selected else pytest.mark.slow)
