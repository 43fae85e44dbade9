"""The next action on a run, from its status and the state of SuperLink and ServerApp."""

from dataclasses import dataclass
from typing import Literal

from pomona.storage.run_status import Status

LAUNCH = 60.0  # seconds until a submitted run must have a process
SETTLE = 30.0  # seconds that a ServerApp may take to exit after its last status

Verdict = Literal["wait", "finished", "failed", "aborted", "resubmit", "restart"]


@dataclass(frozen=True)
class Observation:
    """The state of the server at one moment.

    Attributes:
        status: the run's last.
        age: seconds since then.
        link, app: whether SuperLink and the ServerApp are alive.
        appeared: whether the ServerApp has been seen since the run was submitted.
        waited: seconds since the run was submitted.
    """

    status: Status | None
    age: float
    link: bool
    app: bool
    appeared: bool
    waited: float


def judge(seen: Observation) -> Verdict:
    """Choose the next action from the observed state of SuperLink and ServerApp."""
    status = seen.status
    if status and (not seen.app or seen.age > SETTLE):
        if status.state == "finished":
            return "finished"
        if status.state == "failed" and status.code in range(2, 11):
            return "failed"
    if not seen.link:
        return "restart"
    if seen.app:
        return "wait"
    if seen.appeared:
        return "resubmit"
    return "restart" if seen.waited > LAUNCH else "wait"  # no process launches it: SuperLink's helper is gone
