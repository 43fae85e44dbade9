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
from pomona_federation.json_store import read_json, write_json
from pomona_federation.messages.message_bodies import (
    Body,
    Hello,
    HelloReply,
    SumRequest,
    SurveyAnswer,
    SurveyQuestion,
    Task,
)
from pomona_federation.silo.data_sources import (
    MOST_SOURCES,
    DataSource,
    hashed,
    shared,
    sources,
    with_names,
)
from pomona_federation.silo.known_studies import ANSWERS
from pomona_federation.silo.privacy_budget import PrivacyBudget
from pomona_federation.silo.silo_in_study import Silo, audited
from pomona_federation.silo.task_policy import TaskPolicy
from pomona_federation.survey import silo as answers
from pomona_federation.survey.replies import FiguresReply
from pomona_federation.survey.settings import SurveySettings

DISCLOSED = "disclosed"
AGAIN = "this silo was asked another question of this step, and answers each step once"


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
    survey = silo.agreed.survey
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
    silo.terms.require_members(body.members)
    with locked(silo.folder / "state" / DISCLOSED):
        return _answered(silo, survey, body)


def disclosed_before(silo: Silo) -> tuple[DisclosedData, Path]:
    """Everything disclosed about the silo's data, under any name, and its file.

    Raises ProtocolError if surveys have disclosed several data sets that share samples with this
    one, or other labels: disclosed labels have no name, and would be repeated in place of those
    that are asked for now.
    """
    folder, own = silo.folder / "state" / DISCLOSED, hashed(sources(silo.file.data))
    files = {path: read_json(DisclosedData, path) for path in sorted(folder.glob("*.json"))}
    found = [(known, path) for path, known in files.items() if known and shared(known.data, own)]
    if len(found) > 1:
        raise ProtocolError(
            "surveys have reported parts of these data by themselves; survey each part by itself"
        )
    labels = _labels(silo.file.data)
    if any(known.figures and known.labels not in {None, labels} for known, _ in found):
        raise ProtocolError(
            "a survey has reported these data with other labels, and a silo reports those of one "
            "view"
        )
    places = "\n".join(source.place for source in own)
    new = folder / f"{hashlib.sha256(places.encode()).hexdigest()[:16]}.json"
    before, path = found[0] if found else (DisclosedData(data=own), new)
    return before.model_copy(update={"labels": labels, "data": with_names(before.data, own)}), path


def _labels(data: DataSettings) -> str:
    """Hash of the settings that define labels and texts."""
    said = data.model_dump_json(
        include={"targets", "label_column", "label_columns", "label_above", "text_columns"}
    )
    return hashlib.sha256(said.encode()).hexdigest()


def _answered(silo: Silo, survey: SurveySettings, asked: SurveyQuestion) -> SurveyAnswer:
    """Answer a step; raises ProtocolError for a different question than that step's first."""
    path = silo.state / ANSWERS
    known = read_json(GivenAnswers, path) or GivenAnswers()
    if again := known.given.get(asked.digest):
        return again
    if any(
        (answer.columns is None) == (asked.figures is not None) for answer in known.given.values()
    ):
        raise ProtocolError(AGAIN)
    if asked.figures and known.asked not in {None, asked.digest}:
        raise ProtocolError(AGAIN)
    about = {
        "agreement": asked.agreement,
        "run": asked.run,
        "silo": silo.file.name,
        "question": asked.digest,
    }
    if asked.figures is None:
        answer = SurveyAnswer(**about, columns=answers.columns(survey, silo.file.data, silo.member))
    else:
        silo.reserve(asked.run)
        known = known.model_copy(update={"asked": asked.digest})
        write_json(path, known)
        before, disclosed = disclosed_before(silo)
        reply, every = answers.figures(
            survey, asked.figures, silo.file.data, silo.member, before.figures
        )
        write_json(disclosed, before.model_copy(update={"figures": every}))
        answer = SurveyAnswer(**about, figures=reply)
        if survey.noise:
            PrivacyBudget(silo.folder).note_spent(asked.agreement, asked.run, survey.noise.epsilon)
    write_json(path, known.model_copy(update={"given": {**known.given, asked.digest: answer}}))
    audited(
        silo,
        "answered",
        step="columns" if asked.figures is None else "figures",
        question=asked.digest,
    )
    return answer
