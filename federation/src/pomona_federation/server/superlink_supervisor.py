"""The server's supervision policy: a SuperLink, the keys that may connect to it, and one study
after the other.

SuperLink does not continue a run whose ServerApp died, nor any run after its own death. Both are
restarted here, and the run continues after its last committed round. A fault that a restart cannot
fix ends the server: a status with a code from 2 to 10 at once, and one with code 1 after
``STUBBORN`` failures without a round in between; so do as many refusals by SuperLink without a run
in between.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pomona.core.errors import PomonaError, ProtocolError, StorageError
from pomona.storage.run_status import Status, last_round, read_status, status_after, write_status
from pomona_federation.audit_log import Audit
from pomona_federation.server.registry_admin import registry_mtime
from pomona_federation.server.study_queue import DRAINED, STOPPED, StudyQueue, draining
from pomona_federation.server.submissions import QueuedStudy
from pomona_federation.server.superlink_client import APP, SuperLinkClient, sync_keys
from pomona_federation.study import KIT
from pomona_federation.supervision.process_logs import LogReader
from pomona_federation.supervision.supervisor import Restart, Supervisor, backoff, end

SETTLE = 30.0  # seconds that a ServerApp may take to exit after its last status

Action = Literal[
    "wait", "finished", "failed", "aborted", "drained", "resubmit", "restart", "refused"
]
# why a study that the operator has stopped is interrupted
STOPS = {"aborted": "aborted by the server's operator", "drained": DRAINED}


@dataclass(frozen=True)
class Observation:
    """The state of the server at one moment.

    Attributes:
        status: the run's last.
        age: seconds since then.
        link, app: whether SuperLink and the ServerApp are alive.
    """

    status: Status | None
    age: float
    link: bool
    app: bool

    @property
    def settled(self) -> bool:
        """Whether nothing more is to be expected of the ServerApp that wrote the status."""
        return not self.app or self.age > SETTLE


def next_action(observation: Observation) -> Action:
    """Choose the next action from the observed state of SuperLink and ServerApp."""
    status = observation.status
    if status and observation.settled:
        if status.state == "finished":
            return "finished"
        if status.state == "failed" and status.code in range(2, 11):
            return "failed"
    if not observation.link:
        return "restart"
    if observation.app:
        return "wait"
    if status and status.reason == DRAINED:  # also if rounds may begin again meanwhile
        return "drained"
    return "resubmit"


TICK = 1.0  # seconds between observations
ANSWER = 300.0  # seconds until a SuperLink must answer at its first start, on a busy machine
STUBBORN = 5  # failures with code 1, without a round in between, before the run is given up
# seconds before a restart, doubled by each failure since the last round
FIRST_DELAY, LONGEST_DELAY = 1.0, 60.0


@dataclass
class ServerPolicy:
    """Runs the studies of a kit, one after the other.

    Args:
        folder: the server's kit.
        connect: a connection to SuperLink; ConnectionError while it does not answer.
        fab: the app.
        members: public keys (PEM) of the silos by name, reloaded whenever ``roster`` changes.
        log: called with every line for the operator.
        persistent: wait for further studies when none is left.
    """

    folder: Path
    connect: Callable[[], SuperLinkClient]
    fab: Callable[[], bytes]
    members: Callable[[], Mapping[str, bytes]]
    log: Callable[[str], None]
    audit: Audit
    persistent: bool = False
    _study: QueuedStudy | None = None  # the study that runs, or ran last
    _finished: bool = True  # whether it has finished
    _link: SuperLinkClient | None = None
    _run: int = 0
    _roster: int = -1
    _trouble: str = ""
    _failures: int = 0  # since the last committed round
    _reached: tuple[str, int] = ("", -1)  # the folder of the current rounds, and the last one there
    _repeats: int = 0  # failures with code 1 since then
    _refusals: int = 0  # of SuperLink since a run was last watched
    _silent: int = 0  # starts of SuperLink in a row without an answer

    @property
    def state(self) -> Path:
        """The folder of the study that runs, or ran last."""
        return self._study.folder if self._study else self.folder / "run"

    @property
    def queue(self) -> StudyQueue:
        """The study queue."""
        return StudyQueue(self.folder)

    def watch(self, supervisor: Supervisor) -> Restart | Status:
        """Watch one life of a study; return the last study's status once all have ended for
        good.

        Raises ProtocolError if SuperLink refuses what it is asked, again and again.
        """
        self._choose()
        try:
            if not supervisor.process:
                self._launch(supervisor)
            self._admit()
            study = self._next(supervisor)
            if study is None:
                return read_status(self.state) or Status(state="finished", round=0, code=0)
            action = self._attempt(supervisor, study)
            self._refusals = 0
        except ConnectionError as fault:
            self.log(str(fault))
            action = "restart"
        except ProtocolError as fault:  # as with a full disk, or for good
            self._refusals += 1
            if self._refusals >= STUBBORN:
                raise
            self.log(str(fault))
            action = "refused"
        step = self._carry_out(action)
        return step if isinstance(step, Restart) else self._conclude(action, step)

    def _conclude(self, action: Action, status: Status) -> Restart | Status:
        """End the current study; return its status if no more will come, else go on."""
        self._finished = True
        name = self._study.name if self._study else KIT
        if action == "drained":
            self.log(f"study {name} stops after round {status.round}: the server is drained")
            return Restart(0.0, stop=False)
        with suppress(StorageError):  # a full disk, which the status has already reported
            fields = {"study": name, "state": status.state, "code": status.code}
            self.audit.write("ended", **fields, round=status.round)
        if not self.persistent and not self.queue.open:
            return status
        self.log(f"study {name} is over ({status.state}, round {status.round})")
        return Restart(0.0, stop=False)

    def _next(self, supervisor: Supervisor) -> QueuedStudy | None:
        """The unfinished study, or the next that may run, waiting for one; None if no more will
        come.

        Raises ConnectionError if SuperLink has ended.
        """
        announced = False
        while self._finished:
            waiting = [s.name for s in self.queue.open]
            if not self.persistent and not waiting:
                return None
            if not announced:
                self.log(
                    "drained: no study begins until `pomona server undrain`"
                    if draining(self.folder / "run")
                    else f"waiting for the silos to decide on {', '.join(waiting)}"
                    if waiting
                    else "no study to run"
                )
                announced = True
            time.sleep(TICK)
            if not supervisor.alive:
                raise ConnectionError("the SuperLink has ended")
            if self._changed():
                self._admit()
            self._choose()
        return self._study

    def _choose(self) -> None:
        """Select the study that may run now, unless one is unfinished."""
        if self._finished and (study := self.queue.next()):
            self._study = study
            self._finished = False
            self._failures = self._repeats = 0
            self._reached = "", -1
            if study.submission:
                self.log(f"study {study.name} begins")

    def _carry_out(self, action: Action) -> Restart | Status:
        """Carry out an action on the current study: restart it, or return its last status."""
        round_, status = last_round(self.state), read_status(self.state)
        failed = status is not None and (status.state, status.code) == ("failed", 1)
        reached = self._progress()
        self._repeats = self._repeats * (reached == self._reached) + failed
        self._failures = 0 if reached > self._reached else self._failures + 1
        self._reached = max(self._reached, reached)
        if reason := STOPS.get(action):
            status = Status(state="interrupted", round=round_, code=STOPPED, reason=reason)
            write_status(self.state, status)
            self._give_up_run()
            return status
        if action in {"finished", "failed"}:
            assert status, "the action is based on it"
            return status
        if status and failed and self._repeats >= STUBBORN:
            reason = (
                f"{status.reason}; this happened {self._repeats} times since round {round_}, so a "
                "restart does not help"
            )
            status = status.model_copy(update={"reason": f"{reason}: look at `pomona server logs`"})
            write_status(self.state, status)
            return status
        return self._restart(action, round_)

    def _restart(self, action: Action, round_: int) -> Restart:
        """Report the loss of SuperLink or the ServerApp; the run continues after the round."""
        restarts_link = action in {"restart", "refused"}  # of SuperLink
        process = "SuperLink" if restarts_link else "ServerApp"
        fate = "refuses" if action == "refused" else "is gone"
        delay = backoff(self._failures + 1, FIRST_DELAY, LONGEST_DELAY)
        self.log(
            f"the {process} {fate} after round {round_}; it restarts in {delay:g} s and continues "
            "from there"
        )
        self.audit.write("lost", process=process, round=round_, failures=self._failures, why=fate)
        if restarts_link:
            self._close()
        else:
            self._give_up_run()
        return Restart(delay, stop=restarts_link)

    def _progress(self) -> tuple[str, int]:
        """Progress of the current study, in increasing order; a search progresses with its
        trials.
        """
        work = self._study.at_work if self._study else self.state
        return str(work), last_round(work)

    def stopped(self, fault: BaseException | None, /) -> None:
        """Write why an unfinished run was interrupted."""
        self._close()
        if fault and not self._finished:
            with suppress(StorageError):
                status = read_status(self.state)
                if not (status and status.state == "finished"):  # it may have just finished
                    write_status(self.state, status_after(fault, last_round(self.state)))

    def _attempt(self, supervisor: Supervisor, study: QueuedStudy) -> Action:
        """Submit a study's run, and watch it until an action is needed."""
        assert self._link
        write_status(self.state, Status(state="running", round=last_round(self.state)))
        self._stop_others(self._link, supervisor)
        self._run = self._link.submit(self.fab(), {"study": study.name})
        self.audit.write("submitted", run=str(self._run), round=last_round(self.state))
        while True:
            time.sleep(TICK)
            commands = supervisor.descendants().values()
            app = any(APP in command for command in commands)
            status = read_status(self.state)
            age = time.time() - status.time if status else 0.0
            observation = Observation(status, age, supervisor.alive, app)
            if (action := next_action(observation)) != "wait":
                return action
            if study.submission and self.queue.state(self.queue.study(study.name)) == "aborted":
                self._stop_others(self._link, supervisor)
                return "aborted"
            if self._changed():
                with suppress(ConnectionError):  # retried at the next observation
                    self._admit()

    def _stop_others(self, link: SuperLinkClient, supervisor: Supervisor) -> None:
        """Stop runs submitted by a previous life: SuperLink starts a ServerApp for each, or already
        has.
        """
        for run in link.unfinished():
            with suppress(ProtocolError):  # it has just ended
                link.stop(run)
            self.audit.write("withdrawn", run=str(run))
        end(lambda: [p for p, command in supervisor.descendants().items() if APP in command])

    def _launch(self, supervisor: Supervisor) -> None:
        """Start SuperLink and wait until it answers. Raises ConnectionError."""
        start_time = time.monotonic()
        self.log("starting SuperLink")
        process = supervisor.start()
        # A slow disk or a busy machine may need longer each time: stopping SuperLink at the same
        # moment of its start again and again would never let it come up.
        limit = start_time + ANSWER * 2 ** min(self._silent, 4)
        self._silent += 1
        while supervisor.alive and time.monotonic() < limit:
            try:
                self._link = self.connect()
                self._link.nodes()
            except ConnectionError:
                self._close()
                time.sleep(0.25)
                continue
            self._silent = 0
            self.log(f"SuperLink answers after {time.monotonic() - start_time:.1f} s")
            self.audit.write("superlink", pid=process.pid)
            return
        log = supervisor.log
        lines = (x.text for x in LogReader(log.parent).last(200) if x.process == log.stem)
        last = deque(lines, maxlen=1)
        raise ConnectionError(
            f"SuperLink did not start; the last line of {log} is: {last[0] if last else '(none)'}"
        )

    def _admit(self) -> None:
        """Make SuperLink know exactly the members' keys; a failure is retried at the next
        observation.
        """
        assert self._link
        self._changed()
        try:
            for event, name in sync_keys(self._link, self.members()):
                self.log(f"{name}: {event}")
                self.audit.write(event, silo=name)
            self._trouble = ""
        except (PomonaError, ConnectionError) as fault:
            self._roster = -1
            if str(fault) != self._trouble:
                self._trouble = str(fault)
                self.log(f"the members' keys could not be passed to SuperLink: {fault}")
            if isinstance(fault, ConnectionError):
                raise

    def _changed(self) -> bool:
        """Return whether the registry has been written since the last call."""
        previous, self._roster = self._roster, registry_mtime(self.folder)
        return self._roster != previous

    def _give_up_run(self) -> None:
        """Tell SuperLink that a run has ended whose ServerApp it still waits for."""
        if self._link and self._run:
            with suppress(ConnectionError, ProtocolError):
                self._link.stop(self._run)

    def _close(self) -> None:
        if self._link:
            self._link.close()
        self._link = None
