"""A TCP relay that is slow, stalls, cuts, or goes dark, between the silos of a test and its server,
on loopback.
"""

import asyncio
import threading
import time
import tomllib
from contextlib import contextmanager
from dataclasses import dataclass, field

from numpy.random import Generator

from pomona.core.rng import stream
from pomona_federation.rehearsal.run import free_ports

PIECE = 16 * 1024  # bytes that are passed on at a time


@dataclass
class Line:
    """Disturbances of a relay; every field may be changed while it is running.

    Attributes:
        delay: of each piece in seconds, each way.
        rate: bytes a second, of each connection and way; 0 for no limit.
        capacity: bytes a second of each way, all connections together; 0 for no limit.
        lost, resend: share of pieces that are lost, and seconds until they are sent again, as
            TCP does.
        cut: bytes after which a connection is cut, on average; 0 for never.
        dark: nothing passes, and no connection ends.
        connections, cuts: numbers so far.
    """

    delay: float = 0.0
    rate: float = 0.0
    capacity: float = 0.0
    lost: float = 0.0
    resend: float = 0.0
    cut: float = 0.0
    dark: bool = False
    connections: int = 0
    cuts: int = 0
    _open: set = field(default_factory=set)
    _draws: Generator = field(default_factory=lambda: stream(5, "line"))
    _free: list = field(default_factory=lambda: [0.0, 0.0])  # when each direction is free again

    async def carry(self, target, reader, writer):
        """Relay one connection, until one end closes it or it is cut."""
        self.connections += 1
        self._open.add(task := asyncio.current_task())
        writers = [writer]
        try:
            server, onward = await asyncio.open_connection("127.0.0.1", target)
            writers.append(onward)
            left = self._draws.exponential(self.cut) if self.cut else float("inf")
            directions = {
                asyncio.ensure_future(self._pass(*streams, left, direction))
                for direction, streams in enumerate(((reader, onward), (server, writer)))
            }
            try:
                await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for direction in directions:
                    direction.cancel()
        except (OSError, asyncio.CancelledError):  # the server is down, or the test is over
            pass
        finally:
            for stream_writer in writers:
                stream_writer.transport.abort()
            self._open.discard(task)

    def close(self):
        """End all connections."""
        for task in self._open:
            task.cancel()

    async def _pass(self, reader, writer, left, direction):
        """Relay one direction, up to a number of bytes; a closed end is passed on, too."""
        try:
            while piece := await reader.read(PIECE):
                while self.dark:
                    await asyncio.sleep(0.05)
                wait = self.delay + (len(piece) / self.rate if self.rate else 0.0)
                await asyncio.sleep(
                    wait + (self.resend if self._draws.random() < self.lost else 0.0)
                )
                if self.capacity:
                    start_time = time.monotonic()
                    self._free[direction] = (
                        max(self._free[direction], start_time) + len(piece) / self.capacity
                    )
                    await asyncio.sleep(self._free[direction] - start_time)
                left -= len(piece)
                if left < 0:
                    self.cuts += 1
                    return
                writer.write(piece)
                await writer.drain()
            writer.close()
            await writer.wait_closed()
        except OSError:  # the other end has gone
            pass


@contextmanager
def between(line, local, names):
    """Relay these silos' connections to the server of a local federation, before their start."""
    server = tomllib.loads((local.server / "federation.toml").read_text())["server"]
    (port,) = free_ports(1)
    for name in names:
        path = local.silo(name) / "federation.toml"
        text = path.read_text()
        assert text.count(f'"{server}"') == 1
        path.write_text(text.replace(f'"{server}"', f'"127.0.0.1:{port}"'))
    with troubled(line, port, int(server.rpartition(":")[2])):
        yield line


@contextmanager
def troubled(line, port, target):
    """Relay one port of loopback to another, in a thread."""
    ready, ending = threading.Event(), []

    async def serve():
        finished = asyncio.Event()
        ending.append((asyncio.get_running_loop(), finished))
        async with await asyncio.start_server(
            lambda *streams: line.carry(target, *streams), "127.0.0.1", port
        ):
            ready.set()
            await finished.wait()
            line.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    try:
        assert ready.wait(10)
        yield line
    finally:
        ((loop, finished),) = ending
        loop.call_soon_threadsafe(finished.set)
        thread.join(10)
