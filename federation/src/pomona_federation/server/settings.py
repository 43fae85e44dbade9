"""The server's own settings, ``server.toml`` in its kit, with those of its notices: no part of any
agreement, and optional.
"""

from pathlib import Path
from typing import Annotated, Literal, Self, get_args
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from pomona.core.errors import ConfigError
from pomona.core.settings import Settings
from pomona.core.toml import named_file, read_file, validated
from pomona_federation.address import HostPort
from pomona_federation.agreement import Federation

NAME = "server.toml"
WEBHOOK = "webhook"  # the name of that receiver
Event = Literal["proposed", "begun", "finished", "failed", "absent", "disk", "certificate"]
EVENTS: tuple[Event, ...] = get_args(Event)
MailAddress = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+$", max_length=254)
]


def _https(url: str) -> str:
    split = urlsplit(url)
    if url and (split.scheme != "https" or not split.hostname or "@" in split.netloc):
        raise ValueError("give https://HOST/..., without a user name")
    if not url.isascii() or not url.isprintable() or " " in url:
        raise ValueError("give the URL in ASCII, without spaces")
    return url


class NotifySettings(Settings):
    """Notices: of events, never of data; paths are relative to the kit.

    Attributes:
        events: the events that are reported
        absent_rounds: rounds in a row without a silo before it is reported
        free_gb: room on the kit's disk below which it is reported
        webhook: https URL to which each notice is sent as JSON by POST
        mail_to: addresses that get each notice as a mail
        mail_from: the sender's address
        smtp: host:port of the mail server; TLS at port 465, STARTTLS at others
        smtp_user: user name for the mail server
        smtp_password_file: file with the mail server's password, mode 0600
        ca_file: authority of webhook and mail server (PEM); the machine's if unset
    """

    events: tuple[Event, ...] = Field(EVENTS, min_length=1, max_length=len(EVENTS))
    absent_rounds: int = Field(3, ge=1, le=10**6)
    free_gb: float = Field(5.0, gt=0, le=10**6)
    webhook: Annotated[str, AfterValidator(_https)] = Field("", max_length=2000)
    mail_to: tuple[MailAddress, ...] = Field((), max_length=20)
    mail_from: MailAddress | None = None
    smtp: HostPort | None = None
    smtp_user: str = Field("", max_length=200)
    smtp_password_file: Path | None = None
    ca_file: Path | None = None

    @model_validator(mode="after")
    def _receivers_complete(self) -> Self:
        if not (self.webhook or self.mail_to):
            raise ValueError("names no receiver; give webhook, or mail_to")
        if bool(self.mail_to) != bool(self.mail_from) or bool(self.mail_to) != bool(self.smtp):
            raise ValueError("mail_to, mail_from and smtp go together; give all three or none")
        if bool(self.smtp_user) != bool(self.smtp_password_file):
            raise ValueError("smtp_user and smtp_password_file go together; give both or neither")
        return self

    @property
    def channels(self) -> tuple[str, ...]:
        """The receivers: ``webhook`` and mail addresses."""
        return (*([WEBHOOK] if self.webhook else []), *self.mail_to)


class ServerFile(Settings):
    """A server's own settings: its status page, and notices to people.

    Attributes:
        page: /status shows the state to people with a token of `pomona server page`
        notify: notices by webhook and mail
    """

    page: bool = False
    notify: NotifySettings | None = None

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
