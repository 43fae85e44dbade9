"""The SuperNode's side of the resident process: starts it, restarts it when it has died, and signals messages."""

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Lock, Thread

from pomona_federation.supervision.supervisor import backoff

FIRST, LONGEST = 0.2, 60.0  # seconds before a restart, doubled by each failure
STEADY = 60.0  # seconds of running after which failures are forgotten


@dataclass
class Resident:
    """A process kept running as long as this one lives; the kernel ends it with this one.

    Args:
        command, env: of the process; its output goes to this one's.
    """

    command: Sequence[str]
    env: Mapping[str, str]
    process: subprocess.Popen[bytes] | None = None
    _bell: Lock = field(default_factory=Lock)

    def keep(self) -> None:
        """Keep it running, from a thread that lives as long as this process: the kernel's signal follows its thread."""
        Thread(target=self._keep, name="resident", daemon=True).start()

    def ring(self) -> None:
        """Signal that there may be a message. A process that is just starting asks on its own."""
        with self._bell, suppress(OSError, ValueError):  # it has just ended
            if self.process and self.process.stdin:
                self.process.stdin.write(b"\n")

    def _keep(self) -> None:
        failures = 0
        while True:
            began = time.monotonic()
            try:
                self.process = subprocess.Popen(self.command, env=dict(self.env), stdin=subprocess.PIPE, bufsize=0)
                code: int | str = self.process.wait()
                with self._bell, suppress(OSError):
                    assert self.process.stdin, "a pipe"
                    self.process.stdin.close()
            except OSError as fault:
                code = str(fault)
            failures = 1 if time.monotonic() - began > STEADY else failures + 1
            delay = backoff(failures, FIRST, LONGEST)
            print(f"the resident process ended ({code}); it starts again in {delay:g} s", file=sys.stderr, flush=True)  # noqa: T201 - the log
            time.sleep(delay)
