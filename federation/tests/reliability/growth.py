"""What a running federation takes, minute by minute, and how fast it grows.

Samples: by owner and kind of process the processes, memory (MB, PSS), descriptors and threads; by
owner and entry of its kit the bytes on the disk (MB). Growth is by least squares, over the second
half of the samples: what a start takes once is in the first.
"""

import csv
from collections import Counter
from contextlib import suppress
from itertools import groupby

import numpy as np
import psutil

from pomona_federation.rehearsal.run import PROCESSES, process_role
from pomona_federation.supervision.supervisor import process_tree

EVERY = 60.0
COLUMNS = ("hours", "owner", "subject", "measure", "value")


def append_sample(path, hours, local, owners):
    """Append the state of all owners' processes and kits to a CSV file."""
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.writer(file)
        if new:
            writer.writerow(COLUMNS)
        for owner in owners:
            for (subject, measure), value in sample(local, owner).items():
                writer.writerow([f"{hours:.4f}", owner, subject, measure, f"{value:.6g}"])


def sample(local, owner):
    """An owner's figures, by subject and measure."""
    sums = Counter()
    for process, command in process_tree(local.process(owner).pid).items():
        with suppress(psutil.Error):
            role = process_role(process, command)
            if role == "ClientApp" or role in PROCESSES:
                sums[role, "MB"] += process.memory_full_info().pss / 1e6
                sums[role, "descriptors"] += process.num_fds()
                sums[role, "threads"] += process.num_threads()
                sums[role, "processes"] += 1
    for entry in (local.folder / "kits" / owner).iterdir():
        sums[entry.name, "MB on disk"] = size(entry)
    return sums


def size(path):
    """MB of a file, or of all files below a folder."""
    total = 0
    for file in (path, *path.rglob("*")):
        with suppress(OSError):
            total += file.stat().st_size if file.is_file() else 0
    return total / 1e6


def growth(path):
    """By owner, subject and measure: the value halfway, at the end, and the growth per hour.

    Figures that are missing in a sample, such as those of a study's own processes, are left out.
    """
    with path.open(newline="") as file:
        rows = [
            (float(r["hours"]), *list(r.values())[1:4], float(r["value"]))
            for r in csv.DictReader(file)
        ]
    middle = max((hours for hours, *_ in rows), default=0.0) / 2
    rows = sorted((r for r in rows if r[0] >= middle), key=lambda r: (r[1:4], r[0]))
    samples = len({hours for hours, *_ in rows})
    table = {}
    for key, group in groupby(rows, key=lambda r: r[1:4]):
        hours, values = np.array([(r[0], r[4]) for r in group]).T
        if len(hours) == samples > 1:
            table[key] = (values[0], values[-1], np.polyfit(hours, values, 1)[0])
    return table


def growing(path):
    """Lines: what grows by itself, or is large; the silos' largest."""
    largest = {}
    for (owner, *labels), figures in growth(path).items():
        key = ("server" if owner == "server" else "silo", *labels)
        largest[key] = max(figures, largest.get(key, figures), key=lambda f: f[2])
    return [
        f"{owner}'s {subject}: {initial:.4g}, {final:.4g} {measure}, {rate:+.3g} an hour"
        for (owner, subject, measure), (initial, final, rate) in largest.items()
        if measure == "MB" or abs(rate) >= 0.01
    ]
