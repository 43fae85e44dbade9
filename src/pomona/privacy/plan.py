"""What training will cost before it begins: how many gradients each method takes, and the epsilon that follows."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from pomona.privacy.accounting import Event, combined, epsilon
from pomona.privacy.mechanism import rate, steps
from pomona.privacy.settings import Privacy
from pomona.settings import Settings


@dataclass(frozen=True)
class Passes:
    """In each of ``rounds`` rounds ``epochs`` over the data, with ``calls`` gradients on each batch."""

    rounds: int
    epochs: int
    calls: int = 1


def passes(method: Settings, epochs: int, rounds: int) -> tuple[Passes, ...]:
    """The most that a method asks of a client's data in ``rounds`` rounds of ``epochs`` local epochs.

    Evaluation that trains is included, as if every round and the last models were evaluated.
    """
    name = str(getattr(method, "name", ""))
    inner = name.removesuffix("+ala")
    # ALA's epochs go over one batch order: all of the first stage's calls meet on the same batches.
    stage = (Passes(1, 1, _number(method, "stage_epochs", 0)), Passes(rounds, 1))
    return (*_own(inner, method, epochs, rounds), *(stage if inner != name or name == "fedala" else ()))


def _own(name: str, method: Settings, epochs: int, rounds: int) -> tuple[Passes, ...]:
    once = Passes(rounds, epochs)
    match name:
        case "fedavg-ft" | "fedavg-c" | "fedprox-ft" | "fedprox-c":
            return (once, Passes(rounds + 1, _number(method, "finetune_epochs", epochs)))
        case "apfl":
            return (Passes(rounds, epochs, 2),)
        case "ditto":  # both models see the same batches
            low, high = sorted((epochs, _number(method, "personal_epochs", epochs)))
            return (Passes(rounds, low, 2), Passes(rounds, high - low))
        case "fedrep":
            return (once, Passes(rounds + 1, _number(method, "head_epochs", epochs)))
        case "per-fedavg":
            curvature = (Passes(rounds, epochs, 2),) if getattr(method, "order", "") == "hf" else ()
            return (once, once, Passes(rounds + 1, 1), *curvature)
        case "pfedme":
            return (Passes(rounds, epochs, _number(method, "inner_steps", 1)),)
    return (once,)


def _number(method: Settings, key: str, default: int) -> int:
    value = getattr(method, key, None)
    return default if value is None else int(value)


def projected(settings: Privacy, n: int, size: int, ahead: Iterable[Passes]) -> Counter[Event]:
    """The history that passes make at a client with n samples and batches of ``size``."""
    history: Counter[Event] = Counter()
    for p in ahead if n else ():
        if p.calls:
            event = Event(combined([settings.noise_multiplier] * p.calls), rate(n, size))
            history[event] += p.rounds * p.epochs * steps(n, size)
    return history


def projected_epsilon(settings: Privacy, method: Settings, n: int, size: int, epochs: int, rounds: int) -> float:
    """What a run costs at most a client with n samples that takes part in every round."""
    unnoised = getattr(method, "transfer_weight", 0)
    if n and unnoised:
        return float("inf")
    return epsilon(settings, projected(settings, n, size, passes(method, epochs, rounds)))
