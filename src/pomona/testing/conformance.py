"""The checks of ``pomona.testing.conformance``: properties that every method must have."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.testing import assert_close

from pomona.config import Config, resolve
from pomona.core.round import Round
from pomona.core.state import flatten, joined
from pomona.federation.exchange import ClientRequest
from pomona.methods.base import Info, MethodSettings, Received, Rows, Uplink
from pomona.objective.device_dataset import DeviceDataset
from pomona.objective.local_training import LocalTraining
from pomona.simulation import run as simulated
from pomona.testing.problems import Federation, Quadratics, a_round, quadratics

WATCHED = frozenset({"received", "trained"})


@dataclass(frozen=True)
class Check:
    """One property of a method; calling it raises AssertionError, or what the method raises, where it does not hold."""

    name: str
    settings: MethodSettings
    holds: Callable[[MethodSettings], None]

    def __call__(self) -> None:
        """Run the check: some seconds at most."""
        self.holds(self.settings)

    def __str__(self) -> str:
        return self.name


def conformance(settings: MethodSettings) -> list[Check]:
    """The checks that every method must pass, for a method with these settings.

    They need no files and take seconds. Call it for each combination of settings that changes the method's course.
    """
    return [Check(holds.__name__, settings, holds) for holds in CHECKS]


def small(method: Mapping[str, Any], **over: object) -> Config:
    """A few rounds of a method on scikit-learn's digits; ``over``: other settings."""
    base = {
        "method": method,
        "data": {"name": "digits", "train_limit": 240, "test_limit": 120},
        "partition": {"name": "dirichlet", "beta": 1.0, "min_size": 8},
        "model": {"name": "mlp", "hidden": [8]},
        "clients": 4,
        "rounds": 3,
        "batch_size": 16,
        "lr": 0.1,
        "workers": 1,
    }
    return resolve(base, over)


def passes(settings: MethodSettings, number: int = 1, **over: Any) -> Round:
    """A round of three shuffled passes in batches of one, with momentum where the method allows it."""
    momentum = 0.0 if settings.method().card.plain_steps else 0.9
    return a_round(number, **{"epochs": 3, "batch_size": 1, "momentum": momentum, "lr": 0.02, **over})


def after(settings: MethodSettings, problem: Quadratics, rounds: int) -> Federation:
    """A federation that has trained for some rounds."""
    run = Federation(settings.method(), problem)
    for number in range(1, rounds + 1):
        run.round(passes(settings, number))
    return run


def states(run: Federation) -> dict[str, Tensor]:
    """Every tensor that the clients and the server hold, by name."""
    held = flatten(run.server, "server")
    for i in run.ids:
        held |= flatten(run.state(i), str(i))
    return {k: v.clone() for k, v in held.items()}


def same(one: Mapping[str, Tensor], two: Mapping[str, Tensor]) -> bool:
    """Whether two sets of named tensors are equal to the bit."""
    return one.keys() == two.keys() and all(torch.equal(one[k], two[k]) for k in one)


def uneven(*sizes: int, d: int = 5) -> Quadratics:
    """Quadratics of clients with these numbers of samples."""
    targets = torch.randn(sum(sizes), d, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    ends = np.cumsum(sizes)
    return Quadratics(targets, [list(range(e - s, e)) for e, s in zip(ends, sizes, strict=True)])


def shapes_and_dtypes_are_kept(settings: MethodSettings) -> None:
    """States keep the shapes and dtypes of their start."""
    run = after(settings, quadratics(3, samples=4), 0)
    before = {k: (v.shape, v.dtype) for k, v in states(run).items()}
    for number in (1, 2):
        run.round(passes(settings, number))
        assert {k: (v.shape, v.dtype) for k, v in states(run).items()} == before


def a_downlink_keeps_its_form(settings: MethodSettings) -> None:
    """The first round's forms are every round's: a silo refuses any other. One receiver at a time, as silos are."""
    run = after(settings, quadratics(3, samples=4), 0)
    seen = set()
    for number in (1, 2, 3):
        downs = [run.method.server.down(run.server, (i,), run.roster, passes(settings, number)) for i in run.ids]
        seen |= {
            tuple(sorted((k, rows.index.dim(), str(rows.bank.dtype), rows.bank.shape[1]) for k, rows in down.items()))
            for down in downs
        }
        run.round(passes(settings, number))
    assert len(seen) == 1


def a_round_that_is_not_committed_changes_nothing_and_repeats(settings: MethodSettings) -> None:
    """Training is a function of the states: until it is committed it can be done again, with the same outcome."""
    run = after(settings, quadratics(3, samples=4), 1)
    visit = ClientRequest(passes(settings, 2), run.roster, run.ids, True, WATCHED)
    down = run.method.server.down(run.server, run.ids, run.roster, visit.round)
    before = states(run)
    first, second = run.clients.visit(visit, down), run.clients.visit(visit, down)
    assert same(states(run), before)
    for one, two in zip(first, second, strict=True):
        assert same(one.uplink, two.uplink)
        assert same(one.info, two.info)
        assert one.scores == two.scores


def an_evaluation_changes_nothing(settings: MethodSettings) -> None:
    """A visit that only evaluates trains nothing and leaves all states as they are."""
    run = after(settings, quadratics(2, samples=4), 1)
    before = states(run)
    visit = ClientRequest(passes(settings, 2), run.roster, run.ids, False, frozenset({"received"}))
    replies = run.clients.visit(visit, run.method.server.down(run.server, run.ids, run.roster, visit.round))
    run.clients.commit(run.ids)
    assert same(states(run), before)
    assert all(reply.loss is None for reply in replies)


def absent_clients_are_unchanged(settings: MethodSettings) -> None:
    """A round changes the states of its cohort only."""
    run = after(settings, quadratics(4, samples=3), 1)
    before = {k: v for k, v in states(run).items() if k.startswith(("1", "3"))}
    run.round(passes(settings, 2), ids=(0, 2))
    now = states(run)
    assert all(torch.equal(now[k], v) for k, v in before.items())
    run.round(passes(settings, 3))


def private_tensors_never_go_up(settings: MethodSettings) -> None:
    """No uplinked tensor equals a tensor that the method calls private."""
    run = after(settings, quadratics(3, samples=4), 2)
    for reply in run.replies:
        for secret in run.clients.private(reply.client).values():
            for sent in reply.uplink.values():
                if sent.is_floating_point() and secret.is_floating_point() and sent.numel() == secret.numel():
                    assert not torch.equal(sent.flatten(), secret.flatten())


def rows_of_one_call_train_as_they_do_alone(settings: MethodSettings) -> None:
    """Rows stacked longest first, with 4, 2 and 1 samples, give what one row at a time gives, up to rounding."""
    problem, ids = uneven(1, 4, 2), (1, 2, 0)
    run = after(settings, problem, 1)
    round_ = passes(settings, 2)
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


def the_order_of_clients_does_not_matter(settings: MethodSettings) -> None:
    """Downlinks and training of permuted clients are the permuted ones; only ids are an address."""
    run = after(settings, quadratics(3, samples=4), 1)
    visits = []
    for ids in ((0, 1, 2), (2, 0, 1)):
        visit = ClientRequest(passes(settings, 2), run.roster, ids)
        replies = run.clients.visit(visit, run.method.server.down(run.server, ids, run.roster, visit.round))
        visits.append({r.client: r for r in replies})
    one, two = visits
    assert all(same(one[i].uplink, two[i].uplink) and one[i].loss == two[i].loss for i in run.ids)


def one_client_alone_works(settings: MethodSettings) -> None:
    """A federation of one client trains, and its judged model is finite."""
    run = after(settings, quadratics(1, samples=4), 3)
    assert torch.isfinite(run.clients.models(0)[run.method.card.headline]["w"]).all()


def the_loss_falls_towards_the_known_optimum(settings: MethodSettings) -> None:
    """The judged models lower the mean distance to each client's own optimum, on clients that resemble each other."""
    centre = torch.full((1, 5), 3.0, dtype=torch.float64)
    problem = quadratics(3, samples=4)
    problem.targets.mul_(0.2).add_(centre)
    problem.data = DeviceDataset(problem.targets, problem.targets, None, None, problem.data.rows, "regression")
    run = after(settings, problem, 0)
    losses = []
    for number in range(1, 31):
        run.round(passes(settings, number, total=30))
        models = [run.clients.models(i)[run.method.card.headline]["w"] for i in run.ids]
        losses.append(float(sum(problem.losses(w, i, "train").mean() for i, w in enumerate(models))))
    assert min(losses[-5:]) < 0.2 * losses[0]


def a_seed_repeats_a_run_whoever_does_the_work(settings: MethodSettings) -> None:
    """The same seed gives the same run with one worker process and with three; another seed gives another."""

    def outcome(**over: object) -> object:
        result = simulated(small(settings.model_dump(mode="json"), rounds=2, **over))
        info = [{k: v.tolist() for k, v in r.info.items()} for r in result.rounds]
        return [(r.loss, r.bytes_down, r.bytes_up) for r in result.rounds], info, result.evaluations, result.final

    first = outcome()
    assert outcome(workers=3) == first
    assert outcome(seed=1) != first


def clients_of_one_class_and_partial_participation_work(settings: MethodSettings) -> None:
    """Ten clients of one class each, half of them in a round."""
    one_class = {"name": "classes", "classes_per_client": 1}
    over = {"partition": one_class, "clients": 10, "participation": 0.5, "rounds": 2}
    result = simulated(small(settings.model_dump(mode="json"), **over))
    judged = result.curve(*settings.method().card.headline)
    assert judged[-1].mean is not None
    assert all(loss is not None and np.isfinite(loss) for r in result.rounds for loss in r.loss)


def the_card_says_how_many_gradients_a_round_takes(settings: MethodSettings) -> None:
    """The card's number of gradients is what is counted, for each random stream of batches and two batches an epoch.

    Evaluations, and passes of one round alone, may take fewer than the card says: it says the most.
    """
    method, batches, epochs = settings.method(), 2, 3
    made: Counter[str] = Counter()

    def train(state: Any, received: Received, training: LocalTraining, round_: Round) -> tuple[Any, Uplink, Info]:
        plain = training.gradient

        def counted(W: Tensor, batch: Any, *args: Any, **more: Any) -> tuple[Tensor, Tensor]:
            made[batch.purpose] += 1
            return plain(W, batch, *args, **more)

        training.gradient = counted  # type: ignore[method-assign]  # of this call's training alone
        return method.client.train(state, received, training, round_)

    run = Federation(replace(method, client=replace(method.client, train=train)), quadratics(1, samples=10))
    for number in (1, 2):  # some begin in the second
        made.clear()
        run.round(passes(settings, number, batch_size=5, epochs=epochs))
    said: Counter[str] = Counter()
    loose = set()
    for kind in method.card.gradients:
        stream = kind.purpose.partition(" ")[0]
        said[stream] += kind.per_batch * batches * (epochs if kind.epochs is None else kind.epochs)
        if kind.once or kind.evaluates:
            loose.add(stream)
    for stream in said | made:
        assert made[stream] <= said[stream], f"{stream}: {made[stream]} gradients, the card says {said[stream]}"
        assert stream in loose or made[stream] == said[stream], f"{stream}: the card says {said[stream]}"


def the_card_says_whether_a_round_depends_on_how_many_there_will_be(settings: MethodSettings) -> None:
    """If it does not, a run can be given more rounds, and ends as if it had been asked for them from the start."""
    held = []
    for total in (10, 50):
        run = Federation(settings.method(), quadratics(3, samples=4))
        for number in (1, 2, 3):
            run.round(passes(settings, number, total=total))
        held.append(states(run))
    assert same(*held) is not settings.method().card.needs_total


CHECKS: tuple[Callable[[MethodSettings], None], ...] = (
    shapes_and_dtypes_are_kept,
    a_downlink_keeps_its_form,
    a_round_that_is_not_committed_changes_nothing_and_repeats,
    an_evaluation_changes_nothing,
    absent_clients_are_unchanged,
    private_tensors_never_go_up,
    rows_of_one_call_train_as_they_do_alone,
    the_order_of_clients_does_not_matter,
    one_client_alone_works,
    the_loss_falls_towards_the_known_optimum,
    a_seed_repeats_a_run_whoever_does_the_work,
    clients_of_one_class_and_partial_participation_work,
    the_card_says_how_many_gradients_a_round_takes,
    the_card_says_whether_a_round_depends_on_how_many_there_will_be,
)
