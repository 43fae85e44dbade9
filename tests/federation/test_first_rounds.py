"""The first rounds of a few clients: a lie out of all proportion is refused by name, and no honest
client ever is.
"""

import json
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import pomona
from pomona.core.errors import DivergedError, QuorumError
from pomona.federation.admission import Expected, History, admit
from pomona.federation.exchange import Arrival, Reply
from pomona.federation.norm_bounds import largest
from pomona.federation.transport import Inline
from pomona.methods import METHODS, base
from pomona.methods.card import is_model
from pomona.testing import Federation
from pomona.testing.problems import passes, suited, uneven
from problems import tiny
from representatives import drawn

RUN = {"rounds": 3, "model": {"name": "mlp", "hidden": [8]}, "participation": 1.0}


def problem(name, sizes):
    """A problem for a method with clients of these numbers of samples."""
    return suited(METHODS[name](), uneven(*sizes))


def verdicts(name, sizes, seed, rounds, **settings):
    """The verdicts on honest rounds, each with the history of those before."""
    run = Federation(METHODS[name]().method(), problem(name, sizes), seed)
    server, history = run.method.server, History()
    extra = run.method.card.exchange.non_model_entries()
    for number in range(1, rounds + 1):
        round_ = passes(METHODS[name](), number, seed=seed, **settings)
        downlink = server.downlink(run.server, run.ids, run.roster, round_)
        spec, counts = server.uplink_form(run.server), dict(zip(run.ids, sizes, strict=True))
        expected = Expected(
            "run", number, counts, spec, len(sizes), server.invalid, extra, downlink, run.initial
        )
        run.round(round_)
        arrivals = [Arrival(r, "run", number, counts[r.client]) for r in run.replies]
        verdict = admit(arrivals, expected, history)
        history = verdict.history
        yield verdict


SIZES = [(3,), (3, 3), (3, 200), (3, 5, 30, 300)]


@pytest.mark.long
@pytest.mark.parametrize("name", drawn(METHODS, 20))
def test_an_honest_client_is_never_refused_and_stays_far_from_its_bound(name):
    for seed, sizes in enumerate(SIZES):
        first, second = verdicts(name, sizes, seed, 2, epochs=1, batch_size=4)
        assert first.rejected == second.rejected == ()
        assert len(first.accepted) == len(second.accepted) == len(sizes)
        assert all(
            norm <= first.bounds[k] / (30 if is_model(k) else 1)
            for norms in first.norms.values()
            for k, norm in norms.items()
        )


def liars(monkeypatch, factor, clients=(1,), rounds=(1,)):
    """Multiply what some clients send in some rounds."""
    visit = Inline.visit

    def visits(transport, request, downlink):
        return [
            replace(a, reply=replace(a.reply, uplink=scaled(a.reply.uplink, factor)))
            if request.trains and request.round.number in rounds and a.reply.client in clients
            else a
            for a in visit(transport, request, downlink)
        ]

    monkeypatch.setattr(Inline, "visit", visits)


def scaled(uplink, factor):
    return {k: t * factor if t.is_floating_point() else t for k, t in uplink.items()}


METHOD = ["fedavg", "apple", "scaffold", "feddyn", "fedprox", "fedrep", "fedproto", "pgfed"]


@pytest.mark.long
@pytest.mark.parametrize("factor", [1e6, 1e30])
@pytest.mark.parametrize("clients", [2, 3, 4])
@pytest.mark.parametrize("name", drawn(METHOD, 3))
def test_a_lie_in_the_first_round_is_refused_by_name_and_the_run_goes_on(
    name, clients, factor, monkeypatch
):
    config = tiny(name, **RUN, clients=clients)
    liars(monkeypatch, factor)
    result = pomona.run(config)
    assert [[line.split(":")[0] for line in row.refused] for row in result.rounds] == [
        ["client 1, round 1"],
        [],
        [],
    ]
    assert "norm" in result.rounds[0].refused[0]
    assert all(row.loss.count(None) == 0 for row in result.rounds)


def verdict_on(*norms, sent_norm=0.0, history=(), spec="model", auxiliary=()):
    """The verdict on a round of clients whose tensors have these norms; the server sent one of
    norm ``sent_norm``.
    """
    sizes = dict.fromkeys(range(len(norms)), 10)
    row = torch.tensor([sent_norm, 0.0, 0.0, 0.0])
    downlink = {"model": base.Rows.broadcast(row, len(norms))}
    expected = Expected(
        "run", 1, sizes, {spec: torch.zeros(4)}, len(norms), auxiliary=auxiliary, downlink=downlink
    )
    arrivals = [
        Arrival(Reply(i, {spec: torch.tensor([0.0, n, 0.0, 0.0])}), "run", 1, 10)
        for i, n in enumerate(norms)
    ]
    return admit(arrivals, expected, History(norms={spec: history}))


def refused(verdict):
    return [r.client for r in verdict.rejected]


def test_what_was_sent_bounds_what_comes_back():
    assert refused(verdict_on(999 * 7.0, 8.0, sent_norm=7.0)) == []
    assert refused(verdict_on(1001 * 8.0, 8.0, sent_norm=7.0)) == [0]
    assert refused(verdict_on(1001 * 7.0, sent_norm=7.0)) == [0]  # one client alone, too
    assert refused(verdict_on(6999.0, sent_norm=7.0)) == []


def test_where_zeros_were_sent_the_others_are_the_measure():
    assert refused(verdict_on(0.02, 0.03, 2e4)) == [2]
    assert refused(verdict_on(0.02, 2e4)) == [1]
    assert refused(verdict_on(0.0, 0.0, 0.0)) == []
    assert refused(verdict_on(0.0, 900.0)) == []
    # honest clients that all go far agree with each other
    assert refused(verdict_on(5e6, 6e6)) == refused(verdict_on(5e6, 6e7, 5e5)) == []


def test_two_that_contradict_each_other_are_both_named_with_both_norms_and_not_struck():
    verdict = verdict_on(2e3, 3e9)
    assert verdict.accepted == ()
    assert refused(verdict) == [0, 1]
    for rejection in verdict.rejected:
        assert "2e+03" in rejection.reason
        assert "3e+09" in rejection.reason
    assert verdict.history.strikes == {}
    assert refused(verdict_on(2e3, 2e3)) == []
    # a third decides
    assert refused(verdict_on(2e3, 3e9, 4e3)) == [1]
    # and so does what was accepted before
    assert refused(verdict_on(2e3, 3e9, history=(1.0e3, 2.0e3))) == [1]


def test_a_change_of_the_models_shape_is_measured_by_the_model_that_was_sent():
    """SCAFFOLD's control variates are zeros at first; no other client has to confirm the change."""
    assert refused(verdict_on(0.5, 0.5e6, sent_norm=3.0, spec="delta", auxiliary={"delta"})) == [1]
    assert refused(verdict_on(0.5e6, sent_norm=3.0, spec="delta", auxiliary={"delta"})) == [0]
    assert refused(verdict_on(0.5, 300.0, sent_norm=3.0, spec="delta", auxiliary={"delta"})) == []


def test_once_five_norms_were_accepted_their_median_is_the_measure_whatever_was_sent():
    history = (1.0, 2.0, 3.0, 50.0, 2.5)
    assert refused(verdict_on(249.0, sent_norm=1e9, history=history)) == []
    assert refused(verdict_on(251.0, sent_norm=1e9, history=history)) == [0]


def test_zeros_accepted_before_do_not_lift_the_bound_of_what_follows():
    assert refused(verdict_on(2.0, 3.0, 2e6, history=(0.0,) * 9)) == [2]


@given(
    st.lists(st.floats(2e-3, 1.0), min_size=2, max_size=4), st.floats(1e-9, 1e9), st.floats(0, 1e9)
)
def test_norms_within_the_early_factor_of_each_other_are_never_refused(norms, unit, sent_norm):
    """Whatever their unit, and whatever was sent."""
    assert refused(verdict_on(*(n * unit for n in norms), sent_norm=sent_norm)) == []


@given(st.lists(st.floats(0.1, 10.0), min_size=3, max_size=4), st.floats(2e5, 1e30), st.data())
def test_one_of_three_or_four_that_is_out_of_all_proportion_is_the_only_one_refused(
    norms, factor, data
):
    sent_norm = data.draw(st.sampled_from([0.0, 1.0, 10.0]))
    liar = data.draw(st.integers(0, len(norms) - 1))
    norms[liar] *= factor
    assert refused(verdict_on(*norms, sent_norm=sent_norm)) == [liar]


def test_the_measure_of_a_resumed_run_is_that_of_the_run():
    first = verdict_on(2.0, 3.0)
    restored = History.from_json(json.loads(json.dumps(first.history.as_json())))
    assert restored == first.history
    assert restored.latest == {0: {"model": 2.0}, 1: {"model": 3.0}}


@pytest.mark.long
def test_the_matrix_b_of_lora_starts_at_zero_and_a_lie_about_it_is_refused(monkeypatch):
    """Of FFA-LoRA only B and the head travel."""
    model = {"name": "mlp", "hidden": [8], "train": {"lora": {"rank": 2, "on": ["fc1"]}}}
    config = tiny("ffa-lora", **{**RUN, "model": model}, clients=2)
    honest = pomona.run(config)
    assert [row.refused for row in honest.rounds] == [(), (), ()]
    liars(monkeypatch, 1e6)
    result = pomona.run(config)
    assert [len(row.refused) for row in result.rounds] == [1, 0, 0]
    assert "client 1, round 1: tensor 'model' has norm" in result.rounds[0].refused[0]


@pytest.mark.long
def test_a_round_whose_two_clients_contradict_each_other_fails_and_names_both(monkeypatch):
    liars(monkeypatch, 1e6, clients=(0,))
    visit = Inline.visit

    def visits(transport, request, downlink):
        arrivals = visit(transport, request, downlink)
        return [
            replace(a, reply=replace(a.reply, uplink=scaled(a.reply.uplink, 1e12)))
            if a.reply.client
            else a
            for a in arrivals
        ]

    monkeypatch.setattr(Inline, "visit", visits)
    with pytest.raises(QuorumError) as fault:
        pomona.run(tiny("fedavg", **RUN, clients=2))
    message = str(fault.value)
    assert "client 0, round 1" in message
    assert "client 1, round 1" in message
    assert "neither counts" in message


@pytest.mark.long
@pytest.mark.parametrize("factor", [900.0, 1.0])
def test_when_everybody_diverges_the_largest_uplink_used_before_is_named(factor, monkeypatch):
    """A factor below the bound; the others diverge from the mean of the next round."""
    liars(monkeypatch, factor)
    visit = Inline.visit

    def diverges(transport, request, downlink):
        arrivals = visit(transport, request, downlink)
        if request.round.number < 2:
            return arrivals
        fault = "client {}, round 2, step 1: the loss is nan; lower lr".format
        return [
            replace(a, reply=Reply(a.reply.client, fault=fault(a.reply.client))) for a in arrivals
        ]

    monkeypatch.setattr(Inline, "visit", diverges)
    with pytest.raises(DivergedError) as fault:
        pomona.run(tiny("fedavg", **RUN, clients=3))
    message = str(fault.value)
    assert "all clients of round 2 diverged: client 0" in message
    assert ("look first at client 1" in message) == (factor > 1)
    assert ("none of the uplinks used before stands out" in message) == (factor == 1)
    assert "times the second largest" in message


def test_the_largest_uplink_is_that_of_the_tensor_that_differs_most():
    latest = {
        0: {"model": 2.0, "steps": 9e3},
        1: {"model": 300.0, "steps": 3.0},
        2: {"model": 3.0, "steps": 5.0},
    }
    top = largest(latest, {"steps"})
    assert (top.client, top.tensor, top.second, top.factor) == (1, "model", 2, 100.0)
    assert top.outlier
    assert largest({0: {"model": 2.0}}, ()) is None
    assert largest({}, ()) is None
    assert largest({0: {"model": 0.0}, 1: {"model": 0.0}}, ()) is None
