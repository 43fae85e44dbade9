"""Results of checks, one line each: passed, needs attention, or failed."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

from pomona.core.errors import PomonaError, worded
from pomona.core.memory import enough

T = TypeVar("T")


@dataclass(frozen=True)
class CheckLine:
    """The result of one check; ``code`` is the exit code of a failure, 0 for others."""

    check: str
    result: Literal["ok", "warning", "failed"]
    text: str
    code: int = 0


class Remark(Exception):  # noqa: N818 - it is none
    """A finding that needs attention but is not a failure."""


class Checks:
    """Collects the lines; a failed check returns None."""

    def __init__(self) -> None:
        self.lines: list[CheckLine] = []

    def make(self, name: str, check: Callable[[], tuple[T, str]]) -> T | None:
        """Run one check that returns a value and a text; a Remark becomes a warning, any other exception a failure."""
        try:
            with enough(f"check {name}"):
                value, text = check()
        except Remark as fault:
            self.lines.append(CheckLine(name, "warning", str(fault)))
        except Exception as fault:  # from a driver, custom code or a library: the other checks run all the same
            text, code = (str(fault), fault.code) if isinstance(fault, PomonaError) else (worded(fault), 1)
            self.lines.append(CheckLine(name, "failed", text, code))
        else:
            self.lines.append(CheckLine(name, "ok", text))
            return value
        return None

    @property
    def code(self) -> int:
        """The highest exit code of a failure, 0 if all passed."""
        return max((line.code for line in self.lines), default=0)
