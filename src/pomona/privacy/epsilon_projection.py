"""Projection of epsilon before training, from the gradients that a method declares."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from pomona.privacy.epsilon_accounting import Event, combined, epsilon
from pomona.privacy.mechanism import rate, steps
from pomona.privacy.settings import Privacy


@dataclass(frozen=True)
class Gradients:
    """The maximum gradients that a method takes on a client's training data in one type of pass.

    A method's card lists all types.

    Attributes:
        per_batch: gradients on each batch; they reveal more about the same samples, not about newly drawn ones.
        purpose: the random stream of the batches; types with the same purpose use the same batches.
        epochs: passes over the data per round; the run's ``local_epochs`` if None.
        evaluates: whether only evaluation takes them: as often as rounds are evaluated, and once after the last.
        once: whether they are taken in a single round of the run.
        noised: False for gradients that are not covered by privacy.
    """

    per_batch: int = 1
    purpose: str = "training"
    epochs: int | None = None
    evaluates: bool = False
    once: bool = False
    noised: bool = True

    def passes(self, epochs: int, rounds: int) -> int:
        """Return the passes over the data in a run of this many rounds and local epochs per round."""
        times = 1 if self.once else rounds + self.evaluates
        return times * (epochs if self.epochs is None else self.epochs)


def projected(
    settings: Privacy, n: int, size: int, asked: Iterable[Gradients], epochs: int, rounds: int
) -> Counter[Event]:
    """Return the history of a method's gradients at a client with n samples and batches of ``size``.

    Evaluation that trains is included, as if every round and the last models were evaluated.
    """
    history: Counter[Event] = Counter()
    kinds = defaultdict(list)
    for g in asked if n else ():
        kinds[g.purpose].append(
            (g.passes(epochs, rounds), [settings.noise_multiplier if g.noised else 0.0] * g.per_batch)
        )
    for same in kinds.values():
        before = 0
        for passes in sorted({passes for passes, _ in same}):
            sigmas = [sigma for count, each in same for sigma in each if count >= passes]
            if sigmas:
                history[Event(combined(sigmas), rate(n, size))] += (passes - before) * steps(n, size)
            before = passes
    return +history


def projected_epsilon(
    settings: Privacy, asked: Iterable[Gradients], n: int, size: int, epochs: int, rounds: int
) -> float:
    """Return the largest epsilon of a run for a client with n samples that takes part in every round."""
    return epsilon(settings, projected(settings, n, size, asked, epochs, rounds))
