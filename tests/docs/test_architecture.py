"""docs/internals/architecture.md is accurate: its files exist; imports go one way, in the order of
its folders.
"""

import ast
import re
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src/pomona"
FEDERATION = ROOT / "federation/src/pomona_federation"
TEXT = (ROOT / "docs/internals/architecture.md").read_text()
TABLE = TEXT.partition("## Folders")[2].partition("Outside `src/`")[0]
ORDER = re.findall(r"^\| `([\w/.]+)`", TABLE, re.MULTILINE)
FILES = sorted(
    path
    for path in SOURCE.rglob("*.py")
    if (path.parent != SOURCE or path.name in ORDER) and "templates" not in path.parts
)
FILES += sorted(FEDERATION.rglob("*.py"))
BARRED = [
    ("pomona_federation/server/", "pomona_federation/silo/"),
    ("pomona_federation/provision/", "pomona_federation/server/"),
    ("pomona_federation/provision/", "pomona_federation/silo/"),
]
"""A server and a silo know nothing of each other, and neither needs what made its kit."""


WITHIN = tuple(f"data/{folder}/" for folder in ("formats", "images", "quality", "tables"))
WITHIN += tuple(f"{p.parent.relative_to(SOURCE)}/" for p in SOURCE.glob("methods/*/__init__.py"))
"""Folders without an order of their own, described in their folder's row."""


def row_of(module: str) -> str:
    """The longest row of the table that contains a module such as pomona.results.figures.plot."""
    path = module.removeprefix("pomona.").split(".")
    names = ["/".join(path[:length]) for length in range(len(path), 0, -1)]
    return next(row for name in names for row in (f"{name}.py", f"{name}/") if row in ORDER)


@cache
def modules(path: Path) -> set[str]:
    """Pomona's modules imported by a file, at its top, in a function or for types only."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    names = {a.name for n in nodes if isinstance(n, ast.Import) for a in n.names}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module:
            within = {f"{node.module}.{a.name}" for a in node.names}
            names |= {name if exists(name) else node.module for name in within}
    return {name for name in names if name.partition(".")[0] in ("pomona", "pomona_federation")}


@cache
def exists(module: str) -> bool:
    """Whether a module's name has a file or folder."""
    paths = [root.parent.joinpath(*module.split(".")) for root in (SOURCE, FEDERATION)]
    return any(path.is_dir() or path.with_suffix(".py").exists() for path in paths)


def module(path: Path) -> str:
    """The dotted name of a file."""
    root = SOURCE if path.is_relative_to(SOURCE) else FEDERATION
    return ".".join(path.relative_to(root.parent).with_suffix("").parts).removesuffix(".__init__")


def barred(row: str, target: str) -> bool:
    """Whether two rows may not import each other in either direction."""
    pairs = [(row, target), (target, row)]
    return any(
        a.startswith(first) and b.startswith(second) for first, second in BARRED for a, b in pairs
    )


def test_imports_go_one_way():
    violations = {}
    for path in FILES:
        row = row_of(module(path))
        targets = {row_of(name) for name in modules(path) - {"pomona"}}
        if wrong_way := [t for t in targets if ORDER.index(t) > ORDER.index(row) or barred(t, row)]:
            violations[module(path)] = wrong_way
    assert violations == {}


def test_no_modules_import_each_other_in_a_circle():
    graph = {
        module(path): modules(path) for root in (SOURCE, FEDERATION) for path in root.rglob("*.py")
    }
    assert {"pomona", "pomona.simulation"} < {*TopologicalSorter(graph).static_order()}


def test_the_package_imports_no_engine_by_name():
    native = [path for path in SOURCE.rglob("*.py") if "pomona_native" in path.read_text()]
    assert native == []


PAPERS = {module(p) for p in (SOURCE / "methods").rglob("*.py") if p.stem != "__init__"} - {
    f"pomona.methods.{name}" for name in ("base", "card", "mixtures.request_bank")
}
BY_NAME = {
    "pomona.config.run": ["pomona.methods.one_model.fedavg"],  # the method of a run that names none
    # a silo's model trained alone, to compare with
    "pomona_federation.silo.silo_report": ["pomona.methods.personal_regularisation.separate"],
}


def test_only_named_files_outside_methods_import_a_method():
    outside = {module(p): sorted(PAPERS & modules(p)) for p in FILES if "methods" not in p.parts}
    assert {name: papers for name, papers in outside.items() if papers} == BY_NAME


def order_in(path: Path) -> list[int]:
    """The ranks of a method's definitions, as they follow each other in its file."""
    ranks = []
    for node in ast.parse(path.read_text()).body:
        bases = [ast.unparse(b) for b in node.bases] if isinstance(node, ast.ClassDef) else []
        if "base.MethodSettings" in bases:
            ranks.append(0)
        elif isinstance(node, ast.FunctionDef) and node.name in {"server", "client"}:
            ranks.append(["server", "client"].index(node.name) + 1)
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in {"CARD", "CARDS"}:
            ranks.append(3)
    return ranks


def test_files_of_methods_have_one_order():
    """Settings, server half, client half, card."""
    orders = {p.stem: order_in(p) for p in (SOURCE / "methods").rglob("*/*.py")}
    assert sum(0 in ranks and 3 in ranks for ranks in orders.values()) > 30
    assert {name for name, ranks in orders.items() if ranks != sorted(ranks)} == set()


def test_every_folder_and_module_has_a_row():
    folders = {f"{p.parent.relative_to(SOURCE)}/" for p in SOURCE.rglob("*/__init__.py")} - {"./"}
    folders = {folder for folder in folders if not folder.startswith(WITHIN)}
    folders |= {
        f"{p.parent.relative_to(FEDERATION.parent)}/" for p in FEDERATION.rglob("__init__.py")
    }
    files = {p.name for p in SOURCE.glob("*.py")} - {"__init__.py", "__main__.py"}
    assert {row for row in ORDER if not re.search(r"/\w+\.py$", row)} == folders | files


def test_files_that_are_named_exist():
    """In backticks: paths below src/pomona, or from the root for other folders; also in a section
    on a federation's processes.
    """
    processes = (
        (ROOT / "docs/internals/federation.md")
        .read_text()
        .partition("\n## Processes\n")[2]
        .partition("\n## ")[0]
    )
    paths = set(re.findall(r"`((?:\w+/)+|(?:\w+/)*\w+\.py)`", TEXT + processes))
    assert (
        sorted(
            p
            for p in paths
            if not any((root / p).exists() for root in (SOURCE, FEDERATION.parent, ROOT))
        )
        == []
    )
