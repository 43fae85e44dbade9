"""Methods share functions, not copies: under 3 % of the folder's code lines are in a duplicate
six-line window.
"""

import ast
from collections import defaultdict
from pathlib import Path

import pomona.methods

WINDOW = 6


def code_lines(path):
    """Lines of code for comparison: no blanks, comments, imports or docstrings, with whitespace
    folded.
    """
    text = path.read_text()
    skipped = set()
    for node in ast.walk(ast.parse(text)):
        documented = isinstance(
            node, ast.Module | ast.ClassDef | ast.FunctionDef
        ) and ast.get_docstring(node)
        if documented:
            skipped |= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
        if isinstance(node, ast.Import | ast.ImportFrom):
            skipped |= set(range(node.lineno, node.end_lineno + 1))
    lines = enumerate(text.splitlines(), start=1)
    return [
        " ".join(line.split())
        for n, line in lines
        if n not in skipped and line.strip() and line.strip()[0] != "#"
    ]


def test_the_folder_repeats_itself_hardly_anywhere():
    positions, total = defaultdict(set), 0
    for path in Path(pomona.methods.__file__).parent.rglob("*.py"):
        lines = code_lines(path)
        total += len(lines)
        for line in range(len(lines) - WINDOW + 1):
            positions[tuple(lines[line : line + WINDOW])].add((path.name, line))
    repeated = {
        (f, s + k) for e in positions.values() if len(e) > 1 for f, s in e for k in range(WINDOW)
    }
    assert total > 1000
    assert len(repeated) < 0.03 * total, sorted(repeated)
