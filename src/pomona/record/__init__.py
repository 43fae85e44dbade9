"""The record of a run: a folder that is appended to during the run, and read back as a Result.

``events.jsonl`` is the only source; ``rounds.csv``, ``clients.csv`` and ``summary.json`` are views
of it.

    config.toml       every setting, resolved
    events.jsonl      one JSON object per line
    partition.json    the rows of each client
    models/           one personal model per client (safetensors)
    private/          data that never leaves a client (APPLE's DR row)
    rounds.csv        one row per round and evaluation
    clients.csv       one row per client and evaluation
    summary.json      the figures of the closing summary
    predictions.npz   the evaluated models' outputs on the test samples
"""
