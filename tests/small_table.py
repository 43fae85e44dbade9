"""A table with signs that its formats write in other ways."""

from pomona.core.table import Table

TABLE = Table(
    "t",
    "50 % & more",
    ["Note."],
    ["a_b", "n"],
    [["x|y", "1 ± 2"], ["z", "3"]],
    range(1),
    frozenset({(1, 1)}),
)
