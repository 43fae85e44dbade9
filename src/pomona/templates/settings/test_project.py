"""Tests of the project: pytest, in its folder."""

from pathlib import Path

from method import Mine

import pomona
from pomona.config import resolve
from pomona.core.toml import read_file
from pomona.testing import conformance


def test_method_keeps_what_all_methods_promise() -> None:
    """Nothing private is sent, the order of clients does not matter, and others."""
    for check in conformance(Mine()):
        check()


def test_run_learns() -> None:
    """The settings of run.toml give a model that is better than chance."""
    result = pomona.run(resolve(read_file(Path("run.toml"))))
    assert result.score is not None
    assert result.score.value > 0.6
