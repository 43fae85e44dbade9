"""The federation's agreement, identical at all members: ``federation.toml``."""

import hashlib
import re
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, model_validator

from pomona.core.bounds import MAX_CLIENTS, Name
from pomona.core.errors import ConfigError, listed, suggestion
from pomona.core.file_kinds import require_kind
from pomona.core.settings import Settings
from pomona.core.toml import Tree, named_file, read_file, validated
from pomona_federation import certificates
from pomona_federation.address import Address, HostPort
from pomona_federation.study import KIT, Study, TrainingStudy
from pomona_federation.study_agreement import StudyAgreement, hashed, in_fours

PROTOCOL = 6  # version of the messages between silos and server; part of the agreement
RESERVED = {"authority", "server", "renewed"}  # folders in kits
SPARE = 4  # free places for newcomers, by default


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
    def kit_terms(self) -> StudyAgreement | None:
        """The agreement on the study that the kits come with; None for a federation that only
        founds.
        """
        return StudyAgreement(self, self.study) if self.study else None

    def terms_of(self, study: Study) -> StudyAgreement:
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
        return self.kit_terms.agreement if self.kit_terms else hashed(self.terms)

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


def _everywhere(server: Address) -> str:
    everywhere = "::" if server.ip and server.ip.version == 6 else "0.0.0.0"  # noqa: S104 - silos come from outside
    return str(Address(server.host if server.loopback else everywhere, server.port))
