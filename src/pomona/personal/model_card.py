"""A card next to each personal model: data, metrics, sources and hashes; uses and limits are written
by people.

Names on it come from others: each is limited to one line, with Markdown escaped. A card contains no
time, so that a run that was interrupted ends with the same bytes.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from itertools import count
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pomona.config import Config
from pomona.core import bounds, errors, files
from pomona.core.bounds import SPLITS
from pomona.core.files import MAX_LOG_BYTES, content, publish
from pomona.data.dataset import Dataset
from pomona.federation.noise_in_sums import against
from pomona.metrics.metric import EVERY_METRIC, is_own, metric_named
from pomona.objective.dataset import groups_of
from pomona.privacy.settings import groups_note
from pomona.record.presentation import Presentation
from pomona.scenario import Scenario
from pomona.scenario.description import epsilons, largest_groups, unprotected_groups
from pomona.storage.safetensors_stream import digest
from pomona.tasks.survival import edge_name

MAX_NAMES = 20  # names listed


SUFFIX = ".card.md"
SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~!&])")
FILE = "this model's file"  # among the hashes
USES = "## Intended use"  # from here on a card belongs to people
PEOPLE = f"""{USES}

To be filled in: for whom, for which decision, in addition to what. Text from this heading on is kept when the card is
written again.

## Limits

To be filled in: patients, devices and sites that the data do not have; known errors; who looks after the model.
"""

Rows = list[tuple[str, str]]


@dataclass(frozen=True)
class Sources:
    """The clients from which a model learned.

    Attributes:
        received: whether any client ever received anything.
        members: names of the clients that took part in training.
        weights: by title, (name of a client, weight) of all clients, as reported by the method for
            this client.
    """

    received: bool
    members: Sequence[str]
    weights: Mapping[str, Sequence[tuple[str, float]]]


@dataclass(frozen=True)
class Card:
    """The content of a card, as input of the template."""

    client: str
    facts: Rows
    samples: list[tuple[str, str, str]]
    measured: str
    figures: list[tuple[str, str, str, str]]
    privacy: str
    learnt: str
    weights: list[tuple[str, Rows]]
    hashes: Rows


def card_of(
    scenario: Scenario,
    client: int,
    path: Path,
    metrics: Mapping[str, Any],
    number: int | None,
    completed_rounds: int,
    sources: Sources,
    epsilon: float | None,
    hashes: Mapping[str, str],
    best_note: str = "",
) -> Card:
    """Build the card of a client's headline model.

    Args:
        scenario: of the run, or of a silo.
        client: the client's id.
        path: its file.
        metrics: on the client's test samples, as in a ``final`` event; empty without samples.
        number: the round after which it was evaluated; None if it was not.
        completed_rounds: rounds of training so far.
        sources: the clients from which it learned.
        epsilon: the client's epsilon so far, None or infinite for no bound; ignored in a run
            without privacy.
        hashes: further hashes, by their subject.
        best_note: the round and metrics of the model in the file; empty for the last round, or if
            unknown.
    """
    config = scenario.config
    title = config.method.method().card.presentation.title
    rows = scenario.partition.clients[client]
    return Card(
        scenario.names[client],
        _facts(scenario, path, completed_rounds),
        [
            (split, *sample_counts(scenario.dataset, scenario.targets, getattr(rows, split)))
            for split in SPLITS
        ],
        _measured(config, number, best_note) + _interval_remark(scenario, client, metrics)
        if metrics
        else "Not measured: this client has no test samples.",
        figures(metrics),
        privacy_spent(scenario, client, epsilon),
        _learnt(title, sources),
        [(title, _largest(weights)) for title, weights in sources.weights.items()],
        [*_hashes(scenario, path).items(), *hashes.items()],
    )


def _facts(scenario: Scenario, path: Path, completed_rounds: int) -> Rows:
    """Return what the model is, and how it was trained."""
    config, method = scenario.config, scenario.config.method.method()
    patch, targets = config.model.patch, scenario.targets
    network = f"{config.model.name}{f' on patches of {list(patch.size)}' if patch else ''}"
    steps = f"{config.passes} a round, batch size {config.batch_size}"
    frozen = sum(t.numel() for t in scenario.network.frozen.values())
    return [
        ("model", ", ".join(method.card.headline)),
        ("file", path.name),
        ("method", f"{method.card.presentation.title} ({config.method.name})"),
        ("task", f"{targets}: {outputs(scenario.dataset, targets)}"),
        ("network", f"{network}, {len(scenario.initial()):,} numbers trained, {frozen:,} frozen"),
        (
            "training",
            f"{completed_rounds} of {config.rounds} rounds, {steps}, {config.optimizer.name}, "
            f"lr {config.lr}",
        ),
        ("seed", str(config.seed)),
        ("made with", f"Pomona {version('pomona')}"),
    ]


def _measured(config: Config, number: int | None, best_note: str) -> str:
    """Describe the model that was measured; ``best_note``: round and metrics of another in the file."""
    model, stage = config.method.method().card.headline
    state = "as received, before local training" if stage == "received" else "after local training"
    own_best = config.keep == "own_best"
    subject = "the last round's model" if own_best else "this model"
    sentence = (
        f"Of {subject} ({model}, {state}) on the client's own test samples, after round {number}."
    )
    if not own_best:
        return sentence
    earlier = (
        f"The file holds an earlier one where that was better on validation: keep = {config.keep}."
    )
    return " ".join(filter(None, [sentence, earlier, best_note]))


def _interval_remark(scenario: Scenario, client: int, metrics: Mapping[str, Any]) -> str:
    """Return what is to be said of the metrics' intervals, if anything."""
    if "intervals" not in metrics:
        return " Intervals come with the last round."
    groups, rows = groups_of(scenario.dataset), scenario.partition.clients[client].test
    if groups is None or len(np.unique(groups[rows])) == len(rows):
        return ""
    if any((metrics["intervals"] or {}).values()):
        return " Intervals draw the samples of a group (data.group_column) together."
    return " No intervals: the test samples are of too few groups (data.group_column)."


def _hashes(scenario: Scenario, path: Path) -> dict[str, str]:
    """Return the hashes of a model's file and of what it was made from, by subject."""
    hashes = {FILE: files.sha256(path)}
    if scenario.network.frozen:
        hashes["its frozen part, in a separate file"] = digest(scenario.network.frozen)
    if init_sha256 := scenario.config.model.init_sha256:
        hashes["the weights that training started from"] = init_sha256
    return {**hashes, "the data": scenario.partition.recipe["fingerprint"]}


def relationships(
    info: Mapping[str, Sequence[float]], names: Sequence[str], presentation: Presentation
) -> dict[str, list[tuple[str, float]]]:
    """Return the weights of all clients by title, for quantities in a client's ``info`` with one
    per client.
    """
    per_client = {name: values for name, values in info.items() if len(values) == len(names)}
    quantities = {name: presentation.quantity(name, len(names), len(names)) for name in per_client}
    return {
        quantities[name].title: list(zip(names, map(float, values), strict=True))
        for name, values in per_client.items()
        if quantities[name].kind == "matrix"
    }


def write(card: Card, path: Path) -> Path:
    """Write a card next to its model's file, keeping what people wrote into an older one.

    Raises OSError.
    """
    card_path = path.with_name(path.stem + SUFFIX)
    return publish(card_path, [template().render(card=card).encode(), _people(card_path)])


def write_of_export(model: Path, path: Path) -> Path | None:
    """Write the card of a model's file next to its export, with the export's name and hash.

    Returns None if the file has no card, or one of an earlier round. Raises OSError.
    """
    source, sha256 = model.with_name(model.stem + SUFFIX), files.sha256(model)
    text = content(source, MAX_LOG_BYTES) if source.is_file() else b""
    rows = {
        f"| file | {harmless(model.name)} |": f"| file | {harmless(path.name)} |\n"
        f"| exported from | {harmless(model.name)} |",
        f"| {FILE} | `{sha256}` |": f"| the exported file | `{files.sha256(path)}` |\n"
        f"| the file that it was exported from | `{sha256}` |",
    }
    if not all(row.encode() in text for row in rows):
        return None
    for row, exported in rows.items():
        text = text.replace(row.encode(), exported.encode(), 1)
    card = path.with_name(path.name + SUFFIX)
    if card.exists():
        text = text[: _heading(text)] + _people(card)
    return publish(card, [text])


@cache
def template() -> Any:  # jinja2.Template
    """Return the card's template, compiled once a process."""
    from jinja2 import Environment, PackageLoader, StrictUndefined  # late: slow to import

    environment = Environment(  # noqa: S701 - Markdown, whose own characters ``harmless`` escapes
        loader=PackageLoader("pomona", "personal"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["harmless"] = harmless
    return environment.get_template("card.md.jinja")


def harmless(text: str) -> str:
    """Return other people's text as one bounded line with Markdown escaped."""
    return SPECIAL.sub(r"\\\1", bounds.plain(text))


def _people(path: Path) -> bytes:
    """Return what people have written into an existing card, in any encoding, else the template's
    questions. A card without the heading, or one that cannot be read, is kept under another name.
    """
    if path.exists():
        with suppress(OSError):
            text = content(path, MAX_LOG_BYTES)
            if (start := _heading(text)) < len(text):
                return text[start:]
        names = (path.with_name(f"{path.name}.{k}") for k in count(1))
        path.rename(next(name for name in names if not name.exists()))
    return PEOPLE.encode()


def _heading(text: bytes) -> int:
    """Return where people's text begins in a card; its length if nowhere."""
    heading = re.search(rf"^{USES}\s*$".encode(), text, re.MULTILINE)
    return heading.start() if heading else len(text)


def privacy_spent(scenario: Scenario, client: int, epsilon: float | None) -> str:
    """Describe what a client has spent, and what it protects."""
    privacy = scenario.config.privacy
    if not privacy:
        return "None: what this client sent had no noise."
    if void := scenario.config.void:
        return f"Void: {void}."
    if epsilon is None or not isfinite(epsilon):
        return "No bound: noise was added, but epsilon is not finite."
    scope = f", {adversary}" if (adversary := against(scenario.config)) else ""
    bound = (
        f"epsilon {epsilon:.4g} at delta {privacy.delta:g}, for {privacy.protects} of this "
        f"client{scope}."
    )
    if not unprotected_groups(scenario):
        return bound
    rows, bounds = largest_groups(scenario), epsilons(scenario, groups=True)
    note = groups_note([rows[client]], [bounds[client]])
    return f"{bound} Over all rounds {note}."


def _learnt(method: str, sources: Sources) -> str:
    if not sources.received:
        return "None: no model was sent to any client."
    if sources.weights:
        return f"{method} reports a weight for each client; the {MAX_NAMES} largest are shown."
    return (
        f"{method} reports no weight of a single client. Models of these took part: "
        f"{listed(sources.members)}."
    )


def _largest(weights: Sequence[tuple[str, float]]) -> Rows:
    ordered = sorted(weights, key=lambda pair: -abs(pair[1]))  # ties in the order of clients
    return [(name, f"{value:#.4g}") for name, value in ordered[:MAX_NAMES]]


def outputs(data: Dataset, targets: str) -> str:
    """Describe a network's outputs in words."""
    if data.edges:
        edges = listed([edge_name(edge) for edge in data.edges])
        return f"intervals of time that end at {edges}, in the unit of the data"
    names = listed(data.classes or data.labels) or f"{data.n_outputs} outputs"
    if targets == "classes" and len(data.classes) == 2:
        return f"{names}; the outcome is {bounds.plain(data.classes[1], 40)}: AUPRC is of it"
    return names


def sample_counts(data: Dataset, targets: str, rows: NDArray[np.int64]) -> tuple[str, str]:
    """Return the number of samples, and of those with each class, label or the event; empty for
    other targets.
    """
    match targets:
        case "classes":
            names = data.classes
            counts = np.bincount(data.y[rows], minlength=len(names))
        case "multilabel":
            names = data.labels or tuple(f"label {k}" for k in range(data.n_outputs))
            counts = np.count_nonzero(data.y[rows], axis=0)
        case "survival":
            names, counts = ("events",), data.y[rows][:, 1:].sum(axis=0)
        case _:
            return f"{len(rows):,}", ""
    return f"{len(rows):,}", listed(
        [f"{name} {int(n):,}" for name, n in zip(names, counts, strict=True)]
    )


def figures(metrics: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """Return name with unit, value, 95 % interval, and direction of each scalar metric."""
    intervals = metrics.get("intervals") or {}
    scalar = {
        name: value
        for name, value in metrics.items()
        if name not in {"client", "samples"} and (value is None or isinstance(value, int | float))
    }
    return [_figure(name, value, intervals.get(name)) for name, value in scalar.items()]


def _figure(
    name: str, value: float | None, interval: Sequence[float | None] | None
) -> tuple[str, str, str, str]:
    metric = metric_named(name) if is_own(name) else EVERY_METRIC.get(name)
    if metric is None:
        return name.replace("_", " "), "not defined" if value is None else f"{value:,}", "", ""
    direction = "higher" if metric.higher else "lower"
    if value is None:
        return metric.heading, "not defined", "", direction
    text, *limits = metric.numbers([value, *(end for end in interval or () if end is not None)])
    return metric.heading, text, " to ".join(limits), direction


def listed(names: Sequence[str]) -> str:
    """List the first names, each bounded in length, and the number of further ones."""
    shown = [bounds.plain(name, 40) for name in names[:MAX_NAMES]]  # of any number, for each card
    return errors.listed([*shown, *names[MAX_NAMES:]], MAX_NAMES)
