"""Tests of the project: pytest, in its folder."""

from method import Mine
from train import run

from pomona.testing import conformance


def test_method_keeps_what_all_methods_promise() -> None:
    """Nothing private is sent, the order of clients does not matter, and others."""
    for check in conformance(Mine()):
        check()


def test_run_learns() -> None:
    """The models are better than chance."""
    result = run(Mine())
    assert result.score is not None
    assert result.score.value > 0.6
