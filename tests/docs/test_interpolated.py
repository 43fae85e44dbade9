"""The example of the guide to a new method: its size, and the two methods between which it
interpolates.
"""

import importlib.util
from pathlib import Path

import pytest
import torch

from pomona.methods.one_model.fedavg import FedAvg
from pomona.methods.personal_regularisation.separate import Separate
from problems import Federation, a_round, quadratics

EXAMPLE = Path(__file__).parents[2] / "examples/interpolated.py"
SPEC = importlib.util.spec_from_file_location("interpolated_example", EXAMPLE)
EXAMPLE_MODULE = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(EXAMPLE_MODULE)


def trained(settings, rounds=3):
    """A federation of three quadratics after some rounds."""
    run = Federation(settings.method(), quadratics(3, samples=4))
    for number in range(1, rounds + 1):
        run.round(a_round(number, epochs=2, batch_size=2))
    return run


def test_it_is_short():
    assert len(EXAMPLE.read_text().splitlines()) < 70


@pytest.mark.parametrize("client", range(3))
def test_share_0_is_fedavg_and_share_1_is_separate(client):
    unshared, fully_shared = (trained(EXAMPLE_MODULE.Interpolated(share=share)) for share in (0, 1))
    averaged, separate = trained(FedAvg()), trained(Separate())
    assert torch.equal(
        unshared.model(client, "personal", "received"), averaged.model(client, "global", "received")
    )
    assert torch.equal(fully_shared.state(client), separate.state(client))


def test_a_round_by_hand():
    """One full-batch step at lr 0.1 from u = w + 0.25 (v - w) towards the mean a of the client's
    targets.
    """
    problem = quadratics(2, samples=3)
    run = Federation(EXAMPLE_MODULE.Interpolated(share=0.25).method(), problem)
    run.round(a_round(1))
    first, w = [run.state(i).clone() for i in (0, 1)], run.server.clone()
    torch.testing.assert_close(w, (first[0] + first[1]).squeeze() / 2)
    run.round(a_round(2))
    for i, v in enumerate(first):
        u = 0.75 * w + 0.25 * v
        a = problem.targets[problem.rows[i]].mean(0)
        torch.testing.assert_close(run.state(i), u - 0.1 * (u - a))
