"""Checks of a method's rounds on small quadratics: form, repetition, absence, privacy, order,
convergence.
"""

import re
from collections.abc import Callable, Iterable
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.testing import assert_close

from pomona.core.state import concatenated, flatten
from pomona.core.training_settings import Adam, Optimizer
from pomona.federation.exchange import ClientRequest, Reply, downlink_part, stack
from pomona.methods.base import MethodSettings, Rows
from pomona.objective.dataset import DeviceDataset
from pomona.objective.training import LocalTraining
from pomona.testing.problems import (
    OBSERVED,
    Federation,
    differing,
    equal,
    passes,
    quadratics,
    states,
    suited,
    trained,
    uneven,
)

COMMON = ("personal", "global", "local")
"""Models that clients of any method may observe."""
CONVERGED = 1e-3
"""A loss that counts as the optimum, 0, of points of classes; a computed head may start there."""
DRAWS = "draw from the seed that start and the round give, never from a global generator"
PART_OF_A_NETWORK = re.compile(r"\b(heads?|layers?)\b")


def shapes_and_dtypes_are_kept(settings: MethodSettings) -> None:
    """Check that states keep the shapes and dtypes of their start, and no history of gradients."""
    run = trained(settings, quadratics(3, samples=4), 0)
    initial = _layouts(states(run))
    for number in (1, 2):
        run.round(passes(settings, number))
        tensors = states(run)
        tracked = [k for k, v in tensors.items() if v.requires_grad]
        assert not tracked, f"{', '.join(tracked)} require gradients; keep them detached"
        current = _layouts(tensors)
        changed = [k for k in sorted(current | initial) if current.get(k) != initial.get(k)]
        assert not changed, f"round {number} changed the form of a state: " + "; ".join(
            f"{k} from {initial.get(k)} to {current.get(k)}" for k in changed
        )


def _layouts(tensors: dict[str, Tensor]) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    return {k: (tuple(v.shape), v.dtype) for k, v in tensors.items()}


def a_downlink_keeps_its_form(settings: MethodSettings) -> None:
    """Check that downlinks are rows and keep the first round's form, as silos require, for one
    receiver at a time.
    """
    run = trained(settings, quadratics(3, samples=4), 0)
    layouts = set()
    for number in (1, 2, 3):
        downlinks = [run.downlink(passes(settings, number), (i,)) for i in run.ids]
        layouts |= {
            tuple(sorted(_layout(*entry) for entry in downlink.items())) for downlink in downlinks
        }
        run.round(passes(settings, number))
    assert len(layouts) == 1, f"downlinks differ in (name, index, dtype, width): {sorted(layouts)}"


def _layout(name: str, rows: object) -> tuple[str, int, str, int]:
    if isinstance(rows, Rows) and len(rows.bank.shape) == 2:
        return name, rows.index.dim(), str(rows.bank.dtype), rows.bank.shape[1]
    raise AssertionError(
        f"{name!r} of a downlink is not Rows with a bank (V, d), such as Rows.equal(row, n)"
    )


def a_round_that_is_not_committed_changes_nothing_and_repeats(settings: MethodSettings) -> None:
    """Check that training depends only on the states: until it is committed it can be repeated with
    the same result.
    """
    run = trained(settings, quadratics(3, samples=4), 1)
    visit = ClientRequest(passes(settings, 2), run.roster, run.ids, True, OBSERVED)
    downlink = run.downlink(visit.round)
    initial = states(run)
    first, second = run.clients.visit(visit, downlink), run.clients.visit(visit, downlink)
    changed = differing(states(run), initial)
    assert not changed, f"training that is not committed changed {', '.join(changed)}"
    for reply, repeated in zip(first, second, strict=True):
        differences = _differences(reply, repeated)
        assert not differences, f"{', '.join(differences)} differ when a round is repeated: {DRAWS}"


def _differences(reply: Reply, repeated: Reply) -> list[str]:
    """Return the names of what two replies have that differs."""
    scores = [] if reply.scores == repeated.scores else ["scores"]
    tensors = differing(reply.uplink, repeated.uplink) + differing(reply.info, repeated.info)
    return [*tensors, *scores]


def an_evaluation_changes_nothing(settings: MethodSettings) -> None:
    """Check that a visit that only evaluates leaves all states unchanged."""
    run = trained(settings, quadratics(2, samples=4), 1)
    initial = states(run)
    visit = ClientRequest(passes(settings, 2), run.roster, run.ids, False, frozenset({"received"}))
    replies = run.clients.visit(visit, run.downlink(visit.round))
    run.clients.commit(run.ids)
    changed = differing(states(run), initial)
    assert not changed, f"an evaluation changed {', '.join(changed)}"
    assert all(reply.loss is None for reply in replies), "an evaluation reports a training loss"


def absent_clients_are_unchanged(settings: MethodSettings) -> None:
    """Check that a round changes only the states of its cohort."""
    run = trained(settings, quadratics(4, samples=3), 1)
    initial = {k: v for k, v in states(run).items() if k.startswith(("1", "3"))}
    run.round(passes(settings, 2), ids=(0, 2))
    changed = differing({k: v for k, v in states(run).items() if k in initial}, initial)
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
        downlink = run.downlink(round_)
        for k, i in enumerate(run.ids):
            visit = ClientRequest(round_, run.roster, (i,), True, OBSERVED)
            complete = {name: rows.select([k]) for name, rows in downlink.items()}
            (reply,) = run.clients.visit(visit, complete)
            (repeated,) = run.clients.visit(
                visit, {name: _as_received(rows, i) for name, rows in complete.items()}
            )
            differences = _differences(reply, repeated)
            assert not differences, (
                f"round {number}: {', '.join(differences)} of client {i} depend on rows that its "
                "downlink does not name, and that a silo does not receive"
            )
        run.round(round_)


def _as_received(rows: Rows, client: int) -> Rows:
    """Return one client's part of a downlink as a silo builds it: rows that were not sent are 0."""
    if rows.index.dim() == 1:
        return rows
    indices = rows.index[rows.index != client].unique()
    return Rows(torch.zeros_like(rows.bank).index_copy(0, indices, rows.bank[indices]), rows.index)


def private_tensors_never_go_up(settings: MethodSettings) -> None:
    """Check that no uplinked tensor contains a private tensor of the method, as consecutive
    numbers.

    If the card declares layers of the network private, the client half names their tensors;
    otherwise none are checked.
    """
    problem = suited(settings, quadratics(3, samples=4))
    problem.norms = (slice(1, 3),)  # for methods that keep these
    run, has_private = trained(settings, problem, 2), False
    for reply in run.replies:
        for name, tensor in run.clients.store.private(reply.client).items():
            secret = tensor.flatten()
            has_private |= secret.is_floating_point()
            if not secret.is_floating_point() or not secret.any():  # zeros identify no client
                continue
            for entry_name, entry in reply.uplink.items():
                assert not _contains(entry, secret), (
                    f"{entry_name!r} of client {reply.client} holds its private {name!r}"
                )
    private = settings.method().card.exchange.private
    assert has_private or not PART_OF_A_NETWORK.search(private), (
        f"the card keeps {private} private, Client.private names no tensor of it"
    )


def _contains(entry: Tensor, secret: Tensor) -> bool:
    """Return whether a tensor has the numbers (n,), one after the other."""
    if not entry.is_floating_point() or entry.numel() < len(secret):
        return False
    windows = entry.flatten().unfold(0, len(secret), 1)
    return bool((windows == secret).all(1).any())


def a_model_that_the_card_calls_private_never_goes_up(settings: MethodSettings) -> None:
    """Check that no uplinked row equals the headline model, if the card declares a model private;
    and that a model in the client's state is the headline one, or one is named as private.

    Run after three rounds: in the first one a personal model may be the model just trained.
    """
    card = settings.method().card
    private = card.exchange.private
    if "model" not in private:
        return
    run = trained(settings, quadratics(3, samples=4), 3)
    uplinks = [
        (reply.client, name, row.flatten())
        for reply in run.replies
        for name, row in reply.uplink.items()
    ]
    for i in run.ids:
        headline = {
            stage: w["w"]
            for (model, stage), w in run.models(i).items()
            if model == card.headline[0]
        }
        for (stage, w), (client, name, row) in product(headline.items(), uplinks):
            assert not torch.equal(row, w), (
                f"{name!r} of client {client} is the model of client {i}, {stage}; the card "
                f"keeps {private}"
            )
        assert run.method.client.private or _keeps_one(run, i, headline.values()), (
            f"the card keeps {private} private, Client.private names no tensor of the state"
        )


def _keeps_one(run: Federation, i: int, models: Iterable[Tensor]) -> bool:
    """Return whether a client's state has one of the models, or nothing of their size."""
    entries = flatten(run.state(i), "state").values()
    rows = [entry.flatten() for entry in entries if entry.numel() == run.problem.size]
    return not rows or any(torch.equal(row, w) for row, w in product(rows, models))


def rows_of_one_call_train_as_they_do_alone(settings: MethodSettings, **overrides: Any) -> None:
    """Check that stacked rows with 4, 2 and 1 samples give the same as single rows, up to
    rounding.
    """
    run, ids = trained(settings, uneven(1, 4, 2), 1, **overrides), (1, 2, 0)
    round_ = passes(settings, 2, **overrides)
    downlink = run.downlink(round_, ids)
    received = downlink_part(
        run.clients.store.copies.received(ClientRequest(round_, run.roster, ids), downlink),
        [0, 1, 2],
    )
    stacked = concatenated([run.state(i) for i in ids])
    training = LocalTraining(run.problem, ids, run.roster, round_)
    _, uplink, info = run.method.client.train(stacked, received, training, round_)
    run.round(round_)
    for row, i in enumerate(ids):
        for k, value in run.replies[i].uplink.items():
            assert_close(uplink[k][row], value)
        for k, value in run.replies[i].info.items():
            assert_close(info[k][row], value)


def the_order_of_clients_does_not_matter(settings: MethodSettings) -> None:
    """Check that permuting clients permutes downlinks and training; only ids are an address."""
    run = trained(settings, quadratics(3, samples=4), 1)
    visits = []
    for ids in ((0, 1, 2), (2, 0, 1)):
        visit = ClientRequest(passes(settings, 2), run.roster, ids)
        replies = run.clients.visit(visit, run.downlink(visit.round, ids))
        visits.append({r.client: r for r in replies})
    a, b = visits
    assert all(equal(a[i].uplink, b[i].uplink) and a[i].loss == b[i].loss for i in run.ids)


def the_server_treats_clients_alike(settings: MethodSettings) -> None:
    """Check that exchanging the uplinks of clients of one size exchanges the models received, up to
    rounding; unless these are drawn.
    """
    order, d = [2, 0, 3, 1], 5
    run = trained(settings, quadratics(4, samples=4, d=d), 0)
    server, first, second = run.method.server, passes(settings, 1), passes(settings, 2)
    run.round(first)
    if server.deals or not run.replies[0].uplink:
        return
    uplink = stack(run.replies, lambda reply: reply.uplink)
    received = []
    for uplinks in (uplink, {name: rows[order] for name, rows in uplink.items()}):
        state = server.aggregate(
            server.start(run.initial, run.roster, 0), uplinks, run.ids, run.roster, first
        )
        received.append(server.downlink(state, run.ids, run.roster, second))
    original, exchanged = received
    for name, rows in original.items():
        # a model for each client
        if rows.index.dim() == 1 and rows.bank.shape[1] == run.problem.size:
            permuted = exchanged[name]
            assert_close(permuted.bank[permuted.index], rows.bank[rows.index][order])


def a_server_that_needs_sums_only_gets_by_with_the_mean(settings: MethodSettings) -> None:
    """Check that a server with ``sums`` makes the same of the uplinks and of their mean for all,
    and sends everyone the same.

    With 20 clients and 20 numbers, a share of 0.05 of either is one of them, not none.
    """
    run = trained(settings, uneven(*range(2, 22), d=20), 1)
    server, first, second = run.method.server, passes(settings, 1), passes(settings, 2)
    if not server.sums:
        return
    weights = run.roster.weights(run.ids)
    assert all(t.is_floating_point() for t in server.uplink_form(run.server).values())
    uplink = stack(run.replies, lambda reply: reply.uplink)
    means = {name: (weights.to(rows) @ rows).expand_as(rows) for name, rows in uplink.items()}
    start = server.start(run.initial, run.roster, 0)
    downlinks = [
        server.downlink(
            server.aggregate(start, uplinks, run.ids, run.roster, first),
            run.ids,
            run.roster,
            second,
        )
        for uplinks in (uplink, means)
    ]
    for name, rows in downlinks[0].items():
        assert rows.index.dim() == 1
        assert len(rows.index.unique()) == 1
        assert_close(downlinks[1][name].bank, rows.bank)


def a_client_that_sends_its_step_sends_nothing_else(settings: MethodSettings) -> None:
    """Check that a client with ``sends_step`` keeps nothing, and sends the received model after one
    step of plain SGD, where a decay shrinks it besides.
    """
    run = trained(settings, uneven(4, 6, 8), 1)
    if not run.method.client.sends_step:
        return
    assert not [name for name in states(run) if not name.startswith("server")]
    once = passes(settings, 2, batch_size=10**6, epochs=1, steps=1, weight_decay=0.1)
    downlink = run.downlink(once)
    replies = run.clients.visit(ClientRequest(once, run.roster, run.ids, True), downlink)
    for k, reply in enumerate(replies):
        (rows,), (model,) = downlink.values(), reply.uplink.values()
        w = rows.bank[rows.index[k]]
        samples = torch.tensor(run.problem.rows[k])
        _, G = run.problem.gradient(w.unsqueeze(0), [samples])
        assert_close(model, w - once.lr * (G[0] + once.weight_decay * w))


def another_seed_gives_other_batches(settings: MethodSettings) -> None:
    """Check that batches, and all else that is drawn, come from the run's seed."""
    a, repeated, other_seed = (
        states(trained(settings, quadratics(3, samples=4), 1, seed=seed)) for seed in (0, 0, 1)
    )
    differences = differing(a, repeated)
    assert not differences, f"{', '.join(differences)} differ between runs of one seed: {DRAWS}"
    assert not equal(a, other_seed), (
        "two seeds give the same states: take batches from training.steps"
    )


def one_client_alone_works(settings: MethodSettings) -> None:
    """Check that a federation of one client trains, with a finite headline model, and observes no
    model that the card does not name.
    """
    run = trained(settings, quadratics(1, samples=4), 3)
    card, observed = run.method.card, run.models(0)
    assert card.headline in observed, (
        f"the card's headline is {card.headline}, clients observe {sorted(observed)}"
    )
    unnamed = {model for model, _ in observed} - {*COMMON, card.headline[0], *card.models}
    assert not unnamed, f"clients observe {sorted(unnamed)}: name them in the card's models"
    assert torch.isfinite(run.models(0)[run.method.card.headline]["w"]).all()


def the_loss_falls_towards_the_known_optimum(settings: MethodSettings) -> None:
    """Check that headline models reduce the mean distance to each client's own optimum to a fifth,
    for similar clients.

    The head is one number of twenty, and need not be trained.
    """
    centre = torch.full((1, 20), 3.0, dtype=torch.float64)
    similar = quadratics(3, samples=4, d=20)
    similar.targets.mul_(0.2).add_(centre)
    similar.data = DeviceDataset(
        similar.targets, similar.targets, None, None, similar.data.rows, "regression"
    )
    run = trained(settings, similar, 0)
    losses = []
    for number in range(1, 31):
        run.round(passes(settings, number, total=30))
        models = [run.models(i)[run.method.card.headline]["w"] for i in run.ids]
        losses.append(
            float(sum(run.problem.losses(w, i, "train").mean() for i, w in enumerate(models)))
        )
    enough = max(0.2 * losses[0], CONVERGED)
    assert min(losses[-5:]) < enough, (
        f"the headline models' loss goes from {losses[0]:.3g} to {losses[-1]:.3g} in 30 rounds, "
        f"not below {enough:.3g}; if another term of the objective outweighs it, check with a "
        "smaller weight of that term; a method that learns more slowly by design is checked with a "
        "setting nearer to FedAvg"
    )


def adamw_trains_rows_as_alone_and_otherwise_than_sgd(settings: MethodSettings) -> None:
    """Check that rows of one call take AdamW's steps as single rows do, unless the card restricts
    the rule to SGD.
    """
    if settings.method().card.needs.steps == "any":
        adamw = {"optimizer": Adam(name="adamw"), "momentum": 0.0}
        runs = [
            trained(settings, quadratics(3, samples=4), 1, **{**adamw, "optimizer": o})
            for o in (Optimizer(), adamw["optimizer"])
        ]
        assert not equal(*map(states, runs)), (
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
