"""Follows an audit log and sends what it reports, from a thread that no round waits for.

The position in the log and the notices that wait are kept in ``notices.json``, so that a notice is
neither lost by a restart nor sent twice: the file says beforehand which one is being sent, and
one whose sending was cut off by a kill is not repeated.
"""

import hashlib
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from threading import Event as Flag
from threading import Thread
from typing import Any

from pydantic import Field

from pomona.core.bounds import Count, Finite
from pomona.core.errors import PomonaError, StorageError
from pomona.core.settings import Settings
from pomona.storage.hash_chain import parsed
from pomona_federation.json_store import read_json, write_json
from pomona_federation.notices.events import Events, Message, Progress
from pomona_federation.notices.settings import NotifySettings
from pomona_federation.notices.transport import Notice, SendError, send
from pomona_federation.supervision.followed_file import Mark, RewrittenError, lines_after
from pomona_federation.supervision.supervisor import backoff

FILE, LOG = "notices.json", "audit.jsonl"  # in the state of a kit
TICK = 5.0  # seconds between looks
MOST = 200  # notices that wait, all receivers together
TRIES = 8  # of one notice
FIRST, LONGEST = 30.0, 3600.0  # seconds before a second try, doubled by each
LEAVE = 15.0  # seconds that the last notices may take when the process ends


class Outgoing(Settings):
    """A notice for one receiver; ``due`` in seconds since 1970."""

    notice: Notice
    channel: str
    tries: Count = 0
    due: Finite = 0.0

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
    waiting: tuple[Outgoing, ...] = Field((), max_length=MOST)
    sending: str = ""


@dataclass
class Notifier:
    """Sends the notices of a kit.

    Args:
        kit: the folder.
        state: its folder with the audit log.
        federation: its name.
        settings: which events, and where to.
        events: finds what is worth a notice.
        say: called with a line when a receiver begins to fail, and when it works again.
    """

    kit: Path
    state: Path
    federation: str
    settings: NotifySettings
    events: Events
    say: Callable[[str], None]
    clock: Callable[[], float] = time.time
    _memory: Memory = field(init=False)
    _troubles: dict[str, str] = field(default_factory=dict)  # by receiver, or by file
    _ending: Flag = field(default_factory=Flag)
    _thread: Thread = field(init=False)

    def __post_init__(self) -> None:
        """Continue where an earlier process has stopped; the first one begins at the log's end."""
        self._thread = Thread(target=self._run, name="notices", daemon=True)
        try:
            memory = read_json(Memory, self.state / FILE)
        except StorageError as fault:
            self._trouble(FILE, str(fault))
            memory = None
        self._memory = memory or Memory(mark=self._end())
        if key := self._memory.sending:
            self.say(f"a notice may not have arrived at {key.partition(' ')[2]}")
            rest = tuple(one for one in self._memory.waiting if one.key != key)
            self._memory = self._memory.model_copy(update={"sending": "", "waiting": rest})

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
                self.look()
            except Exception as fault:  # no notice may end the server
                self._trouble("notices", f"{type(fault).__name__}: {fault}")
            if ending:
                return
            ending = self._ending.wait(TICK)

    def look(self) -> None:
        """Read new lines, then send what is due."""
        mark, lines = self._memory.mark, list[dict[str, Any]]()
        try:
            for text, mark in lines_after(self.state / LOG, self._memory.mark):  # noqa: B007
                if (line := parsed(text)) is not None:
                    lines.append(line)
            self._clear(LOG)
        except RewrittenError as fault:
            self._trouble(LOG, f"{fault}; notices continue after its end")
            mark, lines = self._end(), []
        progress, messages = self.events.read(lines, self._memory.progress)
        progress, more = self.events.conditions(progress)
        chain = mark.sha256
        fresh = [
            Outgoing(notice=self._notice(message, chain), channel=channel)
            for message in (*messages, *more)
            if message.event in self.settings.events
            for channel in self.settings.channels
        ]
        waiting = (*self._memory.waiting, *fresh)
        if len(waiting) > MOST:
            self._trouble("queue", f"{len(waiting) - MOST} notices are dropped, the oldest first")
        before, self._memory = (
            self._memory,
            self._memory.model_copy(
                update={"mark": mark, "progress": progress, "waiting": waiting[-MOST:]}
            ),
        )
        if self._memory != before:
            self._write()
        for one in self._memory.waiting:
            if one.due <= self.clock():
                self._send(one)

    def _send(self, one: Outgoing) -> None:
        if one.channel not in self.settings.channels:  # the settings have changed since
            return self._replace(one, None)
        self._memory = self._memory.model_copy(update={"sending": one.key})
        self._write()
        try:
            send(one.notice, one.channel, self.settings, self.kit)
        except SendError as fault:
            self._trouble(one.channel, f"notices do not arrive: {fault}")
            tries = one.tries + 1
            due = self.clock() + backoff(tries, FIRST, LONGEST)
            if tries >= TRIES:
                self.say(f"{one.channel}: a notice is given up after {tries} tries")
            again = one.model_copy(update={"tries": tries, "due": due})
            return self._replace(one, again if tries < TRIES else None)
        self._clear(one.channel)
        return self._replace(one, None)

    def _replace(self, one: Outgoing, by: Outgoing | None) -> None:
        waiting = (by if each is one else each for each in self._memory.waiting)
        self._memory = self._memory.model_copy(
            update={"sending": "", "waiting": tuple(each for each in waiting if each)}
        )
        self._write()

    def _notice(self, message: Message, chain: str) -> Notice:
        about = [chain, message.event, message.study, message.silo, message.text]
        return Notice(
            id=hashlib.sha256("\n".join(about).encode()).hexdigest()[:32],
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
            write_json(self.state / FILE, self._memory)
            self._clear(FILE)
        except (OSError, PomonaError) as fault:
            self._trouble(FILE, f"cannot be written ({fault})")

    def _end(self) -> Mark:
        """The end of the audit log."""
        mark = Mark()
        with suppress(RewrittenError, StorageError):
            for mark in _marks(self.state / LOG):  # noqa: B007
                pass
        return mark

    def _trouble(self, about: str, text: str) -> None:
        """Say once that something fails."""
        if about not in self._troubles:
            self.say(f"{about}: {text}")
        self._troubles[about] = text

    def _clear(self, about: str) -> None:
        if self._troubles.pop(about, ""):
            self.say(f"{about}: works again")


def _marks(path: Path) -> Iterator[Mark]:
    """The marks of all lines of a file."""
    mark, before = Mark(), None
    while mark != before:
        before = mark
        for _, mark in lines_after(path, before):
            yield mark


def pending(state: Path) -> Counter[str]:
    """How many notices wait, by receiver. Raises StorageError."""
    memory = read_json(Memory, state / FILE) or Memory()
    return Counter(one.channel for one in memory.waiting)


def try_out(kit: Path, federation: str, settings: NotifySettings) -> dict[str, str]:
    """Send every receiver a notice now; "sent", or why it did not arrive, by receiver."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    about = {"id": secrets.token_hex(16), "time": now, "federation": federation, "event": "test"}
    notice = Notice(**about, text="a test: notices of this federation arrive here")
    outcomes = {}
    for channel in settings.channels:
        try:
            send(notice, channel, settings, kit)
            outcomes[channel] = "sent"
        except SendError as fault:
            outcomes[channel] = str(fault)
    return outcomes
