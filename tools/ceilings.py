"""Compare the size of code and documents with its ceilings: python tools/ceilings.py [--lower].

The ceilings are in ``tools/ceilings.toml``. They only fall: ``--lower`` sets those that are above
what is measured now.
"""

import ast
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import tomli_w

from size import Function, code_lines, complexity
from vague_names import count

ROOT = Path(__file__).parents[1]
CEILINGS = ROOT / "tools" / "ceilings.toml"
COMPLEX = 10  # McCabe's number from which a function is hard to test
PACKAGES = {
    "core": "src/pomona",
    "federation": "federation/src/pomona_federation",
    "native": "native/src/pomona_native",
}
TESTS = ("tests", "federation/tests", "native/tests")
GUIDES = ("README.md", "docs/*.md", "docs/guides/*.md", "docs/results/*.md")


def measured() -> Iterator[tuple[str, float]]:
    """Yield each size by its name in the file of ceilings."""
    for name, folder in PACKAGES.items():
        texts = [p.read_text(encoding="utf-8") for p in (ROOT / folder).rglob("*.py")]
        nodes = (node for text in texts for node in ast.walk(ast.parse(text)))
        vague, bindings = count(ROOT / folder)
        yield f"{name}: modules", len(texts)
        yield f"{name}: lines of code", sum(map(code_lines, texts))
        yield (
            f"{name}: functions of complexity over {COMPLEX}",
            sum(isinstance(node, Function) and complexity(node) > COMPLEX for node in nodes),
        )
        yield f"{name}: vague names, per cent", round(100 * vague.total() / bindings, 1)
    native = (ROOT / "native" / "cpp").iterdir()
    yield "native: lines of C++", sum(len(p.read_text("utf-8").splitlines()) for p in native)
    tests = [p.read_text(encoding="utf-8") for f in TESTS for p in (ROOT / f).rglob("*.py")]
    yield "tests: lines of code", sum(map(code_lines, tests))
    guides = [p.read_text(encoding="utf-8") for g in GUIDES for p in ROOT.glob(g)]
    yield "documents for users: words", sum(len(text.split()) for text in guides)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    yield "README: lines", len(readme.splitlines())
    yield "README: words", len(readme.split())


def exceeded(sizes: Mapping[str, float], ceilings: Mapping[str, float]) -> list[str]:
    """Return a line for each size above its ceiling, or without one."""
    return [
        f"{name}: {size:g}, {size - ceilings.get(name, 0):g} above its ceiling"
        for name, size in sizes.items()
        if size > ceilings.get(name, 0)
    ]


def main(lower: bool) -> int:
    """Print every size with its ceiling; 1 if one is exceeded."""
    sizes, ceilings = dict(measured()), tomllib.loads(CEILINGS.read_text(encoding="utf-8"))
    for name, size in sizes.items():
        print(f"{name:<44}{size:>8g} of {ceilings.get(name, 0):g}")
    if lower:
        lowered = {name: min(size, ceilings.get(name, size)) for name, size in sizes.items()}
        CEILINGS.write_text(tomli_w.dumps(lowered), encoding="utf-8")
        return 0
    faults = exceeded(sizes, ceilings)
    print(*faults, sep="\n", file=sys.stderr)
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main("--lower" in sys.argv))
