"""The server's own settings, ``server.toml`` in its kit: no part of any agreement, and optional."""

from pathlib import Path

from pydantic import Field

from pomona.core.errors import ConfigError
from pomona.core.settings import Settings
from pomona.core.toml import named_file, read_file, validated
from pomona_federation.agreement import Federation
from pomona_federation.notices.settings import NotifySettings

NAME = "server.toml"


class ServerFile(Settings):
    """A server's own settings: its status page, and notices to people."""

    page: bool = Field(
        False, description="/status shows the state to people with a token of `pomona server page`"
    )
    notify: NotifySettings | None = Field(None, description="notices by webhook and mail")

    @classmethod
    def load(cls, kit: Path, federation: Federation) -> "ServerFile":
        """The settings of a kit; the defaults without a file.

        Raises ConfigError naming the file and every bad key or value.
        """
        path = kit / NAME
        if not path.exists():
            return cls()
        tree = read_file(path)
        with named_file(path):
            settings = validated(cls, tree)
            if settings.page and federation.insecure:
                raise ConfigError(
                    "page = true, but insecure = true means that tokens travel in the clear; take "
                    "one of them out"
                )
        return settings
