"""FedFomo and its variant with model averages against their equations."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from pomona.federation.exchange import ClientRequest, received_bytes
from pomona.methods.mixtures.fedfomo import FedFomo, FedFomoState, normalised
from pomona.methods.mixtures.fedfomo_ma import FedFomoMA
from pomona.methods.mixtures.fedfomo_server import choose, make_request
from pomona.methods.mixtures.request_bank import limit
from pomona.methods.personal_regularisation.separate import Separate
from pomona.objective.training import LocalTraining
from problems import Federation, Quadratics, a_round, quadratics, trained

VARIANTS = [FedFomo, FedFomoMA]


def values(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def rigged(settings, problem, models, previous):
    """A federation in which every client uploaded ``models`` (N, d), last trained from
    ``previous``, asks for all.
    """
    run = Federation(settings.method(), problem)
    N = len(models)
    clients = torch.arange(N)
    requests = torch.stack([clients[clients != i] for i in range(N)])
    run.server = replace(
        run.server, models=models, uploaded=torch.ones(N, dtype=torch.long), requests=requests
    )
    for i in range(N):
        old = run.state(i)
        run.set_state(
            i,
            FedFomoState(
                models[i : i + 1].clone(),
                previous[i : i + 1, : old.previous.shape[1]],
                old.affinity,
            ),
        )
    return run


def line(*targets):
    """One client per number: F_i(w) = (w - a_i)^2 / 2, also for validation."""
    return Quadratics(values(*targets).unsqueeze(1), [[i] for i in range(len(targets))])


def info_of(run, client, name):
    return next(r.info[name] for r in run.replies if r.client == client)


def test_a_federated_update_by_hand():
    """Client 0 with a = 2, at 0 before training (loss 2), now at 1 (loss .5); others at 1.5 (loss
    .125) and 4 (loss 2).

    w = (1.5 / 1, 1.875 / 1.5, 0 / 4) = (1.5, 1.25, 0); theta = 0 + (1.5 * 1 + 1.25 * 1.5) / 2.75; p
    = e_0 + w.
    """
    run = rigged(
        FedFomo(),
        line(2, 9, 9),
        values(1, 1.5, 4).unsqueeze(1),
        torch.zeros(3, 1, dtype=torch.float64),
    )
    run.round(a_round(2, lr=0.1))
    theta = (1.5 + 1.25 * 1.5) / 2.75
    assert run.model(0, "personal", "received").item() == pytest.approx(theta)
    assert_close(info_of(run, 0, "weights"), values(1.5, 1.25, 0) / 2.75)
    assert_close(run.state(0).affinity[0], values(2.5, 1.25, 0))
    assert run.state(0).previous.item() == pytest.approx(theta)
    assert run.server.models[0].item() == pytest.approx(theta - 0.1 * (theta - 2))


def test_the_norm_divides_the_gain():
    """From 0 to (3, 4): 5 in l2, 7 in l1. The loss at 0 is (9 + 16) / 2, at (3, 4) it is 0."""
    problem = Quadratics(values(3, 4, 0, 0).view(2, 2), [[0], [1]])
    models = values(0, 0, 3, 4).view(2, 2)
    for norm, length in (("l2", 5), ("l1", 7)):
        run = rigged(FedFomo(norm=norm), problem, models, torch.zeros(2, 2, dtype=torch.float64))
        run.round(a_round(2))
        assert_close(run.state(0).affinity[0], values(1, 12.5 / length))


def test_the_only_better_model_is_taken_over():
    run = rigged(
        FedFomo(),
        line(5, 0, 0),
        values(-1, 4, -2).unsqueeze(1),
        torch.zeros(3, 1, dtype=torch.float64),
    )
    run.round(a_round(2))
    assert run.model(0, "personal", "received").item() == pytest.approx(4)
    assert_close(info_of(run, 0, "weights"), values(0, 1, 0))


@pytest.mark.parametrize(("settings_type", "learned"), [(FedFomo, 1), (FedFomoMA, 0)])
def test_a_model_without_a_loss_counts_for_nothing(settings_type, learned):
    """Client 2's square overflows, and that of a mean with it. The others learn from each other as
    if it had not come; from means, nothing: they go on from their own models.
    """
    models = values(1.0, 0.5, 1e200).unsqueeze(1)
    run = rigged(settings_type(), line(0.0, 0.0, 0.0), models, values(2.0, 2.0, 2.0).unsqueeze(1))
    run.round(a_round(lr=0.0), ids=(0, 1))
    for i in (0, 1):
        assert info_of(run, i, "weights")[2] == 0
        assert info_of(run, i, "weights").sum() == pytest.approx(learned)
        assert info_of(run, i, "affinity").isfinite().all()
        assert run.replies[i].uplink["model"].abs().max() <= 1


def test_without_a_better_model_the_one_before_training_stays_to_the_bit():
    """Even the own trained model is worse: early stopping.

    The affinities still learn, here negatively.
    """
    previous = values(0.1, 0, 0).unsqueeze(1)
    run = rigged(FedFomo(), line(0, 0, 0), values(3, 4, -2).unsqueeze(1), previous)
    run.round(a_round(2))
    assert torch.equal(run.model(0, "personal", "received"), previous[0])
    assert torch.equal(info_of(run, 0, "weights"), torch.zeros(3, dtype=torch.float64))
    assert (run.state(0).affinity[0, 1:] < 0).all()


def test_models_equal_to_the_one_before_training_change_nothing():
    models = values(0.7, 0.7, 0.7).unsqueeze(1)
    run = rigged(FedFomo(), line(1, 2, 3), models, models)
    run.round(a_round(2, lr=0.0))
    assert torch.equal(run.server.models, models)
    assert torch.equal(
        torch.cat([run.state(i).affinity for i in range(3)]), torch.eye(3, dtype=torch.float64)
    )


def test_strangers_are_separate_training():
    """Optima on opposite sides of the start: the other's model is always worse, the own one always
    better than before.
    """
    problem = line(-100, 100)
    fomo, plain = Federation(FedFomo().method(), problem), Federation(Separate().method(), problem)
    for number in range(1, 7):
        for run in (fomo, plain):
            run.round(a_round(number, epochs=2, lr=0.4))
    for i in range(2):
        assert_close(fomo.state(i).current, plain.state(i))


@pytest.mark.parametrize("settings_type", VARIANTS)
def test_rows_together_are_rows_alone(settings_type):
    """The client half on three rows at once, and on each: one state, uplink and info."""
    run = trained(settings_type(budget=1), quadratics(4), 2, lr=0.1)
    downlink, ids = run.downlink(a_round(3), (0, 1, 3)), (0, 1, 3)
    received = {
        k: rows.bank[rows.index] if rows.index.dim() == 1 else rows for k, rows in downlink.items()
    }
    states = [run.state(i) for i in ids]
    joint = FedFomoState(
        *(torch.cat([getattr(s, f) for s in states]) for f in ("current", "previous", "affinity"))
    )
    training = LocalTraining(run.problem, ids, run.roster, a_round(3))
    state, uplink, info = run.method.client.train(joint, received, training, a_round(3))
    run.round(a_round(3), ids)
    for k, reply in enumerate(run.replies):
        assert_close({n: t[k] for n, t in uplink.items()}, reply.uplink)
        assert_close({n: t[k] for n, t in info.items()}, reply.info)
        assert_close(vars(state)["affinity"][k], run.state(ids[k]).affinity[0])


@pytest.mark.parametrize("settings_type", VARIANTS)
@pytest.mark.parametrize("budget", [3, 9])
def test_a_budget_of_all_others_is_no_budget(settings_type, budget):
    problem = quadratics(4)
    free, budgeted = (Federation(settings_type(budget=b).method(), problem) for b in (None, budget))
    for number in (1, 2, 3):
        free.round(a_round(number))
        budgeted.round(a_round(number))
    assert torch.equal(free.server.models, budgeted.server.models)
    assert all(torch.equal(free.state(i).affinity, budgeted.state(i).affinity) for i in range(4))


def test_traffic_follows_the_budget():
    """Five float64 numbers a model and one byte a client for who is there; the averages' run also
    brings the mean.
    """
    for settings_type, models, flags in ((FedFomo, 2, 4), (FedFomoMA, 3, 8)):
        run = Federation(settings_type(budget=2).method(), quadratics(4))
        for number in (1, 2):
            downlink = run.downlink(a_round(number))
            count = models if number == 2 else models - 2
            assert received_bytes(downlink, run.ids) == (count * 5 * 8 + flags,) * 4
            run.round(a_round(number))


@pytest.mark.parametrize("settings_type", VARIANTS)
def test_only_models_of_those_who_have_uploaded_are_sent(settings_type):
    run = Federation(settings_type(budget=3, candidates="everybody").method(), quadratics(6))
    uploaders = set()
    for number, ids in enumerate([(0, 1), (2, 3), (0, 4), (1, 5)], start=1):
        rows = run.downlink(a_round(number), ids)["models"]
        for i, received in zip(ids, rows.index.tolist(), strict=True):
            assert set(received) - {i} <= uploaders
            assert len(set(received) - {i}) == min(3, len(uploaders - {i})) or i in uploaders
        states = {i: run.state(i) for i in run.ids if i not in ids}
        run.round(a_round(number), ids)
        assert all(run.state(i) is state for i, state in states.items())
        uploaders |= set(ids)
        assert set(run.server.uploaded.nonzero().flatten().tolist()) == uploaders
        for i in ids:
            assert set(run.server.requests[i].tolist()) <= uploaders  # itself stands for nobody


def test_what_was_asked_for_comes():
    run = Federation(FedFomo(budget=2, candidates="everybody").method(), quadratics(5))
    run.round(a_round(1))
    requests = run.server.requests.clone()
    rows = run.downlink(a_round(2), (1, 4))["models"]
    assert torch.equal(rows.index, requests[[1, 4]])


def test_an_upload_that_never_came_leaves_its_place_empty():
    """Both ask for each other, and one of them was lost on the way."""
    run = Federation(FedFomo().method(), quadratics(3))
    run.round(a_round(1))
    run.server = replace(run.server, uploaded=torch.tensor([1, 1, 0]))
    rows = run.downlink(a_round(2), (0, 1))["models"]
    assert rows.index.tolist() == [[1], [0]]


@pytest.mark.parametrize(("fomo", "a", "gain"), [(FedFomo, 2.0, 1.5), (FedFomoMA, 1.0, 5 / 18)])
def test_a_place_left_empty_counts_for_nothing(fomo, a, gain):
    """Client 1 asks nobody beside a client that asks two: its own model, sent to fill the row, is
    not judged twice.

    Eq. 3 from 0 (loss 2) to 1 (loss .5) with a = 2: 1.5. Eq. 14 with models 0, 1, 4 and a = 1:
    without 1 the mean 5 / 3 becomes 2, and the loss (2 / 3)^2 / 2 becomes 1 / 2: 5 / 18.
    """
    run = rigged(
        fomo(candidates="everybody"),
        line(9, a, 9),
        values(0, 1, 4).unsqueeze(1),
        torch.zeros(3, 1, dtype=torch.float64),
    )
    run.server = replace(run.server, requests=torch.tensor([[1, 2], [1, 1], [0, 1]]))
    run.round(a_round(2), ids=(0, 1))
    assert_close(run.state(1).affinity[0], values(0, 1 + gain, 0))


def test_a_newcomer_is_no_part_of_the_mean_and_does_not_judge_itself():
    run = Federation(FedFomoMA().method(), quadratics(3))
    run.round(a_round(1), ids=(0, 1))
    run.round(a_round(2), ids=(0, 2))
    assert float(info_of(run, 2, "weights")[2]) == 0
    assert float(run.state(2).affinity[0, 2]) == 1
    assert float(run.state(2).affinity[0, :2].abs().max()) > 0


@pytest.mark.parametrize("settings_type", VARIANTS)
def test_looking_does_not_change_affinities(settings_type):
    run = trained(settings_type(), quadratics(3), 2, lr=0.1)
    affinities = [run.state(i).affinity.clone() for i in run.ids]
    visit = ClientRequest(a_round(3), run.roster, run.ids, False, frozenset({"received"}), True)
    run.clients.visit(visit, run.downlink(visit.round))
    run.clients.commit(run.ids)
    assert all(
        torch.equal(run.state(i).affinity, b) for i, b in zip(run.ids, affinities, strict=True)
    )


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=6), st.floats(1e-3, 1e3))
def test_weights_are_shares_or_nothing_and_do_not_depend_on_the_scale_of_losses(gains, scale):
    w = torch.tensor([gains], dtype=torch.float64)
    shares = normalised(w)
    assert (shares >= 0).all()
    assert float(shares.sum()) == pytest.approx(1 if max(gains) > 0 else 0)
    if max(gains) > 1e-200:
        assert_close(normalised(scale * w), shares)


@given(st.integers(1, 8), st.data())
def test_a_choice_is_of_available_others_without_repeats(N, data):
    client, budget = data.draw(st.integers(0, N - 1)), data.draw(st.none() | st.integers(1, 9))
    available = torch.tensor(data.draw(st.lists(st.booleans(), min_size=N, max_size=N)))
    epsilon = {} if budget is None else {"epsilon": data.draw(st.sampled_from([0.0, 0.5, 1.0]))}
    settings = FedFomo(budget=budget, **epsilon)
    chosen = choose(settings, torch.linspace(-1, 1, N), available, client, 0, 1).tolist()
    partners = [j for j in chosen if j != client]
    assert len(chosen) == limit(settings.budget, N)
    assert (
        len(set(partners))
        == len(partners)
        == min(len(chosen), int(available.sum()) - int(available[client]))
    )
    assert all(available[j] for j in partners)
    assert chosen == sorted(partners) + [client] * (len(chosen) - len(partners))


def test_without_exploration_the_largest_affinities_are_asked_for():
    p = torch.tensor([9.0, -2.0, 0.5, 0.1, -0.3])
    available = torch.ones(5, dtype=torch.bool)
    for number in range(1, 20):
        assert choose(FedFomo(budget=2, epsilon=0.0), p, available, 0, 0, number).tolist() == [2, 3]
    late = [choose(FedFomo(budget=2), p, available, 0, seed, 7).tolist() for seed in range(50)]
    assert late == [[2, 3]] * 50  # .3 - 6 * .05 = 0


@pytest.mark.parametrize(
    ("p", "epsilon"), [((0.0, 3.0, 2.0, 1.0), 1.0), ((9.0, 0.0, 0.0, 0.0), 0.0)]
)
def test_exploration_and_ties_are_uniform(p, epsilon):
    """Each of three others a third of 3000 seeds, within 4 standard errors."""
    settings, available = FedFomo(budget=1, epsilon=epsilon), torch.ones(4, dtype=torch.bool)
    draws = [int(choose(settings, torch.tensor(p), available, 0, seed, 1)) for seed in range(3000)]
    for j in (1, 2, 3):
        assert abs(draws.count(j) / 3000 - 1 / 3) < 4 * math.sqrt(2 / 9 / 3000)


def test_exploration_takes_each_place_with_its_chance():
    """M = 1, epsilon = .5 among three: the best with .5 + .5 / 3, the others with .5 / 3 each."""
    settings, available = FedFomo(budget=1, epsilon=0.5), torch.ones(4, dtype=torch.bool)
    p = torch.tensor([0.0, 3.0, 2.0, 1.0])
    draws = [int(choose(settings, p, available, 0, seed, 1)) for seed in range(3000)]
    for j, share in ((1, 2 / 3), (2, 1 / 6), (3, 1 / 6)):
        assert abs(draws.count(j) / 3000 - share) < 4 * math.sqrt(share * (1 - share) / 3000)


def test_model_averages_by_hand():
    """Models 0, 3, 6: mean 3; without them 4.5, 3, 1.5.

    Client 0 with a = 5 has the losses 2 | .125, 2, 6.125.

    w = (-1.875, 0, 4.125), so all weight is on the last: theta = 3 + (6 - 3) = 6. Client 1 with a =
    2 has .5 | 3.125, .5, .125 and w = (2.625, 0, -.375): theta = 3 + (0 - 3) = 0.
    """
    models = values(0, 3, 6).unsqueeze(1)
    run = rigged(FedFomoMA(), line(5, 2, 3), models, models)
    downlink = run.downlink(a_round(2))
    assert_close(downlink["models"].bank, values(4.5, 3, 1.5).unsqueeze(1))
    run.round(a_round(2))
    assert_close(run.state(0).affinity[0], values(1 - 1.875, 0, 4.125))
    assert run.model(0, "personal", "received").item() == pytest.approx(6)
    assert_close(run.state(1).affinity[0], values(2.625, 1, -0.375))
    assert run.model(1, "personal", "received").item() == pytest.approx(0)
    # a = 3 is the mean itself: leaving anybody out but client 1 costs 1.125, so models 0 and 6
    # weigh half each.
    assert_close(info_of(run, 2, "weights"), values(0.5, 0, 0.5))


def test_averages_run_over_those_who_have_uploaded_and_fall_back_to_the_mean():
    run = Federation(FedFomoMA(candidates="everybody").method(), quadratics(4))
    first = run.downlink(a_round(1))
    assert torch.equal(first["mean"].bank[0], run.initial())
    run.round(a_round(1), ids=(1,))
    downlink = run.downlink(a_round(2), (0, 1))
    assert_close(downlink["mean"].bank[0], run.server.models[1])
    # of a single model nothing can be left out: everybody starts from it
    run.round(a_round(2), ids=(0, 1))
    for i in (0, 1):
        assert_close(run.model(i, "personal", "received"), downlink["mean"].bank[0])
    downlink = run.downlink(a_round(3), (2,))
    assert_close(downlink["mean"].bank[0], run.server.models[:2].mean(0))
    assert_close(downlink["models"].bank[0], run.server.models[1])


@pytest.mark.parametrize("settings_type", VARIANTS)
def test_losses_fall(settings_type):
    """Two pairs of kindred clients; every personal model ends nearer its optimum than where all
    began.
    """
    problem = line(-2, -2.2, 3, 3.1)
    run = Federation(settings_type().method(), problem)
    initial_losses = [float(problem.losses(run.initial(), i, "train").mean()) for i in range(4)]
    for number in range(1, 31):
        run.round(a_round(number, lr=0.2, epochs=3))
    for i in range(4):
        assert (
            float(problem.losses(run.model(i, "personal", "received"), i, "train").mean())
            < 0.2 * initial_losses[i] + 0.01
        )


@pytest.mark.parametrize("settings", VARIANTS)
def test_one_client_alone_trains_alone(settings):
    problem = quadratics(1)
    fomo, plain = Federation(settings().method(), problem), Federation(Separate().method(), problem)
    for number in (1, 2, 3):
        for run in (fomo, plain):
            run.round(a_round(number))
    assert_close(fomo.state(0).current, plain.state(0))


@pytest.mark.parametrize("settings_type", VARIANTS)
@pytest.mark.parametrize("budget", [None, 1, 2])
def test_where_all_take_part_the_last_round_is_everybody_to_the_bit(settings_type, budget):
    runs = [
        Federation(settings_type(budget=budget, candidates=c).method(), quadratics(5))
        for c in ("last-round", "everybody")
    ]
    for number in range(1, 6):
        for run in runs:
            run.round(a_round(number, epochs=2))
    for i in range(5):
        last, ever = (run.state(i) for run in runs)
        assert torch.equal(last.current, ever.current)
        assert torch.equal(last.affinity, ever.affinity)


@pytest.mark.parametrize("settings_type", VARIANTS)
@given(
    cohorts=st.lists(st.sets(st.integers(0, 5), min_size=1), min_size=1, max_size=6),
    budget=st.integers(1, 5),
)
@settings(max_examples=20)
def test_what_is_offered_came_in_the_last_round(settings_type, cohorts, budget):
    """Section 3.1.

    A cohort of one would have nobody's model but its own: then the one that came before it, too.
    """
    run, uploaders = Federation(settings_type(budget=budget).method(), quadratics(6)), []
    for number, cohort in enumerate(cohorts, start=1):
        ids = tuple(sorted(cohort))
        offered = set(uploaders[-1]) if uploaders else set()
        if len(offered) == 1:
            older = [clients - offered for clients in reversed(uploaders[:-1])]
            offered |= next((clients for clients in older if clients), set())
        index = run.downlink(a_round(number), ids)["models"].index
        for i, received in zip(ids, index.tolist(), strict=True):
            assert set(received) - {i} <= offered
            assert len(set(received) - {i}) == min(budget, len(offered - {i}))
        run.round(a_round(number), ids)
        uploaders = [clients - cohort for clients in uploaders] + [cohort]


def test_of_the_last_rounds_models_those_that_a_client_prefers_come():
    """Client 0 found 3 better than 1, 1 better than 2; when it comes again, 1 and 2 are there."""
    run = Federation(FedFomo(budget=1, epsilon=0.0).method(), quadratics(4))
    requests = torch.tensor([[3, 1, 2], [1, 1, 1], [2, 2, 2], [3, 3, 3]])
    run.server = replace(run.server, uploaded=torch.tensor([1, 2, 2, 1]), requests=requests)
    rows = run.downlink(a_round(3), (0,))["models"]
    assert rows.index.tolist() == [[1]]


def test_a_request_is_the_order_of_all_others_by_affinity():
    p = torch.tensor([0.2, 5.0, -1.0, 0.7])
    assert make_request(
        FedFomo(budget=1), p, torch.ones(4, dtype=torch.bool), 1, a_round(1)
    ).tolist() == [3, 0, 2]
    available = torch.tensor([True, True, False, True])
    # its own place for who is no member
    assert make_request(FedFomo(), p, available, 1, a_round(1)).tolist() == [3, 0, 1]


def test_a_client_that_nobody_learns_from_keeps_the_models_of_the_last_round():
    """What an unseen client uploads to its private copy of the state does not take the others' off
    it.
    """
    run = Federation(FedFomo().method(), quadratics(4))
    run.round(a_round(1))
    run.server = replace(run.server, uploaded=torch.tensor([5, 1, 1, 1]))
    rows = run.downlink(a_round(6), (0,))["models"]
    assert sorted(rows.index[0].tolist()) == [1, 2, 3]
