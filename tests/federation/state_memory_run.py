"""A run whose memory ``test_state_memory`` looks at from outside.

    python state_memory_run.py FOLDER STATE_MEMORY WORKERS STOP

Writes a line when everything is imported, and the bytes of the states' files at its end. Stops with exit code 7 before
it commits round STOP; goes on from what was committed before.
"""

import sys
from pathlib import Path

import pomona
from pomona.federation import loop
from problems import tiny

CLIENTS, HIDDEN = 80, 120
STATES = CLIENTS * CLIENTS * 4 * (64 * HIDDEN + HIDDEN + HIDDEN * 10 + 10)
"""Bytes of 80 clients' copies of 80 cores: 231 MB."""
STOPPED = 7


def federation(share, workers):
    """APPLE under a budget, two short rounds."""
    return tiny(
        "apple",
        {"budget": 1},
        clients=CLIENTS,
        model={"name": "mlp", "hidden": [HIDDEN]},
        partition={"name": "iid"},
        data={"name": "digits", "train_limit": 10 * CLIENTS, "validation_share": 0.0},
        rounds=2,
        eval_every=2,
        state_memory=share,
        workers=workers,
    )


def stops_before(number):
    """Make the loop end the process before it commits a round."""
    commit = loop.Loop._commit

    def stops(self, state, at):
        if at == number:
            sys.exit(STOPPED)
        commit(self, state, at)

    loop.Loop._commit = stops


if __name__ == "__main__":
    folder, share, workers, stop = sys.argv[1:]
    pomona.run(tiny("apple", rounds=1))  # what is imported late
    stops_before(int(stop))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    result = pomona.run(federation(float(share), int(workers)), Path(folder), resume=True)
    sys.stdout.write(str(result.summary["state_files_bytes"]))
