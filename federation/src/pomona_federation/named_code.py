"""Code that the settings of a run name, of this package or another's."""

from collections.abc import Mapping
from typing import Any


def named_code(run: Mapping[str, Any]) -> list[str]:
    """Every ``module:name`` that a run would import: its method, also another package's by its
    short name, network, loss and metric.

    Nothing is imported of them.

    A network of a package (``timm:NAME``) does not count: it is looked up in that package's list.
    Any other name in a package would be called directly, and counts as custom code.

    Args:
        run: a tree of settings, checked or not.
    """
    # imported late: they load PyTorch
    from pomona.methods import code_of
    from pomona.models.packages import package

    model = run.get("model")
    method, network = (_name(run.get(section)) for section in ("method", "model"))
    loss = _text(model.get("loss")) if isinstance(model, Mapping) else ""
    metric = _text(run.get("metric")).removeprefix("-")
    candidates = (code_of(method), "" if package(network) else network, loss, metric)
    return [name for name in candidates if ":" in name]


def _name(section: object) -> str:
    """Return the name of a section, which may be given by its name only; empty without one."""
    return _text(section.get("name") if isinstance(section, Mapping) else section)


def _text(value: object) -> str:
    """Return a text; empty for a value of another type."""
    return value if isinstance(value, str) else ""
