"""A limit of the whole time that a request takes: its timeouts are of one read each, and a byte now and then meets all.

The request's connections are shut down from another thread, since the one that reads may wait for the next byte.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from threading import Lock, Timer
from typing import Any

MADE = ("connect_tcp.complete", "start_tls.complete")  # events of httpcore; a link in TLS takes the plain one's place


@dataclass
class TimeLimit:
    """One request's limit; ``over`` once it was reached. ``extensions`` belong to the request."""

    over: bool = False
    _links: list[socket.socket] = field(default_factory=list)
    _lock: Lock = field(default_factory=Lock)

    @property
    def extensions(self) -> dict[str, Any]:
        """What httpx is to be given with the request, so that its connections are known."""
        return {"trace": self._seen}

    def _seen(self, event: str, about: dict[str, Any]) -> None:
        if event.endswith(MADE):
            with self._lock:
                self._links.append(about["return_value"].get_extra_info("socket"))
            if self.over:
                self.end()

    def end(self) -> None:
        """Shut the connections down; whoever reads from one is at its end."""
        with self._lock:
            self.over = True
            for link in self._links:
                with suppress(OSError):  # closed, or in TLS now
                    socket.socket.shutdown(
                        link, socket.SHUT_RDWR
                    )  # an SSLSocket's own would take its state from the reader


@contextmanager
def limited(seconds: float) -> Iterator[TimeLimit]:
    """Limit what is asked within the block to so many seconds in all."""
    limit = TimeLimit()
    timer = Timer(seconds, limit.end)
    timer.daemon = True
    timer.start()
    try:
        yield limit
    finally:
        timer.cancel()
