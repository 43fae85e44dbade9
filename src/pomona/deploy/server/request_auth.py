"""Who a request to SuperLink comes from, by its head alone; and how long it may take to send one."""

import asyncio
import binascii
from base64 import b64decode
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from pomona.deploy.server.grpc_gate import Headers, RequestRefused
from pomona.deploy.server.member_registry import BOOK
from pomona.deploy.server.registry_admin import members

HEAD = 20.0  # seconds until a connection must have sent the whole head of a request


class RequestAuth:
    """The silos that may connect, as the book of a server's kit has them at this moment."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._read, self._keys = folder, -1, dict[bytes, str]()

    def __call__(self, headers: Headers) -> str:
        """The silo whose key has signed a request's head, as Flower's nodes do. Raises Refused for anybody else."""
        from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_HEADER, TIMESTAMP_TOLERANCE
        from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
        from flwr.supercore.date import now
        from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature

        said = {name.decode("latin-1").lower(): value for name, value in headers}
        try:
            key = b64decode(said[FLEET_HTTP_PUBLIC_KEY_HEADER], validate=True)
            signature = b64decode(said[FLEET_HTTP_SIGNATURE_HEADER], validate=True)
            when = said[TIMESTAMP_HEADER]
            age = (now() - datetime.fromisoformat(when.decode("ascii"))).total_seconds()
            name = self._members()[key]
            timely = -SYSTEM_TIME_TOLERANCE < age < TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE
            if not timely or not verify_signature(bytes_to_public_key(key), when, signature):
                raise ValueError
        except (KeyError, ValueError, TypeError, UnicodeError, binascii.Error):
            raise RequestRefused(401, "no member has signed this request") from None
        return name

    def _members(self) -> Mapping[bytes, str]:
        """Names by public key (PEM), read again whenever the book has been written."""
        try:
            written = (self._folder / "run" / BOOK).stat().st_mtime_ns
        except OSError:
            written = 0
        if written != self._read:
            self._keys, self._read = {key: name for name, key in members(self._folder).items()}, written
        return self._keys


def impatient(protocol: type[Any], seconds: float = HEAD) -> type[Any]:
    """One of uvicorn's HTTP protocols that ends a connection on which no whole request's head comes in time.

    Uvicorn has no such limit: connections that say nothing, or a byte now and then, would be held for ever.
    """

    class Impatient(protocol):  # type: ignore[misc]
        timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            self.wait()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self.wait()

        def connection_lost(self, fault: Exception | None) -> None:
            if self.timer:
                self.timer.cancel()
            super().connection_lost(fault)

        def wait(self) -> None:
            if not self.timer and self.idle():
                self.timer = self.loop.call_later(seconds, self.leave)

        def leave(self) -> None:
            self.timer = None
            if self.idle():
                self.transport.close()

        def idle(self) -> bool:
            return self.cycle is None or self.cycle.response_complete

    return Impatient


def anybody(_: Headers) -> str:
    """Who a request comes from where a federation has no keys."""
    return ""
