"""SCAFFOLD against its equations."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from pomona.methods.one_model.fedavg import FedAvg
from pomona.methods.one_model.scaffold import SCAFFOLD
from pomona.methods.personal_regularisation.separate import Separate
from problems import Federation, Quadratics, a_round, quadratics, trained

pytestmark = pytest.mark.long

PASSES = {"epochs": 3, "batch_size": 1, "lr": 0.05}


def controls(run):
    return torch.cat([run.state(i).control for i in run.ids])


def uneven(*copies):
    """Client i has ``copies[i]`` copies of sample i: no noise, but unequal numbers of steps at
    batch size 1.
    """
    rows, flat = [], []
    for value, count in enumerate(copies):
        rows.append(list(range(len(flat), len(flat) + count)))
        flat += [float(value)] * count
    return Quadratics(torch.tensor(flat, dtype=torch.float64).unsqueeze(1), rows)


def test_two_rounds_by_hand():
    """Samples 0 and twice 1, batch size 1, lr .1, server_lr .5: one and two steps a round, in plain
    numbers.
    """
    run = Federation(SCAFFOLD(server_lr=0.5).method(), uneven(1, 2))
    w, c, variates = run.initial().item(), 0.0, [0.0, 0.0]
    for number in (1, 2):
        run.round(a_round(number, batch_size=1))
        moves, changes = [], []
        for i, steps in enumerate((1, 2)):
            y = w
            for _ in range(steps):
                y -= 0.1 * (y - i + c - variates[i])
            moves.append(y - w)
            changes.append((w - y) / (steps * 0.1) - c)
        w, c = w + 0.5 * sum(moves) / 2, c + sum(changes) / 2
        variates = [old + change for old, change in zip(variates, changes, strict=True)]
        assert run.server.model.item() == pytest.approx(w)
        assert run.server.controls.mean(0).item() == pytest.approx(c)
        assert controls(run).flatten().tolist() == pytest.approx(variates)


def test_the_first_round_is_fedavg_with_equal_weights():
    """All control variates are 0 then; equal sizes make FedAvg's weights uniform."""
    problem = quadratics(3, samples=4)
    run, avg = Federation(SCAFFOLD().method(), problem), Federation(FedAvg().method(), problem)
    run.round(a_round(**PASSES))
    avg.round(a_round(**PASSES))
    assert_close(run.server.model, avg.server)


def test_the_mean_is_uniform_over_clients_of_any_size():
    run = Federation(SCAFFOLD().method(), uneven(1, 3))
    w = run.initial()
    run.round(a_round(lr=0.2))
    assert_close(run.server.model, w - 0.2 * (w - 0.5))


@given(
    cohorts=st.lists(st.sets(st.integers(0, 3), min_size=1), min_size=1, max_size=4),
    server_lr=st.floats(0.1, 2),
)
def test_the_clients_variates_average_to_the_servers_whoever_takes_part(cohorts, server_lr):
    run = Federation(SCAFFOLD(server_lr=server_lr).method(), quadratics(4, samples=3))
    for number, ids in enumerate(cohorts, 1):
        run.round(a_round(number, **PASSES), ids=tuple(sorted(ids)))
        assert_close(controls(run).mean(0), run.server.controls.mean(0))


def test_one_client_alone_is_plain_sgd():
    """c = c_i to the bit, so the correction is exactly zero; the model differs by rounding: w + (y
    - w).
    """
    problem = quadratics(1, samples=6)
    run, plain = Federation(SCAFFOLD().method(), problem), Federation(Separate().method(), problem)
    for number in (1, 2, 3):
        run.round(a_round(number, **PASSES))
        plain.round(a_round(number, **PASSES))
        assert torch.equal(run.state(0).control[0], run.server.controls.mean(0))
        assert_close(run.server.model, plain.state(0)[0])


@given(lr=st.floats(1e-3, 1), weight_decay=st.sampled_from([0.0, 0.3]))
def test_after_one_full_batch_step_the_variate_is_the_gradient(lr, weight_decay):
    """y = w - lr (grad F_i(w) + decay w): what option II reads off is the gradient of the decayed
    loss, for any lr.
    """
    problem = quadratics(2)
    run = Federation(SCAFFOLD().method(), problem)
    w = run.initial()
    run.round(a_round(lr=lr, weight_decay=weight_decay))
    for i in range(2):
        gradient = w - problem.targets[2 * i : 2 * i + 2].mean(0) + weight_decay * w
        assert_close(run.state(i).control[0], gradient, rtol=1e-9, atol=1e-9)


def test_unequal_numbers_of_steps_do_not_bias_the_optimum():
    """Samples 0, 1, 2 on 1, 4 and 2 samples: mean F_i has its optimum at 1.

    FedAvg's own steps pull it away.
    """
    problem = uneven(1, 4, 2)
    run = trained(SCAFFOLD(), problem, 300, batch_size=1)
    avg = trained(FedAvg(), problem, 300, batch_size=1)
    assert run.server.model.item() == pytest.approx(1, abs=1e-6)
    # grad F_i(1) = 1 - i
    assert controls(run).flatten().tolist() == pytest.approx([1, 0, -1], abs=1e-6)
    # FedAvg's fixed point: n_i / n times how far n_i steps go
    pull = [n / 7 * (1 - 0.9**n) for n in (1, 4, 2)]
    assert avg.server.item() == pytest.approx((pull[1] + 2 * pull[2]) / sum(pull))


def test_a_client_without_a_step_keeps_its_variate():
    run = Federation(SCAFFOLD().method(), quadratics(2))
    run.round(a_round(1))
    variates, w = controls(run).clone(), run.server.model
    run.round(a_round(2, epochs=0))
    assert torch.equal(controls(run), variates)
    assert torch.equal(run.server.model, w)


def test_only_changes_go_up():
    run = Federation(SCAFFOLD().method(), quadratics(2))
    run.round(a_round(1))
    variates, w = controls(run).clone(), run.server.model
    run.round(a_round(2))
    for i, reply in enumerate(run.replies):
        assert reply.uplink.keys() == {"model_delta", "control_delta"}
        assert_close(variates[i] + reply.uplink["control_delta"], run.state(i).control[0])
        assert_close(w + reply.uplink["model_delta"], run.model(i, "local", "trained"))
