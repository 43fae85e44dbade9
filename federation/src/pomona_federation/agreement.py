"""The federation's agreement, identical at all members: ``federation.toml``, and the studies that
are run on it.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import AfterValidator, Field, model_validator

from pomona.core.bounds import MAX_CLIENTS, Name
from pomona.core.errors import ConfigError, listed, suggestion
from pomona.core.file_kinds import require_kind
from pomona.core.registry import code_sha256
from pomona.core.settings import Settings
from pomona.core.toml import Tree, named_file, read_file, validated
from pomona.core.training_settings import LEAST_IN_A_SUM
from pomona_federation import certificates
from pomona_federation.address import Address, HostPort
from pomona_federation.named_code import named_code
from pomona_federation.study import (
    KIT,
    EvaluationStudy,
    RunStudy,
    SearchStudy,
    Study,
    SurveyStudy,
    TrainingStudy,
    at_point,
)
from pomona_federation.study_sections import EvaluateTerms
from pomona_federation.survey.settings import SurveySettings
from pomona_federation.task_settings import TaskSettings

if TYPE_CHECKING:
    from pomona.config import Config

PROTOCOL = 6  # version of the messages between silos and server; part of the agreement
RESERVED = {"authority", "server", "renewed"}  # folders in kits
SPARE = 4  # free places for newcomers, by default
SHARE = 0.5  # largest share of one silo in a mean, by default: no more than all others together


def _certificate(text: str) -> str:
    if not re.fullmatch(r"(ecdsa-sha2-nistp384-cert-v01@openssh\.com [A-Za-z0-9+/=]+)?", text):
        raise ValueError(
            "not an OpenSSH certificate; provision a federation of an older Pomona again"
        )
    return text


def _silo_name(name: str) -> str:
    if name in RESERVED:
        raise ValueError("is the name of a folder of the kits; choose another")
    return name


SiloName = Annotated[Name, AfterValidator(_silo_name)]
# one OpenSSH line; "" without keys
Certificate = Annotated[str, Field(max_length=2000), AfterValidator(_certificate)]


class FoundingMember(Settings):
    """A founding member.

    Attributes:
        name: its name, which never changes
        key: its public key, relative to the file; if unset, a key pair is made
    """

    name: SiloName
    key: Path | None = None


class Federation(Settings):
    """A federation: its members, addresses and rules, and the study that its kits come with, if
    any.

    A ``federation.toml`` has the keys of that study in addition to its own; ``terms_of`` is the
    agreement on a further study.

    Attributes:
        name: name of the federation
        server: host:port at which silos reach the server; its certificate names the host
        bind: where the server listens; all interfaces, or loopback if the server is
        silo: the first members
        quorum: smallest number of uplinks of a round; more than half of the silos if unset
        places: largest number of silos, ever
        most_samples: largest number of samples that a silo may claim
        insecure: no TLS and no keys; on loopback only
        mutual_tls: silos must connect with their own certificate
        study: the study that the kits come with
    """

    name: Name
    server: HostPort
    bind: HostPort = Field(default_factory=lambda data: _everywhere(Address.parse(data["server"])))
    silo: tuple[FoundingMember, ...] = Field(min_length=1, max_length=MAX_CLIENTS)
    quorum: int = Field(default_factory=lambda data: len(data["silo"]) // 2 + 1, ge=1)
    places: int = Field(
        default_factory=lambda data: min(len(data["silo"]) + SPARE, MAX_CLIENTS),
        ge=1,
        le=MAX_CLIENTS,
    )
    most_samples: int = Field(10_000_000, ge=1, lt=2**53)
    insecure: bool = False
    mutual_tls: bool = False
    study: TrainingStudy | None = None

    @model_validator(mode="after")
    def _validate(self) -> Self:
        names = [silo.name for silo in self.silo]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"silo {twice[0]!r} is named twice; give every silo its own name")
        if self.places < len(names):
            raise ValueError(
                f"places = {self.places}, but there are {len(names)} silos; raise places"
            )
        if self.quorum > self.places:
            raise ValueError(
                f"quorum = {self.quorum}, but there are {self.places} places; lower quorum"
            )
        if self.insecure and not self.loopback:
            raise ValueError(
                f"insecure = true, but server = {self.server} or bind = {self.bind} is reachable "
                "from other machines; remove insecure, or use 127.0.0.1 for both"
            )
        if self.insecure and self.mutual_tls:
            raise ValueError(
                "mutual_tls = true, but insecure = true means no TLS at all; take one of them out"
            )
        return self

    @classmethod
    def from_tree(cls, tree: Tree) -> "Federation":
        """A federation from the keys of its file, its study's among them.

        Raises ConfigError for every bad key.
        """
        if (study_kind := tree.get("kind", "train")) != "train":
            raise ConfigError(f"kind = {study_kind!r} is for a study that is submitted; remove it")
        known_keys = (set(cls.model_fields) | OF_STUDY) - {"study"}
        if unknown := sorted(set(tree) - known_keys):
            raise ConfigError(
                "; ".join(f"unknown key {key!r}; {suggestion(key, known_keys)}" for key in unknown)
            )
        study_keys = {key: value for key, value in tree.items() if key in OF_STUDY}
        if study_keys and "task" not in study_keys:
            raise ConfigError(
                f"{listed(sorted(study_keys), 5)}: settings of a study, but there is no section "
                "[task]; move them to each study's STUDY.toml, or add [task] for a study that "
                "comes with the kits"
            )
        fields: Tree = {key: value for key, value in tree.items() if key not in OF_STUDY}
        if study_keys:
            fields["study"] = validated(TrainingStudy, {**study_keys, "name": KIT})
        return validated(cls, fields)

    @classmethod
    def read(cls, path: Path) -> "Federation":
        """Read a ``federation.toml`` without checking section run, which would need PyTorch.

        The path in ``run.model.init`` is relative to the file.

        Raises ConfigError naming the file and every bad key or value.
        """
        tree = read_file(path, "name a kit with --folder, or the file of a federation")
        require_kind(path, tree, "federation", "study")
        with named_file(path):
            federation = cls.from_tree(tree)
        if study := federation.study:
            return federation.model_copy(update={"study": study.anchored(path.parent)})
        return federation

    @classmethod
    def load(cls, path: Path) -> "Federation":
        """Read and check a whole ``federation.toml``.

        Raises ConfigError as ``read`` does, and for section run.
        """
        federation = cls.read(path)
        with named_file(path):
            if federation.kit_terms:
                federation.kit_terms.require_computable()
        return federation

    @cached_property
    def kit_terms(self) -> "StudyAgreement | None":
        """The agreement on the study that the kits come with; None for a federation that only
        founds.
        """
        return StudyAgreement(self, self.study) if self.study else None

    def terms_of(self, study: Study) -> "StudyAgreement":
        """The agreement on a further study.

        Raises ConfigError if it does not fit this federation.
        """
        terms = StudyAgreement(self, study)
        terms.require_places()
        return terms

    @property
    def loopback(self) -> bool:
        """Whether only processes on the server's machine can reach the server."""
        return Address.parse(self.server).loopback and Address.parse(self.bind).loopback

    @property
    def inside(self) -> str:
        """The address at which the server's machine reaches its own SuperLink."""
        bind = Address.parse(self.bind)
        anywhere = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104
        return str(Address(anywhere.get(bind.host, bind.host), bind.port))

    @property
    def agreement(self) -> str:
        """SHA-256 in hex of what a member agrees to by its kit: its study, or else the federation
        alone.
        """
        return self.kit_terms.agreement if self.kit_terms else _hashed(self.terms)

    @property
    def terms(self) -> dict[str, Any]:
        """What every study's agreement contains of the federation."""
        return {
            "name": self.name,
            "places": self.places,
            "most_samples": self.most_samples,
            "protocol": PROTOCOL,
        }

    def compared(self, kit: Path) -> str:
        """The 16 digits to compare by telephone when a kit arrives.

        They are those of the study that came with the kit; without a study they cover the agreement
        and the authority's certificate, which defines whom the silo trusts. Raises ConfigError
        without that certificate.
        """
        if self.kit_terms:
            return self.kit_terms.digits
        authority = b"" if self.insecure else certificates.content(kit / "certs" / "ca.crt")
        return in_fours(hashlib.sha256(self.agreement.encode() + authority).hexdigest())


OF_STUDY = frozenset(TrainingStudy.model_fields) - {"name", "quorum", "decide"}


@dataclass(frozen=True)
class StudyAgreement:
    """What the members of a federation agree to for one study; ``trial``: its number, in a
    search.
    """

    federation: Federation
    study: Study
    trial: int | None = None

    @property
    def survey(self) -> SurveySettings | None:
        """What every silo is asked, in a survey."""
        return self.study.survey if isinstance(self.study, SurveyStudy) else None

    @property
    def evaluate(self) -> EvaluateTerms | None:
        """The models that are evaluated, in an evaluation."""
        return self.study.evaluate if isinstance(self.study, EvaluationStudy) else None

    @property
    def from_kit(self) -> bool:
        """Whether it is the study that the kits came with."""
        return self.study.name == KIT

    @property
    def quorum(self) -> int:
        """Least silos whose uplinks make a round; no fewer than a sum needs that hides them."""
        minimum = self.federation.quorum if self.study.quorum is None else self.study.quorum
        return max(minimum, self.least_in_a_sum or 1)

    @property
    def least_in_a_sum(self) -> int | None:
        """Least silos of a sum, with secure aggregation; None without it, or if section run is
        wrong.
        """
        run = {} if isinstance(self.study, SurveyStudy) else self.study.run
        terms = run.get("secure_aggregation")
        minimum = terms.get("minimum", LEAST_IN_A_SUM) if isinstance(terms, dict) else None
        return minimum if isinstance(minimum, int) else None

    @property
    def seeds(self) -> Sequence[Any]:
        """The seeds that section run or the space of a search names."""
        space = self.study.search.space if isinstance(self.study, SearchStudy) else {}
        run = {} if isinstance(self.study, SurveyStudy) else self.study.run
        return space.get("seed") or ([run["seed"]] if "seed" in run else [])

    @property
    def run_study(self) -> RunStudy:
        """The study, which has a run. Raises ConfigError for a survey."""
        if isinstance(self.study, SurveyStudy):
            raise ConfigError("a survey computes no run")
        return self.study

    @property
    def task(self) -> TaskSettings:
        """The agreed task settings. Raises ConfigError if there are none."""
        if self.run_study.task is None:
            raise ConfigError("section task is missing: what all silos agree on about their data")
        return self.run_study.task

    @property
    def largest_share(self) -> float:
        """Largest share of one silo in a mean: from section run, else the federation's default."""
        run = {} if isinstance(self.study, SurveyStudy) else self.study.run
        value = run.get("largest_share", SHARE)
        return float(value) if isinstance(value, int | float) and 0 < value <= 1 else SHARE

    @cached_property
    def config(self) -> "Config":
        """The run, with one client per place.

        Raises ConfigError for keys that do not belong in section run.
        """
        from pomona_federation.agreed_config import resolved  # imported late: it loads PyTorch

        return resolved(
            self.run_study, self.task, self.federation.places, SHARE, self.federation.insecure
        )

    @cached_property
    def trials(self) -> "tuple[StudyAgreement, ...]":
        """The agreement under each setting of a search, each run as a study of its own; empty for
        other kinds.
        """
        if not isinstance(self.study, SearchStudy) or self.trial is not None:
            return ()
        return tuple(
            self._tried(self.study, number, point)
            for number, point in enumerate(self.study.search.trials)
        )

    def _tried(self, study: SearchStudy, number: int, point: Mapping[str, Any]) -> "StudyAgreement":
        tried = study.model_copy(update={"run": at_point(study.run, point)})
        return replace(self, study=tried, trial=number)

    @property
    def runs(self) -> "tuple[StudyAgreement, ...]":
        """The agreements that are run: a search's trials, or else the study itself."""
        return self.trials or (self,)

    def require_places(self) -> None:
        """Raise ConfigError if a round needs more silos than there can be."""
        n_places = self.federation.places
        if (self.least_in_a_sum or 0) > n_places:
            raise ConfigError(
                f"run.secure_aggregation.minimum = {self.least_in_a_sum}, but there are {n_places} "
                "places; lower it"
            )
        if self.quorum > n_places:
            raise ConfigError(
                f"quorum = {self.quorum}, but there are {n_places} places; lower quorum"
            )

    def require_computable(self) -> None:
        """Raise ConfigError if the study cannot be run."""
        self.require_places()
        space = self.study.search.space if isinstance(self.study, SearchStudy) else ()
        changing = [key for key in ("largest_share", "participation", "absence") if key in space]
        if changing and self.least_in_a_sum:
            raise ConfigError(
                f"search.space.{changing[0]}: silos refuse a second sum of the same changes, over "
                "other silos or weights, which reveals single ones; submit a study for each value, "
                "with another seed"
            )
        if not isinstance(self.study, SurveyStudy):
            for terms in (self, *self.trials):
                _ = terms.config

    @cached_property
    def agreement(self) -> str:
        """SHA-256 in hex of what a silo agrees to, defaults written out.

        It covers the federation's name, places, most_samples and protocol; of the study its name,
        kind, view, wire, share_scores, task, survey, evaluate, and run with the file of each module
        that it names; of a search the agreement of each trial, and of a trial its number. First
        weights enter by their hash, not their path.
        """
        content = self.federation.terms | self.study.model_dump(mode="json", exclude=NOT_AGREED)
        content |= {"trial": self.trial} if self.trial is not None else {}
        content |= {} if isinstance(self.study, SurveyStudy) else self._computed()
        return _hashed(content | {"study": self.study.name})

    @property
    def own_code(self) -> dict[str, str]:
        """SHA-256 in hex of the file of each own module that the run names, by ``module:name``."""
        mine = ("pomona.", "pomona_federation.")  # are of the version, not of the agreement
        names = [name for name in named_code(self.config.tree()) if not name.startswith(mine)]
        return {name: code_sha256(name) for name in names}

    def _computed(self) -> dict[str, Any]:
        """The computation: the run with its defaults, and the hashes of the run's custom code."""
        from pomona_federation.agreed_config import ELSEWHERE

        run = {k: v for k, v in self.config.tree().items() if k not in ELSEWHERE}
        run["model"] = {k: v for k, v in run["model"].items() if k != "init"}
        code = {"code": hashes} if (hashes := self.own_code) else {}
        tried = {"search": [trial.agreement for trial in self.trials]} if self.trials else {}
        return {"run": run, **code, **tried}

    @property
    def digits(self) -> str:
        """The first 16 digits of the agreement in groups of four, for comparison by telephone."""
        return in_fours(self.agreement)


# Keys of a study that decide nothing of what a silo computes or tells: how long is waited, and for
# how many.
NOT_AGREED = {"name", "deadline", "patience", "wait", "quorum", "decide", "run"}


def _hashed(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def in_fours(digest: str) -> str:
    """The first 16 digits of a hash, in groups of four."""
    return " ".join(digest[i : i + 4] for i in range(0, 16, 4))


def _everywhere(server: Address) -> str:
    everywhere = "::" if server.ip and server.ip.version == 6 else "0.0.0.0"  # noqa: S104 - silos come from outside
    return str(Address(server.host if server.loopback else everywhere, server.port))
