"""Anchored: the checks of every method, its equation by hand, and its FedAvg limit."""

import pytest
import torch
from my_method.method import Anchored

from pomona.methods import METHODS
from pomona.testing import Federation, a_round, conformance, quadratics


@pytest.mark.parametrize("check", conformance(Anchored()), ids=str)
def test_conformance(check):
    """The checks that Pomona requires of every method."""
    check()


def test_a_step_by_hand():
    """Quadratics: the gradient of F_i at v is v - a, with a the mean of the client's targets; one
    full-batch step.
    """
    problem, mu, lr = quadratics(2, samples=3), 0.5, 0.1
    run = Federation(Anchored(mu=mu).method(), problem)
    run.round(a_round(1, lr=lr))
    w, states = run.server.clone(), [run.state(i)[0].clone() for i in (0, 1)]
    run.round(a_round(2, lr=lr))
    for i, u in enumerate(states):
        a = problem.targets[problem.rows[i]].mean(0)
        torch.testing.assert_close(
            run.model(i, "personal", "trained"), w - lr * (w - a + mu * (w - u))
        )


def test_without_mu_it_is_fedavg_to_the_bit():
    """The limit in which the method becomes FedAvg."""
    methods = (Anchored(mu=0), METHODS["fedavg"]())
    runs = [Federation(settings.method(), quadratics(3, samples=4)) for settings in methods]
    for number in (1, 2, 3):
        for run in runs:
            run.round(a_round(number, epochs=2, batch_size=2, momentum=0.9))
    assert torch.equal(runs[0].server, runs[1].server)
