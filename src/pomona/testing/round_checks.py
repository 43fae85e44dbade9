"""Checks of a method's rounds on small quadratics: form, repetition, absence, privacy, order,
convergence.
"""

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.testing import assert_close

from pomona.core.state import flatten, joined
from pomona.core.training_settings import Adam, Optimizer
from pomona.federation.exchange import ClientRequest, downlink_part, stack
from pomona.methods.base import MethodSettings, Rows
from pomona.objective.dataset import DeviceDataset
from pomona.objective.training import LocalTraining
from pomona.testing.problems import (
    OBSERVED,
    Federation,
    after,
    differing,
    passes,
    quadratics,
    same,
    states,
    suited,
    uneven,
)

COMMON = ("personal", "global", "local")
"""Models that clients of any method may observe."""
NEAR = 1e-3
"""A loss that counts as the optimum, 0, of points of classes; a computed head may start there."""
DRAWS = "draw from the seed that start and the round give, never from a global generator"
PART_OF_A_NETWORK = re.compile(r"\b(heads?|layers?)\b")


def shapes_and_dtypes_are_kept(settings: MethodSettings) -> None:
    """Check that states keep the shapes and dtypes of their start, and no history of gradients."""
    run = after(settings, suited(settings, quadratics(3, samples=4)), 0)
    before = _forms(states(run))
    for number in (1, 2):
        run.round(passes(settings, number))
        held = states(run)
        tracked = [k for k, v in held.items() if v.requires_grad]
        assert not tracked, f"{', '.join(tracked)} require gradients; keep them detached"
        now = _forms(held)
        other = [k for k in sorted(now | before) if now.get(k) != before.get(k)]
        assert not other, f"round {number} changed the form of a state: " + "; ".join(
            f"{k} from {before.get(k)} to {now.get(k)}" for k in other
        )


def _forms(held: dict[str, Tensor]) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    return {k: (tuple(v.shape), v.dtype) for k, v in held.items()}


def a_downlink_keeps_its_form(settings: MethodSettings) -> None:
    """Check that downlinks are rows and keep the first round's form, as silos require, for one
    receiver at a time.
    """
    run = after(settings, suited(settings, quadratics(3, samples=4)), 0)
    seen = set()
    for number in (1, 2, 3):
        downs = [
            run.method.server.downlink(run.server, (i,), run.roster, passes(settings, number))
            for i in run.ids
        ]
        seen |= {tuple(sorted(_form(*entry) for entry in down.items())) for down in downs}
        run.round(passes(settings, number))
    assert len(seen) == 1, f"downlinks differ in (name, index, dtype, width): {sorted(seen)}"


def _form(name: str, rows: object) -> tuple[str, int, str, int]:
    if isinstance(rows, Rows) and len(rows.bank.shape) == 2:
        return name, rows.index.dim(), str(rows.bank.dtype), rows.bank.shape[1]
    raise AssertionError(
        f"{name!r} of a downlink is not Rows with a bank (V, d), such as Rows.broadcast(row, n)"
    )


def a_round_that_is_not_committed_changes_nothing_and_repeats(settings: MethodSettings) -> None:
    """Check that training depends only on the states: until it is committed it can be repeated with
    the same result.
    """
    run = after(settings, suited(settings, quadratics(3, samples=4)), 1)
    visit = ClientRequest(passes(settings, 2), run.roster, run.ids, True, OBSERVED)
    down = run.method.server.downlink(run.server, run.ids, run.roster, visit.round)
    before = states(run)
    first, second = run.clients.visit(visit, down), run.clients.visit(visit, down)
    changed = differing(states(run), before)
    assert not changed, f"training that is not committed changed {', '.join(changed)}"
    for one, two in zip(first, second, strict=True):
        other = differing(one.uplink, two.uplink) + differing(one.info, two.info)
        assert not other, f"{', '.join(other)} differ when a round is repeated: {DRAWS}"
        assert one.scores == two.scores


def an_evaluation_changes_nothing(settings: MethodSettings) -> None:
    """Check that a visit that only evaluates leaves all states unchanged."""
    run = after(settings, suited(settings, quadratics(2, samples=4)), 1)
    before = states(run)
    visit = ClientRequest(passes(settings, 2), run.roster, run.ids, False, frozenset({"received"}))
    replies = run.clients.visit(
        visit, run.method.server.downlink(run.server, run.ids, run.roster, visit.round)
    )
    run.clients.commit(run.ids)
    changed = differing(states(run), before)
    assert not changed, f"an evaluation changed {', '.join(changed)}"
    assert all(reply.loss is None for reply in replies), "an evaluation reports a training loss"


def absent_clients_are_unchanged(settings: MethodSettings) -> None:
    """Check that a round changes only the states of its cohort."""
    run = after(settings, suited(settings, quadratics(4, samples=3)), 1)
    before = {k: v for k, v in states(run).items() if k.startswith(("1", "3"))}
    run.round(passes(settings, 2), ids=(0, 2))
    changed = differing({k: v for k, v in states(run).items() if k in before}, before)
    assert not changed, f"a round of clients 0 and 2 changed {', '.join(changed)}"
    run.round(passes(settings, 3))


def a_client_reads_only_rows_that_it_was_sent(settings: MethodSettings) -> None:
    """Check that a round gives a client the same without the rows of a bank that its index does not
    name: a silo has none of them. Client 3 joins in the third round, and client 0 leaves after it.
    """
    run = Federation(settings.method(), suited(settings, uneven(4, 3, 2, 4)), members=(0, 1, 2))
    for number in range(1, 6):
        if number in (3, 4):
            run.only(*((0, 1, 2, 3) if number == 3 else (1, 2, 3)))
        round_ = passes(settings, number)
        down = run.method.server.downlink(run.server, run.ids, run.roster, round_)
        for k, i in enumerate(run.ids):
            visit = ClientRequest(round_, run.roster, (i,), True, OBSERVED)
            whole = {name: rows.select([k]) for name, rows in down.items()}
            (one,) = run.clients.visit(visit, whole)
            (two,) = run.clients.visit(
                visit, {name: _sent(rows, i) for name, rows in whole.items()}
            )
            other = differing(one.uplink, two.uplink) + differing(one.info, two.info)
            other += [] if one.scores == two.scores else ["scores"]
            assert not other, (
                f"round {number}: {', '.join(other)} of client {i} depend on rows that its "
                "downlink does not name, and that a silo does not receive"
            )
        run.round(round_)


def _sent(rows: Rows, client: int) -> Rows:
    """Return one client's part of a downlink as a silo builds it: rows that were not sent are 0."""
    if rows.index.dim() == 1:
        return rows
    sent = rows.index[rows.index != client].unique()
    return Rows(torch.zeros_like(rows.bank).index_copy(0, sent, rows.bank[sent]), rows.index)


def private_tensors_never_go_up(settings: MethodSettings) -> None:
    """Check that no uplinked tensor contains a private tensor of the method, as consecutive
    numbers.

    If the card declares layers of the network private, the client half names their tensors;
    otherwise none are checked.
    """
    problem = suited(settings, quadratics(3, samples=4))
    problem.norms = (slice(1, 3),)  # for methods that keep these
    run, named = after(settings, problem, 2), False
    for reply in run.replies:
        for name, tensor in run.clients.private(reply.client).items():
            secret = tensor.flatten()
            named |= secret.is_floating_point()
            if not secret.is_floating_point() or not secret.any():  # zeros identify no client
                continue
            for told, sent in reply.uplink.items():
                if sent.is_floating_point() and sent.numel() >= len(secret):
                    parts = sent.flatten().unfold(0, len(secret), 1)
                    assert not (parts == secret).all(1).any(), (
                        f"{told!r} of client {reply.client} holds its {name!r}, which is private"
                    )
    kept = settings.method().card.exchange.private
    assert named or not PART_OF_A_NETWORK.search(kept), (
        f"the card keeps {kept}, Client.private names no tensor of it"
    )


def a_model_that_the_card_calls_private_never_goes_up(settings: MethodSettings) -> None:
    """Check that no uplinked row equals the headline model, if the card declares a model private;
    and that a model in the client's state is the headline one, or one is named as private.

    Run after three rounds: in the first one a personal model may be the model just trained.
    """
    card = settings.method().card
    kept = card.exchange.private
    if "model" not in kept:
        return
    run = after(settings, suited(settings, quadratics(3, samples=4)), 3)
    sent = [
        (reply.client, name, row.flatten())
        for reply in run.replies
        for name, row in reply.uplink.items()
    ]
    for i in run.ids:
        judged = {
            when: w["w"]
            for (model, when), w in run.clients.models(i).items()
            if model == card.headline[0]
        }
        for when, w in judged.items():
            for whose, name, row in sent:
                assert not torch.equal(row, w), (
                    f"{name!r} of client {whose} is the model of client {i}, {when}; the card "
                    f"keeps {kept}"
                )
        held = [
            rows.flatten()
            for rows in flatten(run.state(i), "state").values()
            if rows.numel() == run.problem.size
        ]
        known = [row for row in held if any(torch.equal(row, w) for w in judged.values())]
        assert known or run.method.client.private or not held, (
            f"the card keeps {kept}, Client.private names no tensor of the state as it"
        )


def rows_of_one_call_train_as_they_do_alone(settings: MethodSettings, **over: Any) -> None:
    """Check that stacked rows with 4, 2 and 1 samples give the same as single rows, up to
    rounding.
    """
    problem, ids = suited(settings, uneven(1, 4, 2)), (1, 2, 0)
    run = after(settings, problem, 1, **over)
    round_ = passes(settings, 2, **over)
    down = run.method.server.downlink(run.server, ids, run.roster, round_)
    received = downlink_part(
        run.clients.copies.received(ClientRequest(round_, run.roster, ids), down), [0, 1, 2]
    )
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
    """Check that permuting clients permutes downlinks and training; only ids are an address."""
    run = after(settings, suited(settings, quadratics(3, samples=4)), 1)
    visits = []
    for ids in ((0, 1, 2), (2, 0, 1)):
        visit = ClientRequest(passes(settings, 2), run.roster, ids)
        replies = run.clients.visit(
            visit, run.method.server.downlink(run.server, ids, run.roster, visit.round)
        )
        visits.append({r.client: r for r in replies})
    one, two = visits
    assert all(same(one[i].uplink, two[i].uplink) and one[i].loss == two[i].loss for i in run.ids)


def the_server_treats_clients_alike(settings: MethodSettings) -> None:
    """Check that exchanging the uplinks of clients of one size exchanges the models received, up to
    rounding.
    """
    order, d = [2, 0, 3, 1], 5
    run = after(settings, suited(settings, quadratics(4, samples=4, d=d)), 0)
    server, first, second = run.method.server, passes(settings, 1), passes(settings, 2)
    run.round(first)
    if not run.replies[0].uplink:
        return
    uplink = {
        name: torch.stack([reply.uplink[name] for reply in run.replies])
        for name in run.replies[0].uplink
    }
    received = []
    for given in (uplink, {name: rows[order] for name, rows in uplink.items()}):
        state = server.aggregate(
            server.start(run.initial, run.roster, 0), given, run.ids, run.roster, first
        )
        received.append(server.downlink(state, run.ids, run.roster, second))
    before, exchanged = received
    for name, rows in before.items():
        if (
            rows.index.dim() == 1 and rows.bank.shape[1] == run.problem.size
        ):  # a model for each client
            other = exchanged[name]
            assert_close(other.bank[other.index], rows.bank[rows.index][order])


def a_server_that_needs_sums_only_gets_by_with_the_mean(settings: MethodSettings) -> None:
    """Check that a server with ``sums`` makes the same of the uplinks and of their mean for all,
    and sends everyone the same.
    """
    run = after(settings, suited(settings, uneven(4, 6, 8)), 1)
    server, first, second = run.method.server, passes(settings, 1), passes(settings, 2)
    if not server.sums:
        return
    weights = run.roster.weights(run.ids)
    assert all(t.is_floating_point() for t in server.uplink_form(run.server).values())
    uplink = stack(run.replies, lambda reply: reply.uplink)
    means = {name: (weights.to(rows) @ rows).expand_as(rows) for name, rows in uplink.items()}
    start = server.start(run.initial, run.roster, 0)
    downs = [
        server.downlink(
            server.aggregate(start, given, run.ids, run.roster, first), run.ids, run.roster, second
        )
        for given in (uplink, means)
    ]
    for name, rows in downs[0].items():
        assert rows.index.dim() == 1
        assert len(rows.index.unique()) == 1
        assert_close(downs[1][name].bank, rows.bank)


def a_client_that_sends_its_step_sends_nothing_else(settings: MethodSettings) -> None:
    """Check that a client with ``sends_step`` keeps nothing, and sends the received model after one
    step of plain SGD, where a decay shrinks it besides.
    """
    run = after(settings, suited(settings, uneven(4, 6, 8)), 1)
    if not run.method.client.sends_step:
        return
    assert not [name for name in states(run) if not name.startswith("server")]
    once = passes(settings, 2, batch_size=10**6, epochs=1, steps=1, weight_decay=0.1)
    down = run.method.server.downlink(run.server, run.ids, run.roster, once)
    replies = run.clients.visit(ClientRequest(once, run.roster, run.ids, True), down)
    for k, reply in enumerate(replies):
        (rows,), (sent,) = down.values(), reply.uplink.values()
        w = rows.bank[rows.index[k]]
        whole = torch.tensor(run.problem.rows[k])
        _, G = run.problem.gradient(w.unsqueeze(0), [whole])
        assert_close(sent, w - once.lr * (G[0] + once.weight_decay * w))


def another_seed_gives_other_batches(settings: MethodSettings) -> None:
    """Check that batches, and all else that is drawn, come from the run's seed."""
    one, again, two = (
        states(after(settings, suited(settings, quadratics(3, samples=4)), 1, seed=seed))
        for seed in (0, 0, 1)
    )
    other = differing(one, again)
    assert not other, f"{', '.join(other)} differ between runs of one seed: {DRAWS}"
    assert not same(one, two), "two seeds give the same states: take batches from training.steps"


def one_client_alone_works(settings: MethodSettings) -> None:
    """Check that a federation of one client trains, with a finite headline model, and observes no
    model that the card does not name.
    """
    run = after(settings, suited(settings, quadratics(1, samples=4)), 3)
    card, observed = run.method.card, run.clients.models(0)
    assert card.headline in observed, (
        f"the card's headline is {card.headline}, clients observe {sorted(observed)}"
    )
    unnamed = {model for model, _ in observed} - {*COMMON, card.headline[0], *card.models}
    assert not unnamed, f"clients observe {sorted(unnamed)}: name them in the card's models"
    assert torch.isfinite(run.clients.models(0)[run.method.card.headline]["w"]).all()


def the_loss_falls_towards_the_known_optimum(settings: MethodSettings) -> None:
    """Check that headline models reduce the mean distance to each client's own optimum to a fifth,
    for similar clients.

    The head is one number of twenty, and need not be trained.
    """
    centre = torch.full((1, 20), 3.0, dtype=torch.float64)
    near = quadratics(3, samples=4, d=20)
    near.targets.mul_(0.2).add_(centre)
    near.data = DeviceDataset(near.targets, near.targets, None, None, near.data.rows, "regression")
    problem = suited(settings, near)
    run = after(settings, problem, 0)
    losses = []
    for number in range(1, 31):
        run.round(passes(settings, number, total=30))
        models = [run.clients.models(i)[run.method.card.headline]["w"] for i in run.ids]
        losses.append(
            float(sum(problem.losses(w, i, "train").mean() for i, w in enumerate(models)))
        )
    enough = max(0.2 * losses[0], NEAR)
    assert min(losses[-5:]) < enough, (
        f"the headline models' loss goes from {losses[0]:.3g} to {losses[-1]:.3g} in 30 rounds, "
        f"not below {enough:.3g}; if another term of the objective outweighs it, check with a "
        "smaller weight of that term"
    )


def adamw_trains_rows_as_alone_and_otherwise_than_sgd(settings: MethodSettings) -> None:
    """Check that rows of one call take AdamW's steps as single rows do, unless the card restricts
    the rule to SGD.
    """
    if settings.method().card.needs.steps == "any":
        adamw = {"optimizer": Adam(name="adamw"), "momentum": 0.0}
        taken = [
            after(
                settings, suited(settings, quadratics(3, samples=4)), 1, **{**adamw, "optimizer": o}
            )
            for o in (Optimizer(), adamw["optimizer"])
        ]
        assert not same(*map(states, taken)), (
            "AdamW's steps are those of SGD: the card says that any steps are taken"
        )
        rows_of_one_call_train_as_they_do_alone(settings, **adamw)


ROUND_CHECKS: tuple[Callable[[MethodSettings], None], ...] = (
    shapes_and_dtypes_are_kept,
    a_downlink_keeps_its_form,
    a_round_that_is_not_committed_changes_nothing_and_repeats,
    an_evaluation_changes_nothing,
    absent_clients_are_unchanged,
    a_client_reads_only_rows_that_it_was_sent,
    private_tensors_never_go_up,
    a_model_that_the_card_calls_private_never_goes_up,
    rows_of_one_call_train_as_they_do_alone,
    the_order_of_clients_does_not_matter,
    the_server_treats_clients_alike,
    a_server_that_needs_sums_only_gets_by_with_the_mean,
    a_client_that_sends_its_step_sends_nothing_else,
    another_seed_gives_other_batches,
    one_client_alone_works,
    the_loss_falls_towards_the_known_optimum,
    adamw_trains_rows_as_alone_and_otherwise_than_sgd,
)
