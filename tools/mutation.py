"""Mutation testing of the modules that privacy and sums rest on: one changed comparison, operator,
constant, call or return at a time, and the tests that reach its line.

    python tools/mutation.py                 # all modules of TESTS
    python tools/mutation.py masks outvoted  # some, by the end of their path

Tests are collected once. A run of them tells which lines of a module each one reaches. For each
mutant this process is forked, the function's code is replaced, and these tests are run, the fastest
first, until one fails, at most ``MOST`` seconds of them. What runs in processes of its own is not
reached. A survivor is printed with its line; a reason in ``EQUIVALENT`` removes it from the list.
"""

import ast
import gc
import io
import json
import os
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

ROOT = Path(__file__).parents[1]
CORE, FEDERATION = "src/pomona", "federation/src/pomona_federation"
OURS = "federation/tests"
SUMS = tuple(f"{OURS}/test_{t}.py" for t in ("masks", "secure_aggregation", "sums_over_time"))
ADMISSION = ("tests/federation/test_admission.py", "tests/federation/test_first_rounds.py")
STOPPING = (
    "tests/metrics/test_outvoted.py",
    "tests/federation/test_early_stopping.py",
    f"{OURS}/test_false_scores.py",
)
PRIVACY = ("tests/privacy",)
TESTS: dict[str, tuple[str, ...]] = {
    f"{FEDERATION}/messages/masks.py": SUMS[:1],
    f"{FEDERATION}/server/masked_sums.py": SUMS,
    f"{FEDERATION}/silo/masked_part.py": SUMS,
    f"{CORE}/federation/admission.py": ADMISSION,
    f"{CORE}/federation/norm_bounds.py": ADMISSION,
    f"{CORE}/federation/early_stopping.py": STOPPING,
    f"{CORE}/metrics/outvoted.py": STOPPING[:1],
    f"{CORE}/metrics/best_round.py": STOPPING[:1],
    f"{CORE}/privacy/accounting.py": PRIVACY,
    f"{CORE}/privacy/ledger.py": PRIVACY,
    f"{CORE}/privacy/noise.py": PRIVACY,
    f"{CORE}/privacy/settings.py": PRIVACY,
}
EQUIVALENT: dict[str, str] = {
    "masks.py: int.from_bytes(bytes.fromhex(key), 'little') >= _MODULUS -> "
    "int.from_bytes(bytes.fromhex(key), 'little') > _MODULUS": "the modulus itself spells 0, a "
    "point of small order, which the second condition refuses",
    "masks.py: place < peer -> place <= peer": "the silo itself is left out before",
}
"""Survivors that no test can tell from the original, by module and change, with the reason."""
MOST = 20.0  # seconds of tests for a mutant, as measured without it

PAIRS = (
    (ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.In, ast.NotIn),
    (ast.Is, ast.IsNot), (ast.And, ast.Or), (ast.Add, ast.Sub), (ast.Mult, ast.Div),
    (ast.BitOr, ast.BitAnd),
)  # fmt: skip
SWAPS: dict[type, type] = {
    **dict(PAIRS),
    **{b: a for a, b in PAIRS},
    **dict.fromkeys((ast.Pow, ast.FloorDiv, ast.Mod), ast.Mult),
}
UNCHANGED = ("annotation", "returns", "decorator_list", "bases", "args", "format_spec")
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}


def changes(node: ast.AST) -> Iterator[ast.AST]:
    """Replacements of one node of a syntax tree."""
    match node:
        case ast.Compare(ops=[*ops]) if any(type(op) in SWAPS for op in ops):
            for i, op in enumerate(ops):
                yield _changed(node, ops=[*ops[:i], SWAPS[type(op)](), *ops[i + 1 :]])
        case ast.BinOp(op=op) | ast.BoolOp(op=op) | ast.AugAssign(op=op) if type(op) in SWAPS:
            yield _changed(node, op=SWAPS[type(op)]())
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield operand
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield ast.Constant(value + 1)
        case ast.Name(id=name) if name in NAMES:
            yield ast.Name(NAMES[name], node.ctx)
        case ast.Return(value=value) if value is not None and not isinstance(value, ast.Constant):
            yield ast.Return(ast.Constant(None))
        case ast.If(test=(ast.Name() | ast.Call() | ast.Attribute()) as test):
            yield _changed(node, test=ast.UnaryOp(ast.Not(), test))
        case ast.Raise() | ast.Expr(value=ast.Call()):
            yield ast.Pass()


def _changed(node: ast.AST, **fields: object) -> ast.AST:
    new = deepcopy(node)
    for name, value in fields.items():
        setattr(new, name, value)
    return new


def nodes(tree: ast.AST, outer: tuple[str, ...] = ()) -> Iterator[tuple[str, ast.AST, str, Any]]:
    """Nodes inside functions that are mutated: function, parent, field and index in it.

    Left out: text and its numbers, annotations, docstrings, what a raise says.
    """
    for field, value in ast.iter_fields(tree):
        called = field == "args" and isinstance(tree, ast.Call)
        if field in UNCHANGED and not called:
            continue
        many = isinstance(value, list)
        for i, node in enumerate(value if many else [value]):
            if not isinstance(node, ast.AST) or isinstance(node, ast.JoinedStr):
                continue
            within = (
                (*outer, node.name) if isinstance(node, ast.FunctionDef | ast.ClassDef) else outer
            )
            if within and within is outer:
                yield ".".join(outer), tree, field, i if many else None
            if not isinstance(node, ast.Raise):
                yield from nodes(node, within)


@dataclass(frozen=True)
class Mutant:
    """One change: the outermost function that it is in, its line, both texts, the new code."""

    function: str
    line: int
    text: str
    code: CodeType


def mutants(path: Path) -> Iterator[Mutant]:
    """All mutants of a module."""
    tree = ast.parse(path.read_text())
    methods = {n.name for n in tree.body if isinstance(n, ast.ClassDef)}
    for within, parent, field, i in [*nodes(tree)]:
        value = getattr(parent, field)
        node = value if i is None else value[i]
        names = within.split(".")
        outermost = ".".join(names[: 2 if names[0] in methods else 1])
        if len(names) < 2 and names[0] in methods:
            continue  # a field of a class
        for new in changes(node):
            _put(parent, field, i, ast.copy_location(new, node))
            ast.fix_missing_locations(parent)
            code = _code(compile(tree, str(path), "exec"), outermost)
            text = " ".join(f"{_shown(node)} -> {_shown(new)}".split())
            _put(parent, field, i, node)
            if code:
                yield Mutant(outermost, node.lineno, text, code)


def _shown(node: ast.AST) -> str:
    return ast.unparse(node)[:90]


def _put(parent: ast.AST, field: str, i: int | None, node: ast.AST) -> None:
    if i is None:
        setattr(parent, field, node)
    else:
        getattr(parent, field)[i] = node


def _code(code: CodeType, name: str) -> CodeType | None:
    inner = [c for c in code.co_consts if isinstance(c, CodeType)]
    return next((c for c in inner if c.co_qualname == name), None) or next(
        filter(None, (_code(c, name) for c in inner)), None
    )


class Runner:
    """Takes over from pytest once the tests are collected."""

    def __init__(self, paths: list[str]) -> None:
        self.paths = paths
        self.survivors = 0

    def pytest_runtestloop(self, session: Any) -> bool:
        """Mutate each module in turn."""
        for name in self.paths:
            wanted = [ROOT / test for test in TESTS[name]]
            items = [
                i for i in session.items if any(w == i.path or w in i.path.parents for w in wanted)
            ]
            self.module(ROOT / name, name, items)
        return True

    def module(self, path: Path, name: str, items: list[Any]) -> None:
        """Print the score of one module, and its survivors."""
        since = time.monotonic()
        package = name.partition("src/")[2].removesuffix(".py").replace("/", ".")
        import_module(package)
        reached: dict[str, Any] = json.loads(
            forked(lambda: json.dumps(reach(path, items)), 3600)[1]
        )
        sound = [i for i in items if reached[i.nodeid][1]]
        unchanged = Mutant("", 0, "", run.__code__)
        if forked(lambda: run(path, unchanged, sound[:40]), 3600)[0]:
            raise SystemExit(f"{name}: tests that passed fail without a mutant")
        killed, survivors, unreached = 0, [], 0
        for mutant in mutants(path):
            tests = sorted(
                (i for i in items if mutant.line in reached[i.nodeid][1]),
                key=lambda i: float(reached[i.nodeid][0]),
            )
            spent = 0.0
            chosen: list[Any] = []
            for item in tests:
                spent += reached[item.nodeid][0]
                if chosen and spent > MOST:
                    break
                chosen.append(item)
            code, fault = forked(
                lambda m=mutant, c=chosen: run(path, m, c), 10 * min(spent, MOST) + 30
            )
            if fault:
                raise SystemExit(f"{name}: {mutant.function} was not replaced: {fault}")
            if code:
                killed += 1
                continue
            unreached += not tests
            reason = EQUIVALENT.get(f"{path.name}: {mutant.text}")
            why = f"reason: {reason}" if reason else f"{len(chosen)} tests"
            survivors.append((mutant, why))
            print(
                f"  {path.name}:{mutant.line} {mutant.function}: {mutant.text} ({why})",
                flush=True,
            )
        total = killed + len(survivors)
        reasons = sum(why.startswith("reason") for _, why in survivors)
        self.survivors += len(survivors) - reasons
        print(
            f"{name}: killed {killed} of {total}; {len(survivors)} survived, {reasons} explained, "
            f"{unreached} on lines that no test reaches; {time.monotonic() - since:.0f} s",
            flush=True,
        )


def forked(act: Any, seconds: float) -> tuple[int, str]:
    """Run in a fork: its exit status, not 0 too if it takes longer on a processor; its result."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        result = 1
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds) + 1))
            silent = os.open(os.devnull, os.O_RDWR)
            for handle in (0, 1, 2):
                os.dup2(silent, handle)
            sys.stdout = sys.stderr = io.StringIO()
            with os.fdopen(writer, "w") as out:
                out.write(act())
            result = 0
        finally:
            os._exit(result)
    os.close(writer)
    with os.fdopen(reader) as answer:
        text = answer.read()
    return os.waitpid(child, 0)[1], text


def reach(path: Path, items: list[Any]) -> dict[str, tuple[float, list[int]]]:
    """Seconds of each test that passes, and the lines of a file that it reaches."""
    file, reached = str(path), {}
    for item in items:
        lines = set[int]()

        def local(frame: Any, event: str, _: Any, lines: set[int] = lines) -> Any:
            lines.add(frame.f_lineno)
            return local

        def trace(frame: Any, event: str, _: Any) -> Any:
            return local(frame, event, _) if frame.f_code.co_filename == file else None

        since = time.process_time()
        sys.settrace(trace)
        try:
            passed = passes(item)
        finally:
            sys.settrace(None)
        reached[item.nodeid] = (time.process_time() - since, sorted(lines) if passed else [])
    return reached


def passes(item: Any) -> bool:
    """Whether a test does not fail."""
    return not any(r.failed for r in runtestprotocol(item, nextitem=None, log=False))


def run(path: Path, mutant: Mutant, items: list[Any]) -> str:
    """Replace a function's code, then fail with the first test that does."""
    gc.unfreeze()
    replaced = not mutant.function
    for function in gc.get_objects():
        if type(function) is FunctionType:  # some proxies fail when asked with isinstance
            code = function.__code__
            if code.co_filename == str(path) and code.co_qualname == mutant.function:
                with suppress(ValueError):  # a wrapper of the same name
                    function.__code__ = mutant.code
                    replaced = True
    if not replaced:
        return "no function"
    if not all(passes(item) for item in items):
        raise AssertionError
    return ""


def main(words: list[str]) -> int:
    """Mutate the modules whose path ends in one of the words, or all."""
    paths = [p for p in TESTS if not words or any(w in p for w in words)]
    tests = sorted({test for p in paths for test in TESTS[p]})
    runner = Runner(paths)
    os.chdir(ROOT)
    options = ["-q", "-s", "-p", "no:cacheprovider", "-m", "not slow and not fuzz", *tests]
    pytest.main(options, plugins=[runner])
    print(f"{runner.survivors} survivors without a reason")
    return runner.survivors > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
