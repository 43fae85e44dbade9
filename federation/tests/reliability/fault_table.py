"""The table of faults in docs/internals/fault-tables.md, from the rows that test them; run this
file to write it anew.
"""

import re
from pathlib import Path

from process_rows import PROCESSES
from rows import ROWS

PAGE = Path(__file__).parents[3] / "docs" / "internals" / "fault-tables.md"
HEAD = "| | what was done | exit code | what held |\n| --- | --- | --- | --- |\n"
TABLE = re.compile(re.escape(HEAD) + r"(\|.*\n)*")


def table():
    """One table row per fault, ordered by number."""
    rows = sorted((*ROWS, *PROCESSES), key=lambda row: int(row.id.split()[0][1:]))
    return HEAD + "".join(line(*row.id.split(" ", 1), row.code, row.then.__doc__) for row in rows)


def line(number, done, code, held):
    return f"| {number} | {done} | {'killed' if code < 0 else code} | {held.strip()} |\n"


if __name__ == "__main__":
    PAGE.write_text(
        TABLE.sub(lambda _: table(), PAGE.read_text(encoding="utf-8")), encoding="utf-8"
    )
