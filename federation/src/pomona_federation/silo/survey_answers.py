"""A silo's part in a survey: each step is answered once, and a repeated question gets the same
answer.

``state/disclosed/`` holds, for each data set, everything ever disclosed about it in any survey: a
column is disclosed again as it was the first time, so that two surveys reveal no more than one. The
answers of one survey are in its own folder.
"""

import hashlib
from pathlib import Path
from typing import Annotated

from pydantic import Field

from pomona.core.bounds import Sha256
from pomona.core.errors import ProtocolError
from pomona.core.settings import Settings
from pomona.data.settings import DataSettings
from pomona.storage.lock import locked
from pomona_federation.json_store import read_sealed, write_sealed
from pomona_federation.messages.message_bodies import Body, Hello, HelloReply, SumRequest, Task
from pomona_federation.messages.study_bodies import SurveyAnswer, SurveyQuestion
from pomona_federation.silo.privacy_budget import PrivacyBudget
from pomona_federation.silo.settings import (
    MOST_SOURCES,
    DataSource,
    hashed,
    shared,
    sources,
    with_names,
)
from pomona_federation.silo.silo_in_study import Silo, audited
from pomona_federation.silo.state_origin import DISCLOSED
from pomona_federation.silo.study_decisions import ANSWERS
from pomona_federation.silo.task_policy import TaskPolicy
from pomona_federation.survey import silo as answers
from pomona_federation.survey.settings import FiguresReply, SurveySettings

ALREADY_ANSWERED = (
    "this silo was asked a different question at this step, and answers each step only once"
)


class DisclosedData(Settings):
    """Everything disclosed about one data set, its sources, and the hash of the meaning of its
    labels and texts.
    """

    data: Annotated[tuple[DataSource, ...], Field(max_length=MOST_SOURCES)]
    labels: Sha256 | None = None
    figures: FiguresReply | None = None


class GivenAnswers(Settings):
    """The answers of one survey, by the question's hash: one for each of two steps.

    ``asked`` is the second step's question, recorded before it is answered: that it cannot be
    answered is an answer, too.
    """

    given: dict[Sha256, SurveyAnswer] = Field({}, max_length=2)
    asked: Sha256 | None = None


def surveyed(silo: Silo, body: Hello | Task | SurveyQuestion | SumRequest) -> Body:
    """A silo's answer in a survey that it has accepted.

    Raises:
        ProtocolError: the study is not a survey, the message not a question, or a step is asked in
            two ways.
        PomonaError: as ``pomona_federation.survey.silo``.
    """
    survey = silo.terms.survey
    if survey is None or isinstance(body, Task | SumRequest):
        raise ProtocolError(
            "the server's request is not of the kind of study that this silo agreed to"
        )
    policy = TaskPolicy(silo)
    policy.require_agreed(body.agreement, body.run)
    if isinstance(body, Hello):
        policy.note_place(body)
    silo.require_affordable(body.run)
    if isinstance(body, Hello):
        rows = answers.columns(survey, silo.file.data, silo.member).rows
        return HelloReply(
            agreement=body.agreement,
            run=body.run,
            nonce=body.nonce,
            silo=silo.file.name,
            samples=rows,
        )
    silo.consent.require_members(body.members)
    with locked(silo.folder / "state" / DISCLOSED):
        return _answered(silo, survey, body)


def disclosed_before(silo: Silo) -> tuple[DisclosedData, Path]:
    """Everything disclosed about the silo's data, under any name, and its file.

    Raises ProtocolError if surveys have disclosed several data sets that share samples with this
    one, or other labels: disclosed labels have no name, and would be repeated in place of those
    that are asked for now.
    """
    folder, current = silo.folder / "state" / DISCLOSED, hashed(sources(silo.file.data))
    files = {path: read_sealed(DisclosedData, path) for path in sorted(folder.glob("*.json"))}
    overlapping = [
        (record, path) for path, record in files.items() if record and shared(record.data, current)
    ]
    if len(overlapping) > 1:
        raise ProtocolError(
            "surveys have reported parts of these data by themselves; survey each part by itself"
        )
    labels = _labels(silo.file.data)
    if any(record.figures and record.labels not in {None, labels} for record, _ in overlapping):
        raise ProtocolError(
            "a survey has reported these data with other labels, and a silo reports those of one "
            "view"
        )
    locations = "\n".join(source.place for source in current)
    new = folder / f"{hashlib.sha256(locations.encode()).hexdigest()[:16]}.json"
    record, path = overlapping[0] if overlapping else (DisclosedData(data=current), new)
    return record.model_copy(
        update={"labels": labels, "data": with_names(record.data, current)}
    ), path


def _labels(data: DataSettings) -> str:
    """Hash of the settings that define labels and texts."""
    settings = data.model_dump_json(
        include={"targets", "label_column", "label_columns", "label_above", "text_columns"}
    )
    return hashlib.sha256(settings.encode()).hexdigest()


def _answered(silo: Silo, survey: SurveySettings, question: SurveyQuestion) -> SurveyAnswer:
    """Answer a step; raises ProtocolError for a different question than that step's first."""
    path = silo.state / ANSWERS
    previous = read_sealed(GivenAnswers, path) or GivenAnswers()
    if answer := previous.given.get(question.digest):
        return answer
    if any(
        (answer.columns is None) == (question.figures is not None)
        for answer in previous.given.values()
    ):
        raise ProtocolError(ALREADY_ANSWERED)
    if question.figures and previous.asked not in {None, question.digest}:
        raise ProtocolError(ALREADY_ANSWERED)
    fields = {"agreement": question.agreement, "run": question.run, "silo": silo.file.name}
    if question.figures is None:
        columns = answers.columns(survey, silo.file.data, silo.member)
        answer = SurveyAnswer(**fields, question=question.digest, columns=columns)
    else:
        silo.reserve(question.run)
        previous = previous.model_copy(update={"asked": question.digest})
        write_sealed(path, previous)
        record, disclosed = disclosed_before(silo)
        reply, every = answers.figures(
            survey, question.figures, silo.file.data, silo.member, record.figures
        )
        write_sealed(disclosed, record.model_copy(update={"figures": every}))
        answer = SurveyAnswer(**fields, question=question.digest, figures=reply)
        if survey.noise:
            PrivacyBudget(silo.folder).note_spent(
                question.agreement, question.run, survey.noise.epsilon
            )
    write_sealed(
        path, previous.model_copy(update={"given": {**previous.given, question.digest: answer}})
    )
    audited(
        silo,
        "answered",
        step="columns" if question.figures is None else "figures",
        question=question.digest,
    )
    return answer
