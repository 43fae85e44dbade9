"""``pomona deploy settings``: the reference of a federation's files."""

from collections.abc import Mapping
from dataclasses import replace

from pomona.cli.output import Json
from pomona.cli.settings import Setting, SettingsTable, find, show, table_settings
from pomona.core.settings import Settings
from pomona_federation.agreement import Federation, FoundingMember
from pomona_federation.server.settings import NotifySettings, ServerFile
from pomona_federation.silo.consent_rules import ConsentPolicy
from pomona_federation.silo.settings import SiloFile, StudyLimits
from pomona_federation.study import (
    STUDY_TYPES,
    EvaluationStudy,
    SearchStudy,
    StudyTerms,
    SurveyStudy,
    TrainingStudy,
)
from pomona_federation.study_sections import EvaluateTerms, SearchTerms
from pomona_federation.survey.settings import Noise, SurveySettings
from pomona_federation.task_settings import TaskSettings

STUDY_OF_KIND = "STUDY.toml of kind "
FILES: Mapping[str, type[Settings]] = {
    "federation.toml": Federation,
    "federation.toml, each [[silo]]": FoundingMember,
    "STUDY.toml": StudyTerms,
    f"{STUDY_OF_KIND}train": TrainingStudy,
    f"{STUDY_OF_KIND}evaluate": EvaluationStudy,
    f"{STUDY_OF_KIND}search": SearchStudy,
    f"{STUDY_OF_KIND}survey": SurveyStudy,
    "[task]": TaskSettings,
    "[evaluate] of STUDY.toml": EvaluateTerms,
    "[search] of STUDY.toml": SearchTerms,
    "[survey] of STUDY.toml": SurveySettings,
    "[survey.noise] of STUDY.toml": Noise,
    "silo.toml": SiloFile,
    "silo.toml, each [[limits]]": StudyLimits,
    "policy.toml": ConsentPolicy,
    "server.toml": ServerFile,
    "[notify] of server.toml": NotifySettings,
}


def settings(key: str | None = None, *, json: Json = False) -> None:
    """Explain the settings of a federation's files.

    Parameters
    ----------
    key
        a key or a file; all settings if not given
    """
    show(find(key, in_files()) if key else in_files(), json)


def in_files() -> list[Setting]:
    """Every setting of a federation's files, by file."""
    return [
        replace(setting, owner=title)
        for title, record in FILES.items()
        for setting in settings_of(record)
    ]


def settings_of(record: type[Settings]) -> list[Setting]:
    """The keys that a record adds: those of every kind of study are listed once, a federation's own
    study's too.
    """
    common = {"study"} | (set(StudyTerms.model_fields) if record in STUDY_TYPES.values() else set())
    return [
        setting
        for setting in table_settings(SettingsTable("", record))
        if setting.key not in common
    ]
