"""BatchNorm statistics in uplinks (``buffers = "average"``), for every method, whatever it does
with its rows.
"""

import pytest
import torch
from test_conformance import TABLE
from torch.testing import assert_close

import pomona
from pomona.core.round import Roster
from pomona.federation import round_exchange
from pomona.federation.batchnorm_statistics import WithStatistics, with_statistics
from pomona.federation.client import ClientRuntime
from pomona.federation.exchange import ClientRequest, stack
from pomona.federation.round_plan import round_of
from pomona.methods import METHODS
from pomona.objective.training import STATISTICS
from pomona.scenario import Scenario
from problems import tiny
from representatives import KINDS_OF_METHOD, representatives

pytestmark = pytest.mark.long

EXTRAPOLATING = [
    ("scaffold", {"server_lr": 1.5}),
    ("pfedme", {"beta": 2.0}),
    ("pfedme", {"lambda": 100.0}),
]
CASES = [*TABLE, *EXTRAPOLATING]
IDS = [name + "".join(f" {k}={v}" for k, v in settings.items()) for name, settings in CASES]
ROUNDS = 3
CHECKED_METHODS = [(name, {}) for name in KINDS_OF_METHOD] + EXTRAPOLATING
every_kind = pytest.mark.parametrize(
    ("name", "settings"), representatives(CASES, CHECKED_METHODS), ids=IDS
)


def rounds(name, settings, **changes):
    """Each round's replies, and the server's state after it, for a network that begins with
    BatchNorm.
    """
    changed = {
        "model": {"name": "networks:normalised_first"},
        "buffers": "average",
        "local_epochs": 2,
        "clients": 3,
    }
    scenario = Scenario.prepare(tiny(name, settings, **changed, **changes))
    config, method, ids = scenario.config, scenario.config.method.method(), (0, 1, 2)
    roster = Roster(tuple(len(c.train) for c in scenario.partition.clients))
    server = with_statistics(method.server, scenario.initial)
    clients = ClientRuntime(
        method.client, scenario.objective(), scenario.initial, ((0,), (1,), (2,)), 0
    )
    state = server.start(scenario.initial, roster, 0)
    clients.add_clients(ids, roster, None)
    for number in range(1, ROUNDS + 1):
        round_ = round_of(config, number)
        visit = ClientRequest(round_, roster, ids, True, frozenset({"received", "trained"}), True)
        replies = clients.visit(visit, server.downlink(state, ids, roster, round_))
        state = server.aggregate(state, stack(replies, lambda r: r.uplink), ids, roster, round_)
        clients.commit(ids)
        yield replies, state, roster


@every_kind
def test_statistics_follow_the_data_alone_and_are_only_averaged(name, settings):
    """Under heavy decay they are FedAvg's without any, to the bit; the server's are the plain
    weighted mean of them.

    A method without a global model sends none, and none are in its rows.
    """
    decay = {"weight_decay": 0.5, "lr": 0.02}
    # the one that has other data
    plain = rounds("fedavg-data" if name == "fedavg-data" else "fedavg", {})
    for (replies, state, roster), (fair, _, _) in zip(
        rounds(name, settings, **decay), plain, strict=True
    ):
        if not METHODS[name](**settings).method().server.global_model:
            assert not any(STATISTICS in reply.uplink for reply in replies)
            assert all(
                t.shape[-1] <= 64 * 2 + 650
                for r in replies
                for entry, t in r.uplink.items()
                # pFedFDA's of 64 features, and GPFL's valve of them
                if t.dim() and entry != "covariance" and name != "gpfl"
            )
            continue
        measured = [reply.uplink[STATISTICS] for reply in replies]
        assert all(
            torch.equal(statistics, plain_reply.uplink[STATISTICS])
            for statistics, plain_reply in zip(measured, fair, strict=True)
        )
        assert isinstance(state, WithStatistics)
        shares = (roster.shares / roster.shares.sum()).float()
        assert_close(state.statistics, shares @ torch.stack(measured))


@every_kind
def test_who_has_a_global_model_says_so(name, settings):
    """ "global" is observed by the clients of exactly those methods whose server says that there is
    one.
    """
    result = pomona.run(tiny(name, settings, rounds=1))
    observed = {e.model for e in result.evaluations}
    assert ("global" in observed) == METHODS[name](**settings).method().server.global_model


def test_pfedme_learns_with_averaged_statistics():
    """Its pull carried the statistics past the measured ones, farther every round, down to
    guessing: one in ten.
    """
    changed = {"model": {"name": "networks:hidden"}, "data": {"name": "digits", "train_limit": 600}}
    result = pomona.run(tiny("pfedme", buffers="average", rounds=6, lr=0.1, **changed))
    assert result.curve("personal", "trained")[-1].mean > 0.5
    assert result.curve("global", "received")[-1].mean > 0.5


def test_the_servers_step_does_not_reach_variances():
    """SCAFFOLD's step beyond the mean made variances negative, and the loss of the global model not
    a number.
    """
    changed = {"model": {"name": "networks:hidden"}, "local_epochs": 3, "lr": 0.05, "rounds": 4}
    result = pomona.run(tiny("scaffold", {"server_lr": 1.5}, buffers="average", **changed))
    assert result.curve("global", "received")[-1].mean > 0.5


def test_a_negative_variance_is_refused_as_are_the_methods_own_flaws():
    """It would make the loss of everybody's global model not a number. normalised_first has 64 means,
    then 64 variances.
    """
    changed = {"model": {"name": "networks:normalised_first"}, "buffers": "average"}
    scenario = Scenario.prepare(tiny("fednova", **changed))
    server = with_statistics(scenario.config.method.method().server, scenario.initial)
    uplink = server.uplink_form(server.start(scenario.initial, Roster((1, 1)), 0)) | {
        "steps": torch.ones(1).double()
    }
    means, variance = uplink[STATISTICS].clone(), uplink[STATISTICS].clone()
    means[:64], variance[127] = -1.0, -1e-3
    assert server.invalid(uplink) is None
    assert server.invalid(uplink | {STATISTICS: means}) is None
    assert (
        server.invalid(uplink | {STATISTICS: variance})
        == "tensor 'statistics' holds a variance below 0"
    )
    assert "steps" in server.invalid(uplink | {"steps": torch.zeros(1).double()})


def test_admission_knows_that_statistics_are_no_model(monkeypatch):
    """A variance grows with the square of the data's scale."""
    expectations, admit = [], round_exchange.admit
    monkeypatch.setattr(round_exchange, "admit", lambda *a: expectations.append(a[1]) or admit(*a))
    changed = {"model": {"name": "networks:normalised_first"}, "buffers": "average"}
    pomona.run(tiny("fednova", **changed, rounds=1))
    assert all(set(e.spec) - set(e.auxiliary) == {"model"} for e in expectations)
    assert expectations


def test_cfl_judges_updates_without_statistics():
    """Update norms are those of the parameters: the same whether statistics are averaged or not."""
    norms = []
    for buffers in ("average", "local"):
        result = pomona.run(
            tiny("cfl", model={"name": "networks:hidden"}, buffers=buffers, rounds=2)
        )
        norms.append([r.info["update_norm"].tolist() for r in result.rounds])
    assert norms[0] == norms[1]
