"""Faults injected into a run in this process: clients' messages, disk errors.

All are undone with the patch.
"""

import errno
import os
from dataclasses import replace
from pathlib import Path

import torch

from pomona import lifecycle
from pomona.core.errors import ProtocolError
from pomona.federation import round_exchange
from pomona.federation.admission import admit
from pomona.federation.callbacks import CallbackList
from pomona.federation.exchange import Reply
from pomona.federation.transport import Inline
from pomona.objective.training import LocalTraining
from pomona.record.run_folder import RunRecord
from pomona.storage import checkpoint
from pomona.storage.tensor_validation import decode, largest


def arrivals(change):
    """Pass the arrivals of every training visit through ``change(round, arrivals)``."""

    def fault(patch):
        visit = Inline.visit

        def visits(self, request, downlink):
            received = visit(self, request, downlink)
            return change(request.round.number, received) if request.trains else received

        patch.setattr(Inline, "visit", visits)

    return fault


def uplink(change, rounds=(2,), clients=(1,)):
    """These clients send ``change(uplink)`` in these rounds."""

    def changed(number, received):
        return [
            with_uplink(a, change) if a.reply.client in clients and number in rounds else a
            for a in received
        ]

    return arrivals(changed)


def with_uplink(arrival, change):
    """The arrival of a client that sends ``change(uplink)``."""
    return replace(arrival, reply=replace(arrival.reply, uplink=change(arrival.reply.uplink)))


def absent(rounds=(2,), client=1):
    """A client does not answer in these rounds."""

    def changed(number, received):
        reply = Reply(client, fault="away")
        return [
            replace(a, reply=reply) if a.reply.client == client and number in rounds else a
            for a in received
        ]

    return arrivals(changed)


def core(function):
    """An uplink with another tensor as its core."""
    return lambda uplink: {**uplink, "core": function(uplink["core"])}


def wrong_number(value):
    """A core with one wrong number."""
    return core(lambda w: torch.where(torch.arange(len(w)) == 7, value, w))


def false_claims(**claims):
    """In round 2 client 1 claims another run, round (by difference) or number of samples."""

    def changed(number, received):
        return [claim(a) if (number, a.reply.client) == (2, 1) else a for a in received]

    def claim(arrival):
        return replace(
            arrival, **{k: arrival.round + v if k == "round" else v for k, v in claims.items()}
        )

    return arrivals(changed)


def wire(data):
    """In round 2 client 1 sends ``data(spec)`` as bytes, which are read as a peer's are."""

    def fault(patch):
        def judges(arrivals, expected, history):
            readable = [
                read(a, expected.spec) if (a.round, a.reply.client) == (2, 1) else a
                for a in arrivals
            ]
            return admit(readable, expected, history)

        def read(arrival, spec):
            try:
                return with_uplink(arrival, lambda _: decode(data(spec), spec, largest(spec)))
            except ProtocolError as wrong:
                return replace(arrival, unread=wrong)

        patch.setattr(round_exchange, "admit", judges)

    return fault


def late(patch):
    """Deliver all uplinks of a round again in the next, before its own."""
    previous = []

    def admits(arrivals, expected, history):
        verdict = admit([*previous, *arrivals], expected, history)
        previous[:] = arrivals
        return verdict

    patch.setattr(round_exchange, "admit", admits)


def twice(function):
    """Deliver every reply twice, the second time changed and in the opposite order."""
    return arrivals(
        lambda _, received: [*received, *(with_uplink(a, function) for a in reversed(received))]
    )


def stopped(number):
    """Ctrl-C after a round has been trained and before it is committed."""

    def fault(patch):
        def on_before_commit(_, round_):
            if round_ == number:
                raise KeyboardInterrupt

        patch.setattr(CallbackList, "on_before_commit", on_before_commit)

    return fault


def full_disk(number):
    """Disk full at the checkpoint of a round."""

    def fault(patch):
        publish = checkpoint.publish_by_hash

        def publishes(folder, pieces, name):
            if any(p.name.startswith(f"round-{number - 1:06d}") for p in folder.glob("*")):
                raise OSError(errno.ENOSPC, "No space left on device")
            return publish(folder, pieces, name)

        patch.setattr(checkpoint, "publish_by_hash", publishes)

    return fault


def full_record(number):
    """Disk full at the events of a round."""

    def fault(patch):
        event = RunRecord.event

        class FullFile:
            def write(self, _):
                raise OSError(errno.ENOSPC, "No space left on device")

            def close(self): ...

        def events(self, event_name, **body):
            if event_name == "round" and body["round"] == number:
                self._file.close()
                self._file = FullFile()
            event(self, event_name, **body)

        patch.setattr(RunRecord, "event", events)

    return fault


def unreadable(patch):
    """A disk error at the newest checkpoint."""
    opens = os.open

    def opened(path, flags, *args, **kwargs):
        if Path(os.fsdecode(path)).name.startswith("round-000002") and not flags & os.O_WRONLY:
            raise OSError(errno.EIO, "Input/output error")
        return opens(path, flags, *args, **kwargs)

    patch.setattr(os, "open", opened)


def other_versions(patch):
    """The rest of the run uses another PyTorch."""
    patch.setattr(lifecycle, "versions", lambda: {"python": "3.0", "torch": "0.1"})


def other_schema(patch):
    """The code writes checkpoints in another format."""
    patch.setattr(checkpoint, "SCHEMA", -1)


def jumping_clock(patch):
    """The wall clock jumps by a day, back and forth, at every reading."""
    days = iter([86400.0 * (-1) ** k for k in range(10_000)])
    for module in ("pomona.lifecycle.time", "pomona.storage.run_status.time.time"):
        patch.setattr(module, lambda: 1.7e9 + next(days))


def no_training(patch):
    """A training pass fails the test."""

    def fails(*_):
        raise AssertionError("training began")

    patch.setattr(LocalTraining, "steps", fails)
