"""Installed packages that tests make up: a folder on the import path with metadata and modules."""

import importlib
import sys
from pathlib import Path


def installed(monkeypatch, folder, entry_points, version="9", name="outside", **modules):
    """Install a distribution: ``entry_points`` by group and name, and its modules by their text."""
    metadata = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
    lines = []
    for group, points in entry_points.items():
        lines += [f"[{group}]", *(f"{point} = {target}" for point, target in points.items())]
    (metadata / "entry_points.txt").write_text("\n".join(lines))
    for module, text in modules.items():
        path = folder / Path(*module.split("__")).with_suffix(".py")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.syspath_prepend(folder)
    importlib.invalidate_caches()
