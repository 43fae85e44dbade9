"""docs/architecture.md is true: its files exist, and imports go one way in the order of its table of folders."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src/pomona"
TEXT = (ROOT / "docs/architecture.md").read_text()
TABLE = TEXT.partition("## Folders")[2].partition("Outside `src/`")[0]
ORDER = re.findall(r"^\| `([\w/.]+)`", TABLE, re.MULTILINE)
MODULES = sorted(path for path in SOURCE.rglob("*.py") if path.parent != SOURCE or path.name in ORDER)


def part(module: str) -> str:
    """The row of the table that a module such as pomona.core.rng belongs to."""
    name = module.split(".")[1]
    return name + ("/" if (SOURCE / name).is_dir() else ".py")


def modules(path: Path) -> set[str]:
    """The modules of Pomona that a file imports, at its top, in a function or for types only."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    names = {a.name for n in nodes if isinstance(n, ast.Import) for a in n.names}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module:
            within = {f"{node.module}.{a.name}" for a in node.names}
            names |= {name if exists(name) else node.module for name in within}
    return {name for name in names if name.startswith("pomona.")}


def exists(module: str) -> bool:
    """Whether there is a file or folder of a module's name."""
    path = SOURCE.parent.joinpath(*module.split("."))
    return path.is_dir() or path.with_suffix(".py").exists()


def imported(path: Path) -> set[str]:
    """The parts of Pomona that a file imports."""
    return {part(name) for name in modules(path)}


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_go_one_way(path):
    below = path.relative_to(SOURCE).parts
    own = f"{below[0]}/" if len(below) > 1 else below[0]
    assert sorted(p for p in imported(path) if p not in ORDER or ORDER.index(p) > ORDER.index(own)) == []


DEPLOYED = ("provision", "server", "silo", "flower_apps", "status", "rehearsal")
"""Parts of deploy/, lowest first; all its other files, and pki/, are below them."""
APART = {("server", "silo"), ("provision", "server"), ("provision", "silo")}


def test_deployment_imports_go_one_way():
    """A server and a silo know nothing of each other, and neither needs what made its kit."""
    upward = set()
    for path in (SOURCE / "deploy").rglob("*.py"):
        own = path.relative_to(SOURCE / "deploy").parts[0].removesuffix(".py")
        others = {name.split(".")[2] for name in modules(path) if name.startswith("pomona.deploy.")} - {own}
        rank = DEPLOYED.index(own) if own in DEPLOYED else -1
        above = {other for other in others if other in DEPLOYED and DEPLOYED.index(other) > rank}
        apart = {other for other in others if tuple(sorted((own, other))) in APART}
        upward |= {(str(path.relative_to(SOURCE)), other) for other in above | apart}
    assert sorted(upward) == []


def test_figures_tables_and_texts_know_no_page():
    pages = {p.stem for p in (SOURCE / "results").glob("*page*.py")}
    parts = [p for folder in ("figures", "tables", "text") for p in (SOURCE / "results" / folder).glob("*.py")]
    assert sorted((p.stem, name) for p in parts for name in modules(p) if name.split(".")[-1] in pages) == []


PAPERS = {f"pomona.methods.{p.stem}" for p in (SOURCE / "methods").glob("*.py")} - {
    f"pomona.methods.{name}" for name in ("__init__", "base", "request_bank")
}
BY_NAME = {
    "config.py": ["pomona.methods.fedavg"],  # the method of a run that names none
    "deploy/silo/silo_report.py": ["pomona.methods.separate"],  # a silo's model trained alone, to compare with
}


def test_only_named_files_outside_methods_import_a_method():
    outside = {p: sorted(PAPERS & modules(p)) for p in SOURCE.rglob("*.py") if p.parent.name != "methods"}
    assert {str(p.relative_to(SOURCE)): names for p, names in outside.items() if names} == BY_NAME


def test_every_folder_and_module_has_a_row():
    there = {f"{p.parent.name}/" for p in SOURCE.glob("*/__init__.py")} | {p.name for p in SOURCE.glob("*.py")}
    assert there - {"__init__.py", "__main__.py"} == set(ORDER)


def test_files_that_are_named_exist():
    """In backticks: paths below src/pomona, or from the root for other folders."""
    named = set(re.findall(r"`((?:\w+/)+|(?:\w+/)*\w+\.py)`", TEXT))
    assert sorted(p for p in named if not any((root / p).exists() for root in (SOURCE, ROOT))) == []
