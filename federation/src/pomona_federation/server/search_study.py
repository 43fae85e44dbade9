"""A search: its trials run as separate studies, one after another, and validation scores select the
best.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import Field

from pomona.core.errors import DivergedError, QuorumError, listed
from pomona.core.settings import Settings
from pomona.core.table import Table, of_records
from pomona.experiments.grid import RULE, choose
from pomona.experiments.job import best_on_validation
from pomona.lifecycle import recorded_status
from pomona.metrics.best_round import outvoted
from pomona.metrics.metric import LOSS, metric_named
from pomona.record.result import Result
from pomona.record.run_folder import load
from pomona.storage.run_status import Status, read_status, write_status
from pomona_federation.agreement import StudyAgreement
from pomona_federation.server.study_result import ResultFiles
from pomona_federation.study import RESULTS, TRIALS, SearchStudy, TrainingStudy

WINNER = "STUDY.toml"
Rounds = Callable[[StudyAgreement, Path], Result]


class Trial(Settings):
    """One setting that was tried.

    Attributes:
        agreement: its hash.
        point: the values of the searched keys.
        score: the mean over silos on validation data in the best validation round, higher is
            better; None without any.
        metric: of the score; the loss where the search's metric is undefined.
        best_round: that round.
        silos: each silo's score in it, as reported.
        fault: why there is no score; empty if it ran to its end.
    """

    number: int
    agreement: str
    point: dict[str, Any]
    score: float | None = None
    metric: str = ""
    best_round: int | None = None
    silos: dict[str, float | None] = Field({})
    fault: str = ""


class SearchResult(Settings):
    """All trials; ``winner`` is the number of the best one, None if none has a score.

    ``metric``: of scores. ``notes``: a line for each silo whose scores alone decide, for people.
    """

    metric: str
    rule: str
    trials: tuple[Trial, ...]
    winner: int | None
    notes: tuple[str, ...] = ()


def search(terms: StudyAgreement, name: str, folder: Path, rounds: Rounds) -> SearchResult:
    """Run all unfinished trials, then select; ``search.json`` and its page are written after each.

    Args:
        terms: the terms of the search.
        name: the study's.
        folder: its folder, with ``trials/NUMBER`` for each trial.
        rounds: runs all rounds of one agreement in a folder.

    Raises:
        QuorumError: too few silos, as for any study; or no trial has a score.
        StorageError: the folder cannot be written.
    """
    write_status(folder, Status(state="running", round=0))
    assert isinstance(terms.study, SearchStudy)
    trials, finished, metric = terms.trials, [], str(terms.config.metric)
    for number, (trial, point) in enumerate(zip(trials, terms.study.search.trials, strict=True)):
        finished.append(_run_trial(trial, number, point, folder / TRIALS / f"{number:03d}", rounds))
        winner = choose([t.score for t in finished])
        notes = () if winner is None else tuple(_single_silo_notes(finished, winner))
        result = SearchResult(
            metric=metric, rule=RULE, trials=tuple(finished), winner=winner, notes=notes
        )
        extra_files = (
            {} if result.winner is None else {WINNER: winning_study(trials[result.winner], name)}
        )
        _files(result, name, len(trials)).write(folder, RESULTS["search"], result, extra_files)
    if result.winner is None:
        raise QuorumError(
            "no trial has a score on validation samples; see search.md for why, and give silos "
            "validation data"
        )
    return result


def _run_trial(
    terms: StudyAgreement, number: int, point: Mapping[str, Any], folder: Path, rounds: Rounds
) -> Trial:
    """Run one trial to its end, unless it has finished; one that diverges has no score."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    fields = {"number": number, "agreement": terms.agreement, "point": dict(point)}
    status = read_status(folder)
    if status and (status.state, status.code) == ("failed", DivergedError.code):
        return Trial(**fields, fault=status.reason)
    if status and status.state == "finished":
        result = load(folder)
    else:
        try:
            with recorded_status(folder):
                result = rounds(terms, folder)
        except DivergedError as fault:
            return Trial(**fields, fault=str(fault))
    return _scored_trial(result, terms, fields)


def _scored_trial(result: Result, terms: StudyAgreement, fields: Mapping[str, Any]) -> Trial:
    """A finished trial with its scores on validation samples; without them, with a fault."""
    model, stage = terms.config.method.method().card.headline
    best = best_on_validation(result, model, stage)
    if best is None:
        return Trial(**fields, fault="no silo has a score on validation samples")
    curve = result.curve(model, stage, "validation")
    scored = next(e.point for e in curve if e.round == best.round)
    metric, values = (
        (LOSS, scored.losses) if scored.value is None else (result.metric, scored.values)
    )
    names = result.about["clients"]
    scores = {names[i]: None if v is None else metric.goodness(v) for i, v in values.items()}
    fields = {**fields, "metric": metric.name, "best_round": best.round}
    return Trial(**fields, score=best.value, silos=scores)


def _single_silo_notes(trials: Sequence[Trial], winner: int) -> Iterator[str]:
    """A line for each silo without whose scores, which it reports itself, another trial would be
    the best; the mean decides all the same, as settings that ruin one silo are bad ones.
    """
    best, against = trials[winner], defaultdict[str, list[str]](list)
    for trial in trials:
        if trial.score is not None and trial.number != winner:
            clients = list(best.silos)
            trial_scores, best_scores = (
                {i: t.silos.get(name) for i, name in enumerate(clients)} for t in (trial, best)
            )
            for client, vote in outvoted(trial_scores, best_scores, 0.0, reported=True).items():
                gain = "missing" if vote.gain is None else f"{vote.gain:+.3g}"
                against[clients[client]].append(
                    f"{trial.number} (its gain {gain}, the other silos' {vote.low:+.3g} to "
                    f"{vote.high:+.3g})"
                )
    for silo, outvoted_trials in against.items():
        yield (
            f"{silo}'s scores alone make trial {winner} better than {listed(outvoted_trials)}; a "
            "silo reports its own scores: check them before training with these settings"
        )


def winning_study(terms: StudyAgreement, name: str) -> str:
    """The text of a ``STUDY.toml`` for a final training with these settings and all scores."""
    search = terms.run_study
    shared = {
        key: getattr(search, key)
        for key in TrainingStudy.model_fields
        if key in type(search).model_fields
    }
    study = TrainingStudy(
        **{**shared, "kind": "train", "name": f"{name[:35]}-best", "quorum": terms.quorum}
    )
    tree = study.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    return tomli_w.dumps(tree)


def _files(result: SearchResult, name: str, total: int) -> ResultFiles:
    metric = metric_named(result.metric)
    records = [
        {"trial": t.number, **t.point, "score": t.score, "round": t.best_round, "why not": t.fault}
        for t in result.trials
    ]
    scores = [t.score and metric_named(t.metric).scaled(t.score) for t in result.trials]
    columns = of_records([r | {"score": s} for r, s in zip(records, scores, strict=True)])
    notes = [
        f"The score is {metric.heading} on the silos' validation samples. Chosen is {result.rule}."
    ]
    row = -1 if result.winner is None else result.winner
    marked = frozenset((row, column) for column in range(len(columns.header)))
    table = Table("trials", "Trials", notes, columns.header, columns.rows, columns.words, marked)
    opening = [f"{len(result.trials)} of {total} trials. No silo reported test samples."]
    if result.winner is not None:
        opening.append(f"Trial {result.winner} is the best; {WINNER} trains with its settings.")
    opening += result.notes
    return ResultFiles(f"Search {name}", opening, [table], records)
