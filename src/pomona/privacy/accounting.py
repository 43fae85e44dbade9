"""Epsilon of a history of releases by Opacus' accountants, and that of a whole run before it
starts.

k releases on one Poisson batch count as one release with noise multiplier sigma / sqrt(k):
conditional on the batch, their composition is dominated by that single Gaussian (Dong, Roth and Su,
Gaussian differential privacy, 2022), and sampling applies to the dominating pair (Zhu, Dong and
Wang, AISTATS 2022).
"""

import math
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from typing import Any, NamedTuple

from pomona.core.errors import ConfigError, with_extra
from pomona.core.training_settings import Passes
from pomona.privacy.settings import Privacy

# beyond this the numerical accountant's grid does not fit into memory, and epsilon is meaningless
CONFIDENT = 100.0
LARGE_ORDERS = (64, 80, 96, 128, 160, 192, 256, 384, 512, 768, 1024)
ROUNDING = 1e-9  # relative tolerance for sums of epsilons and deltas
# its bound is within 0.01 of epsilon on either side, at a delta within a thousandth
PRV_ERROR = 0.03


def steps(n: int, size: int, share: float = 1.0) -> int:
    """Return the number of steps in an epoch over a share of n samples; public, independent of the
    draws.
    """
    return math.ceil(share * n / size)


def rate(n: int, size: int) -> float:
    """Return q, the probability that a sample is in a batch."""
    return min(1.0, size / n)


class Event(NamedTuple):
    """One Poisson-subsampled Gaussian release: noise multiplier sigma, sampling rate q."""

    sigma: float
    q: float


History = Mapping[Event, int]  # event -> count


def epsilon(settings: Privacy, history: History) -> float:
    """Return epsilon at the settings' delta of a composed history; inf if any release had no noise.

    Raises ConfigError if Opacus is not installed, or if its numbers exceed the range of float64.
    """
    counts = {event: count for event, count in history.items() if count}
    if not counts:
        return 0.0
    if any(event.sigma == 0 for event in counts):
        return math.inf
    bound = _opacus("rdp", _renyi_epsilon, settings.delta, counts)
    if settings.accountant == "rdp" or bound > CONFIDENT:
        return bound
    # both are upper bounds
    return min(bound, _opacus("prv", _numerical_epsilon, settings.delta, counts))


def _renyi_epsilon(delta: float, counts: History) -> float:
    analysis = import_module("opacus.accountants.analysis.rdp")
    composed = sum(_renyi(event) * count for event, count in sorted(counts.items()))
    return float(analysis.get_privacy_spent(orders=_orders(), rdp=composed, delta=delta)[0])


@lru_cache(1024)
def _renyi(event: Event) -> Any:
    """Return one release's Renyi divergences; cached, since they take 0.1 s and are needed at every
    batch.
    """
    analysis = import_module("opacus.accountants.analysis.rdp")
    return analysis.compute_rdp(q=event.q, noise_multiplier=event.sigma, steps=1, orders=_orders())


def _orders() -> list[float]:
    """Return Opacus' orders, up to 63, and larger ones for small q and large sigma."""
    return [*import_module("opacus.accountants.rdp").RDPAccountant.DEFAULT_ALPHAS, *LARGE_ORDERS]


def _numerical_epsilon(delta: float, counts: History) -> float:
    return _of_releases(delta, tuple((*event, count) for event, count in sorted(counts.items())))


@lru_cache(1024)
def _of_releases(delta: float, releases: tuple[tuple[float, float, int], ...]) -> float:
    """Return the numerical accountant's epsilon; cached, since it takes seconds, and clients of one
    size have the same.
    """
    accountant = import_module("opacus.accountants").create_accountant("prv")
    accountant.history = [*releases]
    return float(accountant.get_epsilon(delta=delta))


def _opacus(
    name: str, accounted: Callable[[float, History], float], delta: float, counts: History
) -> float:
    """Compute with Opacus, turning its errors into one line."""
    try:
        with warnings.catch_warnings():
            # hints on the grid of orders, which affects tightness but not validity
            warnings.simplefilter("ignore")
            return accounted(delta, counts)
    except ImportError as fault:
        raise ConfigError(f"privacy needs Opacus ({fault}); {with_extra('dp')}") from None
    except (ValueError, ArithmeticError) as fault:
        raise ConfigError(
            f"the {name} accountant cannot count at delta = {delta:g} and this noise ({fault}); "
            "raise privacy.delta, or set privacy.accountant = rdp"
        ) from None


def with_room(settings: Privacy, limit: float) -> float:
    """Return a limit for parts of a history with epsilon ``limit``, allowing for rounding and the
    grid of prv.
    """
    return limit * (1 + ROUNDING) + (PRV_ERROR if settings.accountant == "prv" else 0.0)


def combined(sigmas: Iterable[float]) -> float:
    """Return the noise multiplier of one Gaussian release equivalent to several on one batch; 0 if
    any has none.
    """
    values = list(sigmas)
    return float(sum(s**-2 for s in values) ** -0.5) if all(values) else 0.0


def effective(sigma: float, q: float, honest: int) -> float:
    """Return the noise multiplier of a client's release in a weighted sum with others' releases.

    A client's step has noise sigma C / L, L = min(B, n), and weight n / N in the mean, so that its
    noise there is sigma C / (N q) with its own q = L / n: another's is q / q' times as large, at
    least q, since q' is at most 1. ``honest``: how many releases in the sum, this one included,
    have noise that nobody else knows.
    """
    return sigma * math.sqrt(1 + (honest - 1) * q * q)


def of_groups(history: History, rows: int) -> Counter[Event]:
    """Return a history that bounds what the same releases reveal about this many rows together.

    The rows drawn into a batch are Binomial(rows, q), and their gradients sum to at most that many
    clipping norms. A mechanism of random sensitivity is dominated by one of stochastically larger
    sensitivity (Choquette-Choo et al., ICLR 2024, on mixtures of Gaussians): here by all rows, with
    the probability that any of them is drawn.
    """
    bounds: Counter[Event] = Counter()
    for event, count in history.items():
        bounds[Event(event.sigma / rows, 1 - (1 - event.q) ** rows)] += count
    return bounds


@dataclass
class Budget:
    """Budget check that avoids running the accountant at every release.

    Epsilon grows with every count, so a history below one known to be within the budget is within
    it as well. The check looks several releases ahead, and halves their number whenever that
    exceeds the budget.
    """

    settings: Privacy
    _safe: dict[Event, int] = field(default_factory=dict)
    _stride: float = 1.0

    def allows(self, history: History) -> bool:
        """Return whether epsilon of the history is at most the budget."""
        limit = self.settings.epsilon_budget
        if limit is None or all(
            count <= self._safe.get(event, 0) for event, count in history.items()
        ):
            return True
        if epsilon(self.settings, history) > limit:
            return False
        self._safe = dict(history)
        while self._stride * max(history.values()) >= 1:
            ahead = {
                event: math.ceil(count * (1 + self._stride)) for event, count in history.items()
            }
            if epsilon(self.settings, ahead) <= limit:
                self._safe = ahead
                break
            self._stride /= 2
        return True


@dataclass(frozen=True)
class Gradients:
    """The maximum gradients that a method takes on a client's training data in one type of pass.

    A method's card lists all types.

    Attributes:
        per_batch: gradients on each batch; they reveal more about the same samples, not about newly
            drawn ones.
        purpose: the random stream of the batches; types with the same purpose use the same batches.
        epochs: passes over the data per round; the run's ``local_epochs`` or ``local_steps`` if
            None.
        evaluates: whether only evaluation takes them: as often as rounds are evaluated, and once
            after the last.
        once: whether they are taken in a single round of the run.
        noised: False for gradients that are not covered by privacy.
    """

    per_batch: int = 1
    purpose: str = "training"
    epochs: int | None = None
    evaluates: bool = False
    once: bool = False
    noised: bool = True

    def batches(self, passes: Passes, per_epoch: int) -> int:
        """Return the number of batches in a round, of a client with ``per_epoch`` in a pass over
        its data.
        """
        return (passes if self.epochs is None else Passes(self.epochs)).batches(per_epoch)

    def batches_in_all(self, passes: Passes, per_epoch: int, rounds: int) -> int:
        """Return the number of batches in a run of this many rounds."""
        return (1 if self.once else rounds + self.evaluates) * self.batches(passes, per_epoch)


def projected(
    settings: Privacy,
    n: int,
    size: int,
    gradients: Iterable[Gradients],
    passes: Passes,
    rounds: int,
) -> Counter[Event]:
    """Return the history of a method's gradients at a client with n samples and batches of
    ``size``.

    Evaluation that trains is included, as if every round and the last models were evaluated.
    """
    history: Counter[Event] = Counter()
    by_purpose = defaultdict(list)
    for g in gradients if n else ():
        batches = g.batches_in_all(passes, steps(n, size), rounds)
        sigma = settings.noise_multiplier if g.noised else 0.0
        sigma = effective(sigma, rate(n, size), settings.counted(g.purpose))
        by_purpose[g.purpose].append((batches, [sigma] * g.per_batch))
    for group in by_purpose.values():
        previous = 0
        for batches in sorted({batches for batches, _ in group}):
            sigmas = [sigma for count, values in group for sigma in values if count >= batches]
            if sigmas:
                history[Event(combined(sigmas), rate(n, size))] += batches - previous
            previous = batches
    return +history
