"""The package's metadata: all imports are declared, and the lower bounds are the tested
versions.
"""

import ast
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
SOURCES = {"pomona": ROOT / "src", "pomona-federation": ROOT / "federation/src"}
PROJECTS = {
    name: tomllib.loads((source.parent / "pyproject.toml").read_text())["project"]
    for name, source in SOURCES.items()
}
POMONA_PACKAGES = {"pomona", "pomona_federation"}
SUBPACKAGES = {"markupsafe", "pydantic-core"}  # parts of jinja2 and pydantic


def package(requirement):
    """The name before any version: "torch>=2.10" -> "torch"."""
    return re.match(r"[\w.-]+", requirement)[0].lower().replace("_", "-")


def imports(path):
    """Top-level names that a file imports."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    plain = [a.name for n in nodes if isinstance(n, ast.Import) for a in n.names]
    return {
        name.split(".")[0]
        for name in plain + [n.module or "" for n in nodes if isinstance(n, ast.ImportFrom)]
    }


def declared(name):
    """A package's requirements, with its extras, without development tools and Pomona itself."""
    extras = {
        extra: requirements
        for extra, requirements in PROJECTS[name]["optional-dependencies"].items()
        if extra != "dev"
    }
    requirements = [
        *PROJECTS[name]["dependencies"],
        *(requirement for requirements in extras.values() for requirement in requirements),
    ]
    return [requirement for requirement in requirements if package(requirement) != "pomona"]


DECLARED = declared("pomona") + declared("pomona-federation")


@pytest.mark.parametrize("project", SOURCES)
def test_every_import_is_declared(project):
    """What ``pomona`` brings, ``pomona-federation`` has; and it alone imports it, not the other way
    round.
    """
    modules = [
        path
        for path in SOURCES[project].rglob("*.py")
        if not path.is_relative_to(ROOT / "src/pomona/templates")  # of users' projects
    ]
    names = {name for path in modules for name in imports(path)}
    available = DECLARED if project == "pomona-federation" else declared("pomona")
    assert ("pomona_federation" in names) == (project == "pomona-federation")
    foreign = names - sys.stdlib_module_names - {*POMONA_PACKAGES, ""}
    distributions = packages_distributions()
    used = {package(distributions[name][0]) for name in foreign}
    assert used - SUBPACKAGES - {package(requirement) for requirement in available} == set()


def test_the_oldest_versions_are_the_lower_bounds():
    """Each at its bound, or above it where Flower asks for more."""
    pins = [
        line
        for line in (ROOT / "constraints-oldest.txt").read_text().splitlines()
        if not line.startswith("#")
    ]
    oldest = dict(line.split("==") for line in pins)
    bounds = {
        package(line): bound[1] for line in DECLARED if (bound := re.search(r">=([\d.]+)", line))
    }
    assert oldest.keys() == bounds.keys()
    number = {name: tuple(map(int, version.split("."))) for name, version in oldest.items()}
    assert [
        name for name, bound in bounds.items() if number[name] < tuple(map(int, bound.split(".")))
    ] == []


def pins(lines):
    """``name==version`` of lines of a lock or of constraints, by name: several if it depends on
    Python.
    """
    versions = {}
    for line in lines:
        if match := re.match(r"([\w.-]+)==([\w.+]+)", line):
            versions.setdefault(package(match[1]), set()).add(match[2])
    return versions


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_locks_of_kits_are_the_constraints_with_hashes_and_whole(device):
    """Whoever changes a pin runs ``make lock``; what Pomona's federations need is there, with all
    that this needs.
    """
    lock = (ROOT / f"federation/src/pomona_federation/provision/locks/{device}.lock").read_text()
    pinned = pins(lock.splitlines())
    listed = pins((ROOT / "constraints.txt").read_text().splitlines())
    torch = {"cpu": {f"{v}+cpu" for v in listed["torch"]}, "cuda": listed["torch"]}[device]
    assert pinned.pop("torch") == torch
    assert {name: listed.get(name) for name in pinned} == pinned
    entries = re.split(r"\n(?=[\w.-]+==)", lock)[1:]
    assert [e for e in entries if not re.search(r"--hash=sha256:[0-9a-f]{64}", e)] == []
    needed, visited = ["pomona-federation[dp]"], set()
    while needed:
        requirement = Requirement(needed.pop())
        if (str(requirement.name), frozenset(requirement.extras)) in visited:
            continue
        visited.add((str(requirement.name), frozenset(requirement.extras)))
        for line in requires(requirement.name) or []:
            inner = Requirement(line)
            extras = [{"extra": extra} for extra in requirement.extras] or [{"extra": ""}]
            if not inner.marker or any(inner.marker.evaluate(extra) for extra in extras):
                needed.append(line.partition(";")[0])
    names = {package(name) for name, _ in visited} - {"pomona", "pomona-federation", "torch"}
    assert len(names) > 50
    assert names - pinned.keys() == set()


def test_one_minor_version_of_flower_is_declared():
    """Two of them refuse each other, so that a range would let two installations by the book not
    meet.
    """
    (bound,) = {line for line in DECLARED if line.startswith("flwr")}
    low, high = re.fullmatch(r"flwr>=(\d+\.\d+),<(\d+\.\d+)", bound).groups()
    major, minor = map(int, low.split("."))
    assert high == f"{major}.{minor + 1}"


def test_all_packages_have_one_version():
    """A silo and a server compare it, and the other two ask for the ``pomona`` that they were made
    with.
    """
    core, federation = PROJECTS.values()
    native = tomllib.loads((ROOT / "native/pyproject.toml").read_text())["project"]
    assert core["version"] == federation["version"] == native["version"]
    assert f"pomona=={core['version']}" in native["dependencies"]
    assert f"pomona=={core['version']}" in federation["dependencies"]
    assert federation["optional-dependencies"]["dp"] == [f"pomona[dp]=={core['version']}"]
    assert (ROOT / "federation/LICENSE").read_text() == (ROOT / "LICENSE").read_text()


def test_the_native_package_brings_its_licences():
    """Those of the libraries inside it, and Pomona's, a copy: a wheel takes no file from above its
    folder.
    """
    files = tomllib.loads((ROOT / "native/pyproject.toml").read_text())["project"]["license-files"]
    texts = {name: (ROOT / "native" / name).read_text() for name in files}
    assert texts["LICENSE"] == (ROOT / "LICENSE").read_text()
    assert all(name in texts["THIRD-PARTY-LICENSES"] for name in ("nanobind", "robin-map"))


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The files of a release: those of ``make dist``, else sdists and wheels of the two packages
    in Python.
    """
    if "POMONA_DIST" in os.environ:
        return Path(os.environ["POMONA_DIST"])
    pytest.importorskip("hatchling", reason="the wheels are built without a download")
    folder = tmp_path_factory.mktemp("dist")
    for source in SOURCES.values():
        command = [sys.executable, "-m", "hatchling", "build", "--directory", folder]
        subprocess.run(command, cwd=source.parent, check=True, capture_output=True)
    return folder


@pytest.mark.parametrize("name", [*SOURCES, "pomona-native"])
def test_what_is_released_is_the_package_with_its_licence_and_readme_and_no_more(name, built):
    """No tests, results or data of this checkout, and the version that a tag has after its v."""
    folder = {**{n: s.parent for n, s in SOURCES.items()}, "pomona-native": ROOT / "native"}[name]
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", project["version"])
    module = name.replace("-", "_")
    stem = f"{module}-{project['version']}"
    files = {path for path in built.iterdir() if path.name.startswith(f"{stem}-")}
    if not files and name == "pomona-native":
        pytest.skip("compiled by `make dist`")
    sources = {
        str(path.relative_to(folder / "src"))
        for path in (folder / "src" / module).rglob("*")
        if path.is_file() and path.suffix not in {".pyc", ".so"}
    }
    for wheel in files:
        with zipfile.ZipFile(wheel) as file:
            entries = {entry for entry in file.namelist() if not entry.endswith("/")}
            metadata = file.read(f"{stem}.dist-info/METADATA").decode()
        code = {entry for entry in entries if not entry.startswith(f"{stem}.dist-info/")}
        assert {entry for entry in code if not entry.endswith(".so")} == sources
        for text in project["license-files"]:
            assert f"{stem}.dist-info/licenses/{text}" in entries
        assert (folder / "README.md").read_text() in metadata
        assert f"\nVersion: {project['version']}\n" in metadata
        typed = "Classifier: Typing :: Typed" in metadata
        assert typed == (f"{module}/py.typed" in entries)
    with tarfile.open(built / f"{stem}.tar.gz") as file:
        entries = {entry.partition("/")[2] for entry in file.getnames()}
    assert {"README.md", "pyproject.toml", "PKG-INFO", *project["license-files"]} <= entries
    assert {entry.removeprefix("src/") for entry in entries if entry.startswith("src/")} == sources
    tops = {entry.partition("/")[0] for entry in entries}
    assert tops <= {"src", "cpp", "CMakeLists.txt", "README.md", "CHANGELOG.md", "PKG-INFO",
                    "pyproject.toml", ".gitignore", *project["license-files"]}  # fmt: skip


def test_workflows_use_actions_of_one_commit():
    """A tag or a branch of somebody else's action can be moved to other code."""
    uses = [
        line.split("uses:")[1].split()[0]
        for path in (ROOT / ".github/workflows").glob("*.yml")
        for line in path.read_text().splitlines()
        if "uses:" in line
    ]
    assert uses
    assert [use for use in uses if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", use)] == []
