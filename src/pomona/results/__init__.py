"""Results of runs and benches: pages, figures, tables and text, generated from records; a
trajectory trains again.
"""

from pomona.record.headline import headline
from pomona.results.summary_table import table

__all__ = ["headline", "table"]
