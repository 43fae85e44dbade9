"""The text of a small ``federation.toml``."""

import tomli_w

TASK = {"kind": "table", "input_shape": [4], "classes": ["a", "b"]}


def agreement(port, silos=("north", "south"), **run):
    """Agreement of a federation ``try``, with a server on this machine and a quorum of one; ``run``
    extends it.
    """
    return tomli_w.dumps(
        {
            "name": "try",
            "server": f"127.0.0.1:{port}",
            "quorum": 1,
            "places": 4,
            "run": {
                "method": "fedavg",
                "rounds": 3,
                "lr": 0.1,
                "model": {"name": "mlp", "hidden": [8]},
                **run,
            },
            "task": TASK,
            "silo": [{"name": name} for name in silos],
        }
    )
