"""A silo's kit at work for one study: the agreement, the silo's data, its signature and the cost
limits of a run.
"""

from dataclasses import dataclass
from functools import cached_property
from math import inf, isfinite
from pathlib import Path
from typing import Any

from pydantic import Field

from pomona.core.bounds import ClientId, Label, Sha256
from pomona.core.errors import ConfigError, PrivacyError, ProtocolError
from pomona.core.settings import Settings
from pomona.federation.noise_in_sums import against
from pomona.methods.base import Method
from pomona.scenario import Scenario
from pomona_federation.agreement import Federation, StudyAgreement
from pomona_federation.audit_log import write_limited
from pomona_federation.json_store import read_sealed, write_sealed
from pomona_federation.keys import Signer
from pomona_federation.messages.message_bodies import EntryForm, Token
from pomona_federation.silo.consent_rules import ConsentTerms
from pomona_federation.silo.privacy_budget import Claim, Cost, PrivacyBudget, TotalLimit
from pomona_federation.silo.settings import SiloFile
from pomona_federation.silo.silo_scenario import own_scenario, worst_cost
from pomona_federation.silo.study_decisions import StudyDecision, StudyDecisions
from pomona_federation.study import SurveyStudy
from pomona_federation.versions import Versions

PINNED = "agreement.json"


class PinnedAgreement(Settings):
    """The pinned agreement; since the first task also the run, this silo's place and the form of
    tasks' entries.

    ``begun``: the versions at the first pinning. ``rows``: hash of the silo's own data, and of
    their split.
    """

    agreement: Sha256
    run: Token | None = None
    place: ClientId | None = None
    forms: dict[Label, EntryForm] | None = Field(None, max_length=20)
    begun: Versions | None = None
    rows: Sha256 | None = None


@dataclass(frozen=True)
class Silo:
    """A silo's folder (its kit) and its contents, for one study: None for the one that the kit came
    with.
    """

    folder: Path
    study: StudyDecision | None = None
    trial: int | None = None  # number of the trial, in a search

    def working_for(self, agreement: str) -> "Silo":
        """This silo in the study with that hash, if it has accepted it; else in the kit's own.

        Raises ProtocolError for a study that awaits its administrator's decision or was declined,
        and for an unknown one if the kit came without a study.
        """
        if decision := StudyDecisions(self.folder).find(agreement):
            decision.require_accepted()
            return Silo(self.folder, decision, decision.trial(agreement))
        if not self.studying:
            raise ProtocolError(
                f"this silo does not know study {agreement[:16]}; run there: pomona silo studies "
                "--ask"
            )
        return self

    @classmethod
    def in_study(cls, folder: Path, query: str | None) -> "Silo":
        """A kit's silo in the study with this name or first digits of its hash; None for the kit's
        own.

        Raises ConfigError if there is none of that name.
        """
        return cls(folder, None if query is None else StudyDecisions(folder).lookup(query))

    @cached_property
    def federation(self) -> Federation:
        """The federation of the kit."""
        return Federation.read(self.folder / "federation.toml")

    @cached_property
    def terms(self) -> StudyAgreement:
        """The agreement on the study; section run is checked only when needed, so that a refusal
        can be signed.

        Raises ConfigError without a study.
        """
        if self.study:
            return StudyDecisions(self.folder).terms(self.federation, self.study, self.trial)
        if self.federation.kit_terms:
            return self.federation.kit_terms
        raise ConfigError(
            "this kit came without a study; name one of `pomona silo studies` with --study"
        )

    @property
    def studying(self) -> bool:
        """Whether there is a study: one that was offered, or the one that the kit came with."""
        return self.study is not None or self.federation.study is not None

    @property
    def agreement(self) -> str:
        """The agreement's hash: the study's, or the federation's for a kit without one."""
        return self.terms.agreement if self.study else self.federation.agreement

    @cached_property
    def file(self) -> SiloFile:
        """The silo's own settings, with the data that the study asks for, and the limits for it."""
        file = SiloFile.load(self.folder / "silo.toml")
        if not self.studying:
            return file
        study = self.terms.study
        noise = study.survey.noise if isinstance(study, SurveyStudy) else study.run.get("privacy")
        return file.limited(study.kind, study.view, bool(noise)).viewed(study.view)

    @property
    def state(self) -> Path:
        """The study's folder of data that never leaves the silo."""
        if self.study:
            return StudyDecisions(self.folder).folder(self.study, self.trial)
        return self.folder / "state"

    @cached_property
    def method(self) -> Method:
        """The agreed method."""
        return self.terms.config.method.method()

    @property
    def consent(self) -> ConsentTerms:
        """The terms under which the study was accepted; empty if a person accepted it or started
        the kit.
        """
        return (self.study.terms if self.study else None) or ConsentTerms()

    @property
    def _total_limit(self) -> TotalLimit:
        """Limit for the total of all studies on the study's data.

        If it bounds epsilon without a delta, delta is limited to 1 / n for n training samples: at a
        delta of 1 / n a study may reveal one record entirely.
        """
        limits = [
            (source.accept_epsilon_total, source.accept_delta_total)
            for source in (self.file, self.consent)
        ]
        epsilon, delta = (
            min((m for m in values if m is not None), default=None)
            for values in zip(*limits, strict=True)
        )
        # a survey has no delta
        if epsilon is not None and delta is None and not self.terms.survey:
            delta = 1 / max(1, self.samples)
        return TotalLimit(epsilon, delta)

    @cached_property
    def signer(self) -> Signer:
        """Signs with this silo's key."""
        return Signer(None if self.federation.insecure else self.folder / "keys" / "silo.key")

    @cached_property
    def local(self) -> Scenario:
        """The silo's data, read and checked, as a scenario of one client."""
        return own_scenario(self.file, self.terms, self.member)

    def require_same_rows(self) -> None:
        """Raise ProtocolError if data or split are not those of the study's first task here."""
        if not same_rows(self.state, self.local):
            path = (self.state / PINNED).relative_to(self.folder)
            raise ProtocolError(
                "this silo's data or its split differs from that of its first task in this study, "
                "so it might be tested on training rows; leave that if the study is over, else put "
                f"the data back, or remove {path} if values of the same rows were corrected"
            )

    @property
    def samples(self) -> int:
        """Number of its training samples; reads the data."""
        return len(self.local.partition.clients[0].train)

    @property
    def member(self) -> int:
        """The silo's place among the members, from which its split is drawn."""
        return member_id(self.folder, self.federation, self.file.name)

    def require_affordable(self, run: str | None = None) -> None:
        """Raise PrivacyError if a whole run would exceed this silo's privacy limit, for the run or
        in total.

        ``run``: its id; None for any, before there is one.
        """
        limit = self.file.accept_epsilon
        unknown_epsilon = PrivacyBudget(self.folder).unknown.epsilon
        if limit is not None and (worst := self._run_cost.epsilon) + unknown_epsilon > limit:
            cost = "privacy without bound, since noise does not cover it"
            if isfinite(worst):
                cost = f"epsilon {worst:.4g}"
            earlier = ""
            if unknown_epsilon:
                earlier = f", after {unknown_epsilon:.3g} that a restored backup did not know"
            raise PrivacyError(
                f"the run would cost {cost}{earlier}; accept_epsilon in silo.toml is {limit:g}: do "
                "not take part, raise it, or set [[limits]] for such studies"
            )
        PrivacyBudget(self.folder).require(self.claim(run), self.file.data, self._total_limit)

    def claim(self, run: str | None = None) -> Claim:
        """The run's claim on this silo's privacy budget; None for any run."""
        agreement, survey = self.agreement, self.terms.survey

        def trained() -> Cost:
            return worst_cost(
                self.local, PrivacyBudget(self.folder).runs(agreement, excluded=run).values()
            )

        name = self.terms.study.name
        if survey:
            return Claim(name, agreement, run, lambda: self._run_cost)
        return Claim(name, agreement, run, trained, against(self.terms.config))

    @property
    def _run_cost(self) -> Cost:
        """Worst-case cost of one run alone; unbounded without noise."""
        survey = self.terms.survey
        if survey is None:
            return worst_cost(self.local)
        return Cost(survey.noise.epsilon if survey.noise else inf)

    def reserve(self, run: str) -> None:
        """Reserve a run's worst-case cost, once. Raises PrivacyError as ``require_affordable``."""
        PrivacyBudget(self.folder).reserve(self.claim(run), self.file.data, self._total_limit)

    def reserve_in_all(self, token: str, epsilon: float) -> None:
        """Reserve, for a restore, what the study's ledger may hold beyond its runs' reservations,
        by its token.

        Raises PrivacyError as ``require_affordable``.
        """
        excess = Cost(epsilon - self.reserved)
        if excess.epsilon > 0:
            claim = Claim(self.terms.study.name, self.agreement, token, lambda: excess)
            PrivacyBudget(self.folder).reserve(claim, self.file.data, self._total_limit)

    @property
    def reserved(self) -> float:
        """Epsilon reserved for all runs of the study, the largest amount that a server gets."""
        return sum(PrivacyBudget(self.folder).runs(self.agreement).values())


def same_rows(state: Path, local: Scenario) -> bool:
    """Whether a study's first task, if there was one, had the same data and split.

    ``state``: the study's folder. Raises StorageError.
    """
    pinned = read_sealed(PinnedAgreement, state / PINNED)
    return pinned is None or pinned.rows in {None, local.partition.sha256}


def audited(silo: Silo, event: str, **fields: Any) -> None:
    """Write a line to the silo's own audit log, or count it if there are too many of its kind."""
    study = {"study": silo.study.study.name} if silo.study else {}
    write_limited(silo.folder / "state", event, **study, **fields)


MEMBER = Path("state", "member.json")


class AdmittedMember(Settings):
    """The place that the server has assigned to a silo that is not a founder."""

    member: ClientId


def founder_id(federation: Federation, silo: str) -> int | None:
    """A founder's place, by its name in ``federation.toml``; None for a later member."""
    names = [member.name for member in federation.silo]
    return names.index(silo) if silo in names else None


def known_id(kit: Path, federation: Federation, silo: str) -> int | None:
    """A silo's place; None for a later member to which the server has not named it yet."""
    if (founder := founder_id(federation, silo)) is not None:
        return founder
    admitted = read_sealed(AdmittedMember, kit / MEMBER)
    return admitted.member if admitted else None


def member_id(kit: Path, federation: Federation, silo: str) -> int:
    """A silo's place; the first after the founders until the server has named it."""
    number = known_id(kit, federation, silo)
    return len(federation.silo) if number is None else number


def note_id(kit: Path, federation: Federation, silo: str, number: int) -> None:
    """Keep the place that the server names.

    Raises ProtocolError for another one than before: rows would be split anew, and those of the
    test would be trained on; and for one that no later member can have, which would be kept.
    """
    current = known_id(kit, federation, silo)
    if current is None and len(federation.silo) <= number < federation.places:
        write_sealed(kit / MEMBER, AdmittedMember(member=number))
    elif current != number:
        reason = "joined later" if current is None else f"has place {current}"
        raise ProtocolError(
            f"the server names place {number} for this silo, {silo}, which {reason}; ask the "
            "server's operator"
        )


def described_id(kit: Path, federation: Federation, silo: str) -> str:
    """A silo's place and where it comes from, for people."""
    among = f"{member_id(kit, federation, silo)} of 0 to {federation.places - 1}"
    if founder_id(federation, silo) is not None:
        return f"{among}, by the order of silos in federation.toml"
    if known_id(kit, federation, silo) is not None:
        return f"{among}, as the server admitted this silo"
    return f"{among} until the server's first message names it: then rows may be split differently"
