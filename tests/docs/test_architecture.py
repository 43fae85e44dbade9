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


def imported(path: Path) -> set[str]:
    """The parts of Pomona that a file imports, at its top or in a function."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    froms = [n for n in nodes if isinstance(n, ast.ImportFrom) and n.module]
    names = [f"{n.module}.{a.name}" if n.module == "pomona" else n.module for n in froms for a in n.names]
    names += [a.name for n in nodes if isinstance(n, ast.Import) for a in n.names]
    return {part(name) for name in names if name.startswith("pomona.")}


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_go_one_way(path):
    below = path.relative_to(SOURCE).parts
    own = f"{below[0]}/" if len(below) > 1 else below[0]
    assert sorted(p for p in imported(path) if p not in ORDER or ORDER.index(p) > ORDER.index(own)) == []


def test_every_folder_and_module_has_a_row():
    there = {f"{p.parent.name}/" for p in SOURCE.glob("*/__init__.py")} | {p.name for p in SOURCE.glob("*.py")}
    assert there - {"__init__.py", "__main__.py"} == set(ORDER)


def test_files_that_are_named_exist():
    """In backticks: paths below src/pomona, or from the root for other folders."""
    named = set(re.findall(r"`((?:\w+/)+|(?:\w+/)*\w+\.py)`", TEXT))
    assert sorted(p for p in named if not any((root / p).exists() for root in (SOURCE, ROOT))) == []
