"""Going on with a run: what its folder says of it is compared with what is asked, whether or not it is finished."""

from pathlib import Path

from pomona.config import Config, own_method, resolve
from pomona.core.errors import CheckpointError, ConfigError, StorageError
from pomona.core.toml import read_file
from pomona.federation.checkpointing import FREE, INERT, identity, require_same, without
from pomona.record.reading import load, require_unchanged
from pomona.storage.checkpoint import differing, newest
from pomona.storage.committed_rounds import FOLDER


def complete(config: Config, data: str, partition: str, out: Path) -> bool:
    """Whether a finished run is all that is asked for; if not, it can be given the rounds that it lacks.

    Args:
        config: what is asked for.
        data: SHA-256 of the data.
        partition: SHA-256 of who holds which rows.
        out: a finished run's folder.

    Raises:
        CheckpointError: its files changed since, or it is a run of other settings, data or partition, or of more
            rounds; nothing is changed.
    """
    try:
        require_unchanged(out)
        stored, about = _recorded(out, config), load(out).about
    except StorageError as fault:
        raise CheckpointError(str(fault)) from None
    was = identity(stored, about["data"]["fingerprint"], about["partition_sha256"])
    require_same(out, was, identity(config, data, partition))
    return not differing(without(stored.tree(), INERT), without(config.tree(), INERT))


def require_own_files(config: Config, partition: str, out: Path) -> None:
    """Raise CheckpointError if what lies beside the checkpoints of an unfinished run tells of another one.

    Args:
        config: that of the checkpoints, but for what may change.
        partition: text of who holds which rows.
        out: the run's folder; a file that is not there is written anew.
    """
    beside = "restore it, or remove it: it is then written anew"
    if (out / "config.toml").exists():
        told, known = (without(c.tree(), (*FREE, "rounds")) for c in (_recorded(out, config), config))
        keys = differing(told, known)
        if keys:
            raise CheckpointError(
                f"{out / 'config.toml'} has other values of {', '.join(keys)} than the checkpoints beside it; {beside}"
            )
    path = out / "partition.json"
    try:
        if path.exists() and path.read_bytes() != partition.encode():
            raise CheckpointError(f"{path} is not the partition of the checkpoints beside it; {beside}")
    except OSError as fault:
        raise CheckpointError(f"{path} cannot be read ({fault}); {beside}") from None


def rate(out: Path) -> float | None:
    """The learning rate of a run's newest whole checkpoint, None before its first. Raises CheckpointError."""
    found, _ = newest(out / FOLDER)
    return float(found.meta["identity"]["config"]["lr"]) if found else None


def _recorded(out: Path, asked: Config) -> Config:
    """The settings in a run's folder; no code is imported for a method that is not asked for."""
    path = out / "config.toml"
    try:
        tree = read_file(path)
        if (name := own_method(tree)) and name != asked.method.name:
            raise CheckpointError(f"{path} is of method {name}, not of {asked.method.name}; give another folder")
        return resolve(tree)
    except ConfigError as fault:
        raise CheckpointError(f"{fault}; restore the file, or remove it: it is then written anew") from None
