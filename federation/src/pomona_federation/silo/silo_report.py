"""A silo's own report, ``pomona silo report``: its scores, those of local training, and its
peers.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pomona.config import Config
from pomona.core.bounds import Count, Measured, Number
from pomona.core.errors import DataError, StorageError
from pomona.core.files import publish, writing
from pomona.core.registry import importable
from pomona.core.settings import Settings
from pomona.core.table import markdown, of_records
from pomona.federation.callbacks import Callback
from pomona.methods.personal_regularisation.separate import Separate
from pomona.metrics.metric import LOSS, Metric, metric_named
from pomona.personal.model_card import privacy_spent
from pomona.record.presentation import Presentation
from pomona.simulation import simulate
from pomona_federation.agreement import StudyAgreement
from pomona_federation.json_store import read_json, read_sealed, write_json
from pomona_federation.silo import history
from pomona_federation.silo.history import HistoryEntry
from pomona_federation.silo.privacy_budget import overview
from pomona_federation.silo.silo_in_study import PINNED, PinnedAgreement, Silo, same_rows
from pomona_federation.silo.silo_scenario import own_scenario

LOCAL_SCORES = "alone.json"
WITHOUT_NOISE = ", without noise,"
NO_GAIN = (
    "no gain is stated: both figures come from one silo's test rows, and their difference has no "
    "interval here"
)
OTHER_ROWS = "not computed, since the data, and so the test rows, are no longer those of the study"


class Evaluation(Settings):
    """The last evaluation of a model."""

    round: Number
    samples: Count
    loss: Measured | None
    accuracy: Measured | None
    value: Measured | None


class LocalScores(Settings):
    """Scores of local training; ``key`` names agreement, metric, rounds and rows."""

    key: str
    alone: Evaluation


@dataclass(frozen=True)
class Report:
    """A silo's figures.

    Attributes:
        own: the last evaluation of the method's headline model, on the silo's own test data.
        metric: the headline metric.
        alone: the same for a model trained for as many rounds on the silo's own data only. It stays
            here, so it is trained without privacy noise even if the federation adds some. None if
            the data are no longer those of the study, whose test rows are others then.
        peers: one table a quantity: (its meaning, rows of peer and number, largest first).
        numbers: other quantities of the last visit: (meaning, values).
        privacy: epsilon by the silo's account, and for what; empty without ``[run.privacy]``.
    """

    silo: str
    federation: str
    method: str
    metric: str
    own: dict[str, Any]
    alone: dict[str, Any] | None
    peers: list[tuple[str, list[dict[str, Any]]]]
    numbers: list[tuple[str, list[float]]]
    privacy: str = ""

    def markdown(self) -> str:
        """The report as a page."""
        headline, metric = self.own, metric_named(self.metric)
        model = f"{headline['model']}, {headline['when']}, by {self.method}"
        lines = [
            f"# {self.silo} in federation {self.federation}",
            "",
            "Computed in this silo from its own records. Nothing of it was sent.",
            "",
            f"- model: {model}, round {headline['round']}",
            f"- own test data: {headline['samples']} samples",
            f"- {_scores(metric, headline)}",
            *self._local_training(metric),
            *([f"- privacy of what was sent: {self.privacy}"] if self.privacy else []),
        ]
        for meaning, rows in self.peers:
            lines += ["", markdown(of_records(rows, meaning)).rstrip()]
        for meaning, values in self.numbers:
            lines += ["", f"## {meaning}", "", ", ".join(f"{v:.4g}" for v in values)]
        return "\n".join(lines) + "\n"

    def _local_training(self, metric: Metric) -> list[str]:
        """Lines on training alone."""
        if self.alone is None:
            return [f"- training alone: {OTHER_ROWS}"]
        noise = WITHOUT_NOISE if self.privacy else ","
        scores = _scores(metric, self.alone)
        return [f"- training alone{noise} {self.alone['round']} rounds: {scores}", f"- {NO_GAIN}"]


def report(
    folder: Path,
    watch: Callable[[Config], Callback | None] = lambda _: None,
    study: str | None = None,
) -> tuple[Report, Path]:
    """Make the report of a silo's kit, and write it to ``report.md`` in the study's folder of
    ``state``.

    Args:
        folder: the kit.
        watch: makes a progress line for local training, if that has not been computed yet.
        study: name or first digits of the hash of one that was offered; None for the one that the
            kit came with.

    Returns:
        The report, and its file.

    Raises:
        ConfigError: there is no such study.
        DataError: the silo's own model has not been evaluated yet.
        StorageError: the folder cannot be written.
    """
    importable(folder)
    silo = Silo.in_study(folder, study)
    terms, settings, state = silo.terms, silo.file, silo.state
    visits, _ = history.read(state)
    method = terms.config.method.method()
    headline = last_evaluation(history.confirmed(visits), method.card.headline)
    # the closing visit comes after the last round
    headline["round"] = min(headline["round"], terms.config.rounds)
    local = _local_scores(silo, headline["round"], watch)
    names = peers(terms, visits[-1].names)
    tables, numbers = helpers(
        history.last_info(visits), names, settings.name, method.card.presentation
    )
    names_of_run = (terms.federation.name, terms.config.method.name, str(terms.config.metric))
    result = Report(settings.name, *names_of_run, headline, local, tables, numbers, _privacy(silo))
    page = state / "report.md"
    with writing(page):
        publish(page, [result.markdown().encode()], ".report")
    return result, page


def _privacy(silo: Silo) -> str:
    """What the study has spent here, in the words of the model's card."""
    if not silo.terms.config.privacy:
        return ""
    rows = overview(silo.folder)
    epsilons = [row["spent"] for row in rows if silo.terms.agreement.startswith(row["hash"])]
    bounded = bool(epsilons) and None not in epsilons
    return privacy_spent(silo.local, 0, max(epsilons) if bounded else None)


def last_evaluation(visits: Sequence[HistoryEntry], headline: tuple[str, str]) -> dict[str, Any]:
    """The last evaluation on the silo's own test data of the method's headline model, else of
    any.
    """
    scores = [
        {"round": visit.round, **asdict(score)}
        for visit in visits
        for score in visit.scores
        if score.split == "test"
    ]
    evaluations = [s for s in scores if (s["model"], s["when"]) == headline] or scores
    evaluations = [s for s in evaluations if s["samples"]]
    if not evaluations:
        raise DataError(
            "no model has been evaluated on own test data yet; keep test rows, and wait for round 1"
        )
    return evaluations[-1]


def peers(terms: StudyAgreement, newcomers: Mapping[str, str]) -> list[str]:
    """The name of each place: founders from the kit, newcomers from the last task; a free place by
    its number.
    """
    founders = dict(enumerate(silo.name for silo in terms.federation.silo))
    places = range(terms.federation.places)
    return [founders.get(k) or newcomers.get(str(k)) or f"place {k}" for k in places]


def helpers(
    info: Mapping[str, list[float]], names: Sequence[str], silo: str, presentation: Presentation
) -> tuple[list[tuple[str, list[dict[str, Any]]]], list[tuple[str, list[float]]]]:
    """The tables and numbers of a visit's info; a value for each place describes the silo there."""
    tables: list[tuple[str, list[dict[str, Any]]]] = []
    numbers: list[tuple[str, list[float]]] = []
    for name, values in info.items():
        quantity = presentation.quantity(name, len(values), len(names))
        if quantity.kind == "matrix" and len(values) == len(names):
            rows = [
                {"silo": f"{peer} (this silo)" if peer == silo else peer, "value": v}
                for peer, v in zip(names, values, strict=True)
                if v or not peer.startswith("place ")
            ]
            tables.append((quantity.title, sorted(rows, key=lambda row: -row["value"])))
        else:
            numbers.append((quantity.title, values))
    return tables, numbers


def _local_scores(
    silo: Silo, rounds: int, watch: Callable[[Config], Callback | None]
) -> dict[str, Any] | None:
    """Scores of local training for as many rounds, computed once; None on other data."""
    terms = silo.terms
    pinned = read_sealed(PinnedAgreement, silo.state / PINNED)
    key = f"{terms.agreement}-{terms.config.metric}-{rounds}-{pinned and pinned.rows}"
    path = silo.state / "node" / LOCAL_SCORES
    with suppress(StorageError):  # recomputed
        cached = read_json(LocalScores, path)
        if cached and cached.key == key:
            return cached.alone.model_dump()
    scenario = own_scenario(silo.file, terms, silo.member, Separate())
    if not same_rows(silo.state, scenario):
        return None
    config = scenario.config.model_copy(update={"rounds": max(1, rounds)})
    result = simulate(replace(scenario, config=config), None, watch(config))
    last = result.curve("personal", "trained")[-1]
    first = (values[0] for values in (last.samples, last.loss, last.accuracy, last.value))
    local = Evaluation(**dict(zip(Evaluation.model_fields, (last.round, *first), strict=True)))
    with writing(path):
        write_json(path, LocalScores(key=key, alone=local))
    return local.model_dump()


def _scores(metric: Metric, scores: Mapping[str, Any]) -> str:
    """The metric and the loss of an evaluation."""
    texts = {metric.title: (metric.text, "value"), "loss": (LOSS.number, "loss")}
    return ", ".join(
        f"{title} {'not defined' if scores[key] is None else text(scores[key])}"
        for title, (text, key) in texts.items()
    )
