"""An undisturbed bench for comparison."""

import pytest
from bench_suites import SUITE, here

from pomona.experiments import run


@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    """The suite's bench, run without interruption in this process."""
    with here() as executor:
        return run(SUITE, tmp_path_factory.mktemp("bench") / "whole", executor)
