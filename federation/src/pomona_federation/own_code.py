"""Custom code named in section run of a study: a silo must allow it, and the agreement contains its hash."""

from collections.abc import Mapping
from typing import Any


def named_code(run: Mapping[str, Any]) -> list[str]:
    """Every ``module:name`` that a run would import: its method, network, loss and metric. Nothing is imported.

    A network of a package (``timm:NAME``) does not count: it is looked up in that package's list. Any other name in a
    package would be called directly, and counts as custom code.

    Args:
        run: a tree of settings, checked or not.
    """
    from pomona.models.packages import package

    method, model = (run.get(section) for section in ("method", "model"))
    network = model.get("name") if isinstance(model, Mapping) else model
    loss = model.get("loss") if isinstance(model, Mapping) else None
    metric = run.get("metric")
    named = [
        method.get("name") if isinstance(method, Mapping) else method,
        None if isinstance(network, str) and package(network) else network,
        loss,
        metric.removeprefix("-") if isinstance(metric, str) else None,
    ]
    return [name for name in named if isinstance(name, str) and ":" in name]
