"""Why a silo's uplink was not used in a round: one record, and one table of all reasons."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict

from pomona.core.bounds import Line, Number
from pomona.core.errors import ProtocolError

# events in the server's audit log
ADMITTED = "admitted"
UNUSED = "unused"
Stage = Literal["study", "connection", "silo", "answer", "admission", "sum"]


class Reason(StrEnum):
    """Every reason for which an uplink is not used."""

    DECLINED = "declined"
    UNDECIDED = "undecided"
    NOT_DRAWN = "not-drawn"
    QUARANTINE = "quarantine"
    VERSION = "version"
    NOT_A_MEMBER = "not-a-member"
    NOT_IDENTIFIED = "not-identified"
    NOT_CONNECTED = "not-connected"
    NODE_RESTARTED = "node-restarted"
    DEADLINE = "deadline"
    ANSWER_LOST = "answer-lost"
    WORKER_ENDED = "worker-ended"
    NODE_REFUSED = "node-refused"
    ROWS_MISSING = "rows-missing"
    DISK_FULL = "disk-full"
    DIVERGED = "diverged"
    PRIVACY = "privacy"
    SILO_STATE = "silo-state"
    REFUSED_TASK = "refused-task"
    SILO_FAULT = "silo-fault"
    SIGNATURE = "signature"
    UNREADABLE = "unreadable"
    WRONG_TASK = "wrong-task"
    SCORES = "scores"
    WRONG_ROUND = "wrong-round"
    NOT_ASKED = "not-asked"
    SAMPLES = "samples"
    FORM = "form"
    VALUES = "values"
    NORM = "norm"
    REPEATED = "repeated"
    SUM_KEY = "sum-key"
    SUM_LATE = "sum-late"
    SUM_SHORT = "sum-short"
    SUM_MISSING = "sum-missing"
    SUM_PART = "sum-part"
    SUM_RANGE = "sum-range"


class Explanation(NamedTuple):
    """Where a reason arises, what has happened, and what to do."""

    stage: Stage
    event: str
    remedy: str


LOGS = "have its administrator look at `pomona silo status` and `pomona silo logs`"
NO_ACTION = "nothing: it is asked again in the next round"
REPEATEDLY = "nothing, unless it keeps happening; then " + LOGS
ALIKE = "have the same releases of Pomona installed at the server and the silo"
RATES = "lower lr or, if the method has one, server_lr; or have its data checked"
MISSING = "have those that are missing started, then resume if the study has ended"

REASONS: Mapping[Reason, Explanation] = {
    Reason.DECLINED: Explanation(
        "study",
        "it has declined the study",
        "nothing; its administrator may still accept with `pomona silo accept`",
    ),
    Reason.UNDECIDED: Explanation(
        "study", "it has not decided on the study", "ask its administrator to accept or decline it"
    ),
    Reason.NOT_DRAWN: Explanation(
        "study", "the round did not ask it, as participation and absence are agreed", "nothing"
    ),
    Reason.QUARANTINE: Explanation(
        "study",
        "it is not asked to train: its uplinks were refused too often in a row",
        "remove the cause of the earlier refusals, then begin a new study",
    ),
    Reason.VERSION: Explanation("connection", "its versions do not work with the server's", ALIKE),
    Reason.NOT_A_MEMBER: Explanation(
        "connection",
        "its node could not show that it is a member",
        "compare its kit and key with those of the federation; a stranger needs nothing",
    ),
    Reason.NOT_IDENTIFIED: Explanation(
        "connection", "it had not identified itself when the round began", REPEATEDLY
    ),
    Reason.NOT_CONNECTED: Explanation(
        "connection",
        "its node was offline for longer than patience",
        "nothing if it was stopped on purpose; else have its administrator look at `pomona silo "
        "status`; it is taken again as soon as it is connected",
    ),
    Reason.NODE_RESTARTED: Explanation(
        "connection",
        "its node ended or lost its connection during the task, and is restarted by itself",
        REPEATEDLY,
    ),
    Reason.DEADLINE: Explanation(
        "connection",
        "it is connected but did not answer in time",
        "raise deadline, or have its network and its load checked",
    ),
    Reason.ANSWER_LOST: Explanation(
        "connection", "its answer did not arrive completely in time", REPEATEDLY
    ),
    Reason.WORKER_ENDED: Explanation(
        "silo",
        "its worker ended during the task, and is started again",
        "nothing if it happens once; else have its administrator check whether memory ran out",
    ),
    Reason.NODE_REFUSED: Explanation(
        "silo",
        "its node refuses the message: its kit expects a different app, or allows only shorter "
        "messages",
        "compare app.sha256 of its kit with the server's, and max_download_mb in its silo.toml",
    ),
    Reason.ROWS_MISSING: Explanation(
        "silo",
        "it lacks models that were sent to it",
        "have its administrator check for free disk space",
    ),
    Reason.DISK_FULL: Explanation(
        "silo",
        "its disk is full",
        "have its administrator free disk space; it then takes part again by itself",
    ),
    Reason.DIVERGED: Explanation("silo", "its training gave values that are not finite", RATES),
    Reason.PRIVACY: Explanation(
        "silo", "the task would exceed its privacy limit", "its administrator decides; " + LOGS
    ),
    Reason.SILO_STATE: Explanation(
        "silo",
        "its state is not the one that the federation continues from",
        "once its administrator says that no other copy of it runs: `pomona server readmit SILO`",
    ),
    Reason.REFUSED_TASK: Explanation(
        "silo",
        "it refuses the task: not what it agreed to, or its data is not what it registered",
        LOGS,
    ),
    Reason.SILO_FAULT: Explanation(
        "silo", "an error at the silo; its text stays in the silo's log", LOGS
    ),
    Reason.SIGNATURE: Explanation(
        "answer",
        "a signature is wrong, or was made for other content",
        "have its administrator compare its key, and look for a proxy that changes messages",
    ),
    Reason.UNREADABLE: Explanation("answer", "its answer does not fit what was asked", ALIKE),
    Reason.WRONG_TASK: Explanation("answer", "it answers another task", NO_ACTION),
    Reason.SCORES: Explanation("answer", "its scores are impossible or were not asked for", LOGS),
    Reason.WRONG_ROUND: Explanation("admission", "it is for another run or round", NO_ACTION),
    Reason.NOT_ASKED: Explanation("admission", "it was not asked in this round", NO_ACTION),
    Reason.SAMPLES: Explanation(
        "admission",
        "its number of training samples differs from the registered one, and it did not notice",
        "have its data put back, or revoke it and add it under a new name",
    ),
    Reason.FORM: Explanation(
        "admission", "names, shapes or types are not those of the method", ALIKE
    ),
    Reason.VALUES: Explanation(
        "admission", "numbers are not finite, or outside what the method allows", RATES
    ),
    Reason.NORM: Explanation("admission", "it is far larger than earlier uplinks", RATES),
    Reason.REPEATED: Explanation("admission", "it came twice; the first counts", NO_ACTION),
    Reason.SUM_KEY: Explanation(
        "sum", "its key for the sum is missing, repeated or not its own", LOGS
    ),
    Reason.SUM_LATE: Explanation("sum", "it answered after the sum was settled", NO_ACTION),
    Reason.SUM_SHORT: Explanation("sum", "the round has no sum, as others are missing", MISSING),
    Reason.SUM_MISSING: Explanation(
        "sum",
        "the sum includes this silo, which does not answer",
        f"{MISSING}; if it is lost or was restored: docs/guides/secure-aggregation.md, silos that "
        "drop out",
    ),
    Reason.SUM_PART: Explanation("sum", "its part of the sum is not as agreed", LOGS),
    Reason.SUM_RANGE: Explanation(
        "sum",
        "the sum is larger than its silos could make it",
        "one of the silos did not clip: compare their versions",
    ),
}

# kinds of error that a silo's refusal begins with
FAULTS = {
    "STORAGE: its disk is full": Reason.DISK_FULL,
    "CHECKPOINT": Reason.SILO_STATE,
    "PRIVACY": Reason.PRIVACY,
    "PROTOCOL": Reason.REFUSED_TASK,
}


def of_refusal(fault: str) -> Reason:
    """The reason that a silo's own refusal states."""
    return next((r for prefix, r in FAULTS.items() if fault.startswith(prefix)), Reason.SILO_FAULT)


class UnusedUplink(BaseModel):
    """Why a silo's uplink was not used in a round.

    Attributes:
        silo: its name; a node's number if no silo's key has signed.
        round: 0 outside any round.
        detail: more of this case; may be empty.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    silo: Line
    round: Number
    reason: Reason
    detail: Line = ""

    @property
    def stage(self) -> Stage:
        """Where the reason arose."""
        return REASONS[self.reason].stage

    @property
    def remedy(self) -> str:
        """What to do."""
        return REASONS[self.reason].remedy

    @property
    def state(self) -> Literal["not drawn", "rejected", "absent"]:
        """Whether the round asked the silo; if so, whether it was refused, by itself or the server,
        or merely away.
        """
        if self.reason is Reason.NOT_DRAWN:
            return "not drawn"
        refused = self.stage in {"silo", "answer", "admission"} or self.reason is Reason.QUARANTINE
        return "rejected" if refused else "absent"

    @property
    def sentence(self) -> str:
        """What has happened, in a line."""
        event = REASONS[self.reason].event
        return f"{event}: {self.detail}" if self.detail else event

    @property
    def fields(self) -> dict[str, str | int]:
        """The fields of its line in the audit log."""
        cause = {"stage": self.stage, "reason": self.reason.value, "detail": self.detail}
        return {"silo": self.silo, "round": self.round, **cause}


class UnusableError(ProtocolError):
    """What a silo sent cannot be used."""

    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(text)
        self.reason = reason
