"""Follows an audit log and sends what it reports, from a thread that no round waits for.

The position in the log and the notices that wait are kept in ``notices.json``, so that a notice is
neither lost by a restart nor sent twice: the file says beforehand which one is being sent, and
one whose sending was cut off by a kill is not repeated.
"""

import hashlib
import secrets
import smtplib
import ssl
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import formatdate
from itertools import islice
from pathlib import Path
from threading import Event as Flag
from threading import Thread
from typing import Any, Literal

from pydantic import Field

from pomona.core.bounds import Count, Finite, Line, NameOrNone, plain
from pomona.core.errors import PomonaError, StorageError
from pomona.core.settings import Settings
from pomona.storage.hash_chain import parsed
from pomona_federation.address import Address
from pomona_federation.certificates import content, password
from pomona_federation.json_store import read_json, write_json
from pomona_federation.server.notice_events import Message, Progress, ServerEvents
from pomona_federation.server.settings import WEBHOOK, Event, NotifySettings
from pomona_federation.supervision.process_logs import Mark, RewrittenError, lines_after
from pomona_federation.supervision.supervisor import backoff

FILE, LOG = "notices.json", "audit.jsonl"  # in run/
TICK = 5.0  # seconds between looks
MAX_LINES = 10_000  # lines per look
WAITING_LIMIT = 200  # notices that wait, all receivers together
TRIES = 8  # of a notice
FIRST_DELAY, LONGEST_DELAY = 30.0, 3600.0  # seconds before a second try, doubled by each
LEAVE = 15.0  # seconds that the last notices may take when the process ends
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


class Outgoing(Settings):
    """A notice for a receiver; ``send_after`` in seconds since 1970."""

    notice: Notice
    channel: str
    tries: Count = 0
    send_after: Finite = 0.0

    @property
    def key(self) -> str:
        """What no other sending has."""
        return f"{self.notice.id} {self.channel}"


class Memory(Settings):
    """The content of ``notices.json``.

    Attributes:
        mark: the position in the audit log.
        progress: what its lines up to there add up to.
        waiting: what is to be sent.
        sending: key of what was being sent when this was written; empty for nothing.
    """

    mark: Mark = Mark()
    progress: Progress = Progress()
    waiting: tuple[Outgoing, ...] = Field((), max_length=WAITING_LIMIT)
    sending: str = ""


@dataclass
class Notifier:
    """Sends the notices of a kit.

    Args:
        kit: a server's folder.
        federation: its name.
        settings: which events, and where to.
        log: called with a line when a receiver begins to fail, and when it works again.
    """

    kit: Path
    federation: str
    settings: NotifySettings
    log: Callable[[str], None]
    clock: Callable[[], float] = time.time
    _events: ServerEvents = field(init=False)
    _memory: Memory = field(init=False)
    _troubles: dict[str, str] = field(default_factory=dict)  # by receiver, or by file
    _ending: Flag = field(default_factory=Flag)
    _thread: Thread = field(init=False)

    def __post_init__(self) -> None:
        """Continue where an earlier process has stopped; the first begins at the log's end."""
        self._events = ServerEvents(self.kit, self.settings)
        self._thread = Thread(target=self._run, name="notices", daemon=True)
        try:
            memory = read_json(Memory, self._state / FILE)
        except StorageError as fault:
            self._trouble(FILE, str(fault))
            memory = None
        self._memory = memory or Memory(mark=self._log_end())
        if key := self._memory.sending:
            self.log(f"a notice may not have arrived at {key.partition(' ')[2]}")
            waiting = tuple(outgoing for outgoing in self._memory.waiting if outgoing.key != key)
            self._memory = self._memory.model_copy(update={"sending": "", "waiting": waiting})

    @property
    def _state(self) -> Path:
        """The folder of the audit log."""
        return self.kit / "run"

    def __enter__(self) -> "Notifier":
        """Start the thread."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Send what the last lines report, for at most ``LEAVE`` seconds; the rest waits for the
        next start.
        """
        self._ending.set()
        self._thread.join(LEAVE)

    def _run(self) -> None:
        ending = False
        while True:
            try:
                self.check()
                self._clear("notices")
            except Exception as fault:  # no notice may end the server
                self._trouble("notices", f"{type(fault).__name__}: {fault}")
            if ending:
                return
            ending = self._ending.wait(TICK)

    def check(self) -> None:
        """Read new lines, then send what is due."""
        mark, lines = self._memory.mark, list[dict[str, Any]]()
        following = lines_after(self._state / LOG, mark)
        try:
            for text, mark in islice(following, MAX_LINES):  # noqa: B007
                if (line := parsed(text)) is not None:
                    lines.append(line)
            self._clear(LOG)
        except RewrittenError as fault:
            self._trouble(LOG, f"{fault}; notices continue when it ends")
            mark, lines = self._log_end(), []
        progress, messages = self._events.read(lines, self._memory.progress)
        progress, conditions = self._events.conditions(progress)
        chain = mark.sha256
        fresh = [
            Outgoing(notice=self._notice(message, chain), channel=channel)
            for message in (*messages, *conditions)
            if message.event in self.settings.events
            for channel in self.settings.channels
        ]
        waiting = (*self._memory.waiting, *fresh)
        if len(waiting) > WAITING_LIMIT:
            self._trouble(
                "queue", f"{len(waiting) - WAITING_LIMIT} notices are dropped, the oldest first"
            )
        previous = self._memory
        self._memory = previous.model_copy(
            update={"mark": mark, "progress": progress, "waiting": waiting[-WAITING_LIMIT:]}
        )
        if self._memory != previous:
            self._write()
        for outgoing in self._memory.waiting:
            if not 0 < outgoing.send_after - self.clock() <= LONGEST_DELAY:  # unless set back
                self._send(outgoing)

    def _send(self, outgoing: Outgoing) -> None:
        if outgoing.channel not in self.settings.channels:  # the settings have changed since
            return self._replace(outgoing, None)
        self._memory = self._memory.model_copy(update={"sending": outgoing.key})
        self._write()
        try:
            send(outgoing.notice, outgoing.channel, self.settings, self.kit)
        except SendError as fault:
            self._trouble(outgoing.channel, f"notices do not arrive: {fault}")
            tries = outgoing.tries + 1
            send_after = self.clock() + backoff(tries, FIRST_DELAY, LONGEST_DELAY)
            if tries >= TRIES:
                self.log(f"{outgoing.channel}: a notice is given up after {tries} tries")
            postponed = outgoing.model_copy(update={"tries": tries, "send_after": send_after})
            return self._replace(outgoing, postponed if tries < TRIES else None)
        self._clear(outgoing.channel)
        return self._replace(outgoing, None)

    def _replace(self, outgoing: Outgoing, successor: Outgoing | None) -> None:
        waiting = (successor if item is outgoing else item for item in self._memory.waiting)
        self._memory = self._memory.model_copy(
            update={"sending": "", "waiting": tuple(item for item in waiting if item)}
        )
        self._write()

    def _notice(self, message: Message, chain: str) -> Notice:
        content = [chain, message.event, message.study, message.silo, message.text]
        return Notice(
            id=hashlib.sha256("\n".join(content).encode()).hexdigest()[:32],
            time=datetime.fromtimestamp(self.clock(), UTC).isoformat(timespec="seconds"),
            federation=self.federation,
            event=message.event,
            study=message.study,
            silo=message.silo,
            text=message.text,
        )

    def _write(self) -> None:
        """Keep the memory; with a full disk notices go on, and may be repeated after a restart."""
        try:
            write_json(self._state / FILE, self._memory)
            self._clear(FILE)
        except (OSError, PomonaError) as fault:
            self._trouble(FILE, f"cannot be written ({fault})")

    def _log_end(self) -> Mark:
        """The end of the audit log."""
        mark = Mark()
        with suppress(RewrittenError, StorageError):
            for _, mark in lines_after(self._state / LOG, mark):  # noqa: B007, B020
                pass
        return mark

    def _trouble(self, subject: str, text: str) -> None:
        """Say once that something fails."""
        if subject not in self._troubles:
            self.log(f"{subject}: {text}")
        self._troubles[subject] = text

    def _clear(self, subject: str) -> None:
        if self._troubles.pop(subject, ""):
            self.log(f"{subject}: works again")


def pending(kit: Path) -> Counter[str]:
    """How many notices wait, by receiver. Raises StorageError."""
    memory = read_json(Memory, kit / "run" / FILE) or Memory()
    return Counter(outgoing.channel for outgoing in memory.waiting)


def try_out(kit: Path, federation: str, settings: NotifySettings) -> dict[str, str]:
    """Send every receiver a notice now; "sent", or why it did not arrive, by receiver."""
    notice = Notice(
        id=secrets.token_hex(16),
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        federation=federation,
        event="test",
        text="a test: notices of this federation arrive here",
    )
    outcomes = {}
    for channel in settings.channels:
        try:
            send(notice, channel, settings, kit)
            outcomes[channel] = "sent"
        except SendError as fault:
            outcomes[channel] = str(fault)
    return outcomes


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
    authority = kit / settings.ca_file if settings.ca_file else None
    if authority:
        content(authority)  # an error that names the file
    return ssl.create_default_context(cafile=authority)
