"""Count names that do not say what they hold: python tools/vague_names.py [--list] FOLDER...

A name is vague if it has only pronouns, particles, and verbs or adjectives that fit anything, such
as ``found``, ``own`` or ``what_is_left``: its meaning is then in the reader's head alone. Counted
are functions, classes, parameters and variables at each place that binds one; names of one letter
are those of formulas.
"""

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

PRONOUNS = """
    that these this those it its such same other others rest one ones both each either some
    any all none nobody everybody everything nothing something whatever whoever whose which
    who whom what thing things first last whole full half two three
"""
ADVERBS = """
    there where here now then when why how however before after about beside since until
    near far away apart together alone aloud once again already only just even still more
    most much many less least few long short up down out in on off over under with without
    from to by for as at of home place places part parts kind kinds way ways form forms word
    words wrong right odd due
"""
VERBS = """
    is was are were be been has had have can may must shall will would could should need
    needs want wants wanted like likes found find finds told tell tells said say says heard
    hear made make makes held hold holds kept keep keeps given give gives taken take takes
    drawn seen shown sent left came come comes gone go goes going known named called call
    calls asked ask asks begun begin begins began end ends ended start starts started moved
    moving met met done meant agreed joined lacks lacking spent stands standing look looks
    looked own grown cut
"""
VAGUE = frozenset(f"{PRONOUNS} {ADVERBS} {VERBS}".split())
# names of Python and of matrices
USUAL = frozenset({"self", "cls", "args", "kwargs", "left", "right", "first", "last", "any", "all"})
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+")


def vague(name: str) -> bool:
    """Return whether all words of a name in snake or camel case are vague."""
    words = [word.lower() for word in WORD.findall(name)]
    return name not in USUAL and len(name.strip("_")) > 1 and bool(words) and set(words) <= VAGUE


def bindings(tree: ast.AST) -> Iterator[str]:
    """Yield each name that a module binds, at each place, without ``__names__``."""
    for node in ast.walk(tree):
        match node:
            case (
                ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ClassDef(name=name)
                | ast.arg(arg=name)
                | ast.Name(id=name, ctx=ast.Store())
            ) if not name.startswith("__"):
                yield name


def count(folder: Path) -> tuple[Counter[str], int]:
    """Return how often each vague name is bound below a folder, and the number of all bindings."""
    names = [
        name
        for path in sorted(folder.rglob("*.py"))
        for name in bindings(ast.parse(path.read_text(encoding="utf-8")))
    ]
    return Counter(filter(vague, names)), len(names)


if __name__ == "__main__":
    for folder in (argument for argument in sys.argv[1:] if argument != "--list"):
        names, total = count(Path(folder))
        print(
            f"{folder}: {names.total()} of {total} ({names.total() / max(total, 1):.1%}) are vague"
        )
        if "--list" in sys.argv:
            print("  " + ", ".join(f"{name} {times}" for name, times in names.most_common()))
