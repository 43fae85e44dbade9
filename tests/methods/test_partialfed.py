"""PartialFed: fixed and learned gates, against FedAvg, Separate and finite differences."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from pomona.core.errors import ConfigError
from pomona.core.rng import stream
from pomona.methods.one_model.fedavg import FedAvg
from pomona.methods.personal_regularisation.separate import Separate
from pomona.methods.shared_parts.partialfed import PartialFed, gate_slope, halves, layer_of
from pomona.objective.batches import Batch
from problems import PASSES, Federation, Quadratics, a_round, quadratics, trained


def single_layer(seed=0):
    return quadratics(3, samples=5, d=1, seed=seed)


def test_all_layers_global_is_fedavg_to_the_bit():
    """In a network of one layer, the head is everything."""
    run, avg = (trained(m, single_layer()) for m in (PartialFed(rule="head-shared"), FedAvg()))
    assert torch.equal(run.server, avg.server)


def test_all_layers_local_is_separate_training_to_the_bit():
    run, plain = (trained(m, single_layer()) for m in (PartialFed(rule="lower-shared"), Separate()))
    assert all(torch.equal(run.state(i), plain.state(i)) for i in range(3))


@pytest.mark.parametrize(("logit", "settings"), [(1e9, FedAvg()), (-1e9, Separate())])
def test_adaptive_gates_that_are_settled_are_fedavg_and_separate_to_the_bit(logit, settings):
    """Batches of two are too small to hold samples back for the gates."""
    problem = quadratics(3, samples=5)
    run, plain = Federation(PartialFed().method(), problem), Federation(settings.method(), problem)
    for i in range(3):
        run.set_state(
            i, replace(run.state(i), logits=torch.full((1, 2), logit, dtype=torch.float64))
        )
    for number in (1, 2, 3):
        run.round(a_round(number, **PASSES))
        plain.round(a_round(number, **PASSES))
    if logit > 0:
        assert torch.equal(run.server, plain.server)
    else:
        assert all(torch.equal(run.state(i).last, plain.state(i)) for i in range(3))


@pytest.mark.parametrize(
    ("rule", "gates", "shared"),
    [
        ("lower-shared", [1, 0], [1, 1, 1, 1, 0]),
        ("head-shared", [0, 1], [0, 0, 0, 0, 1]),
        ("local-norm", [0.75, 1], [1, 0, 1, 1, 1]),
    ],
)
def test_a_rule_starts_from_its_parts(rule, gates, shared):
    problem = quadratics(2)
    problem.norms = (slice(1, 2),)
    run = Federation(PartialFed(rule=rule).method(), problem)
    run.round(a_round(1))
    w, last = run.server.clone(), run.state(1)[0].clone()
    run.round(a_round(2))
    shared = torch.tensor(shared).bool()
    assert torch.equal(run.model(1, "personal", "received"), torch.where(shared, w, last))
    assert run.replies[1].info["gates"].tolist() == gates


def test_local_norm_needs_a_normalisation_layer():
    problem = quadratics(2)
    problem.norms = ()
    with pytest.raises(ConfigError, match="no normalisation"):
        Federation(PartialFed(rule="local-norm").method(), problem).round(a_round())


def test_a_step_by_hand():
    """d = 1, ten samples at a = 5, T = 2, lr = .5: eight for the weights, two for the gate. w = 4,
    w_i = 0, pi = 0.

    Noise e > 0 picks w: a <- 4 - .5 (4 - 5) = 4.5, then g = -.5, difference 4.5 - 0; else b <- 0 -
    .5 (0 - 5) = 2.5, g = -2.5, difference 4 - 2.5. pi <- 0 - .5 g difference p (1 - p) / 2, p =
    sigmoid(e / 2).
    """
    problem = Quadratics(torch.full((10, 1), 5.0, dtype=torch.float64), [list(range(10))])
    signs = set()
    for seed in range(6):
        e = float(stream(seed, "gates", 1, 0).logistic(size=1)[0])
        signs.add(e > 0)
        a, b, g = (4.5, 0.0, -0.5) if e > 0 else (4.0, 2.5, -2.5)
        p = 1 / (1 + np.exp(-e / 2))
        pi = -0.5 * g * (a - b) * p * (1 - p) / 2

        run = Federation(PartialFed(temperature=2.0).method(), problem)
        run.server = torch.tensor([4.0], dtype=torch.float64)
        run.set_state(0, replace(run.state(0), last=torch.zeros(1, 1, dtype=torch.float64)))
        run.round(a_round(lr=0.5, seed=seed))
        assert run.state(0).logits.item() == pytest.approx(pi)
        assert run.state(0).last.item() == pytest.approx(a if pi >= 0 else b)
        assert run.replies[0].info["gates"].item() == pytest.approx(1 / (1 + np.exp(-pi)))
    assert signs == {True, False}


def test_the_gates_gradient_is_the_finite_difference_of_the_soft_mixture():
    """Straight-through: at the same gradient dF/dt, the slope is that of <dF/dt, sigmoid(s) a + (1
    - sigmoid(s)) b>.
    """
    generator = torch.Generator().manual_seed(0)
    g, a, b = torch.randn(3, 2, 6, generator=generator, dtype=torch.float64)
    soft = torch.randn(2, 3, generator=generator, dtype=torch.float64)
    layers = (slice(0, 1), slice(1, 4), slice(4, 6))

    def value(s):
        z = s.sigmoid()[:, layer_of(layers)]
        return (g * (z * a + (1 - z) * b)).sum(1)

    slope = gate_slope(g * (a - b), layers, soft)
    for number in range(3):
        step = torch.zeros(3, dtype=torch.float64)
        step[number] = 1e-6
        assert_close(
            slope[:, number], (value(soft + step) - value(soft - step)) / 2e-6, rtol=1e-6, atol=1e-8
        )


def test_gates_learn_which_source_is_better():
    """Client 0 has the samples of everybody in its first layer and its own in the second."""
    generator = torch.Generator().manual_seed(0)
    common = torch.randn(1, 4, generator=generator, dtype=torch.float64)
    heads = torch.tensor([[9.0], [-9.0], [-9.0], [-9.0]], dtype=torch.float64)
    samples = torch.cat([common.repeat(40, 1), heads.repeat_interleave(10, 0)], 1)
    run = Federation(
        PartialFed().method(),
        Quadratics(samples, [list(range(10 * i, 10 * i + 10)) for i in range(4)]),
    )
    remote = torch.cat([common + 5, torch.full((1, 1), 9.0, dtype=torch.float64)], 1)
    run.server = torch.cat([common[0], torch.tensor([-9.0], dtype=torch.float64)])
    run.set_state(0, replace(run.state(0), last=remote))
    run.round(a_round(1, epochs=30, lr=0.01), ids=(0,))
    lower, head = run.state(0).logits[0].tolist()
    assert lower > 0 > head


@given(st.lists(st.integers(1, 30), min_size=1, max_size=4), st.integers(1, 2))
def test_weights_and_gates_never_share_a_sample(sizes, minimum):
    sizes = [max(size, minimum) for size in sizes]
    batch = Batch([torch.arange(size) for size in sizes], "training", 3)
    weights, strategy, learns = halves(batch, minimum)
    assert (weights.purpose, strategy.purpose) == ("training", "strategy")
    for size, w, s, learn in zip(sizes, weights.indices, strategy.indices, learns, strict=True):
        assert len(w) >= minimum
        assert len(s) >= minimum
        assert learn == (size // 5 >= minimum)
        if learn:
            assert len(s) == size // 5
            assert sorted(torch.cat([w, s]).tolist()) == list(range(size))
        else:
            assert len(w) == size


def test_each_number_knows_its_layer():
    assert layer_of((slice(0, 2), slice(2, 3))).tolist() == [0, 0, 1]
