"""Consent by rule, ``policy.toml`` in a silo's kit: which studies it accepts without asking its administrator."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from pomona.core.bounds import ROUNDS, Finite, Sha256
from pomona.core.errors import ConfigError, PomonaError
from pomona.core.toml import read_file, validated
from pomona.deploy.agreement import Federation
from pomona.deploy.silo.studies.consent_terms import ConsentTerms, local_now
from pomona.deploy.silo.studies.known_studies import KnownStudies, KnownStudy
from pomona.deploy.silo.studies.silo_in_study import Silo
from pomona.deploy.silo.studies.study_facts import StudyFacts, facts
from pomona.deploy.study import Kind, Study, View

FILE = "policy.toml"
Megabytes = Annotated[Finite, Field(gt=0)]
Named = Annotated[str, Field(min_length=1, max_length=200)]


class ConsentPolicy(ConsentTerms):
    """Rules that a study must fit, all of them, to be accepted; one without a default fits all while it is not set."""

    kinds: tuple[Kind, ...] = Field(min_length=1, max_length=20, description="kinds of studies; must be set")
    methods: tuple[Named, ...] = Field((), max_length=1000, description="names of methods; any if empty")
    models: tuple[Named, ...] = Field((), max_length=1000, description="names of networks; any if empty")
    files: tuple[Sha256, ...] = Field(
        (), max_length=10_000, description="SHA-256 of first weights and of own code's files; none if empty"
    )
    views: tuple[View, ...] = Field(
        (), max_length=1000, description='data that a study may ask for, "" for [data]; any if empty'
    )
    least_count: int = Field(10, ge=3, le=10**6, description="a survey tells of no fewer rows than this")
    rounds: int | None = Field(None, ge=1, lt=ROUNDS, description="most rounds")
    mb_a_round: Megabytes | None = Field(None, description="most megabytes of models, both ways, in a round")
    mb_in_all: Megabytes | None = Field(None, description="most megabytes of models, both ways, in all rounds")
    otherwise: Literal["ask", "decline"] = Field(
        "ask", description="what becomes of all others: they wait for the administrator, or are declined"
    )

    @classmethod
    def of(cls, kit: Path) -> "ConsentPolicy | None":
        """The ``policy.toml`` of a kit, if it has one. Raises ConfigError naming the file and every bad key."""
        path = kit / FILE
        if not path.exists():
            return None
        try:
            return validated(cls, read_file(path))
        except ConfigError as fault:
            raise ConfigError(f"{path}: {fault}") from None

    @property
    def terms(self) -> ConsentTerms:
        """What an accepted study is held to."""
        return ConsentTerms(**{name: getattr(self, name) for name in ConsentTerms.model_fields})


@dataclass(frozen=True)
class Verdict:
    """What a policy says of a study, and why in one line."""

    accepts: bool
    why: str


def judged(policy: ConsentPolicy, study: Study, federation: Federation, found: StudyFacts, today: date) -> Verdict:
    """Judge a study by a policy and what was found out about it.

    Args:
        policy: the silo's.
        study: as the server has offered it.
        federation: with the study's terms.
        found: what it would do at this silo.
        today: the day on the silo's clock.
    """
    if misfits := list(_misfits(policy, study, federation, found, today)):
        return Verdict(False, "; ".join(misfits))
    if federation.survey:
        return Verdict(True, f"kind survey, least count {federation.survey.least}, {found.cost}")
    size = f"{found.traffic.rounds} rounds, {found.traffic.mb_in_all:.3g} MB in all"
    return Verdict(True, f"kind {study.kind}, method {found.method}, model {found.model}, {size}, {found.cost}")


def _misfits(
    policy: ConsentPolicy, study: Study, federation: Federation, found: StudyFacts, today: date
) -> Iterator[str]:
    """What does not fit, each in a few words."""
    if study.kind not in policy.kinds:
        yield f"kind {study.kind} is not among {', '.join(policy.kinds)}"
    if policy.methods and found.method and found.method not in policy.methods:
        yield f"method {found.method} is not among {', '.join(policy.methods)}"
    if policy.models and found.model and found.model not in policy.models:
        yield f"model {found.model} is not among {', '.join(policy.models)}"
    for name, sha256 in found.files.items():
        if sha256 not in policy.files:
            yield f"{name}, SHA-256 {sha256[:16]}, is not among files"
    if policy.views and study.view not in policy.views:
        yield f"view {study.view or '[data]'} is not among {', '.join(v or '[data]' for v in policy.views)}"
    if federation.places < policy.members:
        yield f"at most {federation.places} silos, fewer than members = {policy.members}"
    if policy.accept_epsilon_total is not None and found.total.epsilon > policy.accept_epsilon_total:
        yield f"all on this data may cost {found.total}, more than {policy.accept_epsilon_total:g}"
    if federation.survey and federation.survey.least < policy.least_count:
        yield f"survey.least = {federation.survey.least}, fewer than least_count = {policy.least_count}"
    traffic = found.traffic
    if policy.rounds is not None and traffic.rounds > policy.rounds:
        yield f"{traffic.rounds} rounds, more than {policy.rounds}"
    if policy.mb_a_round is not None and traffic.mb_a_round > policy.mb_a_round:
        yield f"{traffic.mb_a_round:.3g} MB a round, more than {policy.mb_a_round:g}"
    if policy.mb_in_all is not None and traffic.mb_in_all > policy.mb_in_all:
        yield f"{traffic.mb_in_all:.3g} MB in all, more than {policy.mb_in_all:g}"
    if policy.not_after and today > policy.not_after:
        yield f"not_after = {policy.not_after} has passed"


def verdict(policy: ConsentPolicy, kit: Path, known: KnownStudy) -> Verdict:
    """What a kit's policy says of a study; what cannot be found out does not fit."""
    silo = Silo(kit, known)
    try:
        silo.require_affordable("")
        return judged(policy, known.study, silo.federation, facts(silo), local_now().date())
    except PomonaError as fault:
        return Verdict(False, f"{fault.kind}: {fault}")


def decided(kit: Path, known: KnownStudy) -> KnownStudy:
    """Apply a kit's policy to a study that waits; what it does not decide goes on waiting, with what did not fit.

    Raises ConfigError for a policy that cannot be read, and OSError.
    """
    policy = ConsentPolicy.of(kit)
    if policy is None:
        return known
    said, studies = verdict(policy, kit, known), KnownStudies(kit)
    if not said.accepts and policy.otherwise == "ask":
        return studies.remark(known, said.why)
    digest = hashlib.sha256((kit / FILE).read_bytes()).hexdigest()
    return studies.decide(known, said.accepts, FILE, said.why, policy.terms if said.accepts else None, digest)
