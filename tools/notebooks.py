"""The notebooks of the documents: ``python tools/notebooks.py`` executes them and writes outputs.

One kernel executes them all, in a folder of its own, so that PyTorch is imported once; each begins
without the names of the previous one.
"""

import re
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[1] / "docs/notebooks"
SECONDS = 300  # a cell may take
LARGEST = 80_000  # characters of a picture in base 64: 60 kB
VARIES = re.compile(r"^note: engine = .*\n|\d+:\d\d(:\d\d)?", re.MULTILINE)
"""Notes on the machine's engine, and times, which are not compared."""
NUMBER = re.compile(r"\d+(?:\.(\d+))?")
POINTS = 1.0
"""By how much a number with one decimal may differ on another processor.

Of more decimals: 3 %, and 0.03 below 1.
"""


def read() -> dict[Path, Any]:
    """Return the notebooks, in the order of their names."""
    return {path: nbformat.read(path, 4) for path in sorted(FOLDER.glob("*.ipynb"))}


def executed(notebooks: Mapping[Path, Any]) -> dict[Path, Any]:
    """Return the notebooks with new outputs. Raises CellExecutionError, which shows the cell."""
    new = {path: nbformat.from_dict(notebook) for path, notebook in notebooks.items()}
    reset = "%reset_selective -f ."
    cells = [[nbformat.v4.new_code_cell(reset), *notebook.cells] for notebook in new.values()]
    merged = nbformat.v4.new_notebook(cells=[*chain.from_iterable(cells)])
    with TemporaryDirectory() as folder:
        client = NotebookClient(merged, timeout=SECONDS, resources={"metadata": {"path": folder}})
        client.execute()
    for notebook in new.values():
        for count, cell in enumerate(code(notebook), 1):
            cell.metadata.clear()  # when it was executed
            cell.execution_count = count
            cell.outputs = [_stripped(o, count) for o in cell.outputs if o.get("name") != "stderr"]
    return new


def code(notebook: Any) -> list[Any]:
    """Return the cells with code."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def _stripped(output: Any, count: int) -> Any:
    """Return an output with the number of its cell, and without a large picture."""
    if "execution_count" in output:
        output.execution_count = count
    if len(output.get("data", {}).get("image/png", "")) > LARGEST:
        del output.data["image/png"]
    return output


def differences(old: Any, new: Any) -> list[str]:
    """Return each output of a notebook that differs in more than rounding on another processor."""
    cells = zip(code(old), code(new), strict=True)
    return [
        f"was {expected!r}, is {actual!r}"
        for cell, new_cell in cells
        for expected, actual in zip(_texts(cell), _texts(new_cell), strict=True)
        if not _alike(expected, actual)
    ]


def _texts(cell: Any) -> list[str]:
    """Return the outputs of a cell as texts, a picture as its type, without what varies."""
    bundles = [o.get("data", {"text/plain": o.get("text", "")}) for o in cell.outputs]
    texts = [text for data in bundles for text in (*sorted(data), data.get("text/plain", ""))]
    return [VARIES.sub("", text).strip() for text in texts]


def _alike(expected: str, actual: str) -> bool:
    if NUMBER.sub("", expected).split() != NUMBER.sub("", actual).split():
        return False
    return all(map(_close, NUMBER.finditer(expected), NUMBER.finditer(actual)))


def _close(old: re.Match[str], new: re.Match[str]) -> bool:
    """Return whether two numbers agree; whole ones are counts."""
    expected, actual, decimals = float(old[0]), float(new[0]), len(old[1] or "")
    allowed = (0.0, POINTS)[decimals] if decimals < 2 else 0.03 * max(expected, 1)
    return abs(expected - actual) <= allowed


def main() -> None:
    """Execute the notebooks and write them."""
    for path, notebook in executed(read()).items():
        notebook.metadata.pop("widgets", None)
        path.write_text(nbformat.writes(notebook) + "\n")
        print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
