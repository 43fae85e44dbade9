"""A silo's side of a survey: two pure functions from data and a question to a reply, and a record
of disclosures.
"""

import secrets
from collections.abc import Mapping, Sequence, Set
from typing import Any

import numpy as np

from pomona.core.errors import DataError, ProtocolError
from pomona.data.settings import DataSettings
from pomona_federation.survey.protection import (
    NoisyData,
    agreed_columns,
    safe_classes,
    safe_names,
    safe_numbers,
    safe_share,
)
from pomona_federation.survey.raw_data import RawData, read_raw
from pomona_federation.survey.settings import (
    LONGEST_WORD,
    ColumnSpec,
    ColumnsReply,
    FiguresQuestion,
    FiguresReply,
    Names,
    Numbers,
    SurveySettings,
)

REPEATED = "it was reported differently in an earlier survey, and would be reported twice"
CHANGED = (
    "the data have other rows than in an earlier survey, and what is new in them could be "
    "derived by a difference"
)


def columns(survey: SurveySettings, data: DataSettings, member: int) -> ColumnsReply:
    """The silo's columns, without any of their values; ``member``: its position among all silos.

    Raises DataError for fewer rows than the least count, or ConfigError and DataError as a reader
    does.
    """
    return offered(raw_data(survey, data, member).description(), survey)


def raw_data(
    survey: SurveySettings, data: DataSettings, member: int, specs: Sequence[ColumnSpec] = ()
) -> RawData:
    """The silo's data as a survey reads them. Raises as ``columns``."""
    return _require_rows(read_raw(data, survey.seed, member, specs), survey)


def offered(description: ColumnsReply, survey: SurveySettings) -> ColumnsReply:
    """The columns that the survey's noise allows; all of them without noise."""
    return agreed_columns(description, survey.noise) if survey.noise else description


def figures(
    survey: SurveySettings,
    question: FiguresQuestion,
    data: DataSettings,
    member: int,
    disclosed: FiguresReply | None = None,
    generator: np.random.Generator | None = None,
) -> tuple[FiguresReply, FiguresReply]:
    """The requested columns, in their safe form.

    A disclosed column is repeated unchanged, whatever the data are now; a larger least count
    coarsens it.

    Args:
        survey: the agreed settings.
        question: from the server; nothing in it is trusted.
        data: the silo's own section data.
        member: its position among all silos, by which its training rows are drawn.
        disclosed: everything that the silo disclosed in earlier surveys.
        generator: of the noise, if the survey has some: from a secret, and used once. A new one by
            default.

    Returns:
        The reply, and everything that the silo has disclosed now, to be stored before the reply is
        sent.

    Raises:
        ProtocolError: the question names columns that were not offered, or in another form.
        DataError, ConfigError: as ``columns``.
    """
    description = raw_data(survey, data, member).description()
    names = {spec.name for spec in offered(description, survey).columns}
    requested = _requested(survey, question, names)
    specs = [_as_offered(spec, requested.get(spec.name, spec)) for spec in description.columns]
    raw = raw_data(survey, data, member, specs)
    source = NoisyData(raw, survey.noise, generator or secret_generator()) if survey.noise else raw
    fresh = None if disclosed and disclosed.rows != len(raw.rows) else source
    previous = disclosed or FiguresReply(rows=len(raw.rows))
    reply = FiguresReply(
        rows=previous.rows,
        **_columns(survey, question, previous, fresh),
        **_targets(survey, previous, fresh),
    )
    return reply, _merged(previous, reply)


def _requested(
    survey: SurveySettings, question: FiguresQuestion, offered: Set[str]
) -> Mapping[str, ColumnSpec]:
    """The columns that the server asks about.

    Raises ProtocolError for others than were offered, or in another form.
    """
    requested = {spec.name: spec for spec in question.columns}
    if (
        len(requested) < len(question.columns)
        or {*requested} - offered
        or (survey.columns and {*requested} - {*survey.columns})
    ):
        raise ProtocolError(
            "the server asks about columns that this silo does not have or was not to be asked "
            "about"
        )
    if survey.noise and any(
        (spec.kind == "category") != (name in survey.noise.categories)
        for name, spec in requested.items()
    ):
        raise ProtocolError(
            "the server asks about columns as a kind that differs from their agreed cells"
        )
    return requested


def secret_generator() -> np.random.Generator:
    """An unpredictable noise generator that cannot be reproduced."""
    return np.random.Generator(np.random.Philox(secrets.randbits(128)))


def _require_rows(raw: RawData, survey: SurveySettings) -> RawData:
    if len(raw.rows) < survey.least:
        raise DataError(
            f"fewer training rows than the survey's least count of {survey.least}, so nothing can "
            "be reported; decline it"
        )
    return raw


def _as_offered(offered: ColumnSpec, requested: ColumnSpec) -> ColumnSpec:
    """How a requested column is read: as this silo reads it itself, or as categories, which any
    cell can be.

    A column that cannot be read fails the answer. If a server could have names read as numbers,
    with gap markers of its choice, each failure would reveal that some cell, perhaps of one row, is
    none of these. Raises ProtocolError.
    """
    if requested.kind not in {offered.kind, "category"}:
        raise ProtocolError(
            f"the server asks about column {offered.name} as {requested.kind}, but it was offered "
            f"as {offered.kind}"
        )
    return requested.model_copy(
        update={"missing": tuple(dict.fromkeys((*offered.missing, *requested.missing)))}
    )


def _columns(
    survey: SurveySettings,
    question: FiguresQuestion,
    previous: FiguresReply,
    fresh: RawData | NoisyData | None,
) -> Mapping[str, Any]:
    """The requested columns: as disclosed before, else from the data; and those that a difference
    would disclose.
    """
    numbers: dict[str, Numbers] = {}
    names: dict[str, Names] = {}
    withheld: dict[str, str] = {}
    for spec in question.columns:
        name, categories = spec.name, spec.kind == "category"
        if name in (previous.numbers if categories else previous.names):
            withheld[name] = REPEATED
        elif name in (previous.names if categories else previous.numbers):
            if categories:
                names[name] = coarser_names(previous.names[name], survey)
            else:
                numbers[name] = coarser_numbers(previous.numbers[name], survey)
        elif fresh is None:
            withheld[name] = CHANGED
        elif categories:
            names[name] = safe_names(*fresh.categories(name), survey.least)
        else:
            numbers[name] = safe_numbers(fresh.numbers(name), survey.least, survey.cells)
    return {"numbers": numbers, "names": names, "withheld": withheld}


def coarser_names(column: Names, survey: SurveySettings) -> Names:
    """A disclosed column under a survey's own least count, if that is larger."""
    return safe_names(column.by_name, column.rest, survey.least)


def coarser_numbers(column: Numbers, survey: SurveySettings) -> Numbers:
    """A disclosed column under a survey's own least count and number of groups, if these are
    coarser.
    """
    x = np.repeat([*column.values, np.nan], [*column.counts, column.rest])
    return safe_numbers(x, survey.least, survey.cells)


def _targets(
    survey: SurveySettings, previous: FiguresReply, fresh: RawData | NoisyData | None
) -> Mapping[str, Any]:
    """Labels, other targets and words: as disclosed before, else from the data."""
    if previous.classes or previous.targets:
        counts = {
            token: safe_share(n, previous.rows, survey.least) for token, n in previous.words.items()
        }
        return {
            "classes": safe_classes(previous.classes.by_name, survey.least)
            if previous.classes
            else None,
            "targets": {
                name: coarser_numbers(column, survey) for name, column in previous.targets.items()
            },
            "words": _most_frequent(counts, survey.words),
        }
    assert fresh, "whoever reported anything has reported labels too"
    counts = {
        token: safe_share(n, previous.rows, survey.least)
        for token, n in fresh.word_counts().items()
        if len(token) <= LONGEST_WORD
    }
    replies = {"words": _most_frequent(counts, survey.words)}
    if fresh.dataset.targets == "classes":
        return {**replies, "classes": safe_classes(fresh.classes(), survey.least)}
    targets = {
        name: safe_numbers(x, survey.least, survey.cells) for name, x in fresh.targets().items()
    }
    return {**replies, "targets": targets}


def _most_frequent(counts: Mapping[str, int], limit: int) -> dict[str, int]:
    """The most frequent words that may be disclosed."""
    nonzero = [(token, n) for token, n in counts.items() if n]
    return dict(sorted(nonzero, key=lambda item: (-item[1], item[0]))[:limit])


def _merged(previous: FiguresReply, reply: FiguresReply) -> FiguresReply:
    """Everything disclosed, each column as it was disclosed first."""
    return FiguresReply(
        rows=previous.rows,
        numbers={**reply.numbers, **previous.numbers},
        names={**reply.names, **previous.names},
        classes=previous.classes or reply.classes,
        targets={**reply.targets, **previous.targets},
        words={**reply.words, **previous.words},
    )
