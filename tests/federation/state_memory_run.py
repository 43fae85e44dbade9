"""A run whose memory ``test_state_memory`` observes from outside.

    python state_memory_run.py FOLDER STATE_MEMORY WORKERS STOP

Writes a line when everything is imported, and the bytes of the states' files at its end. Stops with
exit code 7 before it commits round STOP; continues after the last committed round if there is one.
"""

import sys
from dataclasses import replace
from pathlib import Path

import pomona
from pomona.federation.callbacks import StopAfter
from pomona.methods import base
from pomona.methods.one_model.fedavg import FedAvg
from problems import tiny

CLIENTS, HIDDEN = 80, 120
STATES = CLIENTS * CLIENTS * 4 * (64 * HIDDEN + HIDDEN + HIDDEN * 10 + 10)
"""Bytes of 80 clients' 80 models: 231 MB."""
STOPPED = 7


class Diary(base.MethodSettings):
    """FedAvg in which every client has room for 80 models and puts its last trained one first."""

    def method(self):
        plain = FedAvg().method()

        def initial_states(initial, roster, ids, seed):
            return initial().repeat(len(ids), CLIENTS, 1)

        def train(state, received, training, round_):
            _, uplink, info = plain.client.train(None, received, training, round_)
            state[:, 0] = uplink["model"]
            return state, uplink, info

        return replace(plain, client=base.Client(initial_states, train))


def federation(share, workers):
    """Clients with large states, two short rounds."""
    return tiny(
        "state_memory_run:Diary",
        clients=CLIENTS,
        model={"name": "mlp", "hidden": [HIDDEN]},
        partition={"name": "iid"},
        data={"name": "digits", "train_limit": 10 * CLIENTS, "validation_share": 0.0},
        rounds=2,
        eval_every=2,
        state_memory=share,
        workers=workers,
    )


if __name__ == "__main__":
    folder, share, workers, stop = sys.argv[1:]
    pomona.run(tiny("apple", rounds=1))  # what is imported late
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    callback = StopAfter(int(stop), committed=False)
    try:
        result = pomona.run(
            federation(float(share), int(workers)), Path(folder), callback, resume=True
        )
    except KeyboardInterrupt:
        sys.exit(STOPPED)
    sys.stdout.write(str(result.summary["state_files_bytes"]))
