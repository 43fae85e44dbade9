"""One-time faults inside a process, which is a child of the tests."""

import os
import signal
from pathlib import Path


def kill():
    """Die at once."""
    os.kill(os.getpid(), signal.SIGKILL)


def killed_at(owner, name, number, after_call):
    """Die at call ``number`` of a function, from 0, before or after the call."""
    function, counter = getattr(owner, name), [0]

    def counted(*args, **kwargs):
        is_target, counter[0] = counter[0] == number, counter[0] + 1
        if is_target and not after_call:
            kill()
        result = function(*args, **kwargs)
        if is_target:
            kill()
        return result

    setattr(owner, name, counted)


def killed_in_save(step, after_step, round_):
    """Die during the save of a round, before or after one step: open, write, fsync, replace, fsync
    folder, unlink.
    """
    from pomona.core import files
    from pomona.storage import checkpoint

    save, pieces = checkpoint.save, checkpoint.pieces

    def saves(folder, number, *settings):
        if number == round_:
            match step:
                case "open":
                    killed_at(Path, "open", 0, after_step)
                case "write":
                    checkpoint.pieces = lambda *args: truncated(pieces(*args))
                case "fsync":
                    killed_at(os, "fsync", 0, after_step)
                case "replace":
                    killed_at(Path, "replace", 0, after_step)
                case "fsync folder":
                    killed_at(files, "sync", 0, after_step)
                case "unlink":
                    # the first call removes what a previous kill has left
                    killed_at(Path, "unlink", 1, after_step)
        return save(folder, number, *settings)

    def truncated(chunks):
        for count, piece in enumerate(chunks):
            if count == 3:
                kill()
            yield piece

    checkpoint.save = saves


def killed_after_entries(number):
    """Die once this many entries of privacy ledgers are durable, before the last one's noise is
    used.
    """
    from pomona.privacy.ledger import Ledger

    killed_at(Ledger, "append", number - 1, after_call=True)


def no_room(bytes_):
    """Limit files to this many bytes."""
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_, bytes_))


def killed_after_commit(round_):
    """Die when a round is durable and the next has not started."""
    from pomona.federation.checkpointing import Checkpointing

    killed_at(Checkpointing, "commit", round_ - 1, after_call=True)


def worker_killed(times):
    """Kill a worker the first ``times`` times that round 3 is trained, as the kernel does when
    memory runs out.
    """
    from pomona.federation.workers import Workers

    visit, left = Workers.visit, [times]

    def visits(self, request, downlink):
        if request.round.number == 3 and request.trains and left[0]:
            left[0] -= 1
            os.kill(self._workers[0].pid, signal.SIGKILL)
        return visit(self, request, downlink)

    Workers.visit = visits


def slow_steps():
    """Make every gradient take a third of a second."""
    import time

    from pomona.objective.pytorch import TorchObjective

    gradient = TorchObjective.gradient

    def slowly(self, *args, **kwargs):
        time.sleep(0.3)
        return gradient(self, *args, **kwargs)

    TorchObjective.gradient = slowly


def no_reader(handle):
    """Close the reading end of standard output (1) or standard error (2)."""
    reader, writer = os.pipe()
    os.dup2(writer, handle)
    os.close(reader)


def full_disk(handle):
    """Redirect standard output (1) or standard error (2) to a file on a full disk."""
    os.dup2(os.open("/dev/full", os.O_WRONLY), handle)
