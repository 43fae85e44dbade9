"""The tables of ``docs/formats.md``, each line of which is executed by a test.

A test file has ``CASES = Cases("heading of the table")``, one function for each line, marked
``@CASES.line("S1")``, one test over ``CASES.names``, and one that calls ``CASES.check()``. A new
format adds a heading with a table to the document, and such a file.
"""

import re
from collections.abc import Callable
from pathlib import Path

DOCUMENT = Path(__file__).parents[2] / "docs/formats.md"


def documented(heading: str) -> list[str]:
    """Return the first cells of the table under a heading."""
    section = re.split(r"^## ", DOCUMENT.read_text(), flags=re.M)
    text = next(text for text in section if text.startswith(f"{heading}\n"))
    return re.findall(r"^\| (\w+\d+) \|", text, flags=re.M)


class Cases:
    """The functions that execute the lines of one table."""

    def __init__(self, heading: str) -> None:
        self.heading = heading
        self.names = documented(heading)
        self.functions: dict[str, Callable[[Path], None]] = {}

    def line(self, name: str) -> Callable[[Callable[[Path], None]], Callable[[Path], None]]:
        """Mark the function that executes a line; it gets an empty folder."""

        def mark(function: Callable[[Path], None]) -> Callable[[Path], None]:
            assert name not in self.functions, f"two functions execute line {name}"
            self.functions[name] = function
            return function

        return mark

    def check(self) -> None:
        """Check that the document has each line once, and a function for it."""
        assert sorted(self.names) == sorted(self.functions)
