"""``pomona deploy settings``: the reference of a federation's files, generated from the code."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from pomona.cli.output import Json
from pomona.cli.settings import Part, Setting, find, of_part, show, table, table_by
from pomona.core.settings import Settings
from pomona.storage.atomic_io import writing
from pomona_federation.agreement import Federation, FoundingMember
from pomona_federation.silo.settings import SiloFile
from pomona_federation.silo.studies.consent_rules import ConsentPolicy
from pomona_federation.study import (
    KINDS,
    EvaluateTerms,
    EvaluationStudy,
    SearchStudy,
    SearchTerms,
    StudyTerms,
    SurveyStudy,
    TrainingStudy,
)
from pomona_federation.survey.settings import Noise, SurveySettings
from pomona_federation.task_settings import TaskSettings

BY_KIND = "STUDY.toml of kind "
FILES: Mapping[str, type[Settings]] = {
    "federation.toml": Federation,
    "federation.toml, each [[silo]]": FoundingMember,
    "STUDY.toml": StudyTerms,
    f"{BY_KIND}train": TrainingStudy,
    f"{BY_KIND}evaluate": EvaluationStudy,
    f"{BY_KIND}search": SearchStudy,
    f"{BY_KIND}survey": SurveyStudy,
    "[task]": TaskSettings,
    "[evaluate] of STUDY.toml": EvaluateTerms,
    "[search] of STUDY.toml": SearchTerms,
    "[survey] of STUDY.toml": SurveySettings,
    "[survey.noise] of STUDY.toml": Noise,
    "silo.toml": SiloFile,
    "policy.toml": ConsentPolicy,
}


def settings(
    key: str | None = None,
    *,
    to: Annotated[Path | None, Parameter(name="--out", help="write the whole reference as Markdown")] = None,
    json: Json = False,
) -> None:
    """Explain the settings of a federation's files.

    Parameters
    ----------
    key
        a key or a file; all settings if not given
    """
    if to:
        with writing(to):
            to.write_text(page(), encoding="utf-8")
        print(to)
        return
    show(find(key, in_files()) if key else in_files(), json)


def in_files() -> list[Setting]:
    """Every setting of a federation's files, by file."""
    return [replace(setting, owner=title) for title, record in FILES.items() for setting in _own(record)]


def _own(record: type[Settings]) -> list[Setting]:
    """The keys that a record adds: those of every kind of study are listed once, a federation's own study's too."""
    known = {"study"} | (set(StudyTerms.model_fields) if record in KINDS.values() else set())
    return [setting for setting in of_part(Part("", record)) if setting.key not in known]


def page() -> str:
    """The reference as Markdown."""
    parts = [
        "# Settings files of a federation",
        "Made by `pomona deploy settings --out docs/federation-files.md`; `pomona deploy settings KEY` explains one "
        "key. `[run]` of `federation.toml` and `STUDY.toml` takes the [settings of a run](settings.md), except what "
        "silos set themselves; `[data]` and `[views.NAME]` of `silo.toml` take those of section `data`.",
        "A `federation.toml` may also have the keys of a study of kind `train`, except `decide`: that study comes with "
        "the kits.",
    ]
    kinds = {title.removeprefix(BY_KIND): _own(record) for title, record in FILES.items() if title.startswith(BY_KIND)}
    for title, record in FILES.items():
        if title == f"{BY_KIND}train":
            parts.append(table_by("kind", "STUDY.toml, by kind of study", kinds))
        elif title.removeprefix(BY_KIND) not in kinds:
            parts.append(table(title, _own(record)))
    return "\n\n".join(parts) + "\n"
