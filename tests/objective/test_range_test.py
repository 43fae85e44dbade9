"""The range test: closed forms on quadratics, the selection, and first runs that learn with the
rate it finds.
"""

from math import inf

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import pomona
from pomona.auto_settings import steps_of
from pomona.core.errors import ConfigError
from pomona.objective.learning_rate_range_test import (
    ADAPTIVE_RATES,
    ROUNDS,
    STEPS,
    RangeTest,
    range_test,
)
from problems import Quadratics, quadratics

pytestmark = pytest.mark.long

FULL_BATCH = steps_of(pomona.Config(batch_size=10**6))


def test_on_one_quadratic_each_rate_ends_with_the_loss_of_gradient_descent():
    """One client, one sample a: w - a shrinks by (1 - lr) a step; the last round's STEPS losses are
    averaged.
    """
    a = torch.tensor([[3.0, -4.0]], dtype=torch.float64)  # ||a||^2 / 2 = 12.5 at w = 0
    result = range_test(
        Quadratics(a, [[0]]), torch.zeros(2, dtype=torch.float64), [1], FULL_BATCH, (0.1, 0.5)
    )
    for rate, loss in zip(result.rates, result.losses, strict=True):
        earlier_steps = (ROUNDS - 1) * STEPS
        expected = sum(12.5 * (1 - rate) ** (2 * (earlier_steps + k)) for k in range(STEPS)) / STEPS
        assert loss == pytest.approx(expected, rel=1e-12)
    assert result.chosen == 0.5


def test_a_loss_that_is_negative_from_the_start_does_not_diverge_by_falling():
    """The same problem with 20 less loss everywhere: every rate has 20 less, and the choice is the
    same.
    """
    a = torch.tensor([[3.0, -4.0]], dtype=torch.float64)
    plain, lower = (Quadratics(a, [[0]]) for _ in range(2))
    gradient = lower.gradient
    lower.gradient = lambda *args, **kwargs: (
        (outputs := gradient(*args, **kwargs))[0] - 20.0,
        outputs[1],
    )
    arguments = torch.zeros(2, dtype=torch.float64), [1], FULL_BATCH, (0.1, 0.5)
    reference, shifted = range_test(plain, *arguments), range_test(lower, *arguments)
    assert shifted.losses == pytest.approx([loss - 20.0 for loss in reference.losses], rel=1e-12)
    assert shifted.chosen == reference.chosen


def test_momentum_and_weight_decay_are_those_of_the_run():
    """The same closed form with w <- w - lr (v), v <- m v + (w - a) + wd w, written out for one
    number.
    """
    a, m, wd, rate = 1.0, 0.5, 0.25, 0.125
    losses, w = [], 0.0
    for _ in range(ROUNDS):
        v, losses = 0.0, []
        for _ in range(STEPS):
            losses.append((w - a) ** 2 / 2)
            v = m * v + (w - a) + wd * w
            w -= rate * v
    problem = Quadratics(torch.tensor([[a]], dtype=torch.float64), [[0]])
    result = range_test(
        problem,
        torch.zeros(1, dtype=torch.float64),
        [1],
        steps_of(pomona.Config(momentum=m, weight_decay=wd)),
        (rate,),
    )
    assert result.losses[0] == pytest.approx(sum(losses) / STEPS, rel=1e-12)


def test_adams_steps_are_pytorchs_and_start_anew_in_each_round():
    a, rate = torch.tensor([3.0, -4.0], dtype=torch.float64), 0.01
    w, losses = torch.zeros(2, dtype=torch.float64, requires_grad=True), []
    for _ in range(ROUNDS):
        optimizer, losses = torch.optim.AdamW([w], lr=rate, weight_decay=0.1), []
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss = ((w - a) ** 2).sum() / 2
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    steps = steps_of(pomona.Config(optimizer={"name": "adamw"}, weight_decay=0.1, batch_size=10**6))
    result = range_test(
        Quadratics(a[None], [[0]]), torch.zeros(2, dtype=torch.float64), [1], steps, (rate,)
    )
    assert result.losses[0] == pytest.approx(sum(losses) / STEPS, rel=1e-9)


@pytest.mark.parametrize("optimizer", [{"name": "adamw"}, {"name": "sgd", "max_grad_norm": 1.0}])
def test_a_run_with_another_optimizer_settles_a_rate_of_its_own(optimizer):
    config = pomona.Config(
        method={"name": "fedavg"},
        rounds=4,
        clients=3,
        data={"name": "digits", "train_limit": 300},
        optimizer=optimizer,
    )
    result = pomona.run(config)
    assert result.config["lr"] in (
        (0.003, 0.01, 0.03) if optimizer["name"] == "adamw" else (0.1, 0.3, 1.0, 3.0)
    )
    losses = [row.loss for row in result.rounds]
    assert sum(losses[-1]) < 0.9 * sum(losses[0])
    assert set(ADAPTIVE_RATES) & {0.0003, 0.001, 0.003} == {0.0003, 0.001, 0.003}


def test_a_rate_beyond_stability_is_infinite_and_none_above_it_is_tried():
    problem = quadratics(3)  # a quadratic with curvature 1 is stable below 2
    gradient_calls = []
    inner = problem.gradient
    problem.gradient = lambda W, indices, **_: (gradient_calls.append(1), inner(W, indices))[1]
    result = range_test(
        problem, torch.zeros(5, dtype=torch.float64), [2, 2, 2], FULL_BATCH, (0.1, 4.0, 5.0)
    )
    assert result.losses[1:] == (inf, inf)
    assert len(gradient_calls) == 2 * 3 * ROUNDS * STEPS
    assert result.chosen == 0.1


@given(st.lists(st.one_of(st.floats(0, 10), st.just(inf)), min_size=1, max_size=8))
def test_the_choice_is_never_next_to_divergence_and_is_the_best_of_the_others(losses):
    rates = tuple(10.0**k for k in range(len(losses)))
    chosen = rates.index(RangeTest(rates, tuple(losses)).chosen)
    safe = [k for k in range(len(losses)) if losses[min(k + 1, len(losses) - 1)] < inf]
    assert chosen == (min(safe, key=lambda k: (losses[k], k)) if safe else 0)


def test_clients_without_samples_take_no_part_and_their_number_is_bounded():
    problem = quadratics(40)
    problem.rows[0] = []
    visited = set()
    inner = problem.gradient
    problem.gradient = lambda W, indices, **_: (
        visited.update(indices[0].tolist()),
        inner(W, indices),
    )[1]
    range_test(problem, torch.zeros(5, dtype=torch.float64), [0] + [2] * 39, FULL_BATCH, (0.1,))
    assert {k // 2 for k in visited} <= set(range(1, 40))
    assert len({k // 2 for k in visited}) == 6


def test_a_run_settles_the_rate_before_it_starts_and_records_the_number():
    config = pomona.Config(
        method={"name": "fedavg"}, rounds=1, clients=3, data={"name": "digits", "train_limit": 200}
    )
    result = pomona.run(config)
    assert config.lr == "auto"
    assert result.config["lr"] in (0.01, 0.03, 0.1, 0.3, 1.0)
    repeated = pomona.run(config.model_copy(update={"lr": result.config["lr"]}))
    assert [r.loss for r in repeated.rounds] == [r.loss for r in result.rounds]


def test_under_privacy_no_rate_is_tried():
    private = {
        "noise_multiplier": 1.0,
        "max_grad_norm": 1.0,
        "delta": 1e-3,
        "epsilon_budget": 50.0,
        "acknowledge": ("sample-counts", "metrics"),
    }
    config = pomona.Config(method={"name": "fedavg"}, rounds=1, clients=3, privacy=private)
    with pytest.raises(ConfigError, match="lr = 'auto' looks at training losses"):
        pomona.run(config)
