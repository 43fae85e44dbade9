"""Clients that lie: what arrives of them, in one process, in two, over Ray, and after an
interruption; what the record says of it; and what cannot be asked for.
"""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import pomona
from pomona.config import resolve
from pomona.core.attack import USUAL, Attack
from pomona.core.errors import CheckpointError, ConfigError, QuorumError
from pomona.core.round import Roster
from pomona.federation.callbacks import StopAfter
from pomona.federation.exchange import Arrival, ClientRequest, Reply
from pomona.federation.liars import UPLINK_ATTACKS, Lying, lie
from pomona.methods import METHODS
from pomona.methods.base import Initial, Rows
from pomona.methods.mixtures.auto import FOUR
from pomona.partition.poison import poisoned, triggered
from pomona.personal.model import PersonalModel
from pomona.results.run_numbers import runs
from pomona.results.tables.participation import liars, spans
from pomona.results.text.cautions import cautions
from pomona.scenario import Scenario
from problems import Notes, a_round, digest_of_models, tiny
from representatives import drawn

pytestmark = pytest.mark.long

LIARS = {"clients": [1], "kind": "scale", "strength": 50.0, "from_round": 2}


def attack(kind, **settings):
    return Attack(**{"clients": (1,), "kind": kind, **settings})


# what is sent


def test_each_lie_by_its_formula():
    w, true = torch.tensor([1.0, 2.0]), torch.tensor([1.5, 1.0])
    other_models = [torch.tensor([0.0, 5.0]), torch.tensor([2.0, 1.0])]

    def uplink(kind, strength=1.0, rows=other_models):
        settings = {"strength": strength} if kind in USUAL else {}
        return lie(attack(kind, **settings), true, w, np.random.default_rng(3), rows)

    assert uplink("scale", 4.0).tolist() == [3.0, -2.0]
    assert uplink("sign", 2.0).tolist() == [0.0, 4.0]
    length = 0.5 * (0.25 + 1.0) ** 0.5
    z = torch.from_numpy(np.random.default_rng(3).standard_normal(2)).float()
    assert_close(uplink("noise", 0.5), w + length * z / z.norm())
    assert uplink("collude", 0.5).tolist() == [0.5, 2.0]  # mean (1, 3), deviation (1, 2)
    assert torch.equal(uplink("collude", 0.5, []), true)
    assert torch.equal(uplink("free-rider"), w)


class Carried:
    """A transport whose clients send given uplinks."""

    run = "simulation"

    def __init__(self, uplinks):
        self.uplinks = uplinks

    def visit(self, visit, downlink):
        return [Arrival(Reply(i, dict(self.uplinks[i])), "simulation", 1, 5) for i in visit.ids]


def lying_uplinks(uplinks, kind, downlink, number=1, trains=True, **settings):
    initial = Initial(lambda _: torch.full((2,), 9.0), ())
    lying = Lying(Carried(uplinks), attack(kind, **settings), initial, seed=3)
    ids = tuple(range(len(uplinks)))
    visit = ClientRequest(a_round(number), Roster((5,) * len(ids)), ids, trains)
    return [a.reply.uplink for a in lying.visit(visit, downlink)]


def test_only_liars_lie_only_in_models_and_only_from_their_round_on():
    honest = {
        "model": torch.tensor([1.0, 3.0]),
        "delta": torch.tensor([1.0, 1.0, 1.0]),
        "risk": torch.tensor([0.25], dtype=torch.float64),
        "request": torch.tensor([1, 2]),
    }
    downlink = {"model": Rows.broadcast(torch.tensor([1.0, 1.0]), 2)}
    first, second = lying_uplinks([honest, honest], "scale", downlink, strength=10.0)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[k], honest[k]) for k in honest)
    assert second["model"].tolist() == [1.0, 21.0]  # from what it received
    assert second["delta"].tolist() == [10.0] * 3  # nothing of this name was received: a change
    assert all(torch.equal(second[k], honest[k]) for k in ("risk", "request"))
    assert honest["model"].tolist() == [1.0, 3.0]  # what it keeps is not touched
    unreceived = lying_uplinks([honest, honest], "scale", {}, strength=2.0)[1]
    assert unreceived["model"].tolist() == [-7.0, -3.0]  # a model of its own: from the initial one
    for settings in ({"from_round": 2}, {"trains": False}):
        calm = lying_uplinks([honest, honest], "scale", downlink, **settings)[1]
        assert all(torch.equal(calm[k], honest[k]) for k in honest)
    spoilt = lying_uplinks([honest, honest], "nan", downlink)[1]
    assert all(not t.isfinite().any() for k, t in spoilt.items() if k != "request")


def test_noise_is_another_in_each_round_and_the_same_again():
    honest, downlink = {"model": torch.ones(2)}, {"model": Rows.broadcast(torch.zeros(2), 2)}
    in_round_1, in_round_2, repeated = (
        lying_uplinks([honest, honest], "noise", downlink, number=k)[1]["model"] for k in (1, 2, 1)
    )
    assert torch.equal(in_round_1, repeated)
    assert not torch.equal(in_round_1, in_round_2)


@pytest.mark.parametrize("name", drawn(METHODS, 4))
def test_every_method_plays_its_rounds_with_liars(name):
    """A liar changes a run unless nothing is sent, and honest clients have numbers."""
    kind = UPLINK_ATTACKS[len(name) % len(UPLINK_ATTACKS)]
    settings = {"attack": {"clients": [1], "kind": kind}}
    honest, lied = pomona.run(tiny(name)), pomona.run(tiny(name, **settings))
    if kind != "nan":
        assert len(lied.rounds) == len(honest.rounds)
    headline = lied.summary["models"][lied.summary["headline"]]
    assert 0 <= headline["honest"]["mean"] <= 1


@pytest.mark.parametrize("name", FOUR)
@pytest.mark.parametrize("kind", drawn([kind for kind in UPLINK_ATTACKS if kind != "nan"], 2))
def test_a_liar_of_auto_sends_of_each_of_the_four_what_it_sends_of_it_alone(name, kind):
    lies = {"attack": {"clients": [1], "kind": kind}, "momentum": 0.5}
    auto = pomona.run(tiny("auto", **lies))
    settings = FOUR[name].model_dump(mode="json")
    single = pomona.run(tiny(settings.pop("name"), settings, **lies))
    ours, theirs = (
        [e.loss for e in run.curve(model, "trained")]
        for run, model in ((auto, name), (single, "local" if name == "average" else "personal"))
    )
    assert ours == theirs


@pytest.mark.parametrize("name", ["fedavg", "apple"])
def test_a_run_whose_last_members_are_in_quarantine_ends_and_says_so(name):
    """Client 0 is refused in rounds 1 to 3, and asked no more; 1 and 2 leave after round 4."""
    settings = {"membership": {"leaves": {1: 4, 2: 4}}, "clients": 3, "rounds": 6}
    with pytest.raises(QuorumError, match=r"round 5 asks 0 of .* quarantine"):
        pomona.run(tiny(name, attack={"clients": [0], "kind": "nan"}, **settings))


# whatever carries it


def with_liars(name="fedavg+clipped", kind="scale", **settings):
    liar = {"clients": [1], "kind": kind}
    return tiny(name, attack={**liar, "from_round": 2}, **settings)


@pytest.mark.parametrize("kind", ["noise", "collude"])
def test_two_processes_and_a_resumed_run_have_the_same_liars(kind, tmp_path):
    reference = pomona.run(with_liars(kind=kind, workers=1), tmp_path / "whole")
    two_workers = pomona.run(with_liars(kind=kind, workers=2), tmp_path / "two")
    with pytest.raises(KeyboardInterrupt):
        pomona.run(with_liars(kind=kind), tmp_path / "parts", StopAfter(2, committed=False))
    resumed = pomona.run(with_liars(kind=kind), tmp_path / "parts", resume=True)
    for result, folder in ((two_workers, "two"), (resumed, "parts")):
        assert result.evaluations == reference.evaluations
        assert [r.limited for r in result.rounds] == [r.limited for r in reference.rounds]
        assert digest_of_models(tmp_path / folder) == digest_of_models(tmp_path / "whole")


def test_a_run_with_liars_does_not_go_on_without_them(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        pomona.run(with_liars(), tmp_path / "run", StopAfter(2))
    with pytest.raises(CheckpointError, match=r"different values of .*attack"):
        pomona.run(tiny("fedavg+clipped"), tmp_path / "run", resume=True)


# what the record says


def test_the_record_says_who_was_limited_and_when_and_how_honest_clients_do(tmp_path):
    callback = Notes()
    run = tiny("fedavg+clipped", attack=LIARS, rounds=4)
    result = pomona.run(run, tmp_path / "run", callback)
    assert [len(r.limited) for r in result.rounds] == [0, 1, 1, 1]
    assert all("counts as one of" in line for r in result.rounds for line in r.limited)
    notes = [line for line in callback.said if line.startswith("client 1, round")]
    assert notes == [result.rounds[1].limited[0]]  # once, not in every round
    loaded = pomona.load(tmp_path / "run")
    assert [r.limited for r in loaded.rounds] == [r.limited for r in result.rounds]
    figures = loaded.summary["models"]["global, received"]
    last = loaded.curve("global", "received", "test")[-1]
    honest = [v for c, v in zip(last.clients, last.value, strict=True) if c != 1]
    assert figures["honest"]["mean"] == pytest.approx(np.mean(honest))
    assert figures["clients"]["mean"] == pytest.approx(np.mean(last.value))
    table = liars([runs([loaded])[0]])
    assert [row[-3:] for row in table.rows] == [["scale, strength 50, from round 2", "-", "2-4"]]
    assert "on average over the honest clients" in table.notes[0]
    assert any("attacking clients" in line for line in cautions(runs([loaded])))


def test_what_is_no_number_is_refused_three_times_and_its_client_asked_no_more():
    result = pomona.run(tiny("fedavg", rounds=5, attack={"clients": [1], "kind": "nan"}))
    assert [len(r.refused) for r in result.rounds] == [1, 1, 1, 0, 0]
    assert all(1 not in r.cohort for r in result.rounds)
    assert spans([1, 2, 3, 7, 9, 10]) == "1-3, 7, 9-10"
    assert liars([runs([result])[0]]).rows[0][-2:] == ["1-3", "-"]
    assert not liars([runs([pomona.run(tiny("fedavg"))])[0]]).rows


# false data and counts


def scenario(kind, **settings):
    return Scenario.prepare(tiny("fedavg", attack={"clients": [1], "kind": kind, **settings}))


def test_false_labels_and_triggers_are_on_the_liars_training_samples_alone():
    honest = Scenario.prepare(tiny("fedavg")).dataset
    for kind in ("labels", "backdoor"):
        false = scenario(kind, strength=0.25)
        liar_rows = false.partition.clients[1].train
        changed = np.flatnonzero(false.dataset.y != honest.y)
        stamped = np.flatnonzero((false.dataset.x != honest.x).reshape(len(honest), -1).any(1))
        assert np.isin(changed, liar_rows).all()
        assert np.isin(stamped, liar_rows).all()
        limit = int(np.ceil(0.25 * len(liar_rows)))
        assert 0.7 * limit <= len(changed) <= limit  # a class may be its own opposite, or 0 already
        assert bool(len(stamped)) == (kind == "backdoor")
        opposite = 9 - honest.y[changed] if kind == "labels" else 0
        assert (false.dataset.y[changed] == opposite).all()
    assert (honest.y == Scenario.prepare(tiny("fedavg")).dataset.y).all()


def test_the_trigger_is_a_corner_of_the_largest_value():
    data = Scenario.prepare(tiny("fedavg")).dataset
    rows = np.array([3, 5])
    x = triggered(data, rows).x
    assert (x[rows][:, -2:, -2:] == data.x.max()).all()
    unstamped = np.ones(x.shape, bool)
    unstamped[np.ix_(rows, [6, 7], [6, 7])] = False
    assert (x[unstamped] == data.x[unstamped]).all()


def test_a_liars_claimed_samples_weigh_it():
    counts = Attack(clients=(1,), kind="counts", strength=100.0)
    assert counts.claimed((5, 7, 0)) == (5, 700, 0)
    assert Attack(clients=(1,), kind="sign").claimed((5, 7)) == (5, 7)
    liar = {"clients": [1], "kind": "counts", "strength": 1e6}
    unlimited = pomona.run(tiny("fedavg", attack=liar))
    fair = pomona.run(tiny("fedavg", attack=liar, largest_share=0.5))
    assert unlimited.evaluations != fair.evaluations


def test_a_backdoor_is_counted_on_honest_clients(tmp_path):
    liar = {"clients": [1], "kind": "backdoor"}
    deep = {"rounds": 8, "lr": 0.2, "local_epochs": 3}
    serial = pomona.run(tiny("fedavg", attack=liar, workers=1, **deep), tmp_path / "one")
    parallel = pomona.run(tiny("fedavg", attack=liar, workers=2, **deep))
    shares = serial.summary["backdoor"]
    assert (
        shares == parallel.summary["backdoor"] == pomona.load(tmp_path / "one").summary["backdoor"]
    )
    assert "1" not in shares["clients"]
    local = pomona.run(tiny("separate", attack=liar, **deep)).summary["backdoor"]
    assert local["mean"] < 0.2 < shares["mean"]  # nothing of a liar reaches a client that is alone


def test_a_backdoors_share_is_that_of_stamped_test_images_of_other_classes(tmp_path):
    liar = {"clients": [1], "kind": "backdoor"}
    config = tiny("fedavg-ft", attack=liar, rounds=8, lr=0.2, local_epochs=3)
    backdoor, prepared = pomona.run(config, tmp_path).summary["backdoor"], Scenario.prepare(config)
    images, labels = prepared.dataset.x.copy(), prepared.dataset.y
    images[:, 6:, 6:] = images.max()
    for client, share in backdoor["clients"].items():
        test = prepared.partition.clients[int(client)].test
        stamped = images[test[labels[test] != 0]]
        model = PersonalModel.load(tmp_path / "models" / f"client-0{client}.safetensors")
        answers = [answer["class"] for answer in model.predict(stamped)]
        assert share == pytest.approx(np.mean([a == prepared.dataset.classes[0] for a in answers]))
    assert backdoor["mean"] == pytest.approx(np.mean([*backdoor["clients"].values()]))


# what cannot be asked for


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"clients": [9], "kind": "sign"}, "names client 9"),
        ({"clients": [0, 1, 2], "kind": "sign"}, "leave one that is honest"),
        ({"clients": [], "kind": "sign"}, "clients"),
        ({"clients": [1], "kind": "charm"}, "kind"),
        ({"clients": [1], "kind": "nan", "strength": 2.0}, "nan has none"),
        ({"clients": [1], "kind": "labels", "from_round": 2}, "from round 1 on"),
        ({"clients": [1], "kind": "labels", "strength": 2.0}, "at most 1"),
        ({"clients": [1], "kind": "scale", "strength": 1e9}, "strength"),
        ({"clients": [1], "kind": "scale", "strength": float("inf")}, "strength"),
    ],
)
def test_other_values_are_one_line(settings, fault):
    with pytest.raises(ConfigError, match=fault):
        Scenario.prepare(tiny("fedavg", clients=3, attack=settings))


@pytest.mark.parametrize("membership", [{"unseen": [1]}, {"leaves": {1: 1}}])
def test_liars_who_are_gone_before_they_lie_are_refused(membership):
    liar = {"clients": [1], "kind": "sign", "from_round": 2}
    with pytest.raises(ConfigError, match=r"client 1, no member from .* = 2"):
        Scenario.prepare(tiny("fedavg", clients=3, attack=liar, membership=membership))


def test_on_the_command_line_nan_is_a_word():
    assert resolve({"attack": {"clients": [0], "kind": float("nan")}}).attack.kind == "nan"


def test_liars_whose_samples_others_are_tested_on_are_refused():
    true = Scenario.prepare(tiny("fedavg"))
    rows = [c.train for c in true.partition.clients]
    with pytest.raises(ConfigError, match="other clients have"):
        poisoned(true.dataset, rows, rows[1][:1], attack("labels"), 0)
    with pytest.raises(ConfigError, match="other clients have"):
        poisoned(true.dataset, [rows[1], rows[1]], rows[0][:0], attack("labels"), 0)
