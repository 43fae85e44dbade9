"""Every figure is in the catalogue, from which the gallery is made."""

import ast
from pathlib import Path

import pomona.results.figures as figures
from figure_gallery import CATALOGUE


def drawing_functions():
    """Public functions of the folder that return one figure, as module:function."""
    for path in Path(figures.__path__[0]).glob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                returned = ast.unparse(node.returns) if node.returns else ""
                if returned.removesuffix(" | None") == "ReportFigure":
                    yield f"{path.stem}:{node.name}"


def test_every_figure_is_listed_once():
    listed = [entry.draw for entry in CATALOGUE]
    several = {"client_values:learning_curves", "comparison_figures:ablations"}  # return lists
    assert sorted(listed) == sorted([*drawing_functions(), *several])
