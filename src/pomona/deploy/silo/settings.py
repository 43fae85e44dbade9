"""A silo's own settings, ``silo.toml``. They never leave the silo."""

from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from pomona.core.errors import ConfigError
from pomona.core.settings import Settings
from pomona.core.toml import named, read_file, validated
from pomona.data.settings import DataSettings
from pomona.deploy.agreement import SiloName

PATHS = ("path", "dir", "train", "validation", "test")


class SiloFile(Settings):
    """A silo's own settings: its data, its device, its way out."""

    name: SiloName = Field(description="the silo's name in the federation")
    device: str = Field("cpu", pattern=r"^(cpu|cuda(:[0-9]+)?)$", description="cpu, cuda, or one GPU: cuda:1")
    port: int = Field(9094, ge=1, lt=1 << 16, description="local port of Flower's runtime, one per silo on a machine")
    threads: int = Field(
        1, ge=1, le=1024, description="threads of PyTorch; the bits of a model are the same everywhere with 1 alone"
    )
    proxy: str = Field("", pattern=r"^(https?://\S+)?$", description="proxy on the way to the server; none if empty")
    max_upload_mb: float | None = Field(None, gt=0, description="a round that would send more is refused")
    max_download_mb: float | None = Field(None, gt=0, description="a task that brings more is refused")
    accept_epsilon: float | None = Field(None, gt=0, description="most privacy loss the silo agrees to, with privacy")
    data: DataSettings = Field(description="the silo's data, as section data of a run")

    @model_validator(mode="after")
    def _alone(self) -> Self:
        if len(self.data.clients) > 1:
            raise ValueError(f"data.clients names {len(self.data.clients)} clients; a silo is one")
        return self

    @classmethod
    def load(cls, path: Path) -> "SiloFile":
        """Read and check a ``silo.toml``; paths in it are relative to its folder.

        Raises ConfigError naming the file and every bad key or value.
        """
        tree = named(read_file(path))
        try:
            return validated(cls, {**tree, "data": _anchored(tree["data"], path.parent)} if "data" in tree else tree)
        except ConfigError as fault:
            raise ConfigError(f"{path}: {fault}") from None


def _anchored(data: Any, folder: Path) -> Any:
    """Section data with the paths in it made absolute."""
    if isinstance(data, list):
        return [_anchored(part, folder) for part in data]
    if not isinstance(data, dict):
        return data
    home = folder.absolute()
    return {
        key: str(home / value) if key in PATHS and isinstance(value, str) else _anchored(value, folder)
        for key, value in data.items()
    }
