"""The server: a SuperLink, the keys that may connect to it, and the one run, kept going until it ends.

SuperLink does not go on with a run whose ServerApp died, nor with any after its own death. Both are started again
here, and the run goes on after its last committed round. What a restart cannot mend ends the server: a status with a
code from 2 to 10, with that code, and code 1 where it comes again and again without a round between.
"""

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import psutil

from pomona.core.errors import PomonaError, ProtocolError, StorageError
from pomona.deploy.audit import Audit
from pomona.deploy.processes import adopt, disown, end, process_tree, reap, start, undisturbed
from pomona.deploy.server.superlink_client import Link, agree
from pomona.storage import committed_rounds as rounds
from pomona.storage.status import Status, ended, read_status, write_status

APP = "flwr-serverapp"  # how its process is called
TICK = 1.0  # seconds between looks
LAUNCH = 60.0  # seconds until a run that was submitted must have a process
ANSWER = 90.0  # seconds until a SuperLink must answer
SETTLE = 30.0  # seconds that a ServerApp has to leave after its last word
STUBBORN = 5  # times that a run may fail with code 1, without a round between
DELAYS = (1.0, 2.0, 5.0, 15.0, 30.0, 60.0)  # seconds before starting again, by failures since the last round

Verdict = Literal["wait", "finished", "failed", "resubmit", "restart"]


@dataclass(frozen=True)
class Observation:
    """What one look shows.

    Attributes:
        status: what the run last said of itself.
        age: seconds since then.
        link, app: whether SuperLink and the ServerApp live.
        appeared: whether the ServerApp has been seen since the run was submitted.
        waited: seconds since the run was submitted.
    """

    status: Status | None
    age: float
    link: bool
    app: bool
    appeared: bool
    waited: float


def judge(sight: Observation) -> Verdict:
    """What a look calls for."""
    said = sight.status
    if said and (not sight.app or sight.age > SETTLE):
        if said.state == "finished":
            return "finished"
        if said.state == "failed" and said.code in range(2, 11):
            return "failed"
    if not sight.link:
        return "restart"
    if sight.app:
        return "wait"
    if sight.appeared:
        return "resubmit"
    return "restart" if sight.waited > LAUNCH else "wait"  # nobody launches it: SuperLink's helper is gone


@dataclass
class ServerSupervisor:
    """Keeps one run going.

    Args:
        folder: the server's kit.
        command, env: of the SuperLink.
        connect: a connection to it; ConnectionError while it does not answer.
        fab: the app.
        members: public keys (PEM) of the silos by name, read again whenever ``roster`` changes.
        say: told of everything that people should know.
    """

    folder: Path
    command: Sequence[str]
    env: Mapping[str, str]
    connect: Callable[[], Link]
    fab: Callable[[], bytes]
    members: Callable[[], Mapping[str, bytes]]
    say: Callable[[str], None]
    audit: Audit
    _process: subprocess.Popen[bytes] | None = None
    _link: Link | None = None
    _run: int = 0
    _before: set[psutil.Process] = field(default_factory=set)
    _roster: int = -1
    _trouble: str = ""

    @property
    def state(self) -> Path:
        """Where the run keeps itself."""
        return self.folder / "run"

    def run(self) -> Status:
        """Until the run has ended for good. Leaves no process behind, however it ends."""
        adopt()
        self._before = set(process_tree(os.getpid()))
        try:
            return self._persist()
        except BaseException as fault:
            with undisturbed():
                self._end()
                with suppress(StorageError):
                    status = read_status(self.state)
                    if not (status and status.state == "finished"):  # it was, before anybody noticed
                        write_status(self.state, ended(fault, committed(self.state)))
            raise
        finally:
            with undisturbed():
                self._end()
            disown()

    def _persist(self) -> Status:
        failures, reached, alike = 0, -1, 0
        while True:
            try:
                verdict = self._attempt()
            except ConnectionError as fault:
                self.say(str(fault))
                verdict = "restart"
            round_, status = committed(self.state), read_status(self.state)
            failed = status is not None and (status.state, status.code) == ("failed", 1)
            alike = alike * (round_ == reached) + failed
            failures, reached = (0 if round_ > reached else failures + 1), max(reached, round_)
            if verdict in {"finished", "failed"}:
                assert status, "judged by it"
                return status
            if status and failed and alike >= STUBBORN:
                why = f"{status.reason}; so {alike} times since round {round_}, which a restart does not mend"
                status = status.model_copy(update={"reason": f"{why}: look at run/logs/superlink.log"})
                write_status(self.state, status)
                return status
            lost = "the SuperLink" if verdict == "restart" else "the ServerApp"
            delay = DELAYS[min(failures, len(DELAYS) - 1)]
            self.say(f"{lost} is gone after round {round_}; it starts again in {delay:g} s and goes on from there")
            self.audit.write("lost", process=lost.split()[1], round=round_, failures=failures)
            if verdict == "restart":
                self._end()
            else:
                self._give_up_run()
            time.sleep(delay)

    def _attempt(self) -> Verdict:
        """Start what does not run, submit the run, and look on until something has to be done."""
        if not self._process:
            self._launch()
        self._admit()
        assert self._link
        write_status(self.state, Status(state="running", round=committed(self.state)))
        try:
            self._run = self._link.submit(self.fab(), {"folder": str(self.folder)})
        except ProtocolError as fault:
            raise ConnectionError(str(fault)) from None
        self.audit.write("submitted", run=str(self._run), round=committed(self.state))
        began, appeared = time.monotonic(), False
        while True:
            time.sleep(TICK)
            living = self._family()
            app = any(APP in command for command in living.values())
            appeared |= app
            status = read_status(self.state)
            sight = Observation(
                status,
                time.time() - status.time if status else 0.0,
                self._process is not None and self._process.poll() is None,
                app,
                appeared,
                time.monotonic() - began,
            )
            reap({self._process.pid} if self._process else ())
            if (verdict := judge(sight)) != "wait":
                return verdict
            if self._changed():
                with suppress(ConnectionError):  # whoever has not answered is asked again at the next look
                    self._admit()

    def _launch(self) -> None:
        """Start the SuperLink and wait until it answers. Raises ConnectionError."""
        began = time.monotonic()
        self._process = start(self.command, self.state / "logs" / "superlink.log", dict(self.env))
        while self._process.poll() is None and time.monotonic() < began + ANSWER:
            try:
                self._link = self.connect()
                self._link.nodes()
            except ConnectionError:
                if self._link:
                    self._link.close()
                self._link = None
                time.sleep(0.25)
                continue
            self.say(f"SuperLink answers after {time.monotonic() - began:.1f} s")
            self.audit.write("superlink", pid=self._process.pid)
            return
        raise ConnectionError(
            f"SuperLink did not come up; its last words are in {self.state / 'logs' / 'superlink.log'}"
        )

    def _admit(self) -> None:
        """Make SuperLink know exactly the members' keys; what fails is tried again at the next look."""
        assert self._link
        self._changed()
        try:
            for event, name in agree(self._link, self.members()):
                self.say(f"{name}: {event}")
                self.audit.write(event, silo=name)
            self._trouble = ""
        except (PomonaError, ConnectionError) as fault:
            self._roster = -1
            if str(fault) != self._trouble:
                self._trouble = str(fault)
                self.say(f"the members' keys could not be agreed with SuperLink: {fault}")
            if isinstance(fault, ConnectionError):
                raise

    def _changed(self) -> bool:
        """Whether the book has been written since the last call."""
        try:
            now = (self.state / "roster.json").stat().st_mtime_ns
        except OSError:
            now = 0
        before, self._roster = self._roster, now
        return now != before

    def _give_up_run(self) -> None:
        """Tell SuperLink that a run has ended whose ServerApp it still waits for."""
        if self._link and self._run:
            with suppress(ConnectionError, ProtocolError):
                self._link.stop(self._run)

    def _family(self) -> dict[psutil.Process, str]:
        return {k: v for k, v in process_tree(os.getpid()).items() if k not in self._before}

    def _end(self) -> None:
        """End every process that was started here, the ServerApp first."""
        if self._link:
            self._link.close()
        end(self._family, [k for k, command in self._family().items() if APP in command])
        if self._process:
            self._process.wait()
        reap()
        self._process = self._link = None


def committed(state: Path) -> int:
    """The last committed round of a run; 0 before the first."""
    try:
        found = rounds.committed(state / rounds.FOLDER)
    except OSError:
        return 0
    return found[-1][0] if found else 0
