"""Write the curves of a bench's runs, unfinished ones too: a line a run, model and round.

    python tools/curves.py runs/published > reproduction/results/apple-published/curves.csv

``mean`` is the metric's mean over clients, as in ``rounds.csv`` of a finished run, ``pooled`` that
weighted by their samples.
"""

import csv
import sys
from pathlib import Path

import pomona


def main(bench: str) -> None:
    """Print the curves as CSV."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    print("scenario,method,seed,model,when,split,metric,round,mean,pooled")
    for folder in sorted(Path(bench).glob("cells/*/*/seed-*")):
        scenario, method, run = folder.parts[-3:]
        if not (folder / "events.jsonl").exists():
            continue  # it has not begun
        for e in pomona.load(folder).evaluations:
            fields = scenario, method, run.split("-")[1], e.model, e.when, e.split, str(e.metric)
            scored = [(v, n) for v, n in zip(e.value, e.samples, strict=True) if v is not None]
            total = sum(n for _, n in scored)
            pooled = f"{sum(v * n for v, n in scored) / total:.5g}" if total else ""
            writer.writerow([*fields, e.round, "" if e.mean is None else f"{e.mean:.5g}", pooled])


if __name__ == "__main__":
    main(*sys.argv[1:])
