"""Consent rules, ``policy.toml`` in a silo's kit, and the line that shows which rules are in force."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from pomona.core.bounds import ROUNDS, Finite, NameOrNone, Sha256
from pomona.core.errors import ConfigError
from pomona.core.files import sha256
from pomona.core.toml import read_file, validated
from pomona_federation.silo.studies.consent_terms import ConsentTerms
from pomona_federation.study import DAY, Kind

FILE = "policy.toml"
Megabytes = Annotated[Finite, Field(gt=0)]
LONGEST = 366 * DAY  # seconds
Named = Annotated[str, Field(min_length=1, max_length=200)]


class ConsentPolicy(ConsentTerms):
    """Rules that a study must all fit to be accepted; an unset rule without a default fits every study."""

    kinds: tuple[Kind, ...] = Field(min_length=1, max_length=20, description="kinds of studies; must be set")
    methods: tuple[Named, ...] = Field(
        (), max_length=1000, description="names of methods, of studies that train; any if empty"
    )
    models: tuple[Named, ...] = Field((), max_length=1000, description="names of networks; any if empty")
    files: tuple[Sha256, ...] = Field(
        (), max_length=10_000, description="SHA-256 of first weights and of own code's files; none if empty"
    )
    tasks: tuple[Sha256, ...] = Field(
        (),
        max_length=1000,
        description="SHA-256 of sections task; those that a person accepted on the same data fit, too",
    )
    acknowledge: tuple[Named, ...] = Field(
        (), max_length=1000, description="releases that noise does not cover, as in a study's privacy; none if empty"
    )
    views: tuple[NameOrNone, ...] = Field(
        (), max_length=1000, description='data that a study may ask for, "" for [data]; any if empty'
    )
    least_count: int = Field(10, ge=3, le=10**6, description="a survey tells of no fewer rows than this")
    rounds: int | None = Field(None, ge=1, lt=ROUNDS, description="most rounds")
    epochs_in_all: int = Field(
        10_000,
        ge=1,
        le=10**12,
        description="most passes over the training data, by all models, in all rounds and trials of a study",
    )
    deadline: float = Field(DAY, gt=0, le=LONGEST, description="most seconds that a round may take, as a study's")
    mb_a_round: Megabytes | None = Field(None, description="most megabytes of models, both ways, in a round")
    mb_in_all: Megabytes | None = Field(None, description="most megabytes of models, both ways, in all rounds")
    otherwise: Literal["ask", "decline"] = Field(
        "ask",
        description="what becomes of others: they wait for a person, or are declined if their text alone does not fit",
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
        """The terms that bind an accepted study."""
        return ConsentTerms(**{name: getattr(self, name) for name in ConsentTerms.model_fields})


def policy_sha256(kit: Path) -> str:
    """SHA-256 in hex of a kit's ``policy.toml``; "" if there is none. Raises ConfigError."""
    path = kit / FILE
    try:
        return sha256(path) if path.exists() else ""
    except OSError as fault:
        raise ConfigError(f"{path} cannot be read ({fault.strerror}); make it a plain file of this account") from None
