"""pdflatex on generated tables, if it is installed."""

import re
import shutil
import subprocess

import pytest


def compiled(text, folder):
    """Compile some tables with pdflatex; skips if it is not installed."""
    if shutil.which("pdflatex") is None:
        pytest.skip("pdflatex is not installed (texlive-latex-recommended)")
    (folder / "tables.tex").write_text(text)
    main = r"\documentclass{article}\usepackage{booktabs}\begin{document}\input{tables.tex}\clearpage\end{document}"
    (folder / "main.tex").write_text(main)
    command = [
        "pdflatex",
        "-interaction=nonstopmode",
        "-halt-on-error",
        "-no-shell-escape",
        "main.tex",
    ]
    process = subprocess.run(
        command,
        check=False,
        cwd=folder,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=120,
    )
    assert process.returncode == 0, process.stdout[-2000:]
    assert not re.findall(r"Overfull \\hbox.*|Float too large.*", process.stdout)
