"""Settings of privacy, and releases other than the noised gradients, each refused unless
acknowledged by its name.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Literal

from pydantic import Field, field_validator

from pomona.core.bounds import MAX_CLIENTS, Label
from pomona.core.errors import ConfigError, suggestion
from pomona.core.settings import Settings

LEAST_NOISE = 1e-3  # epsilon is in the millions there, and accountants overflow not far below


class Privacy(Settings):
    """Differentially private training for every client; the field's symbols in brackets.

    Attributes:
        noise_multiplier: noise relative to the clipping norm (sigma); 0 clips only: no privacy
        max_grad_norm: L2 norm to which each sample's gradient is clipped (C)
        delta: probability that the bound does not hold (delta); below 1 / n
        epsilon_budget: no client spends more (epsilon): a simulation ends first; no limit if not
            set
        accountant: how privacy losses add up: prv, the smaller of Renyi's and the numerical bound;
            rdp, Renyi's alone, which is faster
        unit: what epsilon protects: one row, or all rows of a group at a client
            (data.group_column), such as a patient's: groups are drawn and clipped as one
        honest: clients in every sum, this one included, whose noise counts; below
            secure_aggregation.minimum, as the others may collude with the server; 1: its own alone
        acknowledge: names of the releases outside the bound that are accepted
        seed: test only: seeds the noise; anyone who knows the seed can remove it, so there is no
            privacy
    """

    noise_multiplier: float = Field(ge=0, le=1e6)
    max_grad_norm: float = Field(ge=1e-30, le=1e6)
    delta: float = Field(ge=1e-60, lt=1)
    epsilon_budget: float | None = Field(None, gt=0, le=1e9)
    accountant: Literal["rdp", "prv"] = "prv"
    unit: Literal["row", "group"] = "row"
    honest: int = Field(1, ge=1, le=MAX_CLIENTS)
    acknowledge: tuple[Label, ...] = Field((), max_length=100)
    seed: int | None = Field(None, ge=0, lt=2**63)

    @field_validator("noise_multiplier")
    @classmethod
    def _none_or_some(cls, sigma: float) -> float:
        if 0 < sigma < LEAST_NOISE:
            raise ValueError(
                f"so little noise does not protect anyone; give {LEAST_NOISE} or more, or 0 for "
                "none"
            )
        return sigma

    def counted(self, purpose: str) -> int:
        """Return of how many clients the noise counts in releases of a purpose: of ``honest`` in
        the training step, which leaves in sums alone.
        """
        return self.honest if purpose == "training" else 1

    @property
    def alone(self) -> "Privacy":
        """The settings with a client's own noise alone."""
        return self.model_copy(update={"honest": 1})

    @property
    def protects(self) -> str:
        """What epsilon is for, in words."""
        return "one group of samples" if self.unit == "group" else "one sample"

    @property
    def void(self) -> str | None:
        """Explain for the record why these settings give no privacy; None if they give some."""
        if self.seed is not None:
            return "no privacy: the noise comes from a test seed"
        if not self.noise_multiplier:
            return "no privacy: noise_multiplier = 0"
        return None


def in_sums(honest: int, minimum: int) -> str:
    """Return, as an apposition, whom epsilon is a bound against where others' noise counts."""
    return (
        f"against those who see sums of {minimum} clients or more alone, of which up to "
        f"{minimum - honest} may be with them"
    )


WITHOUT_GROUPS = (
    "privacy.unit = group needs groups, and the data have none: set data.group_column, or "
    "privacy.unit = row"
)


def groups_note(rows: Sequence[int], epsilons: Sequence[float | None]) -> str:
    """Return a note on how little epsilon of a row protects a group.

    Args:
        rows: the most training rows of one group, by client.
        epsilons: for all rows of any one group, by client; None or infinite for no bound.
    """
    bounded = [e for e in epsilons if e is not None and isfinite(e)]
    bound = f"{max(bounded):.3g}" if len(bounded) == len(epsilons) else "without bound"
    return (
        f"a group (data.group_column) has up to {max(rows)} training rows at a client, for which "
        f"together epsilon is {bound}: set privacy.unit = group to protect groups"
    )


@dataclass(frozen=True)
class Release:
    """A release other than the noised gradients: its name, its content, and its remedy.

    ``exact``: whether rounds reveal information on training records without noise, so that no
    epsilon bounds the run. This is the default for releases that a method declares.
    """

    name: str
    content: str
    remedy: str = ""
    exact: bool = True


_CONTENTS = {
    "sample-counts": (
        "the number of samples of each client, which weighs its model and sets its sampling rate"
    ),
    "metrics": (
        "losses and accuracies on validation and test samples, and whatever is chosen by them"
    ),
    "training-loss": (
        "mean losses on training samples, of batches or of all; they also end FedALA's first stage"
    ),
    "validation-losses": (
        "losses of models on validation samples, by which a client mixes what it trains and uploads"
    ),
    "output-criterion": (
        "gradients of a loss on outputs or features, which are not clipped and get no noise"
    ),
    "class-means": "mean features of a client's training samples, of each class or of all",
    "shared-samples": "samples that every client receives as they are",
    "feature-moments": "mean and standard deviation of each column over all clients' rows, and of "
    "a table with gaps or categories what fills the gaps, and the names of the categories",
    "vocabulary": "the words of all clients' training texts",
    "class-names": (
        "the names of the classes, found in all clients' rows, those for testing included"
    ),
    "unlimited-epsilon": "as much privacy as the rounds take: epsilon_budget is not set",
    "noise-of-others": (
        "what others' noise hides, to all who see more than sums, and to more clients together "
        "than secure_aggregation.minimum - honest"
    ),
}

_REMEDIES = {
    "class-names": "name them in data.classes",
    "unlimited-epsilon": "set privacy.epsilon_budget",
    "noise-of-others": "set privacy.honest = 1",
}
# The others reveal nothing about training records (counts are public), or were fixed before the run
# by an agreement.
_EXACT = {"training-loss", "output-criterion", "class-means", "shared-samples"}
RELEASES: Mapping[str, Release] = {
    name: Release(name, content, _REMEDIES.get(name, ""), name in _EXACT)
    for name, content in _CONTENTS.items()
}
SECOND_ORDER = "products with a Hessian are not clipped, so privacy does not cover them"


def uncovered(
    settings: Privacy,
    method_releases: Sequence[Release] = (),
    content: str = "image",
    classes_found: bool = False,
    moments_found: bool = False,
) -> tuple[Release, ...]:
    """Return the releases of a run that the mechanism does not cover.

    Args:
        settings: the run's privacy.
        method_releases: those of the method.
        content: of the data: "image", "table", "text" with words of its own, or "tokens" of a
            public tokenizer.
        classes_found: whether the class names come from the data, and neither from the settings nor
            an agreement.
        moments_found: whether images are normalised with numbers from the data.
    """
    general = {
        "sample-counts": True,
        "metrics": True,
        "feature-moments": content == "table" or moments_found,
        "vocabulary": content == "text",
        "class-names": classes_found,
        "unlimited-epsilon": settings.epsilon_budget is None,
        "noise-of-others": settings.honest > 1,
    }
    releases = [RELEASES[name] for name, applies in general.items() if applies]
    return (*releases[:2], *method_releases, *releases[2:])


def release_problems(
    settings: Privacy,
    sizes: Sequence[int],
    method_releases: Sequence[Release] = (),
    content: str = "image",
    classes_found: bool = False,
    moments_found: bool = False,
) -> Iterator[str]:
    """Yield the reasons why a run cannot train privately: unknown names, a delta that is too large
    for a client, and the releases that are neither covered nor acknowledged, with remedies.

    Args:
        settings: the run's privacy.
        sizes: training samples per client.
        method_releases: the method's releases.
        content: of the data, as in ``uncovered``.
        classes_found: as in ``uncovered``.
        moments_found: as in ``uncovered``.
    """
    names = {*RELEASES, *(release.name for release in method_releases)}
    for name in settings.acknowledge:
        if name not in names:
            yield f"privacy.acknowledge: unknown name {name!r}; {suggestion(name, names)}"
    largest = max((1, *sizes))
    if settings.delta >= 1 / largest:
        yield (
            f"privacy.delta = {settings.delta} is not below 1 / {largest}, one over the samples of "
            f"the largest client; set at most {0.1 / largest:.1g}"
        )
    missing = [
        r
        for r in uncovered(settings, method_releases, content, classes_found, moments_found)
        if r.name not in settings.acknowledge
    ]
    if missing:
        accepted = [name for name in settings.acknowledge if name in names]
        accepted += [release.name for release in missing]
        yield (
            "not covered by privacy: "
            + "; ".join(described(release) for release in missing)
            + f". To accept all of these, set privacy.acknowledge = {accepted}"
        )


def acknowledged(settings: Privacy, method_releases: Sequence[Release]) -> tuple[Release, ...]:
    """Return the releases that a run acknowledges; ``method_releases``: those of the method."""
    releases = {**RELEASES, **{release.name: release for release in method_releases}}
    return tuple(releases[name] for name in settings.acknowledge if name in releases)


def described(release: Release) -> str:
    """Describe a release and its remedy in a phrase."""
    return f"{release.name} ({release.content}{f'; or {release.remedy}' if release.remedy else ''})"


def require_acknowledged(settings: Privacy, name: str) -> None:
    """Raise ConfigError unless a release is acknowledged."""
    if name not in settings.acknowledge:
        raise ConfigError(
            f"not covered by privacy: {described(RELEASES[name])}. To accept it, add it to "
            "privacy.acknowledge"
        )
