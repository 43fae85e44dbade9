"""A few seeds of the scheduler; hours of them run by ``scheduled.py`` itself."""

import pytest
from scheduled import play

from representatives import number

pytestmark = pytest.mark.long


@pytest.mark.parametrize("k", range(5))
def test_a_seeded_scheduler_breaks_no_rule(k, tmp_path):
    """Another seed in each state of the sources; ``scheduled.py --seed N --only`` plays it again."""
    seed = number(f"schedule {k}")
    _, _, broken = play(seed, tmp_path)
    assert not broken, f"seed {seed}: {broken}"
