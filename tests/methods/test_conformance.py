"""One table, every method: what must hold whatever the paper. A new method is in it as soon as it is registered.

``VARIANTS`` adds settings that change a method's course; ``ROUND`` what a method cannot run with is left out of.
"""

from collections import Counter

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import pomona
from pomona.core.state import flatten, joined
from pomona.federation.exchange import ClientRequest
from pomona.methods import METHODS
from pomona.methods.base import Rows
from pomona.objective.device_dataset import DeviceDataset
from pomona.objective.local_training import LocalTraining
from problems import Federation, Quadratics, a_round, quadratics, tiny

VARIANTS = [
    ("apple", {"budget": 1}),
    ("apple", {"budget": 2, "selection": "uniform"}),
    ("apple", {"mu": 1.0}),
    ("apfl", {"adaptive": True}),
    ("fedamp", {"start": "cloud"}),
    ("fedamp", {"attention": "scad"}),
    ("fedfomo", {"budget": 1}),
    ("fedala", {"layers": 2, "adapt": False}),
    ("per-fedavg", {"order": "hf"}),
    ("per-fedavg", {"order": "exact"}),
    ("partialfed", {"rule": "lower-shared"}),
]
TABLE = [(name, {}) for name in METHODS] + VARIANTS
IDS = [name + "".join(f" {k}={v}" for k, v in settings.items()) for name, settings in TABLE]
every_method = pytest.mark.parametrize(("name", "settings"), TABLE, ids=IDS)

NO_MOMENTUM = {"scaffold"}
WATCHED = frozenset({"received", "trained"})


def method(name, settings):
    return METHODS[name](**settings).method()


def passes(name, number=1, **over):
    """A round of three shuffled passes in batches of one, with momentum where the method allows it."""
    momentum = 0.0 if name in NO_MOMENTUM else 0.9
    return a_round(number, **{"epochs": 3, "batch_size": 1, "momentum": momentum, "lr": 0.02, **over})


def uneven(*sizes, d=5):
    """Quadratics of clients with these numbers of samples."""
    n = sum(sizes)
    targets = torch.randn(n, d, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    ends = np.cumsum(sizes)
    return Quadratics(targets, [list(range(e - s, e)) for e, s in zip(ends, sizes, strict=True)])


def states(run):
    """Every tensor that the clients and the server hold, by name."""
    held = flatten(run.server, "server")
    for i in run.ids:
        held |= flatten(run.state(i), str(i))
    return {k: v.clone() for k, v in held.items()}


def same(one, two):
    return one.keys() == two.keys() and all(torch.equal(one[k], two[k]) for k in one)


@every_method
def test_shapes_and_dtypes_are_kept(name, settings):
    run = Federation(method(name, settings), quadratics(3, samples=4))
    before = {k: (v.shape, v.dtype) for k, v in states(run).items()}
    for number in (1, 2):
        run.round(passes(name, number))
        assert {k: (v.shape, v.dtype) for k, v in states(run).items()} == before


@every_method
def test_a_downlink_keeps_its_form(name, settings):
    """The first round's forms are every round's: a silo refuses any other. One receiver at a time, as silos are."""
    run = Federation(method(name, settings), quadratics(3, samples=4))
    seen = set()
    for number in (1, 2, 3):
        downs = [run.method.server.down(run.server, (i,), run.roster, passes(name, number)) for i in run.ids]
        seen |= {
            tuple(sorted((k, rows.index.dim(), rows.bank.dtype, rows.bank.shape[1]) for k, rows in down.items()))
            for down in downs
        }
        run.round(passes(name, number))
    assert len(seen) == 1


@every_method
def test_a_round_that_is_not_committed_changes_nothing_and_comes_out_the_same_again(name, settings):
    run = Federation(method(name, settings), quadratics(3, samples=4))
    run.round(passes(name, 1))
    visit = ClientRequest(passes(name, 2), run.roster, run.ids, True, WATCHED)
    down = run.method.server.down(run.server, run.ids, run.roster, visit.round)
    before = states(run)
    first, second = run.clients.visit(visit, down), run.clients.visit(visit, down)
    assert same(states(run), before)
    for one, two in zip(first, second, strict=True):
        assert same(one.uplink, two.uplink)
        assert same(one.info, two.info)
        assert one.scores == two.scores


@every_method
def test_a_visit_that_only_looks_changes_nothing(name, settings):
    run = Federation(method(name, settings), quadratics(2, samples=4))
    run.round(passes(name, 1))
    before = states(run)
    visit = ClientRequest(passes(name, 2), run.roster, run.ids, False, frozenset({"received"}))
    replies = run.clients.visit(visit, run.method.server.down(run.server, run.ids, run.roster, visit.round))
    run.clients.commit(run.ids)
    assert same(states(run), before)
    assert all(reply.loss is None for reply in replies)


@every_method
def test_absent_clients_are_unchanged(name, settings):
    run = Federation(method(name, settings), quadratics(4, samples=3))
    run.round(passes(name, 1))
    before = {k: v for k, v in states(run).items() if k.startswith(("1", "3"))}
    run.round(passes(name, 2), ids=(0, 2))
    after = states(run)
    assert all(torch.equal(after[k], v) for k, v in before.items())
    run.round(passes(name, 3))


@every_method
def test_private_tensors_never_go_up(name, settings):
    """No uplinked tensor equals a tensor that the method calls private."""
    run = Federation(method(name, settings), quadratics(3, samples=4))
    for number in (1, 2):
        run.round(passes(name, number))
    for reply in run.replies:
        for secret in run.clients.private(reply.client).values():
            for sent in reply.uplink.values():
                if sent.is_floating_point() and secret.is_floating_point() and sent.numel() == secret.numel():
                    assert not torch.equal(sent.flatten(), secret.flatten())


@every_method
def test_rows_of_one_call_train_as_they_do_alone(name, settings):
    """Rows stacked longest first, with 4, 2 and 1 samples, give what one row at a time gives, up to rounding."""
    problem, ids = uneven(1, 4, 2), (1, 2, 0)
    run = Federation(method(name, settings), problem)
    run.round(passes(name, 1))
    round_ = passes(name, 2)
    down = run.method.server.down(run.server, ids, run.roster, round_)
    received = {k: r.bank[r.index] if r.index.dim() == 1 else Rows(r.bank, r.index) for k, r in down.items()}
    stacked = joined([run.state(i) for i in ids])
    training = LocalTraining(problem, ids, run.roster, round_)
    _, uplink, info = run.method.client.train(stacked, received, training, round_)
    run.round(round_)
    for row, i in enumerate(ids):
        for k, value in run.replies[i].uplink.items():
            assert_close(uplink[k][row], value)
        for k, value in run.replies[i].info.items():
            assert_close(info[k][row], value)


@every_method
def test_the_order_of_clients_does_not_matter(name, settings):
    """Downlinks and training of a permuted cohort are the permuted ones; only ids are an address."""
    run = Federation(method(name, settings), quadratics(3, samples=4))
    run.round(passes(name, 1))
    visits = {}
    for ids in ((0, 1, 2), (2, 0, 1)):
        visit = ClientRequest(passes(name, 2), run.roster, ids)
        replies = run.clients.visit(visit, run.method.server.down(run.server, ids, run.roster, visit.round))
        visits[ids] = {r.client: r for r in replies}
    one, two = visits.values()
    assert all(same(one[i].uplink, two[i].uplink) and one[i].loss == two[i].loss for i in run.ids)


@every_method
def test_one_client_alone_works(name, settings):
    run = Federation(method(name, settings), quadratics(1, samples=4))
    for number in (1, 2, 3):
        run.round(passes(name, number))
    headline = run.clients.models(0)[run.method.card.headline]["w"]
    assert torch.isfinite(headline).all()


@every_method
def test_the_loss_falls_towards_the_known_optimum(name, settings):
    """The judged models lower the mean distance to each client's own optimum, on clients that resemble each other."""
    centre = torch.full((1, 5), 3.0, dtype=torch.float64)
    problem = quadratics(3, samples=4)
    problem.targets.mul_(0.2).add_(centre)
    problem.data = DeviceDataset(problem.targets, problem.targets, None, None, problem.data.rows, "regression")
    run = Federation(method(name, settings), problem)
    losses = []
    for number in range(1, 31):
        run.round(passes(name, number, total=30))
        models = [run.clients.models(i)[run.method.card.headline]["w"] for i in run.ids]
        losses.append(float(sum(problem.losses(w, i, "train").mean() for i, w in enumerate(models))))
    assert min(losses[-5:]) < 0.2 * losses[0]


@every_method
def test_a_seed_repeats_a_run_whoever_does_the_work_and_another_seed_does_not(name, settings):
    def outcome(**over):
        result = pomona.run(tiny(name, settings, rounds=2, **over))
        info = [{k: v.tolist() for k, v in r.info.items()} for r in result.rounds]
        return [(r.loss, r.bytes_down, r.bytes_up) for r in result.rounds], info, result.evaluations, result.final

    first = outcome()
    assert outcome(workers=3) == first
    assert outcome(seed=1) != first


@every_method
def test_clients_of_one_class_and_partial_participation_work(name, settings):
    result = pomona.run(
        tiny(
            name,
            settings,
            partition={"name": "classes", "classes_per_client": 1},
            clients=10,
            participation=0.5,
            rounds=2,
        )
    )
    judged = result.curve(*METHODS[name](**settings).method().card.headline)
    assert judged[-1].mean is not None
    assert all(np.isfinite(loss) for r in result.rounds for loss in r.loss)


@every_method
def test_the_card_says_how_many_gradients_a_round_takes(monkeypatch, name, settings):
    """What the card says of each random stream of batches is what is counted there, for two batches an epoch.

    Only ALA's stage may end early, and only Per-FedAvg judges after a single step.
    """
    made = Counter()
    gradient = LocalTraining.gradient

    def counted(training, W, batch, *args, **more):
        made[batch.purpose] += 1
        return gradient(training, W, batch, *args, **more)

    monkeypatch.setattr(LocalTraining, "gradient", counted)
    of, batches, epochs = method(name, settings), 2, 3
    run = Federation(of, quadratics(1, samples=10))
    for number in (1, 2):  # ALA begins in the second
        made.clear()
        run.round(passes(name, number, batch_size=5, epochs=epochs))
    said = Counter()
    for kind in of.card.gradients:
        stream = "ala" if kind.purpose == "ala stage" else kind.purpose
        said[stream] += kind.per_batch * batches * (epochs if kind.epochs is None else kind.epochs)
    for stream in said | made:
        loose = stream == "ala" or name.startswith("per-fedavg")
        assert made[stream] <= said[stream] if loose else made[stream] == said[stream], stream


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        *TABLE,
        ("fedamp", {"alpha_schedule": "sqrt"}),
        ("heurfedamp", {"alpha_schedule": "sqrt"}),
        ("fedphp", {"mu": 0.0}),
    ],
)
def test_a_card_says_whether_a_round_depends_on_how_many_there_will_be(name, settings):
    """If it does not, a run can be given more rounds, and ends as if it had been asked for them from the start."""
    held = []
    for total in (10, 50):
        run = Federation(method(name, settings), quadratics(3, samples=4))
        for number in (1, 2, 3):
            run.round(passes(name, number, total=total))
        held.append(states(run))
    assert same(*held) is not method(name, settings).card.needs_total
