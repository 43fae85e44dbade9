"""The record of a run: a folder that is appended to during the run, and read back as a Result.

``events.jsonl`` is the only source; ``rounds.csv``, ``clients.csv`` and ``summary.json`` are views of it.

    config.toml       every setting, resolved           partition.json    the rows of each client events.jsonl      one
    JSON object per line          models/           one personal model per client (safetensors) rounds.csv        one
    row per round and evaluation  private/          data that never leaves a client (APPLE's DR row) clients.csv
    one row per client and evaluation summary.json      the figures of the closing summary predictions.npz   the
    evaluated models' outputs on the test samples
"""
