"""A bench beside the paper whose table it repeats: tables, tests, figures, and where the two differ.

import pomona.compare
pomona.compare.write(pomona.bench.load(Path("runs/apple-table1-cpu")), Path("runs/apple-table1-cpu"))
"""

from pomona.compare.numbers import Comparison, comparison
from pomona.compare.page import write

__all__ = ["Comparison", "comparison", "write"]
