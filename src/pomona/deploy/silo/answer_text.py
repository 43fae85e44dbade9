"""What a silo tells in words and figures: scores to three digits, and faults without paths or data."""

from typing import Any

from pomona.core.bounds import plain
from pomona.core.errors import PomonaError
from pomona.deploy.messages import ReportedScore
from pomona.federation.exchange import Reply, Score

DIGITS = 3  # of a loss; a share has one more place, so that ten thousand samples can still be told apart


def loss(value: float | None) -> float | None:
    """A mean loss to three significant digits: enough to watch a run, too little to tell one sample's part in it."""
    return None if value is None else float(f"{value:.{DIGITS}g}")


def share(value: float | None) -> float | None:
    """An accuracy to four decimals."""
    return None if value is None else round(value, DIGITS + 1)


def measure(value: float | None) -> float | None:
    """The run's metric: four decimals of what is at most 1, as shares are, and three digits of larger numbers."""
    return loss(value) if value is not None and abs(value) > 1 else share(value)


def figure(score: Score) -> ReportedScore:
    """A score as others may read it."""
    exact = {k: getattr(score, k) for k in ReportedScore.model_fields}
    return ReportedScore(
        **{**exact, "loss": loss(score.loss), "accuracy": share(score.accuracy), "value": measure(score.value)}
    )


def words(reply: Reply, scores: bool) -> dict[str, Any]:
    """The fields of an answer that say how a visit went; ``scores``: whether those were agreed on."""
    told = tuple(figure(s) for s in reply.scores) if scores else ()
    return {"loss": loss(reply.loss), "scores": told, "fault": plain(reply.fault)}


def scrubbed(fault: BaseException) -> str:
    """A fault as others may read it: its kind, and for one of ours the line, without paths."""
    if not isinstance(fault, PomonaError):
        return f"a {type(fault).__name__}; the silo's log has the rest"
    said = str(fault).split()
    return f"{fault.kind}: " + " ".join("(path)" if "/" in w.strip("'\"(),;:") else w for w in said)
