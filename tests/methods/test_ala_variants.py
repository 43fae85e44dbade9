"""ALA in front of other methods: without a difference to adapt nothing changes, with one it
does.
"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pomona.methods import METHODS
from pomona.methods.mixtures.fedala import mixed
from problems import Federation, a_round, quadratics, trained

pytestmark = pytest.mark.long

PLUGGED = [name for name in METHODS if name.endswith("+ala")]
ROUND = {"epochs": 2, "batch_size": 1, "lr": 0.03}


@pytest.mark.parametrize("name", PLUGGED)
def test_weights_that_stay_at_one_leave_the_method_as_it_is_to_the_bit(name):
    plain = METHODS[name.removesuffix("+ala")]
    settings = {"start": "cloud"} if name == "fedamp+ala" else {}
    problem = quadratics(3, samples=4)
    runs = [
        Federation(m.method(), problem)
        for m in (METHODS[name](weight_lr=0.0, layers=2), plain(**settings))
    ]
    for number in (1, 2, 3):
        for run in runs:
            run.round(a_round(number, **ROUND))
        for reply, expected in zip(runs[0].replies, runs[1].replies, strict=True):
            assert reply.uplink.keys() == expected.uplink.keys()
            assert all(torch.equal(reply.uplink[k], expected.uplink[k]) for k in expected.uplink)


@pytest.mark.parametrize("name", PLUGGED)
def test_weights_that_learn_change_what_is_trained(name):
    problem = quadratics(3, samples=4)
    runs = [trained(METHODS[name](weight_lr=eta, layers=2), problem, **ROUND) for eta in (0.0, 1.0)]
    assert any(
        not torch.equal(fixed.uplink["model"], learned.uplink["model"])
        for fixed, learned in zip(runs[0].replies, runs[1].replies, strict=True)
    )


@given(st.integers(1, 6), st.floats(0, 2))
def test_a_last_layer_that_is_not_received_gives_ala_nothing_to_do(size, eta):
    """FedRep with ALA as table 4 has it, p = 1: received and own head are one, and so is each
    mixture of them.
    """
    draw = torch.Generator().manual_seed(size)
    last = torch.randn(2, size + 3, generator=draw)
    w, head = torch.randn(2, size + 3, generator=draw), slice(3, size + 3)
    w[:, head] = last[:, head]
    weights = torch.rand(2, size, generator=draw)
    assert torch.equal(mixed(w, last, weights, (head,)), w)
    g = torch.randn(2, size, generator=draw)
    updated = weights.sub(eta * g * (w - last)[:, head]).clamp(0, 1)  # eq. 5
    assert torch.equal(updated, weights)


def test_fedamps_start_is_no_key_beside_alas():
    """Local training starts from ALA's mixture, so that FedAMP's own choice would change
    nothing.
    """
    settings = METHODS["fedamp+ala"]()
    assert "start" not in settings.model_dump()
    assert METHODS["fedamp+ala"](**settings.model_dump(mode="json")) == settings
    for choice in ("own", "cloud"):
        with pytest.raises(ValidationError, match="start"):
            METHODS["fedamp+ala"](start=choice)


def test_the_proximal_centre_stays_the_received_model():
    """With a heavy pull and many steps FedProx ends near the received model, wherever ALA began."""
    problem = quadratics(2, samples=4)
    run = Federation(METHODS["fedprox+ala"](mu=200.0, weight_lr=1.0, layers=2).method(), problem)
    run.round(a_round(1, lr=0.004, epochs=50))
    received = run.server.clone()
    run.round(a_round(2, lr=0.004, epochs=50))
    mixture = run.model(0, "personal", "received")
    trained = run.model(0, "local", "trained")
    assert (trained - received).norm() < 0.05
    assert (mixture - received).norm() > 1e-6
