"""Repositories of the Hugging Face Hub, as its own tools keep them on this machine, at one commit.

Nothing here reaches the network: what is missing is fetched by the command that the error names.
The layout of the cache: https://huggingface.co/docs/huggingface_hub/guides/manage-cache
"""

import os
import re
from pathlib import Path
from typing import Literal

from pomona.core.errors import ConfigError, DataError
from pomona.core.files import expanded

REPOSITORY = re.compile(r"(?:[\w-][\w.-]{0,95}/)?[\w-][\w.-]{0,95}")
COMMIT = re.compile(r"[0-9a-f]{40}")


def cache() -> Path:
    """Return the folder of the cache, as the Hub's tools find it."""
    if folder := os.environ.get("HF_HUB_CACHE"):
        return expanded(folder)
    home_folder = os.environ.get("HF_HOME")
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    base = expanded(home_folder) if home_folder else expanded(caches) / "huggingface"
    return base / "hub"


def snapshot(repository_type: Literal["model", "dataset"], repository: str, revision: str) -> Path:
    """Return the folder with a repository's files at a commit.

    Args:
        repository_type: of the repository.
        repository: OWNER/NAME, or NAME.
        revision: the commit, 40 hexadecimal digits; a branch or a tag may move.

    Raises:
        ConfigError: no such name, or no commit.
        DataError: it is not on this machine; the message has the command that fetches it.
    """
    if not REPOSITORY.fullmatch(repository):
        raise ConfigError(f"{repository!r} is not a repository of the Hub; write OWNER/NAME")
    folder = cache() / f"{repository_type}s--{repository.replace('/', '--')}"
    if not COMMIT.fullmatch(revision):
        raise ConfigError(
            f"{repository} at {revision or 'no revision'}: a branch may move, so name a commit of "
            f"40 hexadecimal digits, as its commit history lists them{_cached_commits(folder)}"
        )
    files = folder / "snapshots" / revision
    if not files.is_dir():
        option = "" if repository_type == "model" else " --repo-type dataset"
        raise DataError(
            f"{repository} at {revision} is not in {cache()}; fetch it: "
            f"hf download {repository}{option} --revision {revision}"
        )
    return files


def _cached_commits(folder: Path) -> str:
    """Return the commits on this machine, for a message."""
    commits = sorted(path.name for path in (folder / "snapshots").glob("*") if path.is_dir())
    return f" (here are: {', '.join(commits[:3])})" if commits else ""
