"""A server's kit with a run to monitor: real files of an in-process federation, finished or in
progress.
"""

import asyncio
import shutil
import time
from contextlib import contextmanager

import httpx

from pomona.storage.lock import locked
from pomona.storage.run_status import Status, write_status
from pomona_federation.json_store import write_json
from pomona_federation.supervision.status_files import WAITING, WaitingStatus

HOSTILE = "<script>alert(1)</script> \"quoted\" & 'so'\\"


def copied(source, target):
    """A copy of kits that a test may change."""
    return shutil.copytree(source, target, ignore=shutil.ignore_patterns("arrivals"))


@contextmanager
def running(kit, missing):
    """Make a server's run look active: this process holds the folder, and waits for silos."""
    run = kit / "run"
    with locked(run):
        write_status(run, Status(state="running", round=2))
        start_time = time.time()
        silos = ("silo-0", *missing)
        waits = WaitingStatus(
            stage="round 3",
            since=start_time,
            until=start_time + 600,
            asked=silos,
            answered=silos[:1],
            missing=missing,
        )
        write_json(run / WAITING, waits)
        yield


def app_response(app, path="/", base="http://127.0.0.1:9464", method="GET", **headers):
    """An application's response, without a network."""

    async def answer():
        transport = httpx.ASGITransport(app, raise_app_exceptions=True)
        async with httpx.AsyncClient(transport=transport, base_url=base) as client:
            return await client.request(method, path, headers=headers)

    return asyncio.run(answer())
