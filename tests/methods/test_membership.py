"""Clients that join and leave, for every method: common rules, and each method's own behaviour."""

import pytest
import torch
from test_conformance import every_method, method
from torch.testing import assert_close

from pomona.federation.exchange import ClientRequest, stack
from pomona.methods import METHODS
from pomona.methods.mixtures.apple import APPLE
from pomona.methods.mixtures.cfl import CFL
from pomona.methods.mixtures.fedamp import FedAMP
from pomona.methods.mixtures.fedfomo import FedFomo
from pomona.methods.mixtures.pgfed import PGFed
from pomona.methods.one_model.feddyn import FedDyn
from pomona.methods.one_model.scaffold import SCAFFOLD
from pomona.methods.personal_regularisation.mocha import MOCHA
from pomona.testing import Points
from problems import Federation, Quadratics, a_round, equal, passes, states, suited, trained, uneven


def observed(run):
    """The named models observed in each member's last visit."""
    return {f"{i}/{key}": t["w"] for i in run.ids for key, t in run.models(i).items()}


@pytest.mark.long
@every_method
def test_who_is_no_member_is_as_good_as_not_there(name, settings):
    """Four places with three members give what three places give: names and streams are the same,
    and so are sizes.
    """
    fewer = Federation(method(name, settings), suited(METHODS[name](**settings), uneven(1, 4, 2)))
    problem = uneven(1, 4, 2)
    five = Quadratics(
        torch.cat([problem.targets, torch.full((3, 5), 9.0).double()]), [*problem.rows, [7, 8, 9]]
    )
    with_place = Federation(
        method(name, settings), suited(METHODS[name](**settings), five), members=(0, 1, 2)
    )
    for number in (1, 2, 3):
        fewer.round(passes(name, number))
        with_place.round(passes(name, number))
    expected, actual = observed(fewer), observed(with_place)
    assert expected.keys() == actual.keys()
    for key, model in expected.items():
        assert_close(model, actual[key])


@pytest.mark.long
@every_method
def test_late_clients_come_in_and_leavers_are_gone(name, settings):
    """Client 3 joins in round 3 and client 0 leaves after it; nothing before depends on 3, nothing
    after breaks.
    """
    runs = []
    for value in (1.0, -5.0):
        targets = torch.cat([uneven(4, 4, 4).targets, torch.full((4, 5), value).double()])
        problem = suited(
            METHODS[name](**settings),
            Quadratics(targets, [list(range(4 * i, 4 * i + 4)) for i in range(4)]),
        )
        if isinstance(problem, Points):
            problem.inputs[12:] = value
        run = Federation(method(name, settings), problem, members=(0, 1, 2))
        for number in (1, 2):
            run.round(passes(name, number))
        runs.append((run, states(run)))
    assert equal(runs[0][1], runs[1][1])
    run = runs[0][0]
    run.only(0, 1, 2, 3)
    run.round(passes(name, 3))
    left = run.state(0)
    run.only(1, 2, 3)
    for number in (4, 5):
        run.round(passes(name, number))
        assert [r.client for r in run.replies] == [1, 2, 3]
    assert run.state(0) is left
    for tensor in [*states(run).values(), *observed(run).values()]:
        assert torch.isfinite(tensor.double()).all()


def adapted(run, client, rounds):
    """The loop's result for a client never trained with: the served copy of the server's state, and
    the replies.
    """
    server = run.method.server
    state, row = server.add_clients(run.server, (client,), run.roster)
    roster = run.roster.plus(client, run.everybody)
    run.clients.add_clients((client,), roster, row)
    for number in range(rounds):
        round_ = passes("scaffold", 10 + number)
        visit = ClientRequest(
            round_, roster, (client,), True, frozenset({"received", "trained"}), True, adapts=True
        )
        (reply,) = run.clients.visit(visit, server.downlink(state, (client,), roster, round_))
        run.clients.commit((client,))
        if server.separable:
            state = server.aggregate(
                state, stack([reply], lambda r: r.uplink), (client,), roster, round_
            )
    return state, reply


@pytest.mark.long
@every_method
def test_an_unseen_client_gets_a_model_and_nobody_learns_of_it(name, settings):
    run = Federation(
        method(name, settings),
        suited(METHODS[name](**settings), uneven(3, 4, 2, 3)),
        members=(0, 1, 2),
    )
    for number in (1, 2):
        run.round(passes(name, number))
    states_before = states(run)
    _, reply = adapted(run, 3, 3)
    assert equal(states(run), states_before)
    assert reply.scores
    assert all(torch.isfinite(t["w"]).all() for t in run.models(3).values())


@pytest.mark.long
@every_method
def test_where_nothing_lasts_a_round_of_an_unseen_client_begins_as_the_first_did(name, settings):
    """What ``lasting`` denies: the same round done again, after it was committed, gives the same
    models.
    """
    run = Federation(
        method(name, settings),
        suited(METHODS[name](**settings), uneven(3, 4, 2, 3)),
        members=(0, 1, 2),
    )
    run.round(passes(name, 1))
    models = []
    state, row = run.method.server.add_clients(run.server, (3,), run.roster)
    roster = run.roster.plus(3, run.everybody)
    run.clients.add_clients((3,), roster, row)
    for _ in range(2):
        visit = ClientRequest(
            passes(name, 2),
            roster,
            (3,),
            True,
            frozenset({"received", "trained"}),
            True,
            adapts=True,
        )
        run.clients.visit(visit, run.method.server.downlink(state, (3,), roster, visit.round))
        run.clients.commit((3,))
        models.append({str(key): t["w"] for key, t in run.models(3).items()})
    assert equal(*models) or run.method.lasting


@pytest.mark.parametrize(
    ("name", "lasting"),
    [("fedavg", False), ("fedavg-c", False), ("ifca", False), ("pgfed", False), ("fedbabu", False), ("cfl", False),
     ("pgfedmo", True), ("pfedgraph", True), ("fedamp", True), ("scaffold", True), ("ditto", True), ("fedala", True)],
)  # fmt: skip
def test_rounds_build_on_each_other_where_a_client_or_a_server_of_its_own_remembers(name, lasting):
    assert method(name, {}).lasting is lasting


@every_method
def test_a_separable_server_touches_nothing_but_who_sent(name, settings):
    """What separable promises: with one uplink, every tensor that has a row a client changes in
    that row alone.
    """
    run = Federation(method(name, settings), suited(METHODS[name](**settings), uneven(3, 4, 2, 3)))
    run.round(passes(name, 1))
    if not run.method.server.separable:
        return
    states_before = states(run)
    run.round(passes(name, 2), ids=(1,))
    for key, tensor in states(run).items():
        if key.startswith("server"):
            assert torch.equal(tensor[[0, 2, 3]], states_before[key][[0, 2, 3]])


@pytest.mark.parametrize("settings", [APPLE(), PGFed(mixing="client")])
def test_without_a_budget_a_newcomers_row_comes_at_once_though_nobody_could_ask_for_it(settings):
    """Two members ask in round 2 for each other; in round 3 each is sent every row that there is."""
    run = Federation(settings.method(), uneven(2, 2, 2), members=(0, 1))
    for number in (1, 2):
        run.round(a_round(number))
    run.only(0, 1, 2)
    for number, ready in ((3, {0, 1, 2} if settings.name == "apple" else {0, 1}), (4, {0, 1, 2})):
        downlink = run.downlink(a_round(number))
        (bank,) = (rows for rows in downlink.values() if rows.index.dim() == 2)
        for i, row in zip(run.ids, bank.index.tolist(), strict=True):
            assert {*row} - {i} == ready - {i}
        run.round(a_round(number))


def test_apple_a_newcomer_starts_from_the_mean_core_and_counts_nothing_at_first():
    run = Federation(APPLE(dr_lr=0.01, mu=0.5).method(), uneven(1, 2, 3, 6), members=(0, 1, 2))
    assert run.state(1).dr.tolist() == [pytest.approx([1 / 6, 2 / 6, 3 / 6, 0])]
    for number in (1, 2):
        run.round(a_round(number))
    mean = (run.server.cores[0] + 2 * run.server.cores[1] + 3 * run.server.cores[2]) / 6
    assert run.state(1).dr[0, 3] == 0
    run.only(0, 1, 2, 3)
    assert_close(run.state(3).core[0], mean)
    assert_close(run.server.cores[3], mean)
    assert run.state(3).dr.tolist() == [pytest.approx([1 / 12, 2 / 12, 3 / 12, 6 / 12])]
    run.round(a_round(3))
    assert all(run.state(i).dr[0, 3] != 0 for i in range(4))


def test_apple_a_leaver_goes_out_of_every_mixture_and_copy():
    run = trained(APPLE(dr_lr=0.01, budget=2), uneven(2, 2, 2, 2), lr=0.1)
    run.only(0, 1, 2)
    downlink = run.downlink(a_round(4))
    assert not (downlink["cores"].index == 3).any()
    run.round(a_round(4))
    for i in run.ids:
        assert run.state(i).dr[0, 3] == 0
        assert not run.clients.store.copies.models_of(i)["cores"][3].any()
        assert 3 not in run.server.requests[i].tolist()


def test_apple_an_unseen_client_learns_its_relationships_alone():
    """Its core stays the mean it was given; one step of its row is p0 - dr_lr G C' by hand."""
    run = Federation(APPLE(dr_lr=0.01).method(), uneven(2, 2, 4), members=(0, 1))
    run.round(a_round(1))
    core = (run.server.cores[0] + run.server.cores[1]) / 2
    served, _ = adapted(run, 2, 1)
    cores = torch.stack([*run.server.cores[:2], core])
    p0 = torch.tensor([0.25, 0.25, 0.5], dtype=torch.float64)
    p = p0.clone()
    problem, velocity = run.problem, torch.zeros(3, dtype=torch.float64)
    from pomona.objective.training import LocalTraining

    training = LocalTraining(problem, (2,), run.everybody, passes("scaffold", 10))
    for (batch,) in training.steps(3):
        g = p @ cores - problem.targets[batch.indices[0]].mean(0)
        velocity = 0.0 * velocity + cores @ g
        p = p - 0.01 * velocity
    assert_close(run.state(2).dr[0], p)
    assert torch.equal(run.state(2).core[0], core)
    assert torch.equal(served.cores[2], core)


def test_apples_local_step_gives_an_unseen_client_a_model_of_its_own():
    """Over standing cores: it starts at the mixture from the members' mean, where its own progress
    counts as well.
    """
    run = Federation(APPLE(core_step="local", dr_lr=0).method(), uneven(2, 2, 4), members=(0, 1))
    run.round(a_round(1))
    origin = (run.server.cores[0] + run.server.cores[1]) / 2
    served, _ = adapted(run, 2, 1)
    best = run.problem.targets[run.problem.rows[2]].mean(0)
    w = origin + 0.25 * (run.server.cores[0] - origin) + 0.25 * (run.server.cores[1] - origin)
    learned = run.models(2)["personal", "trained"]["w"]
    assert float((learned - best).norm()) < float((w - best).norm())
    assert_close(served.cores[2] - origin, learned - w)


def test_fedamp_mixes_members_only():
    run = Federation(FedAMP().method(), uneven(2, 2, 2, 2))
    run.round(a_round(1))
    run.only(0, 2, 3)
    downlink = run.downlink(a_round(2))
    attention = downlink["attention"].bank[downlink["attention"].index]
    assert (attention[:, 1] == 0).all()
    assert_close(attention.sum(1), torch.ones(3, dtype=torch.float64))
    assert_close(downlink["cloud"].bank, attention @ run.server)


def test_fedfomo_forgets_a_leaver():
    run = trained(FedFomo(), uneven(2, 2, 2), 2, lr=0.1)
    run.only(0, 1)
    downlink = run.downlink(a_round(3))
    assert not (downlink["models"].index == 2).any()
    run.round(a_round(3))
    assert all(run.state(i).affinity[0, 2] == 0 for i in run.ids)


@pytest.mark.parametrize(
    ("settings", "client_rows", "server_rows"),
    [(SCAFFOLD(), "control", "controls"), (FedDyn(), "linear", "linear")],
)
def test_corrections_average_over_those_who_are_there(settings, client_rows, server_rows):
    """c (or h) is the mean of the members' own terms: a leaver takes its own along, a newcomer
    brings zero.
    """
    run = Federation(settings.method(), uneven(1, 2, 3, 4), members=(0, 1, 2))
    for number in (1, 2):
        run.round(passes("scaffold", number))
    for ids in ((0, 1, 2, 3), (1, 2, 3)):
        run.only(*ids)
        run.round(passes("scaffold", 3))
        mean = torch.cat([getattr(run.state(i), client_rows) for i in ids]).mean(0)
        assert_close(getattr(run.server, server_rows)[list(ids)].mean(0), mean)


def test_mocha_counts_members():
    """With M = I - 11'/N of the members alone: three heads of 1, 2 and 6 pull the first by 2
    penalty (1 - 3).
    """
    run = Federation(MOCHA(penalty=0.1).method(), uneven(1, 1, 1, 1), members=(0, 1, 2))
    for i, head in enumerate((1.0, 2.0, 6.0)):
        state = run.state(i).clone()
        state[0, -1] = head
        run.set_state(i, state)
        run.server[i] = head
    target = run.problem.targets[0, -1]
    run.round(a_round(1, lr=0.1))
    assert_close(run.state(0)[0, -1], 1.0 - 0.1 * (1.0 - target + 2 * 0.1 * (1 - 3)))


def test_cfl_puts_newcomers_into_the_largest_cluster():
    run = Federation(CFL().method(), uneven(1, 2, 5, 3), members=(0, 1, 2))
    run.round(a_round(1))
    state = run.server
    models = torch.cat([state.models, state.models + 1])
    run.server = type(state)(
        models, torch.tensor([1, 0, 1, -1]), torch.zeros(2, 2).double(), state.unit
    )
    run.only(0, 1, 2, 3)
    assert run.server.labels.tolist() == [1, 0, 1, 1]
    run.only(0, 1, 3)
    run.round(a_round(2))
    assert run.server.labels.tolist() == [1, 0, -1, 1]
