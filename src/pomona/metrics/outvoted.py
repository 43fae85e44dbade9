"""Whether one client alone decides which of two rounds is better, against the others.

The mean over clients decides. But clients report their scores themselves, and a false one, of 0 or
1, can turn a mean alone. So each client is also compared with itself, by its gain from one round to
the other. The one that turned the mean is outvoted

- where the mean gain, each limited to the range of the others', decides otherwise, and at least two
  thirds of the others agree. So a round is better wherever all others gain, and worse wherever all
  others lose, whatever one client reports;
- where its gain is out of proportion, below the others' by more than ``FAR`` times their range and
  their largest size, and the mean of theirs is a gain: in doubt, training goes on.

Otherwise, where the others are divided, the mean stays what it is. A client with a score in one of
both rounds only has no gain and does not count here, as long as more than half of the clients have
both. Of two clients none can be outvoted.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

FEWEST = 3
"""Clients of which one can be outvoted."""
FAR = 2.0
"""In rounds of honest clients, whose scores on few samples jump, 1 would outvote some of them."""


@dataclass(frozen=True)
class Outvoted:
    """A client whose scores do not decide as reported.

    Attributes:
        gain: as reported, positive if better; None for a client without a score in one of both
            rounds.
        low, high: the range of the others' gains, to which its own is limited.
    """

    gain: float | None
    low: float
    high: float


def outvoted(
    earlier: Mapping[int, float | None],
    later: Mapping[int, float | None],
    min_gain: float,
    reported: bool,
) -> dict[int, Outvoted]:
    """Return the clients that turn a comparison of two rounds against the others; none if the means
    stand.

    Args:
        earlier: each client's score in the earlier round, more is better; None for none.
        later: the same in the later one.
        min_gain: the later round is better if the mean gain exceeds this.
        reported: whether it is by the means over all clients.
    """
    old, new = _defined(earlier), _defined(later)
    gains = {client: score - old[client] for client, score in new.items() if client in old}
    clients = old.keys() | new.keys()
    missing = sorted(clients - gains.keys())
    if len(clients) < FEWEST or 2 * len(gains) <= len(clients):
        return {}
    low, *peers = sorted(gains, key=lambda client: -gains[client] if reported else gains[client])
    voters = [gains[client] for client in ([low, *peers] if missing else peers)]
    if not (
        _turned(list(gains.values()), voters, min_gain, reported)
        or (not reported and not missing and _far(gains[low], voters, min_gain))
    ):
        return {}
    span = min(voters), max(voters)
    absent = {client: Outvoted(None, *span) for client in missing}
    return absent or {low: Outvoted(gains[low], *span)}


def _turned(gains: list[float], voters: list[float], min_gain: float, reported: bool) -> bool:
    """Return whether limited gains decide otherwise, and most voters agree."""
    better = fmean(_limited(gains)) > min_gain
    agreeing = sum(gain >= 0 if better else gain < 0 for gain in voters)
    return better != reported and 3 * agreeing >= 2 * len(voters)


def _far(gain: float, voters: list[float], min_gain: float) -> bool:
    """Return whether a gain is far below those of others, whose mean is a gain."""
    usual = max(map(abs, voters)) + max(voters) - min(voters)
    return fmean(voters) > min_gain and min(voters) - gain > FAR * usual


def _limited(gains: list[float]) -> list[float]:
    """Return each gain, limited to the range of the others; of two, both as they are."""
    order = sorted(gains)
    low, high = sorted((order[1], order[-2]))
    return [min(max(gain, low), high) for gain in gains]


def _defined(scores: Mapping[int, float | None]) -> dict[int, float]:
    return {client: score for client, score in scores.items() if score is not None}
