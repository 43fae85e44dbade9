"""Print modules, lines, tokens and complexity of a source tree: python tools/size.py [FOLDER]."""

import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path

LOOPS = (ast.For, ast.AsyncFor, ast.While, ast.comprehension)
BRANCHES = (*LOOPS, ast.If, ast.IfExp, ast.ExceptHandler, ast.Assert, ast.match_case)
SPACE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def complexity(function: Function) -> int:
    """Return McCabe's number: 1, plus 1 for each branch and each further operand of a boolean
    expression.
    """
    nodes = list(ast.walk(function))
    operands = sum(len(node.values) - 1 for node in nodes if isinstance(node, ast.BoolOp))
    return 1 + operands + sum(isinstance(node, BRANCHES) for node in nodes)


def code_lines(text: str) -> int:
    """Return the number of lines that are neither blank, nor a comment, nor part of a docstring."""
    described = set()
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, ast.Module | ast.ClassDef | Function)
            and ast.get_docstring(node) is not None
        ):
            docstring = node.body[0]
            described |= set(
                range(docstring.lineno, (docstring.end_lineno or docstring.lineno) + 1)
            )
    lines = ((number, line.strip()) for number, line in enumerate(text.splitlines(), start=1))
    return sum(
        bool(line) and not line.startswith("#") and number not in described
        for number, line in lines
    )


def tokens(text: str) -> int:
    """Return the number of tokens, which does not depend on the width of lines."""
    return sum(t.type not in SPACE for t in tokenize.generate_tokens(io.StringIO(text).readline))


def main(root: Path) -> None:
    """Print a line for each folder, and a total."""
    lines: Counter[str] = Counter()
    token_totals: Counter[str] = Counter()
    modules: Counter[str] = Counter()
    counts: dict[str, list[int]] = {}
    for path in sorted(root.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        functions = [complexity(n) for n in ast.walk(ast.parse(text)) if isinstance(n, Function)]
        below = path.relative_to(root).parts
        for folder in (below[0] if len(below) > 1 else ".", "all"):
            lines[folder] += code_lines(text)
            token_totals[folder] += tokens(text)
            modules[folder] += 1
            counts.setdefault(folder, []).extend(functions)
    print(f"{'folder':<14}{'modules':>8}{'code':>8}{'tokens':>9}{'functions':>11}", end="")
    print(f"{'mean':>7}{'max':>5}{'over 10':>9}")
    for folder in sorted(modules, key=lambda name: (name == "all", name)):
        values = counts[folder] or [0]
        mean, complex_count = sum(values) / len(values), sum(value > 10 for value in values)
        size = f"{modules[folder]:>8}{lines[folder]:>8}{token_totals[folder]:>9}"
        size += f"{len(counts[folder]):>11}"
        print(f"{folder:<14}{size}{mean:>7.1f}{max(values):>5}{complex_count:>9}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "src/pomona"))
