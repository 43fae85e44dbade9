"""A limit of speed: bytes wait for their turn, so that no more than so many pass a second."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from threading import Lock

PIECE = 2**14  # bytes that pass at once: small, so that a sign of life comes through between the pieces of a model
MBIT = 1e6 / 8  # bytes


@dataclass
class Bandwidth:
    """Bytes that may pass, in the order in which they ask.

    Each caller takes the next free span of time under a lock, and waits for its end without it.

    Args:
        rate: bytes a second.
        clock, sleep: of the machine; seconds.
    """

    rate: float
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _free: float = float("-inf")  # when all that was let through has passed
    _lock: Lock = field(default_factory=Lock)

    @classmethod
    def of(cls, mbit: float | None) -> "Bandwidth | None":
        """So many megabits a second; None for no limit."""
        return None if mbit is None else cls(mbit * MBIT)

    def take(self, size: int) -> None:
        """Wait until ``size`` more bytes have passed."""
        with self._lock:
            now = self.clock()
            self._free = max(self._free, now) + size / self.rate
            seconds = self._free - now
        self.sleep(seconds)

    def paced(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """The same bytes in pieces, each after its time."""
        for chunk in chunks:
            for begin in range(0, len(chunk), PIECE):
                piece = chunk[begin : begin + PIECE]
                self.take(len(piece))
                yield piece
