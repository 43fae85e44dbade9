"""Sending one notice: by POST to a webhook, or as a mail.

Both verify the receiver's certificate; only a mail server on loopback may do without TLS. Of an
answer only the status is read, and no attempt takes longer than ``DEADLINE``.
"""

import smtplib
import ssl
from contextlib import suppress
from email.message import EmailMessage
from email.utils import formatdate
from pathlib import Path
from threading import Thread
from typing import Literal

from pydantic import Field

from pomona.core.bounds import Line, NameOrNone, plain
from pomona.core.errors import PomonaError
from pomona.core.settings import Settings
from pomona_federation.address import Address
from pomona_federation.certificates import password
from pomona_federation.notices.settings import WEBHOOK, Event, NotifySettings

STEP = 10.0  # seconds that a receiver may be silent
DEADLINE = 60.0  # seconds of a whole attempt
SMTPS = 465


class SendError(PomonaError):
    """A notice that was not accepted, and why."""


class Notice(Settings):
    """A notice, as it is sent.

    Attributes:
        id: the same for every attempt, so that a receiver can tell a repetition.
        time: in ISO 8601.
        federation, event, study, silo: what it is about; study and silo may be empty.
        text: the notice in one line.
    """

    id: str = Field(pattern=r"^[0-9a-f]{32}$")
    time: Line
    federation: NameOrNone
    event: Event | Literal["test"]
    study: Line = ""
    silo: Line = ""
    text: Line


def send(notice: Notice, channel: str, settings: NotifySettings, kit: Path) -> None:
    """Send a notice to one receiver. Raises SendError, in one line without secrets."""
    outcome: list[str] = []

    def attempt() -> None:
        try:
            (_post if channel == WEBHOOK else _mail)(notice, channel, settings, kit)
            outcome.append("")
        except Exception as fault:  # whatever a receiver does to a library ends in one line
            outcome.append(plain(f"{type(fault).__name__}: {fault}", 200))

    # A receiver that sends a byte now and then resets every time limit of a socket.
    thread = Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(DEADLINE)
    if reason := outcome[0] if outcome else f"no end within {DEADLINE:g} s":
        raise SendError(reason)


def _post(notice: Notice, _: str, settings: NotifySettings, kit: Path) -> None:
    import httpx

    with (
        httpx.Client(
            verify=_context(settings, kit), timeout=STEP, trust_env=False, follow_redirects=False
        ) as client,
        client.stream("POST", settings.webhook, json=notice.model_dump()) as answer,
    ):
        if not answer.is_success:
            raise SendError(f"answer {answer.status_code}")


def _mail(notice: Notice, channel: str, settings: NotifySettings, kit: Path) -> None:
    assert settings.smtp, "goes together with an address"
    message = EmailMessage()
    message["From"], message["To"] = str(settings.mail_from), channel
    message["Subject"] = f"Pomona {notice.federation}: {notice.text}"[:150]
    message["Date"], message["Message-ID"] = formatdate(), f"<{notice.id}@pomona.invalid>"
    message["Auto-Submitted"] = "auto-generated"
    message.set_content(f"{notice.text}\n\n{notice.time}, federation {notice.federation}\n")
    server = Address.parse(settings.smtp)
    if server.port == SMTPS:
        session: smtplib.SMTP = smtplib.SMTP_SSL(
            server.host, server.port, timeout=STEP, context=_context(settings, kit)
        )
    else:
        session = smtplib.SMTP(server.host, server.port, timeout=STEP)
    try:
        if server.port != SMTPS and (settings.ca_file or not server.loopback):
            session.starttls(context=_context(settings, kit))
        if settings.smtp_password_file:
            secret = password(kit / settings.smtp_password_file, "the mail server's")
            session.login(settings.smtp_user, secret)
        session.send_message(message)
    finally:
        with suppress(OSError):  # an accepted mail stays accepted however the session ends
            session.quit()
        session.close()


def _context(settings: NotifySettings, kit: Path) -> ssl.SSLContext:
    return ssl.create_default_context(
        cafile=str(kit / settings.ca_file) if settings.ca_file else None
    )
