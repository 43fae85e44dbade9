"""FedALA against its equations, and ALA as a plug-in."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pomona.core.errors import ConfigError
from pomona.methods.base import Method
from pomona.methods.mixtures.fedala import ALA, FedALA, adaptive, by_layer, converged, mixed
from pomona.methods.one_model import fedavg
from pomona.methods.one_model.fedavg import FedAvg
from pomona.methods.personal_regularisation.separate import Separate
from pomona.objective.training import LocalTraining
from problems import PASSES, Federation, Quadratics, a_round, quadratics, trained


def state_with(run, client, **fields):
    run.set_state(client, replace(run.state(client), **fields))


def info(run, client, name):
    return run.replies[client].info[name]


def test_weight_gradient_is_the_finite_difference_of_the_loss_at_the_mixture():
    """One full-batch epoch with eta = .01 far from the bounds: (W - W_new) / .01 is dF(w_i + (w -
    w_i) W) / dW.
    """
    problem = quadratics(2, d=4)
    run = Federation(FedALA(layers=2, sample_share=1.0, weight_lr=0.01).method(), problem)
    w = run.server.clone()
    last = w + torch.tensor([[0.5, -1.0, 2.0, 0.3]], dtype=torch.float64)
    W = torch.full((1, 4), 0.5, dtype=torch.float64)
    state_with(run, 0, last=last, weights=W, started=torch.tensor([True]))
    run.round(a_round())
    gradient = (W - run.state(0).weights)[0] / 0.01

    def loss(weights):
        return float(problem.losses(last[0] + (w - last[0]) * weights, 0, "train").mean())

    for q in range(4):
        step = torch.zeros(4, dtype=torch.float64)
        step[q] = 1e-6
        difference = (loss(W[0] + step) - loss(W[0] - step)) / 2e-6
        assert gradient[q] == pytest.approx(difference, rel=1e-6, abs=1e-8)


def test_without_a_weight_rate_it_is_fedavg_to_the_bit():
    problem = quadratics(3, samples=5)
    ala = Federation(FedALA(weight_lr=0.0, layers=2).method(), problem)
    avg = Federation(FedAvg().method(), problem)
    for number in range(1, 5):
        ala.round(a_round(number, **PASSES))
        avg.round(a_round(number, **PASSES))
        assert torch.equal(ala.server, avg.server)
        assert torch.equal(ala.model(0, "personal", "received"), avg.model(0, "global", "received"))


def test_weights_of_zero_on_all_layers_are_separate_training_to_the_bit():
    problem = quadratics(3, samples=5)
    ala = Federation(FedALA(weight_lr=0.0, layers=2).method(), problem)
    separate = Federation(Separate().method(), problem)
    for i in range(3):
        state_with(ala, i, weights=torch.zeros_like(ala.state(i).weights))
    for number in range(1, 5):
        ala.round(a_round(number, **PASSES))
        separate.round(a_round(number, **PASSES))
    assert all(torch.equal(ala.state(i).last, separate.state(i)) for i in range(3))


@settings(max_examples=20)
@given(st.floats(0, 1e4), st.integers(0, 2), st.integers(0, 5))
def test_weights_stay_between_zero_and_one(rate, layers, seed):
    run = trained(FedALA(weight_lr=rate, layers=layers), quadratics(3, seed=seed), lr=0.1)
    for i in range(3):
        weights = run.state(i).weights
        assert ((weights >= 0) & (weights <= 1)).all()


def test_a_received_model_equal_to_the_own_one_leaves_the_weights_alone():
    """One client: what it receives is what it sent."""
    run = Federation(FedALA().method(), quadratics(1))
    for number in (1, 2, 3):
        run.round(a_round(number))
        assert info(run, 0, "ala_epochs") == 0
    assert torch.equal(run.state(0).weights, torch.ones(1, 1, dtype=torch.float64))
    assert not run.state(0).started


def test_the_stages_none_then_until_converged_then_one_epoch():
    run = Federation(FedALA(weight_lr=0.5).method(), quadratics(3))
    epochs = []
    for number in range(1, 5):
        run.round(a_round(number))
        epochs.append([float(info(run, i, "ala_epochs")) for i in range(3)])
    assert epochs[0] == [0, 0, 0]
    assert all(11 <= e <= 40 for e in epochs[1])
    assert epochs[2:] == [[1, 1, 1], [1, 1, 1]]


def test_the_losses_of_weight_learning_are_on_record_epoch_by_epoch():
    """One client of one number and one target, lr 0: eq. 5 by hand gives each epoch's loss before
    its step.

    F(t) = (t - 1)^2 / 2, w_i = 0, w = 4, W = 1 at first: t = 4 W, W <- clip(W - .05 (t - 1) * 4, 0,
    1).
    """
    problem = Quadratics(torch.tensor([[1.0], [0.0]], dtype=torch.float64), [[0], [1]])
    run = Federation(FedALA(sample_share=1.0, weight_lr=0.05, stage_epochs=15).method(), problem)
    run.server = torch.tensor([4.0], dtype=torch.float64)
    state_with(run, 0, last=torch.zeros(1, 1, dtype=torch.float64))
    run.round(a_round(1, lr=0.0))
    weight, expected = 1.0, []
    for _ in range(15):
        expected.append((4 * weight - 1) ** 2 / 2)
        weight = min(1.0, max(0.0, weight - 0.05 * (4 * weight - 1) * 4))
    losses, count = info(run, 0, "ala_losses"), int(info(run, 0, "ala_epochs"))
    # 4.5 * .04^k: ten losses with .18 deviate by .18 * .3, ten that begin with .0072 by .0072 * .3
    # < .01.
    assert count == 12
    assert losses[:count].tolist() == pytest.approx(expected[:count], rel=1e-9, abs=1e-12)
    assert losses[count:].tolist() == [0.0] * (15 - count)
    run.round(a_round(2, lr=0.0))
    assert info(run, 0, "ala_losses")[1:].tolist() == [0.0] * 14


def test_the_stage_is_capped():
    run = trained(FedALA(stage_epochs=4), quadratics(3), 2, lr=0.1)
    assert all(info(run, i, "ala_epochs") == 4 for i in range(3))


def test_later_rounds_may_have_more_epochs_and_each_takes_the_steps_of_eq_5():
    """As above, a cap of 2, then three epochs: W <- clip(W - .05 (t - 1) (4 - w_i), 0, 1), t = w_i
    + (4 - w_i) W.
    """
    problem = Quadratics(torch.tensor([[1.0], [0.0]], dtype=torch.float64), [[0], [1]])
    settings = FedALA(sample_share=1.0, weight_lr=0.05, stage_epochs=2, round_epochs=3)
    run = Federation(settings.method(), problem)
    run.server = torch.tensor([4.0], dtype=torch.float64)
    state_with(run, 0, last=torch.zeros(1, 1, dtype=torch.float64))
    run.round(a_round(1, lr=0.0))
    weight = run.state(0).weights.item()
    run.server, last = torch.tensor([4.0], dtype=torch.float64), run.state(0).last.item()
    run.round(a_round(2, lr=0.0))
    expected = []
    for _ in range(3):
        mixture = last + (4 - last) * weight
        expected.append((mixture - 1) ** 2 / 2)
        weight = min(1.0, max(0.0, weight - 0.05 * (mixture - 1) * (4 - last)))
    assert 0 < weight < 1
    assert info(run, 0, "ala_losses").tolist() == pytest.approx(expected, rel=1e-9)
    assert info(run, 0, "ala_epochs") == 3
    assert run.state(0).weights.item() == pytest.approx(weight, rel=1e-9)


def test_one_client_begins_while_another_has_its_later_epochs():
    run = Federation(FedALA(stage_epochs=5, round_epochs=2, weight_lr=0.5).method(), quadratics(3))
    run.round(a_round(1), ids=(0, 1))
    run.round(a_round(2), ids=(0, 1))
    run.round(a_round(3), ids=(0, 2))
    assert {r.client: float(r.info["ala_epochs"]) for r in run.replies} == {0: 2, 2: 5}


def test_without_adaptation_the_initial_weights_are_reused():
    run = trained(FedALA(round_epochs=0, weight_lr=0.5), quadratics(3), 2, lr=0.1)
    initial = [run.state(i).weights.clone() for i in range(3)]
    run.round(a_round(3))
    assert all(torch.equal(run.state(i).weights, initial[i]) for i in range(3))
    assert any((weights < 1).any() for weights in initial)


def test_before_its_start_round_it_is_fedavg():
    problem = quadratics(3)
    late = trained(FedALA(start_round=3), problem, 2, lr=0.1)
    avg = trained(FedAvg(), problem, 2, lr=0.1)
    assert torch.equal(late.server, avg.server)
    late.round(a_round(3))
    assert all(info(late, i, "ala_epochs") >= 11 for i in range(3))


def test_who_is_only_evaluated_does_not_begin():
    """The stage would take its gradients again in each evaluated round, and spend privacy."""
    run = Federation(FedALA().method(), quadratics(3))
    run.round(a_round(1), ids=(0, 1))
    for trains in (False, True):
        training = LocalTraining(
            run.problem, (2,), run.roster, a_round(2), trains, watched=frozenset({"received"})
        )
        w = run.server.unsqueeze(0)
        _, _, info = run.method.client.train(run.state(2), {"model": w}, training, a_round(2))
        assert (info["ala_epochs"] >= 11) == trains
        assert (info["ala_epochs"] == 0) != trains
        assert trains or torch.equal(training.observed["personal", "received"], w)


def test_a_late_client_begins_at_its_first_visit():
    run = Federation(FedALA().method(), quadratics(3))
    run.round(a_round(1), ids=(0, 1))
    run.round(a_round(2), ids=(0, 2))
    assert run.replies[1].client == 2
    assert run.replies[1].info["ala_epochs"] >= 11


def test_lower_layers_are_the_received_ones_and_learning_lowers_the_loss():
    problem = quadratics(4, samples=3)
    run = Federation(FedALA(layers=1, weight_lr=0.5, sample_share=1.0).method(), problem)
    run.round(a_round(1, lr=0.5))
    w = run.server.clone()
    run.round(a_round(2, lr=0.5))
    losses = []
    for i in range(4):
        mixture = run.model(i, "personal", "received")
        assert torch.equal(mixture[:-1], w[:-1])
        losses.append([float(problem.losses(m, i, "train").mean()) for m in (mixture, w)])
    assert all(adapted <= received for adapted, received in losses)
    assert any(adapted < received for adapted, received in losses)


def test_learned_weights_reach_the_best_mixture():
    """One number: F(t) = (t - a)^2 / 2 on t = w_i + (w - w_i) W is lowest at W = (a - w_i) / (w -
    w_i), here 1/4.
    """
    problem = Quadratics(torch.tensor([[1.0], [0.0]], dtype=torch.float64), [[0], [1]])
    run = Federation(FedALA(sample_share=1.0, weight_lr=0.05, stage_epochs=300).method(), problem)
    run.server = torch.tensor([4.0], dtype=torch.float64)
    state_with(run, 0, last=torch.zeros(1, 1, dtype=torch.float64))
    run.round(a_round(1))
    # Each epoch brings W - 1/4 down to 1 - .05 * 16 = 1/5 of itself; eleven leave (3/4) / 5^11.
    assert run.state(0).weights.item() == pytest.approx(0.25, abs=1e-7)
    assert run.model(0, "personal", "received").item() == pytest.approx(1.0, abs=1e-6)


def test_the_proximal_centre_stays_the_received_model():
    """w_i = 2, w = 6, W = 1/4: start 3.

    F(v) = (v - 1)^2 / 2, mu = 2, lr .1: v <- 3 - .1 ((3 - 1) + 2 (3 - 6)) = 3.4.
    """
    problem = Quadratics(torch.tensor([[1.0], [0.0]], dtype=torch.float64), [[0], [1]])
    client = adaptive(fedavg.client(mu=2.0), ALA(weight_lr=0.0))
    run = Federation(Method(fedavg.server(), client, FedALA().method().card), problem)
    run.server = torch.tensor([6.0], dtype=torch.float64)
    fields = {"last": 2.0, "weights": 0.25}
    state_with(run, 0, **{k: torch.full((1, 1), v, dtype=torch.float64) for k, v in fields.items()})
    run.round(a_round(1, lr=0.1))
    assert run.model(0, "personal", "received").item() == pytest.approx(3.0)
    assert run.model(0, "global", "received").item() == pytest.approx(6.0)
    assert run.state(0).last.item() == pytest.approx(3.4)


def test_the_weights_learn_on_their_share_of_the_samples():
    batches = []

    class Watched(Quadratics):
        def gradient(self, W, indices, *args, **keywords):
            batches.append(indices[0])
            return super().gradient(W, indices, *args, **keywords)

    plain = quadratics(2, samples=10)
    run = Federation(
        FedALA(sample_share=0.4, stage_epochs=3).method(), Watched(plain.targets, plain.rows)
    )
    run.round(a_round(1))
    batches.clear()
    run.round(a_round(2), ids=(1,))
    stage, training = batches[:3], batches[3:]
    assert [len(i) for i in stage] == [4, 4, 4]
    assert len({tuple(sorted(i.tolist())) for i in stage}) == 1
    assert set(stage[0].tolist()) < set(range(10, 20))
    assert [len(i) for i in training] == [10]


def test_a_mixture_is_exact_at_both_ends():
    rows = torch.randn(2, 3, 50, generator=torch.Generator().manual_seed(0))
    w, last = rows
    assert torch.equal(mixed(w, last, torch.ones(3, 20), (slice(30, 50),)), w)
    zero = mixed(w, last, torch.zeros(3, 20), (slice(30, 50),))
    assert torch.equal(zero[:, 30:], last[:, 30:])
    assert torch.equal(zero[:, :30], w[:, :30])


def test_the_stage_ends_when_the_last_ten_losses_agree():
    """Clients: constant loss; alternating by .1 (standard deviation .05); wild at first, constant
    for the last ten.
    """
    losses = [torch.tensor([1.0, 1.0 + 0.1 * (k % 2), 9.0 if k < 2 else 1.0]) for k in range(12)]
    assert not converged(losses[:10]).any()
    assert converged(losses[:11]).tolist() == [True, False, False]
    assert converged(losses).tolist() == [True, False, True]


def test_mean_weights_by_layer():
    weights = torch.tensor([[0.0, 1.0, 0.5]])
    layers = (slice(0, 4), slice(4, 6), slice(6, 7))
    assert by_layer(weights, layers, (slice(4, 7),)).tolist() == [[0.5, 0.5]]
    assert by_layer(weights, layers, (slice(0, 2), slice(5, 6))).tolist() == [[0.5, 0.5]]
    assert by_layer(weights[:, :0], layers, (slice(7, 7),)).shape == (1, 0)


def test_more_layers_than_there_are_is_refused():
    with pytest.raises(ConfigError, match=r"method\.layers"):
        Federation(FedALA(layers=3).method(), quadratics(2)).round(a_round())
