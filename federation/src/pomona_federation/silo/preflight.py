"""Preflight checks, ``pomona silo check``: settings, keys, server, data and disk of a silo before
it starts.
"""

from collections.abc import Iterator
from functools import partial
from math import isinf
from pathlib import Path
from typing import Any

from pomona.core.errors import PomonaError, ProtocolError
from pomona.core.registry import importable
from pomona.data.settings import DataSettings
from pomona.federation.noise_in_sums import against
from pomona.privacy.settings import groups_note
from pomona.scenario import Scenario
from pomona.scenario.description import epsilons, largest_groups, unprotected_groups
from pomona_federation import json_store
from pomona_federation.agreement import Federation
from pomona_federation.flower_internals import pinned
from pomona_federation.silo import kit_checks, silo_in_study, state_origin
from pomona_federation.silo.consent_policy import verdict
from pomona_federation.silo.consent_rules import FILE, ConsentPolicy
from pomona_federation.silo.kit_checks import CheckLine, Checks, Remark
from pomona_federation.silo.outgoing_filter import departing, departing_in_survey
from pomona_federation.silo.own_models import source_of
from pomona_federation.silo.privacy_budget import Cost
from pomona_federation.silo.settings import SiloFile
from pomona_federation.silo.silo_in_study import PINNED, PinnedAgreement, Silo
from pomona_federation.silo.silo_scenario import require_device, worst_cost
from pomona_federation.silo.state_origin import RuleLine, rules
from pomona_federation.silo.study_decisions import StudyDecision
from pomona_federation.silo.study_facts import facts, remarks, summary
from pomona_federation.silo.study_proposals import compare, over_the_network
from pomona_federation.study_sections import EvaluateTerms
from pomona_federation.survey.raw_data import read_raw
from pomona_federation.survey.settings import SurveySettings
from pomona_federation.survey.silo import offered, raw_data
from pomona_federation.versions import installed, mismatch

TELEPHONE = "read these 16 digits to the lead by telephone; theirs must be the same"


def run(folder: Path, study: str | None = None) -> tuple[list[CheckLine], dict[str, Any], int]:
    """All checks of a silo's kit.

    Args:
        folder: the kit.
        study: name or first digits of the hash of one that the server has offered, accepted or not;
            None for the one that the kit came with, if any.

    Returns:
        Their lines, what would leave the silo (empty if unknown), and the exit code.
    """
    checks, leaves = Checks(), dict[str, Any]()
    silo, work, federation = _check_files(checks, folder, study)
    checks.make("app", lambda: (None, f"SHA-256 {pinned(folder)[:16]}"))
    if silo and federation and not federation.insecure:
        checks.make("key", partial(kit_checks.own_key, folder, silo.name))
        checks.make("certificate", lambda: kit_checks.authority(folder))
    if silo and work and federation:
        checks.make("place", partial(_member_place, folder, federation, silo.name))
        checks.make("server", partial(kit_checks.server, folder, silo, federation))
        checks.make("versions", lambda: _versions(folder))
        _check_data(checks, silo, work, leaves)
    if work and work.study:
        checks.make("policy", partial(_policy, folder, work.study))
    checks.make("disk", lambda: kit_checks.disk(folder, leaves.get("bytes_per_model", 0)))
    return checks.lines, leaves, checks.code


def require_acceptable(folder: Path, decision: StudyDecision) -> None:
    """Raise PomonaError with every check of ``run`` that fails of a study, except those of keys,
    connection and disk, which may be mended after it was accepted.
    """
    checks, name = Checks(), decision.study.name
    silo, work, federation = _check_files(checks, folder, decision.agreement)
    if silo and work and federation:
        _check_data(checks, silo, work, {})
    checks.require(f"study {name} is not accepted, since `pomona silo check --study {name}` fails")


def _check_files(
    checks: Checks, folder: Path, study: str | None
) -> tuple[SiloFile | None, Silo | None, Federation | None]:
    """Check the settings, the state and the agreement; returns what could be read of them."""
    importable(folder)
    silo = checks.make("settings", lambda: _silo(folder))
    work = checks.make("study", lambda: _study(folder, study, silo)) if study else Silo(folder)
    checks.make("state", lambda: _state(folder))
    if silo:
        _check_settings(checks, folder, silo)
    return silo, work, _check_agreement(checks, work) if work else None


def _check_settings(checks: Checks, folder: Path, silo: SiloFile) -> None:
    """Check the rules in force, and the GPU if there shall be one."""
    for line in checks.make("rules", partial(_rules, folder, silo)) or ():
        checks.lines.append(CheckLine("rules", "warning" if line.foreign else "ok", line.text))
    if silo.device != "cpu":
        checks.make("device", lambda: (None, f"{require_device(silo.device)} computes"))


def _check_agreement(checks: Checks, work: Silo) -> Federation | None:
    """Check what was agreed, and show the digits to compare."""
    federation = checks.make("agreement", lambda: _agreement(work))
    if federation:
        checks.make("compare", partial(_digits, work, federation))
    return federation


def _check_data(checks: Checks, silo: SiloFile, work: Silo, leaves: dict[str, Any]) -> None:
    """Check the data for the study, or without one all data that the silo names, as a survey would
    read them.
    """
    if not work.studying:
        for name, data in {
            "data": silo.data,
            **{f"view {n}": d for n, d in silo.views.items()},
        }.items():
            checks.make(name, partial(_readable, work, data))
    elif work.terms.survey:
        checks.make("data", lambda: _surveyed(work, leaves))
    else:
        for remark in checks.make("data", lambda: _data(work, leaves)) or ():
            checks.lines.append(CheckLine("remark", "warning", remark))


def _silo(folder: Path) -> tuple[SiloFile, str]:
    silo = SiloFile.load(folder / "silo.toml")
    return silo, f"silo {silo.name}, device {silo.device}"


def _state(folder: Path) -> tuple[None, str]:
    """Check that the state was made on this machine."""
    origin = state_origin.origin(folder)
    state_origin.require_sealed_files(folder)
    return None, "made on this machine" if origin else "empty: this silo has not worked yet"


def _rules(folder: Path, silo: SiloFile) -> tuple[list[RuleLine], str]:
    """The first line of the rules in force, and the others."""
    try:
        origin = state_origin.origin(folder)
    except PomonaError:  # reported by the check of the state
        origin = None
    first, *remaining = rules(folder, silo, origin)
    if first.foreign:
        return [first, *remaining], "which hold here:"
    return remaining, first.text


def _versions(folder: Path) -> tuple[None, str]:
    """Check that the server's versions work with those here."""
    try:
        theirs = compare(folder, over_the_network(folder))
    except (PomonaError, OSError, ValueError) as fault:
        raise Remark(f"not compared with the server's: {fault}") from None
    if reason := mismatch(theirs, "server"):
        raise ProtocolError(reason)
    return None, f"{installed()}, which works with the server's"


def _study(folder: Path, query: str, file: SiloFile | None) -> tuple[Silo, str]:
    """The silo in a study, and a summary of that study; ``file``: silo.toml, if it can be read."""
    silo = Silo.in_study(folder, query)
    decision = silo.study
    assert decision
    study = decision.study
    data = f"view {study.view}" if study.view else "[data]"
    limits = file.limits_of(study.kind, study.view) if file else None
    worded = f"; {limits.worded}" if limits else ""
    text = f"{study.name}: {study.kind} on {data}, {study.deadline:g} s a round at most; "
    return silo, f"{text}{decision.status}{worded}"


def _policy(folder: Path, decision: StudyDecision) -> tuple[None, str]:
    """Check a study against the silo's own rules."""
    policy = ConsentPolicy.load(folder)
    if policy is None:
        return None, f"there is no {FILE}: only a person accepts here"
    result = verdict(policy, folder, decision)
    if not result.accepts:
        raise Remark(f"{FILE} does not accept it: {result.reason}")
    return None, f"{FILE} accepts it: {result.reason}"


def _agreement(silo: Silo) -> tuple[Federation, str]:
    folder = silo.folder
    federation = silo.federation if silo.study else Federation.load(folder / "federation.toml")
    current = silo.agreement
    if silo.study and silo.study.agreement != current:
        raise ProtocolError(
            f"study {silo.study.study.name} was offered as {silo.study.agreement[:16]} and is "
            f"{current[:16]} here now; restore federation.toml, and own code that the study names"
        )
    if not silo.studying:
        return (
            federation,
            f"{federation.name}: without its own study; `pomona silo studies` lists those offered",
        )
    terms = silo.terms
    if survey := terms.survey:
        return (
            federation,
            f"{federation.name}: a survey; nothing is reported of fewer than {survey.least} rows",
        )
    pinned = json_store.read_sealed(PinnedAgreement, silo.state / PINNED)
    if pinned and pinned.agreement != current:
        raise ProtocolError(
            f"{folder / 'federation.toml'} says {current[:16]}, this silo began with "
            f"{pinned.agreement[:16]}; put the old file back"
        )
    if terms.evaluate:
        models = _evaluated(silo, terms.evaluate)
        return federation, f"{federation.name}: an evaluation of {models}; nothing is trained"
    config = terms.config
    return federation, f"{federation.name}: {config.method.name}, {config.rounds} rounds"


def _evaluated(silo: Silo, evaluate: EvaluateTerms) -> str:
    """The models of an evaluation; this silo's must be here."""
    if not evaluate.models:
        return "given models"
    models = f"{len(evaluate.models)} models of study {evaluate.of}"
    if silo.file.name not in evaluate.models:
        return models
    source_of(silo.folder, evaluate)
    return f"{models}, this silo's among them"


def _member_place(folder: Path, federation: Federation, name: str) -> tuple[None, str]:
    """Where the silo's split comes from."""
    text = silo_in_study.described_id(folder, federation, name)
    if silo_in_study.known_id(folder, federation, name) is None:
        raise Remark(text)
    return None, text


def _digits(silo: Silo, federation: Federation) -> tuple[None, str]:
    """The digits to compare: of the study asked about, or of the kit."""
    if silo.study:
        return None, f"{silo.terms.digits}  {TELEPHONE}"
    return None, f"{federation.compared(silo.folder)}  {TELEPHONE}"


def _readable(work: Silo, data: DataSettings) -> tuple[None, str]:
    """Check that data can be read as a survey reads them."""
    return None, summary(read_raw(data, SurveySettings().seed, work.member).description())


def _surveyed(work: Silo, leaves: dict[str, Any]) -> tuple[None, str]:
    """Check that raw data can be surveyed; puts what would leave the silo into ``leaves``."""
    survey = work.terms.survey
    assert survey
    raw = raw_data(survey, work.file.data, work.member)
    line = summary(offered(raw.description(), survey))
    work.require_affordable()
    leaves |= departing_in_survey(work.federation, survey, raw.largest_group)
    return None, line


def _data(work: Silo, leaves: dict[str, Any]) -> tuple[list[str], str]:
    """Check the data and the model on it; puts what would leave the silo into ``leaves``.

    Returns remarks.
    """
    from pomona.partition.divergence import label_counts

    silo, terms, local = work.file, work.terms, work.local
    rows, n_parameters = local.partition.clients[0], len(local.initial())
    costs = facts(work)
    leaves |= departing(silo, terms, n_parameters, len(rows.train))
    leaves["traffic"] = str(costs.traffic)
    if local.config.privacy:
        protects = local.config.privacy.protects
        leaves["epsilon"] = _whole_run(worst_cost(local), protects)
        if adversary := against(local.config):
            leaves["epsilon"] += f", {adversary}"
            leaves["alone"] = _whole_run(worst_cost(local, own_noise_only=True), protects)
        if unprotected_groups(local) and not local.config.void:
            leaves["groups"] = groups_note(largest_groups(local), epsilons(local, groups=True))
        leaves["total"] = str(costs.total)
    work.require_affordable()
    work.require_same_rows()
    sizes = (
        f"{len(rows.train)} training, {len(rows.validation)} validation, {len(rows.test)} "
        "test samples"
    )
    if local.targets == "classes":
        counts = label_counts(local.partition, local.dataset)[0].tolist()
        sizes += "; training: " + ", ".join(
            f"{n} {c}" for c, n in zip(local.dataset.classes, counts, strict=True)
        )
    text = f"{sizes}; the model takes it ({n_parameters} numbers, loss {costs.loss:.3g} untrained)"
    return [*_beyond_budget(local), *remarks(work)], text


def _beyond_budget(local: Scenario) -> Iterator[str]:
    """A line if the agreed budget ends this silo's part in the study before the last round."""
    privacy = local.config.privacy
    if privacy is None or privacy.epsilon_budget is None or local.config.void:
        return
    if (cost := worst_cost(local).epsilon) > privacy.epsilon_budget:
        yield (
            f"all rounds would cost epsilon {cost:.3g}, but the study's epsilon_budget is "
            f"{privacy.epsilon_budget:g}: this silo stops before that and is absent from then on; "
            "to take part in all, the lead submits a study with fewer rounds or more noise"
        )


def _whole_run(cost: Cost, protects: str) -> str:
    if isinf(cost.epsilon):
        return "without bound: training records leave past the noise, or there is none"
    return f"at most {cost.epsilon:.3g} at delta {cost.delta:g} for the whole run, for {protects}"
