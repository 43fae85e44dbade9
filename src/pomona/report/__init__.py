"""The report of a run, or of several side by side: a page, its figures, and the numbers behind them."""

from pomona.report.numbers import headline, table
from pomona.report.page import write

__all__ = ["headline", "table", "write"]
