"""A supervisor's periodic check for new studies; a separate process reads their texts."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pomona.core.errors import PomonaError, ProtocolError
from pomona_federation.silo.studies.study_proposals import compare, over_the_network, visit
from pomona_federation.supervision.process_logs import LogFile, OutputLog
from pomona_federation.supervision.processes import start
from pomona_federation.versions import mismatch, note

LOG = "studies.log"
AGAIN = 600.0  # seconds before another attempt at a study that could not be added


@dataclass
class StudyWatch:
    """Asks the server for a silo's kit; reading a study, which takes long, is left to a separate process.

    Attributes:
        kit: the silo's.
        say: called with every line for the operator.
    """

    kit: Path
    say: Callable[[str], None]
    _due: dict[str, float] = field(default_factory=dict)  # time of the next attempt, by study
    _trouble: str = ""
    _compared: bool = False  # whether the server's versions are known to work with those here
    _process: subprocess.Popen[bytes] | None = None
    _output: OutputLog | None = None

    def look(self) -> None:
        """Send decisions, and have new studies added."""
        if self._process and self._process.poll() is None:
            return
        try:
            ask = over_the_network(self.kit)
            if not self._compared:
                theirs = compare(self.kit, ask)
                note(self.kit / "state", "server", theirs)
                if why := mismatch(theirs, "server"):
                    raise ProtocolError(why)
            self._consider(visit(self.kit, ask))
            self._trouble, self._compared = "", True
        except Exception as fault:  # no answer of a server ends the supervisor
            self._compared = False  # the server may come back with another release
            told = str(fault) if isinstance(fault, (PomonaError, OSError, ValueError)) else type(fault).__name__
            if told != self._trouble:
                self._trouble = told
                self.say(f"the server could not be asked about studies: {told}")

    def _consider(self, offered: Sequence[str]) -> None:
        """Have the studies with these hashes added, each again after a while if it still is not."""
        now = time.monotonic()
        if not self._due.keys() >= set(offered):
            self.say("the server offers a study; `pomona silo studies` lists it in a moment")
        self._due = {agreement: self._due.get(agreement, now) for agreement in offered}
        if due := [agreement for agreement, when in self._due.items() if when <= now]:
            self._due |= dict.fromkeys(due, now + AGAIN)
            self._take_in()

    def _take_in(self) -> None:
        words = [sys.executable, "-m", "pomona_federation.silo.studies.study_proposals", str(self.kit)]
        self._process = start(words, dict(os.environ))
        assert self._process.stdout
        self._output = OutputLog(self._process.stdout, LogFile(self.kit / "state" / "logs" / LOG))
