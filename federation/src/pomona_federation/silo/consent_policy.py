"""Consent by rule: whether a study fits a silo's ``policy.toml``.

Its text is checked first, then its sizes by the shapes of its tensors, and only then what takes
memory and reads data.
"""

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from pomona.core.errors import explaining_memory_errors, worded
from pomona.privacy.accounting import ROUNDING
from pomona_federation.agreement import Federation, StudyAgreement
from pomona_federation.silo.consent_rules import FILE, ConsentPolicy, local_now, policy_sha256
from pomona_federation.silo.silo_in_study import Silo
from pomona_federation.silo.study_decisions import StudyDecision, StudyDecisions
from pomona_federation.silo.study_facts import StudyFacts, StudyText, Traffic, facts, outlined
from pomona_federation.study import Study, SurveyStudy


@dataclass(frozen=True)
class Verdict:
    """A policy's verdict on a study, with the reason in one line.

    ``depends_on_data``: such a refusal is not sent, since a server could learn from it, study by
    study, whether some row has a certain value.
    """

    accepts: bool
    reason: str
    depends_on_data: bool = False


def misfits(
    policy: ConsentPolicy,
    terms: StudyAgreement,
    text: StudyText,
    tasks: AbstractSet[str],
    today: date,
) -> Iterator[str]:
    """Misfits between a study's text and a policy, each in a few words.

    Args:
        policy: the silo's.
        terms: what the members agree to.
        text: its content.
        tasks: SHA-256 of the sections task by which the data were read with a person's consent.
        today: the day on the silo's clock.
    """
    yield from _unlisted(policy, terms.study, text)
    yield from _unknown_content(policy, text, tasks)
    yield from _beyond(policy, terms, text)
    if policy.not_after and today > policy.not_after:
        yield f"not_after = {policy.not_after} has passed"


def _unlisted(policy: ConsentPolicy, study: Study, text: StudyText) -> Iterator[str]:
    """A kind, method, model or view that the policy does not list."""
    choices: tuple[tuple[str, str, Sequence[str]], ...] = (
        ("kind", study.kind, policy.kinds),
        ("method", text.method if text.trains else "", policy.methods),
        ("model", text.model, policy.models),
        ("view", study.view or "[data]", [view or "[data]" for view in policy.views]),
    )
    for key, name, listed in choices:
        if name and listed and name not in listed:
            yield f"{key} {name} is not among {', '.join(listed)}"


def _unknown_content(
    policy: ConsentPolicy, text: StudyText, tasks: AbstractSet[str]
) -> Iterator[str]:
    """Files, a task or releases that neither the policy nor a person here has accepted."""
    for name, sha256 in text.files.items():
        if sha256 not in policy.files:
            yield f"{name}, SHA-256 {sha256[:16]}, is not among files"
    if text.task and text.task not in {*policy.tasks, *tasks}:
        yield (
            f"no person has accepted a study with its [task] on this data, and {text.task} is "
            "not among tasks"
        )
    for name in text.acknowledge:
        if name not in policy.acknowledge:
            yield f"{name}, which its noise does not cover, is not among acknowledge"


def _beyond(policy: ConsentPolicy, terms: StudyAgreement, text: StudyText) -> Iterator[str]:
    """Numbers of the study beyond the policy's."""
    n_places, survey, deadline = terms.federation.places, terms.survey, terms.study.deadline
    if n_places < policy.members:
        yield f"at most {n_places} silos, fewer than members = {policy.members}"
    if survey and survey.least < policy.least_count:
        yield f"survey.least = {survey.least}, fewer than least_count = {policy.least_count}"
    yield from _in_the_open(policy, terms)
    if policy.rounds is not None and text.rounds > policy.rounds:
        yield f"{text.rounds} rounds, more than {policy.rounds}"
    if text.epochs > policy.epochs_in_all:
        yield (
            f"{text.epochs} passes over the training data, more than epochs_in_all = "
            f"{policy.epochs_in_all}"
        )
    if deadline > policy.deadline:
        yield f"a round may take {deadline:g} s, more than deadline = {policy.deadline:g}"


def _in_the_open(policy: ConsentPolicy, terms: StudyAgreement) -> Iterator[str]:
    """This silo's models, sent singly or in sums over too few silos."""
    sends_none = terms.evaluate is not None and not terms.evaluate.models  # sends no model
    if policy.least_in_a_sum is None or terms.survey or sends_none:
        return
    minimum = terms.least_in_a_sum
    if minimum is None or minimum < policy.least_in_a_sum:
        exposure = "single models are sent" if minimum is None else f"sums over {minimum} silos"
        yield f"{exposure}, and least_in_a_sum = {policy.least_in_a_sum}"


def excesses(policy: ConsentPolicy, costs: StudyFacts) -> Iterator[str]:
    """Costs of a study on this silo's data beyond a policy's limits, each in a few words."""
    total = costs.total
    if policy.accept_epsilon_total is not None and total.epsilon > policy.accept_epsilon_total:
        yield f"all on this data may cost {total}, more than {policy.accept_epsilon_total:g}"
    if policy.accept_delta_total is not None and total.delta > policy.accept_delta_total * (
        1 + ROUNDING
    ):
        yield f"all on this data may cost {total}, more than delta {policy.accept_delta_total:g}"
    yield from oversizes(policy, costs.traffic)


def oversizes(policy: ConsentPolicy, traffic: Traffic) -> Iterator[str]:
    """Traffic beyond a policy's limits, each in a few words."""
    if policy.mb_a_round is not None and traffic.mb_a_round > policy.mb_a_round:
        yield f"{traffic.mb_a_round:.3g} MB a round, more than {policy.mb_a_round:g}"
    if policy.mb_in_all is not None and traffic.mb_in_all > policy.mb_in_all:
        yield f"{traffic.mb_in_all:.3g} MB in all, more than {policy.mb_in_all:g}"


def _too_many(policy: ConsentPolicy, decisions: Sequence[StudyDecision]) -> Iterator[str]:
    """One study more than rules may accept: each takes room, and reveals something more."""
    accepted = sum(k.status == "accepted" and k.terms is not None for k in decisions)
    if accepted >= policy.studies:
        yield f"rules have accepted {accepted} studies, studies = {policy.studies}"


def verdict(policy: ConsentPolicy, kit: Path, decision: StudyDecision) -> Verdict:
    """A kit policy's verdict on a study; anything that cannot be determined does not fit, whatever
    the reason.
    """
    silo, data_read = Silo(kit, decision), False
    try:
        _ = silo.file  # accepts if it has the study's view of the data
        terms, text = silo.terms, StudyText.from_terms(silo.terms)
        tasks = _accepted_tasks(kit, decision.study.view)
        problems = [
            *misfits(policy, terms, text, tasks, local_now().date()),
            *_too_many(policy, StudyDecisions(kit).all),
        ]
        if problems := problems or list(oversizes(policy, outlined(terms))):
            return Verdict(False, "; ".join(problems))
        data_read = True
        with explaining_memory_errors(
            f"study {decision.study.name}", "let a person decide, on a machine with more memory"
        ):
            silo.require_affordable()
            costs = facts(silo)
    except Exception as fault:  # from custom code, an allocator, a driver: only this study's fault
        return Verdict(False, worded(fault), data_read)
    if problems := list(excesses(policy, costs)):
        return Verdict(False, "; ".join(problems), data_read)
    if terms.survey:
        return Verdict(
            True, f"kind survey, least count {terms.survey.least}, {costs.cost}", data_read
        )
    size = f"{costs.traffic.rounds} rounds, {costs.traffic.mb_in_all:.3g} MB in all"
    method = f"method {text.method}, " if text.trains else ""
    return Verdict(
        True,
        f"kind {decision.study.kind}, {method}model {text.model}, {size}, {costs.cost}",
        data_read,
    )


def _accepted_tasks(kit: Path, view: str) -> set[str]:
    """SHA-256 of the sections task that people here have accepted on a view: the data are known to
    fit them.

    Starting a kit that came with a study accepts that study.
    """
    accepted = [
        k.study for k in StudyDecisions(kit).all if k.status == "accepted" and k.terms is None
    ]
    kit_study = Federation.read(kit / "federation.toml").study
    studies = [
        study
        for study in (*([kit_study] if kit_study else []), *accepted)
        if not isinstance(study, SurveyStudy)
    ]
    return {study.task.sha256 for study in studies if study.task and study.view == view}


def apply_policy(kit: Path, decision: StudyDecision) -> StudyDecision:
    """Apply a kit's policy to a waiting study; if it does not decide, the study keeps waiting, with
    the misfits noted.

    A study during which the process was killed, as the kernel does when memory is short, is marked
    and not checked again by the same rules: otherwise it would be met again for ever, and the
    studies after it never.

    Raises ConfigError for a policy that cannot be read, and OSError.
    """
    policy = ConsentPolicy.load(kit)
    if policy is None:
        return decision
    studies, sha256 = StudyDecisions(kit), policy_sha256(kit)
    assert sha256, "the file is there"
    killed = (
        f"the process that applied {FILE} ({sha256[:16]}) to it was killed; decide yourself, "
        f"or change {FILE}"
    )
    if decision.why == killed:
        return decision
    previous_reason, decision = decision.why, studies.remark(decision, killed)
    try:
        result = verdict(policy, kit, decision)
        if not result.accepts and (result.depends_on_data or policy.otherwise == "ask"):
            return studies.remark(decision, result.reason)
        return studies.decide(
            decision,
            result.accepts,
            FILE,
            result.reason,
            policy.terms if result.accepts else None,
            sha256,
        )
    except BaseException:  # a requested end does not count as a kill
        studies.remark(decision, previous_reason)
        raise
