"""The id of a study's run, the same after every restart of the server."""

import secrets
from pathlib import Path

from pomona.core.settings import Settings
from pomona_federation.json_store import read_json, write_json
from pomona_federation.messages.message_bodies import Token
from pomona_federation.versions import Versions, own, require_begun


class Identity(Settings):
    """A run's id and the versions that it was started with, in ``run.json``."""

    run: Token
    begun: Versions | None = None


def run_id(out: Path) -> str:
    """The run's id, drawn once. Raises StorageError for a damaged file, CheckpointError for another version's."""
    path = out / "run.json"
    known = read_json(Identity, path)
    if known is None:
        known = Identity(run=secrets.token_hex(8), begun=own())
        write_json(path, known)
    require_begun(known.begun, "the run")
    return known.run
