"""Collecting personal models from the clients at the end of a run: into files with cards, or into
memory.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from pomona import personal
from pomona.core.attack import Attack
from pomona.core.errors import listed
from pomona.core.files import publish
from pomona.core.notes import Note
from pomona.federation import client_queries
from pomona.federation.client import ClientRuntime
from pomona.federation.scoring import Model
from pomona.federation.transport import LocalTransport
from pomona.metrics.best_round import Best, Point, best
from pomona.metrics.metric import LOSS
from pomona.metrics.nan_safe import mean_of_known
from pomona.partition.poison import triggered
from pomona.personal import model_card
from pomona.personal.model_card import Sources
from pomona.record.predictions import MAX_EXAMPLE_CLIENTS, MaskExamples, example, save_examples
from pomona.record.result import Result, model_path
from pomona.record.rows import Evaluation
from pomona.record.run_folder import RunRecord
from pomona.scenario import Scenario
from pomona.storage.equal_tensors import SharedRows
from pomona.storage.safetensors_stream import pieces


class ClientModels(Mapping[int, Mapping[str, Tensor]]):
    """The headline models that clients keep at present, fetched from them on access."""

    def __init__(self, transport: LocalTransport, clients: int, headline: Model) -> None:
        self._transport, self._clients, self._headline = transport, clients, headline

    def __getitem__(self, client: int) -> Mapping[str, Tensor]:
        if client not in self._available():
            raise KeyError(client)
        (models,) = self._transport.collect(client_queries.models, [client])
        return _in_memory(models[self._headline], Tensor.clone)

    def __iter__(self) -> Iterator[int]:
        return iter(self._available())

    def __len__(self) -> int:
        return len(self._available())

    def _available(self) -> list[int]:
        every = range(self._clients)
        has_model = self._transport.collect(
            partial(client_queries.has_model, model=self._headline), every
        )
        return [client for client, available in zip(every, has_model, strict=True) if available]


def collect_models(
    transport: LocalTransport, clients: int, headline: Model, best: int
) -> dict[int, Mapping[str, Tensor]]:
    """Return the headline model of each client that has one; ``best``: the best common validation
    round.

    The clients then drop theirs. Tensors with the same bytes, such as the global model's, share
    memory.
    """
    rows, models = SharedRows(), dict[int, Mapping[str, Tensor]]()
    for i in range(clients):
        (model,) = transport.collect(
            partial(client_queries.hand_over_model, model=headline, best=best), [i]
        )
        if model is not None:
            models[i] = _in_memory(model, lambda tensor: rows.shared(tensor.clone()))
    return models


def _in_memory(model: Mapping[str, Any], copied: Callable[[Tensor], Tensor]) -> dict[str, Any]:
    """Return copies of a model's tensors in main memory, and extra state, which is no tensor."""
    return {
        k: copied(v.cpu().contiguous()) if isinstance(v, Tensor) else v for k, v in model.items()
    }


def save_models(
    folder: Path, transport: LocalTransport, scenario: Scenario, headline: Model, best: int
) -> None:
    """Write one safetensors file per client with its headline model, and separately its private
    tensors.

    ``best``: the best common validation round. One client at a time, since a federation's models
    may not fit into memory.
    """
    (folder / "models").mkdir(exist_ok=True)
    personal.save_frozen(folder / "models", scenario.network.frozen)
    for i in range(scenario.config.clients):
        (models,) = transport.collect(partial(client_queries.models, best=best), [i])
        (private,) = transport.collect(client_queries.private, [i])
        if headline in models:
            personal.save(model_path(folder, i), models[headline], scenario, i, headline)
        if tensors := {k: v.cpu().contiguous() for k, v in private.items() if v.numel()}:
            publish(folder / "private" / model_path(folder, i).name, pieces(tensors))


def save_cards(folder: Path, scenario: Scenario, result: Result, best: int) -> None:
    """Write a card next to each client's model; ``best``: the best common validation round.

    Raises OSError.
    """
    headline = (*scenario.config.method.method().card.headline, "test")
    evaluations = [*result.curve(*headline), *(e for e in result.unseen if e.key == headline)]
    epsilons = result.summary.get("privacy", {}).get("clients", {})
    completed_rounds = max((row.round for row in result.rounds), default=0)
    records = {
        record["client"]: record
        for record in reversed(result.final)  # of several the first
        if (record["model"], record["when"], record["split"]) == headline
    }
    for i in range(scenario.config.clients):
        if not (path := model_path(folder, i)).exists():
            continue
        card = model_card.card_of(
            scenario,
            i,
            path,
            records.get(i, {}),
            _round(scenario.config.keep, evaluations, i, best),
            completed_rounds,
            _sources(result, i),
            epsilons[i] if epsilons else None,
            {"who holds which rows": scenario.partition.sha256},
            _best_round_note(scenario, result, i),
        )
        model_card.write(card, path)


def _round(policy: str, evaluations: Sequence[Evaluation], client: int, best: int) -> int | None:
    """Return the round after which a client's model was evaluated: its last, if it was not yet
    there in the best; None if it was not.
    """
    numbers = [e.round for e in evaluations if client in e.clients]
    chosen = best if policy == "best" and best > 0 and best in numbers else None
    return chosen or max(numbers, default=None)


def newcomers_after_best(scenario: Scenario, record: RunRecord, best: int) -> list[Note]:
    """Return a note on clients without a model of the best round: they joined, or were first drawn,
    later.
    """
    rounds: dict[int, int] = {}  # of each client's first evaluation
    headline = scenario.config.method.method().card.headline
    for event_type, evaluation in record.events:
        if event_type in {"evaluation", "unseen"} and evaluation.key[:2] == headline:
            rounds = dict.fromkeys(evaluation.clients, evaluation.round) | rounds
    names = [scenario.names[i] for i, first in sorted(rounds.items()) if first > best]
    line = (
        f"{listed(names, 10)}: no model by round {best}, the best: files, figures and predictions "
        "are of their last round"
    )
    return [Note(line, "training")] if names else []


def _best_round_note(scenario: Scenario, result: Result, client: int) -> str:
    """Return the round and metrics of the model in a client's file, with ``keep = own_best``; empty
    if unknown.

    A round that is not on record, of a cohort drawn between two evaluations, may be better: then it
    is unknown.
    """
    config = scenario.config
    sampled = config.participation < 1 or config.absence > 0
    if config.keep != "own_best" or (sampled and config.eval_every > 1):
        return ""
    headline = config.method.method().card.headline
    validation = result.curve(*headline, "validation")
    curve = [
        Point(e.round, *e.by_client(e.value, [client]), *e.by_client(e.loss, [client]))
        for e in validation
    ]
    if not (chosen := best(curve, result.metric, single_client=True)):
        return ""
    return _describe_best([*validation, *result.curve(*headline, "test")], chosen, client)


def _describe_best(evaluations: Sequence[Evaluation], chosen: Best, client: int) -> str:
    """Describe a client's best round by the metric that chose it."""
    evaluated = [e for e in evaluations if e.round == chosen.round]
    values = {
        e.split: e.by_client(e.loss if chosen.metric is LOSS else e.value, [client])[0]
        for e in evaluated
    }
    scores = [
        f"{split} {chosen.metric.number(value)}"
        for split, value in values.items()
        if value is not None
    ]
    return (
        f"The file holds the model of round {chosen.round}, {chosen.metric.heading}: "
        f"{', '.join(scores)}."
    )


def _sources(result: Result, client: int) -> Sources:
    """Return the sources of a client's model according to the record."""
    names: list[str] = result.about["clients"]
    trained = sorted({i for row in result.rounds for i in row.cohort})
    last_row = next((r for r in reversed(result.rounds) if client in r.cohort and r.info), None)
    position = last_row.cohort.index(client) if last_row else 0
    info = {}
    if last_row:
        info = {name: values[position].ravel() for name, values in last_row.info.items()}
    return Sources(
        received=any(any(row.bytes_down) for row in result.rounds),
        members=[names[i] for i in trained],
        weights=model_card.relationships(info, names, result.presentation),
    )


def save_mask_examples(
    folder: Path, transport: LocalTransport, scenario: Scenario, headline: Model, best: int
) -> None:
    """Write the best and the worst mask of the first clients, with their images, for display;
    nothing without masks.

    ``best``: the best common validation round.
    """
    if scenario.targets != "segmentation":
        return
    examples = {}
    for i in range(min(MAX_EXAMPLE_CLIENTS, scenario.config.clients)):
        (extremes,) = transport.collect(
            partial(client_queries.best_worst_masks, model=headline, best=best), [i]
        )
        if extremes is None:
            continue
        rows, masks, dice = extremes
        samples = zip(scenario.dataset.x[rows], scenario.dataset.y[rows], masks, strict=True)
        images, truths, predicted = zip(*(example(*sample) for sample in samples), strict=True)
        examples[i] = MaskExamples(np.stack(images), np.stack(truths), np.stack(predicted), dice)
    save_examples(folder, examples)


def backdoor(
    scenario: Scenario, attack: Attack, transport: LocalTransport, headline: Model, best: int
) -> dict[str, Any]:
    """Return, by honest client, the share of its test samples of other classes that its headline
    model gives class 0 once they have the trigger; None without such samples or a model.

    ``best``: as of ``client_queries.models``.
    """
    tested = np.unique(np.concatenate([c.test for c in scenario.partition.clients]))
    objective = replace(scenario, dataset=triggered(scenario.dataset, tested)).objective()
    honest = attack.honest(scenario.config.clients)
    rows = transport.collect(partial(_headline, model=headline, best=best), honest)
    shares: dict[str, float | None] = {}
    for client, row in zip(honest, rows, strict=True):
        answers = () if row is None else objective.batchwise(row, client, "test", _fooled)
        defined = bool(answers) and len(answers[0]) > 0
        shares[str(client)] = float(answers[0].double().mean()) if defined else None
    return {"clients": shares, "mean": mean_of_known(list(shares.values()))}


def _fooled(outputs: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
    """Return whether each sample of another class gets class 0."""
    return (outputs.argmax(1)[targets != 0] == 0,)


def _headline(clients: ClientRuntime, client: int, model: Model, best: int) -> Tensor | None:
    return clients.store.recorded.chosen(client, best).get(model)
