"""The federation's agreement, identical at all members: ``federation.toml``."""

import hashlib
import json
import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import AfterValidator, Field, PrivateAttr, model_validator

from pomona.core.bounds import PLACES, ROUNDS, Name
from pomona.core.errors import ConfigError
from pomona.core.registry import code_sha256
from pomona.core.settings import Settings
from pomona.core.toml import read_file, validated
from pomona_federation.address import Address, HostPort
from pomona_federation.own_code import named_code
from pomona_federation.study import Study, StudyTerms
from pomona_federation.study_kinds import LEAST_SAMPLES, at_point
from pomona_federation.task_settings import TaskSettings

if TYPE_CHECKING:
    from pomona.config import Config

PROTOCOL = 4  # version of the messages between silos and server; part of the agreement
RESERVED = {"authority", "server", "renewed"}  # folders in kits
SPARE = 4  # free places for newcomers, by default
SHARE = 0.5  # largest share of one silo in a mean, by default: no more than all others together


def _certificate(text: str) -> str:
    if not re.fullmatch(r"(ecdsa-sha2-nistp384-cert-v01@openssh\.com [A-Za-z0-9+/=]+)?", text):
        raise ValueError("not an OpenSSH certificate; a federation of an older Pomona is to be provisioned again")
    return text


def _silo_name(name: str) -> str:
    if name in RESERVED:
        raise ValueError("is the name of a folder of the kits; choose another")
    return name


SiloName = Annotated[Name, AfterValidator(_silo_name)]
Certificate = Annotated[str, Field(max_length=2000), AfterValidator(_certificate)]  # one OpenSSH line; "" without keys


class FoundingMember(Settings):
    """A founding member."""

    name: SiloName = Field(description="its name, for good")
    key: Path | None = Field(None, description="public key that it brought, relative to the file; made for it if unset")


class Federation(StudyTerms):
    """A federation: its members and addresses, and the terms of one agreed study.

    A ``federation.toml`` may include the terms of a first study. ``under`` returns the same federation with other
    terms.
    """

    name: Name = Field(description="name of the federation")
    server: HostPort = Field(description="host:port at which silos reach the server; its certificate names the host")
    bind: HostPort = Field(
        default_factory=lambda known: _everywhere(Address.parse(known["server"])),
        description="where the server listens; all interfaces, or loopback if the server is",
    )
    silo: tuple[FoundingMember, ...] = Field(
        min_length=1, max_length=PLACES, description="the members from the beginning"
    )
    quorum: int = Field(
        default_factory=lambda known: len(known["silo"]) // 2 + 1,
        ge=1,
        description="least silos whose uplinks make a round; more than half if unset",
    )
    places: int = Field(
        default_factory=lambda known: min(len(known["silo"]) + SPARE, PLACES),
        ge=1,
        le=PLACES,
        description="most silos ever; a newcomer takes a free place",
    )
    most_samples: int = Field(10_000_000, ge=1, lt=2**53, description="most samples that a silo may claim")
    insecure: bool = Field(False, description="no TLS and no keys; on loopback only")
    mutual_tls: bool = Field(
        False, description="the server hears silos only over connections with their own certificate"
    )
    _study: str = PrivateAttr("")
    _trial: int | None = PrivateAttr(None)

    @model_validator(mode="after")
    def _stands(self) -> Self:
        names = [silo.name for silo in self.silo]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"silo {twice[0]!r} is named twice; give every silo a name of its own")
        if self.places < len(names):
            raise ValueError(f"places = {self.places}, but there are {len(names)} silos; raise places")
        if self.quorum > self.places:
            raise ValueError(f"quorum = {self.quorum}, but there are {self.places} places; lower quorum")
        rounds = self.run.get("rounds")
        if isinstance(rounds, int) and rounds >= ROUNDS:
            raise ValueError(
                f"run.rounds = {rounds}, at most {ROUNDS - 1} have a number, with the closing visit; lower it"
            )
        if self.insecure and not self.loopback:
            raise ValueError(
                f"insecure = true, but server = {self.server} or bind = {self.bind} is reachable from other machines; "
                "take insecure out, or use 127.0.0.1 for both"
            )
        if self.insecure and self.mutual_tls:
            raise ValueError("mutual_tls = true, but insecure = true means no TLS at all; take one of them out")
        return self

    @classmethod
    def read(cls, path: Path) -> "Federation":
        """Read a ``federation.toml`` without checking section run, which would need PyTorch.

        The path in ``run.model.init`` is relative to the file.

        Raises ConfigError naming the file and every bad key or value.
        """
        try:
            federation = validated(cls, read_file(path))
            if federation.kind != "train":
                raise ConfigError(f"kind = {federation.kind!r} is for a study that is submitted; remove it")
        except ConfigError as fault:
            raise ConfigError(f"{path}: {fault}") from None
        model = federation.run.get("model")
        if isinstance(model, dict) and isinstance(model.get("init"), str):
            placed = {**model, "init": str(path.parent / model["init"])}
            return federation.model_copy(update={"run": {**federation.run, "model": placed}})
        return federation

    @classmethod
    def load(cls, path: Path) -> "Federation":
        """Read and check a whole ``federation.toml``. Raises ConfigError as ``read`` does, and for section run."""
        federation = cls.read(path)
        try:
            federation.require_computable()
        except ConfigError as fault:
            raise ConfigError(f"{path}: {fault}") from None
        return federation

    def under(self, study: Study) -> "Federation":
        """The same federation with a study's terms. Raises ConfigError if they do not fit it."""
        terms = {name: getattr(study, name) for name in StudyTerms.model_fields}
        own = {name: getattr(self, name) for name in Federation.model_fields}
        quorum = {} if study.quorum is None else {"quorum": study.quorum}
        made = validated(Federation, {**own, **terms, **quorum})
        made._study = study.name
        return made

    @property
    def study(self) -> str:
        """Name of the study with these terms; "" for the study that came with the kits, if any."""
        return self._study

    def trials(self) -> tuple["Federation", ...]:
        """The federation under each setting of a search, each as its own study; empty for other kinds of study."""
        if self.search is None or self.trial is not None:
            return ()
        return tuple(self._tried(number, point) for number, point in enumerate(self.search.trials))

    def _tried(self, number: int, point: Mapping[str, Any]) -> "Federation":
        made = self.model_copy(update={"run": at_point(self.run, point)})
        made._study, made._trial = self._study, number
        made.__dict__.pop("_config", None)
        return made

    @property
    def trial(self) -> int | None:
        """The number of a search's trial, from 0; None if these terms are not a trial's."""
        return self._trial

    def shares(self, split: str, samples: int) -> bool:
        """Whether silos share scores computed on this many samples of a split.

        A search selects on validation samples and shares no test scores; an evaluation shares no scores on few samples.
        """
        if not self.share_scores or (self.search and split != "validation"):
            return False
        return samples >= LEAST_SAMPLES or not self.evaluate

    @property
    def comes_with_study(self) -> bool:
        """Whether there is a study to run: a ``federation.toml`` without section task only founds a federation."""
        return self.tasked is not None

    @property
    def task(self) -> TaskSettings:
        """The agreed task settings. Raises ConfigError if there are none."""
        if self.tasked is None:
            raise ConfigError("section task is missing, which says what all silos agree on about their data")
        return self.tasked

    def require_computable(self) -> None:
        """Raise ConfigError if there is a study and it cannot be run."""
        if self.comes_with_study:
            for terms in (self, *self.trials()):
                terms.config()
        elif self.run:
            raise ConfigError("there is a section run, but none for task; give both, or neither")

    @property
    def loopback(self) -> bool:
        """Whether only processes on the server's machine can reach the server."""
        return Address.parse(self.server).loopback and Address.parse(self.bind).loopback

    @property
    def largest_share(self) -> float:
        """Largest share of one silo in a mean: from section run, else the federation's default."""
        value = self.run.get("largest_share", SHARE)
        return float(value) if isinstance(value, int | float) and 0 < value <= 1 else SHARE

    def config(self) -> "Config":
        """The run, with one client per place. Raises ConfigError for keys that do not belong in section run."""
        return self._config

    @cached_property
    def _config(self) -> "Config":
        from pomona_federation.agreed_config import resolved  # imported late: it loads PyTorch

        return resolved(self, self.task, self.places, SHARE, self.insecure)

    @property
    def agreement(self) -> str:
        """SHA-256 in hex of what a silo agrees to, defaults written out.

        It covers name, places, most_samples and protocol; of the study its name, kind, view, wire, share_scores, task,
        survey, evaluate, and run with the file of each module that it names; of a search the agreement of each trial,
        and of a trial its number. First weights enter by their hash, not their path.
        """
        agreed: dict[str, Any] = {"name": self.name, "places": self.places, "most_samples": self.most_samples}
        agreed |= {"study": self.study, "kind": self.kind, "view": self.view, "share_scores": self.share_scores}
        agreed |= {"wire": self.wire, "protocol": PROTOCOL}
        agreed |= {"trial": self.trial} if self.trial is not None else {}
        agreed |= self._computed() if self.comes_with_study else {}
        agreed |= {"survey": self.survey.model_dump(mode="json")} if self.survey else {}
        return hashlib.sha256(json.dumps(agreed, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    @property
    def own_code(self) -> dict[str, str]:
        """SHA-256 in hex of the file of each own module that the run names, by ``module:name``."""
        mine = ("pomona.", "pomona_federation.")  # are of the version, not of the agreement
        own = [name for name in named_code(self.config().tree()) if not name.startswith(mine)]
        return {name: code_sha256(name) for name in own}

    def _computed(self) -> dict[str, Any]:
        """The computation: the run with its defaults, the task, and the hashes of the run's custom code."""
        from pomona_federation.agreed_config import ELSEWHERE

        run = {k: v for k, v in self.config().tree().items() if k not in ELSEWHERE}
        run["model"] = {k: v for k, v in run["model"].items() if k != "init"}
        code = {"code": own} if (own := self.own_code) else {}
        judged = {"evaluate": self.evaluate.model_dump(mode="json")} if self.evaluate else {}
        tried = {"search": [terms.agreement for terms in self.trials()]} if self.trials() else {}
        return {"run": run, "task": self.task.model_dump(mode="json"), **code, **judged, **tried}

    @property
    def digits(self) -> str:
        """The first 16 digits of the agreement in groups of four, for comparison by telephone."""
        return in_fours(self.agreement)

    def compared(self, authority: bytes) -> str:
        """The 16 digits to compare by telephone when a kit arrives.

        They are those of the study that came with the kit; without a study they cover the agreement and the
        ``authority``'s certificate, which defines whom the silo trusts.
        """
        if self.comes_with_study or self.survey:
            return self.digits
        return in_fours(hashlib.sha256(self.agreement.encode() + authority).hexdigest())


def in_fours(digest: str) -> str:
    """The first 16 digits of a hash, in groups of four."""
    return " ".join(digest[i : i + 4] for i in range(0, 16, 4))


def _everywhere(server: Address) -> str:
    return str(Address(server.host if server.loopback else "0.0.0.0", server.port))  # noqa: S104 - silos come from outside
