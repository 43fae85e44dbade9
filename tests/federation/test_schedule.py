"""Learning rates over rounds: pure functions of the round's number, derived here from their definitions."""

from math import cos, pi

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pomona
from pomona.core.errors import CheckpointError, ConfigError
from pomona.federation.schedule import round_of
from problems import tiny


def rates(rounds, **over):
    """The rate of each round, from 1 to the closing visit, at lr = 1."""
    config = tiny("fedavg", lr=1.0, rounds=rounds, **over)
    return [round_of(config, number).lr for number in range(1, rounds + 2)]


def test_the_rates_of_each_schedule():
    half = (1 + cos(pi / 2)) / 2
    quarters = [(1 + cos(pi * k / 4)) / 2 for k in range(4)]
    assert rates(2) == [1, 1, 1]
    assert rates(4, lr_schedule="cosine") == [*quarters, quarters[-1]]  # the closing visit is as the last round
    assert rates(4, lr_schedule="cosine", lr_warmup_rounds=2) == [1 / 3, 2 / 3, 1, half, half]
    assert rates(5, lr_schedule="steps", lr_milestones=[2, 4], lr_factor=0.5) == [1, 1, 0.5, 0.5, 0.25, 0.25]
    assert rates(3, lr_warmup_rounds=3) == [1 / 4, 2 / 4, 3 / 4, 3 / 4]
    assert rates(2, lr_warmup_rounds=1, lr_decay=0.5) == [1 / 2, 1 / 2, 1 / 4]


@given(
    rounds=st.integers(1, 50),
    schedule=st.sampled_from(["constant", "cosine", "steps"]),
    warmup=st.integers(0, 60),
    decay=st.floats(0.1, 1),
)
def test_a_rate_is_above_0_and_the_factor_of_a_methods_other_rates(rounds, schedule, warmup, decay):
    milestones = {"lr_milestones": [1, 3]} if schedule == "steps" else {}
    config = tiny(
        "fedavg", lr=0.3, rounds=rounds, lr_schedule=schedule, lr_warmup_rounds=warmup, lr_decay=decay, **milestones
    )
    for number in (1, rounds, rounds + 1, rounds + 10):  # those beyond: the closing visit, and adapting
        round_ = round_of(config, number)
        assert 0 < round_.decay <= 1
        assert round_.lr == 0.3 * round_.decay


@pytest.mark.parametrize("over", [{"lr_schedule": "steps"}, {"lr_milestones": [2]}])
def test_milestones_and_steps_go_together(over):
    with pytest.raises(ConfigError, match="lr_schedule = 'steps' and lr_milestones go together"):
        tiny("fedavg", **over)


def test_a_cosine_over_all_rounds_cannot_be_given_more(tmp_path):
    pomona.run(tiny("fedavg", rounds=1, lr_schedule="cosine"), tmp_path / "run")
    with pytest.raises(CheckpointError, match="lr_schedule = cosine lays its schedule out over all rounds"):
        pomona.run(tiny("fedavg", rounds=2, lr_schedule="cosine"), tmp_path / "run", resume=True)
