"""The record of a run: a folder that is appended to as the run goes, and read back as a Result.

``events.jsonl`` is the one source; ``rounds.csv``, ``clients.csv`` and ``summary.json`` are views of it.

    config.toml       every setting, resolved           partition.json    who held which rows
    events.jsonl      one JSON object a line            models/           a personal model a client (safetensors)
    rounds.csv        a row a round and evaluation      private/          what never leaves a client (APPLE's DR row)
    clients.csv       a row a client and evaluation     summary.json      the figures of the closing summary
    predictions.npz   what the judged models say of the test samples
"""
