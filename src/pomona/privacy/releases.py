"""What leaves a client past the noised gradients, as data: named, and refused unless it is acknowledged by name."""

from collections.abc import Mapping, Sequence

from pomona.core.errors import ConfigError, near
from pomona.core.settings import Settings
from pomona.privacy.settings import Privacy

RELEASES: Mapping[str, str] = {
    "sample-counts": "the number of samples of each client, which weighs its model and sets its sampling rate",
    "metrics": "losses and accuracies on validation and test samples, and whatever is chosen by them",
    "training-loss": "mean losses of the training batches; they also end FedALA's first stage",
    "validation-losses": "losses of models on validation samples, by which a client mixes what it trains and uploads",
    "output-criterion": "gradients of a loss on outputs or features, which are not clipped and get no noise",
    "shared-samples": "samples that every client receives as they are",
    "feature-moments": "mean and standard deviation of each column over all clients' rows",
    "vocabulary": "the words of all clients' training texts",
    "class-names": "the names of the classes, found in all clients' rows, those for testing included",
    "unlimited-epsilon": "as much privacy as the rounds take: epsilon_budget is not set",
}

OWN: Mapping[str, tuple[str, ...]] = {
    "fedavg-data": ("shared-samples",),
    "fedfomo": ("validation-losses",),
    "fedfomo-ma": ("validation-losses",),
}
SECOND_ORDER = (
    "products with a Hessian are not clipped, so privacy does not cover them; set method.order to first or hf"
)

REMEDIES: Mapping[str, str] = {
    "output-criterion": "set method.transfer_weight=0",
    "class-names": "name them in data.classes",
    "unlimited-epsilon": "set privacy.epsilon_budget",
    "validation-losses": "take a method that judges no models, such as apple",
    "shared-samples": "take fedavg",
}


def uncovered(settings: Privacy, method: Settings, kind: str = "image", classes_found: bool = False) -> tuple[str, ...]:
    """Names of the releases that a run makes past the mechanism.

    Args:
        settings: the run's privacy.
        method: the method's settings.
        kind: of the data, as in ``Dataset``: "image", "table" or "text".
        classes_found: whether the class names come from the data, and neither from the settings nor an agreement.
    """
    names = ["sample-counts", "metrics", *OWN.get(getattr(method, "name", ""), ())]
    if getattr(method, "transfer_weight", 0):
        names.append("output-criterion")
    names += {"table": ["feature-moments"], "text": ["vocabulary"]}.get(kind, [])
    names += ["class-names"] if classes_found else []
    return (*names, *(("unlimited-epsilon",) if settings.epsilon_budget is None else ()))


def check(
    settings: Privacy, method: Settings, sizes: Sequence[int], kind: str = "image", classes_found: bool = False
) -> None:
    """Refuse what is neither covered nor acknowledged.

    Args:
        settings: the run's privacy.
        method: the method's settings.
        sizes: training samples per client.
        kind: of the data, as in ``uncovered``.
        classes_found: as in ``uncovered``.

    Raises:
        ConfigError: names every release and its remedy; or delta is too large for a client, a name is unknown, or the
            method cannot run privately at all.
    """
    for name in settings.acknowledge:
        if name not in RELEASES:
            raise ConfigError(f"privacy.acknowledge: unknown name {name!r}; {near(name, RELEASES)}")
    if getattr(method, "rule", None) == "adaptive":
        raise ConfigError(
            "partialfed's adaptive gates divide each batch by its size, so that one record moves others between the "
            "parts; set method.rule to lower-shared, head-shared or local-norm"
        )
    if getattr(method, "order", None) == "exact":
        raise ConfigError(SECOND_ORDER)
    largest = max(sizes, default=0)
    if largest and settings.delta >= 1 / largest:
        raise ConfigError(
            f"privacy.delta = {settings.delta} is not below 1 / {largest}, one over the samples of the largest client; "
            f"set at most {0.1 / largest:.1g}"
        )
    missing = [name for name in uncovered(settings, method, kind, classes_found) if name not in settings.acknowledge]
    if missing:
        raise ConfigError(
            "not covered by privacy: "
            + "; ".join(told(name) for name in missing)
            + f". To accept all of these, set privacy.acknowledge = {[*settings.acknowledge, *missing]}"
        )


def told(name: str) -> str:
    """A release and its remedy, in half a sentence."""
    remedy = REMEDIES.get(name)
    return f"{name} ({RELEASES[name]}{f'; or {remedy}' if remedy else ''})"


def require(settings: Privacy, name: str) -> None:
    """Raise ConfigError unless a release is acknowledged."""
    if name not in settings.acknowledge:
        raise ConfigError(f"not covered by privacy: {told(name)}. To accept it, add it to privacy.acknowledge")
