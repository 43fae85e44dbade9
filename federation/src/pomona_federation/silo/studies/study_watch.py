"""A supervisor's look for new studies, from time to time; what a study says is read in a process of its own."""

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
AGAIN = 600.0  # seconds after which a study that could not be taken in is tried again


@dataclass
class StudyWatch:
    """Asks the server for a silo's kit; only what takes long, to read a study, is left to a process of its own.

    Attributes:
        kit: the silo's.
        say: receives every line that people should read.
    """

    kit: Path
    say: Callable[[str], None]
    _due: dict[str, float] = field(default_factory=dict)  # studies that are not taken in -> when that is tried next
    _trouble: str = ""
    _compared: bool = False  # whether the server's versions are known to work with those here
    _process: subprocess.Popen[bytes] | None = None
    _output: OutputLog | None = None

    def look(self) -> None:
        """Bring decisions, and have what is new taken in."""
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
        except Exception as fault:  # whatever a server answers with, it ends no supervisor
            self._compared = False  # the server may come back as another release
            told = str(fault) if isinstance(fault, (PomonaError, OSError, ValueError)) else type(fault).__name__
            if told != self._trouble:
                self._trouble = told
                self.say(f"the server could not be asked about studies: {told}")

    def _consider(self, offered: Sequence[str]) -> None:
        """Have the studies of these hashes taken in, each again after a while if it still is not."""
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
