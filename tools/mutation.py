"""Mutation testing of the modules that privacy and sums rest on: one changed comparison, operator,
constant, call or return at a time, and the tests that reach its line.

    python tools/mutation.py                          # all modules of mutation.toml
    python tools/mutation.py masks outvoted           # some, by a part of their path
    python tools/mutation.py privacy --marks "not slow and not long and not fuzz"

Tests are collected once. A first run records the lines of each module that each one reaches. For
each mutant this process is forked, the function's code is replaced, and these tests are run, the
last one that killed a mutant first, then the fastest, until one fails, at most ``BUDGET`` seconds.
Code in other processes is not reached. A survivor is printed with its line; a reason in
``mutation.toml`` removes it from the list.
"""

import argparse
import ast
import gc
import json
import os
import resource
import signal
import sys
import time
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

ROOT = Path(__file__).parents[1]
SETTINGS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
BUDGET = 20.0  # seconds of tests for a mutant, as measured without it

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
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
UNCHANGED = ("annotation", "returns", "decorator_list", "bases", "args", "format_spec")


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


Replaceable = tuple[tuple[str, ...], ast.AST, Callable[[ast.AST], None]]


def nodes(tree: ast.AST, outer: tuple[str, ...] = ()) -> Iterator[Replaceable]:
    """Nodes inside functions that are mutated: the names around each, and what replaces it.

    Left out: text and its numbers, annotations, docstrings, messages of errors.
    """
    for field, value in ast.iter_fields(tree):
        if field in UNCHANGED and not (field == "args" and isinstance(tree, ast.Call)):
            continue
        for i, node in enumerate(value if isinstance(value, list) else [value]):
            if not isinstance(node, ast.AST) or isinstance(node, ast.JoinedStr):
                continue
            names = outer
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                names = (*outer, node.name)
            elif outer:
                is_list = isinstance(value, list)
                replace = (
                    partial(value.__setitem__, i) if is_list else partial(setattr, tree, field)
                )
                yield outer, node, replace
            if not isinstance(node, ast.Raise):
                yield from nodes(node, names)


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
    classes = {n.name for n in tree.body if isinstance(n, ast.ClassDef)}
    for names, node, replace in [*nodes(tree)]:
        function = ".".join(names[: 2 if names[0] in classes else 1])
        for new in changes(node):
            replace(ast.fix_missing_locations(ast.copy_location(new, node)))
            codes = functions_in(compile(tree, str(path), "exec"))
            replace(node)
            code = next((code for code in codes if code.co_qualname == function), None)
            if code and function not in classes:  # no field of a class
                text = " ".join(f"{ast.unparse(node)[:90]} -> {ast.unparse(new)[:90]}".split())
                yield Mutant(function, node.lineno, text, code)  # type: ignore[attr-defined]


def functions_in(code: CodeType) -> Iterator[CodeType]:
    """The code of all functions and classes inside another."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from functions_in(constant)


@dataclass
class Runner:
    """Takes over from pytest once the tests are collected."""

    modules: Sequence[str]
    unexplained: int = 0

    def pytest_collection(self) -> None:
        """A property test ends with its first example that fails."""
        from hypothesis import Phase, settings  # not before pytest has begun

        settings.register_profile("first", database=None, phases=[Phase.explicit, Phase.generate])
        settings.load_profile("first")

    def pytest_runtestloop(self, session: Any) -> bool:
        """Mutate each module in turn."""
        for name in self.modules:
            import_module(name.partition("src/")[2].removesuffix(".py").replace("/", "."))
        files = [str(ROOT / name) for name in self.modules]
        session.config._tmp_path_factory.getbasetemp()  # one for all forks
        text = forked(lambda: json.dumps([reach(files, session.items), [*sys.modules]]), 7200)
        reached, imported = json.loads(text)
        for name in imported:
            with suppress(Exception):  # once, and not again in each fork
                import_module(name)
        items = sorted(session.items, key=lambda i: float(reached[i.nodeid][0]))
        for name, file in zip(self.modules, files, strict=True):
            tests = [(i, reached[i.nodeid][0], reached[i.nodeid][1].get(file, ())) for i in items]
            self.module(name, [test for test in tests if test[2]])
        return True

    def module(self, name: str, tests: list[tuple[Any, float, list[int]]]) -> None:
        """Print the score of a module, and its survivors, by tests, their seconds and lines."""
        began, path, functions = time.monotonic(), ROOT / name, functions_of(str(ROOT / name))
        if failed := forked(lambda: first_failure([item for item, _, _ in tests[:40]]), 3600):
            raise SystemExit(f"{name}: {failed} passed, and now fails without a mutant")
        killed = survivors = 0
        for mutant in mutants(path):
            seconds, chosen = 0.0, list[Any]()
            for item, duration, lines in tests:
                if mutant.line in lines and (not chosen or seconds + duration <= BUDGET):
                    seconds += duration
                    chosen.append(item)
            killer = forked(partial(run, functions, mutant, chosen), 3 * seconds + 5)
            if killer:
                killed += 1
                tests.sort(key=lambda test: test[0].nodeid != killer)
                continue
            reason = SETTINGS["equivalent"].get(f"{mutant.function}: {mutant.text}")
            self.unexplained += not reason
            survivors += 1
            explanation = f"reason: {reason}" if reason else f"{len(chosen)} tests"
            location = f"{path.name}:{mutant.line} {mutant.function}"
            print(f"  {location}: {mutant.text} ({explanation})", flush=True)
        seconds = time.monotonic() - began
        print(f"{name}: killed {killed} of {killed + survivors}; {seconds:.0f} s", flush=True)


def forked(act: Callable[[], str], seconds: float) -> str:
    """Run in a fork; its result, or its exit status, also if it takes more processor time."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds) + 1))
            signal.alarm(int(20 * seconds))  # for tests that hang
            for handle in (0, 1, 2):
                os.dup2(os.open(os.devnull, os.O_RDWR), handle)
            with os.fdopen(writer, "w") as stream:
                stream.write(act())
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader) as answer:
        text = answer.read()
    exit_status = os.waitpid(child, 0)[1]
    return f"status {exit_status}" if exit_status else text


def reach(files: list[str], items: list[Any]) -> dict[str, tuple[float, dict[str, list[int]]]]:
    """Seconds of each test that passes, and the lines of each file that it reaches."""
    lines = defaultdict[str, set[int]](set)

    def trace(frame: Any, event: str, _: Any) -> Any:
        if (file := frame.f_code.co_filename) not in files:
            return None
        lines[file].add(frame.f_lineno)
        return trace

    reached = {}
    for item in items:
        lines.clear()
        began = time.process_time()
        sys.settrace(trace)
        failed = first_failure([item])
        sys.settrace(None)
        seconds = time.process_time() - began
        reached[item.nodeid] = seconds, {k: sorted(v) for k, v in lines.items() if not failed}
    return reached


def first_failure(items: list[Any]) -> str:
    """The first test that fails; empty if none does."""
    for item in items:
        if any(r.failed for r in runtestprotocol(item, nextitem=None, log=False)):
            return str(item.nodeid)
    return ""


def run(functions: Mapping[str, list[FunctionType]], mutant: Mutant, items: list[Any]) -> str:
    """Replace a function's code; the first test that then fails."""
    for function in functions[mutant.function]:
        with suppress(ValueError):  # a wrapper of the same name
            function.__code__ = mutant.code
    return first_failure(items)


def functions_of(file: str) -> Mapping[str, list[FunctionType]]:
    """The functions of a module, and what wraps them, by name."""
    functions = defaultdict(list)
    gc.unfreeze()
    for function in gc.get_objects():
        if type(function) is FunctionType:  # some proxies fail when asked with isinstance
            code = function.__code__
            if code.co_filename == file:
                functions[code.co_qualname].append(function)
    gc.freeze()  # no fork copies what its collector would visit
    return functions


def main() -> int:
    """Mutate the modules whose path has one of the words, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", default=[""])
    parser.add_argument("--marks", default="not slow and not fuzz")
    options = parser.parse_args()
    modules, tests = list[str](), set[str]()
    for group in SETTINGS["group"]:
        if selected := [m for m in group["modules"] if any(w in m for w in options.words)]:
            modules += selected
            tests |= {*group["tests"]}
    runner = Runner(modules)
    os.chdir(ROOT)
    pytest_options = ["-q", "-s", "--tb=native", "-p", "no:cacheprovider", "-m", options.marks]
    pytest.main([*pytest_options, *sorted(tests)], plugins=[runner])
    print(f"{runner.unexplained} survivors without a reason")
    return runner.unexplained > 0


if __name__ == "__main__":
    sys.exit(main())
