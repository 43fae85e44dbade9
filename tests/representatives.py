"""Representative cases of a matrix run in the gate; the rest are marked slow and run with `make test-slow`."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest

KINDS_OF_METHOD = ("apple", "ditto", "fedala", "fedavg", "feddyn", "fedadam", "ifca", "scaffold")
"""One method for each kind of state: copies of others, own models, gates, none, a server's, an optimizer's, clusters."""


def representatives(cases: Iterable[Any], kept: Collection[Any]) -> list[Any]:
    """The cases as parameters, with all but the kept ones marked slow; a tuple is a case of several names.

    A kept case must be in the matrix.
    """
    cases = list(cases)
    assert all(case in cases for case in kept)
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=() if case in kept else pytest.mark.slow)
        for case in cases
    ]
