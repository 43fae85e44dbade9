"""Results of runs and benches: pages, figures, tables and text, generated from records."""

from typing import TYPE_CHECKING, Any

from pomona.core.registry import load

if TYPE_CHECKING:
    from pomona.record.headline import headline
    from pomona.results.summary_table import table

__all__ = ["headline", "table"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'pomona.results' has no attribute {name!r}")
    return load(
        f"pomona.{'record.headline' if name == 'headline' else 'results.summary_table'}:{name}"
    )
