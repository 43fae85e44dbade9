"""An undisturbed bench for comparison."""

import pytest
from bench_suites import SUITE, in_process

from pomona.experiments import run


@pytest.fixture(scope="session")
def full_bench(tmp_path_factory):
    """The suite's bench, run without interruption in this process."""
    with in_process() as executor:
        return run(SUITE, tmp_path_factory.mktemp("bench") / "whole", executor)
