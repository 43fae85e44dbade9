"""Write the site's page of faults in a run, made of the rows that test them, below FOLDER.

python federation/tests/reliability/fault_table.py FOLDER
"""

import sys
from pathlib import Path

from process_rows import PROCESSES
from rows import ROWS

PAGE = "internals/faults-of-a-run.md"
HEAD = """# Faults of a run

Each row is a test, and made from it. "Same result" means the same hash of all tensors and the same events. What else is
tested: [fault tables](fault-tables.md).

| | what was done | exit code | what held |
| --- | --- | --- | --- |
"""


def page():
    """One table row per fault, ordered by number."""
    rows = sorted((*ROWS, *PROCESSES), key=lambda row: int(row.id.split()[0][1:]))
    return HEAD + "".join(line(*row.id.split(" ", 1), row.code, row.check.__doc__) for row in rows)


def line(number, description, code, outcome):
    exit_code = "killed" if code < 0 else code
    return f"| {number} | {description} | {exit_code} | {' '.join(outcome.split())} |\n"


if __name__ == "__main__":
    (Path(sys.argv[1]) / PAGE).write_text(page(), encoding="utf-8")
