"""Learning rates over rounds: pure functions of the round's number, derived here from their
definitions.
"""

from math import cos, pi

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

import pomona
from pomona.config import Config
from pomona.core.errors import CheckpointError, ConfigError
from pomona.federation.round_plan import round_of, select
from pomona.federation.run_checks import cautions
from pomona.scenario import Scenario
from problems import tiny

pytestmark = pytest.mark.long


def rates(rounds, **settings):
    """The rate of each round, from 1 to the closing visit, at lr = 1."""
    config = tiny("fedavg", lr=1.0, rounds=rounds, **settings)
    return [round_of(config, number).lr for number in range(1, rounds + 2)]


def test_the_rates_of_each_schedule():
    halfway = (1 + cos(pi / 2)) / 2
    quarters = [(1 + cos(pi * k / 4)) / 2 for k in range(4)]
    assert rates(2) == [1, 1, 1]
    # the closing visit is as the last round
    assert rates(4, lr_schedule="cosine") == [*quarters, quarters[-1]]
    assert rates(4, lr_schedule="cosine", lr_warmup_rounds=2) == [1 / 3, 2 / 3, 1, halfway, halfway]
    assert rates(5, lr_schedule="steps", lr_milestones=[2, 4], lr_factor=0.5) == [
        1,
        1,
        0.5,
        0.5,
        0.25,
        0.25,
    ]
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
        "fedavg",
        lr=0.3,
        rounds=rounds,
        lr_schedule=schedule,
        lr_warmup_rounds=warmup,
        lr_decay=decay,
        **milestones,
    )
    # those beyond: the closing visit, and adapting
    for number in (1, rounds, rounds + 1, rounds + 10):
        round_ = round_of(config, number)
        assert 0 < round_.decay <= 1
        assert round_.lr == 0.3 * round_.decay
        assert round_.unscheduled == round_of(tiny("fedavg", lr=0.3, rounds=rounds), number)


def test_a_rate_that_has_become_0_has_not_taken_the_configured_one_with_it():
    round_ = round_of(tiny("fedavg", lr=0.3, lr_decay=0.1), 400)
    assert (round_.lr, round_.decay, round_.unscheduled.lr) == (0, 0, 0.3)


@pytest.mark.parametrize("name", ["fedavg-ft", "fedprox-ft", "fedbabu", "per-fedavg"])
def test_what_adapts_for_an_evaluation_alone_does_so_where_rates_have_fallen_to_nothing(name):
    """Full batches, and a second round that moves nothing: all end as after one round, the unseen
    client too.
    """
    settings = {"lr": 0.5, "batch_size": 10**4, "membership": {"unseen": [1]}}
    falling = {"lr_schedule": "steps", "lr_milestones": [1], "lr_factor": 1e-12}
    one_round, two_rounds = (
        pomona.run(tiny(name, **settings, **schedule)).models
        for schedule in ({"rounds": 1}, {"rounds": 2, **falling})
    )
    for client in range(4):
        for key, tensor in one_round[client].items():
            assert_close(two_rounds[client][key], tensor, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("method", "given", "settings", "key", "last"),
    [
        ("fedavg", {}, {"lr_schedule": "steps", "lr_milestones": [1, 3]}, "last of lr_", 3),
        ("fedavg", {}, {"lr_schedule": "cosine", "lr_warmup_rounds": 1}, "lr_schedule", 2),
        ("fedavg", {}, {"stop": {"patience": 2}, "eval_every": 2}, "stop", 4),
        ("fedavg", {}, {"stop": {"patience": 1, "after": 3}}, "stop", 3),
        ("fedprox+ala", {"start_round": 4}, {}, "method.start_round", 3),
        ("floco", {"region_round": 3}, {}, "method.region_round", 2),
    ],
)
def test_what_acts_after_the_last_round_is_noted(method, given, settings, key, last):
    for rounds in (last, last + 1):
        config = tiny(method, given, rounds=rounds, **settings)
        lines = [note.text for note in cautions(Scenario.prepare(config))]
        assert [key in line for line in lines if "acts after" in line] == [True] * (rounds == last)


@pytest.mark.parametrize(("share", "noted"), [(0.9, True), (0.8, False), (1.0, False)])
def test_a_share_of_the_clients_that_is_all_of_them_is_noted(share, noted):
    lines = cautions(Scenario.prepare(tiny("fedavg", clients=4, participation=share)))
    assert any("participation" in line.text for line in lines) is noted


@pytest.mark.parametrize("settings", [{"lr_schedule": "steps"}, {"lr_milestones": [2]}])
def test_milestones_and_steps_go_together(settings):
    with pytest.raises(ConfigError, match="lr_schedule = 'steps' and lr_milestones go together"):
        tiny("fedavg", **settings)


def test_a_cosine_over_all_rounds_cannot_be_given_more(tmp_path):
    pomona.run(tiny("fedavg", rounds=1, lr_schedule="cosine"), tmp_path / "run")
    with pytest.raises(CheckpointError, match=r"lr_schedule = cosine .* all rounds"):
        pomona.run(tiny("fedavg", rounds=2, lr_schedule="cosine"), tmp_path / "run", resume=True)


@given(st.integers(1, 40), st.floats(0, 0.99), st.integers(1, 5))
def test_clients_sit_rounds_out_on_their_own(n, absence, number):
    """Who stays depends on the seed, the round and the client alone: another's presence does not
    matter.
    """
    config, members = Config(clients=n, absence=absence), tuple(range(n))
    cohort = select(config, members, number)
    assert cohort
    assert list(cohort) == sorted(set(cohort))
    if len(cohort) > 1:
        assert set(select(config, cohort, number)) == set(cohort)
    if absence == 0:
        assert cohort == members


def test_absence_is_as_frequent_as_it_is_set():
    """2000 draws at 0.3: the deviation of their mean is 0.01, so that 0.05 is five of them; a share
    comes before it.
    """
    config = Config(clients=20, absence=0.3)
    present = [len(select(config, tuple(range(20)), k)) for k in range(1, 101)]
    assert abs(sum(present) / 2000 - 0.7) < 0.05
    assert (
        max(
            len(select(Config(clients=20, absence=0.3, participation=0.5), tuple(range(20)), k))
            for k in range(1, 21)
        )
        <= 10
    )
