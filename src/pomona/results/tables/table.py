"""A table in the four forms in which it leaves: HTML (by the page's template), Markdown, CSV and LaTeX."""

from collections.abc import Sequence
from dataclasses import dataclass

from pomona.core.csv_text import csv_lines

LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "&": r"\&",
        "%": r"\%",
        "$": r"\$",
        "#": r"\#",
        "_": r"\_",
        "{": r"\{",
        "}": r"\}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "±": r"$\pm$",
        "<": r"$<$",
        ">": r"$>$",
    }
)


@dataclass(frozen=True)
class Sheet:
    """A table of texts.

    Attributes:
        name: of its files, without suffix.
        title: heading.
        note: how to read it.
        header: of the columns, the first ones words.
        rows: texts, as many a row as the header has.
        words: how many columns from the left hold words; the others hold numbers.
        marked: (row, column) of the highest values.
    """

    name: str
    title: str
    note: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: int = 1
    marked: frozenset[tuple[int, int]] = frozenset()

    def markdown(self) -> str:
        """A heading, the table and its note."""
        lines = [self.header, ["---" if i < self.words else "---:" for i in range(len(self.header))]]
        lines += [
            [f"**{text}**" if (i, j) in self.marked else text for j, text in enumerate(row)]
            for i, row in enumerate(self.rows)
        ]
        body = "\n".join("| " + " | ".join(t.replace("|", "\\|") for t in line) + " |" for line in lines)
        return f"## {self.title}\n\n{body}\n\n{self.note}\n"

    def csv(self) -> str:
        """Header and rows."""
        return csv_lines(self.header, self.rows)

    def latex(self) -> str:
        """A ``table`` with booktabs rules."""
        lines = [
            " & ".join(
                rf"\textbf{{{text.translate(LATEX)}}}" if (i, j) in self.marked else text.translate(LATEX)
                for j, text in enumerate(row)
            )
            for i, row in enumerate(self.rows)
        ]
        head = " & ".join(text.translate(LATEX) for text in self.header)
        align = "l" * self.words + "r" * (len(self.header) - self.words)
        body = "".join(f"{line} \\\\\n" for line in lines)
        return (
            "\\begin{table}\n\\centering\n"
            f"\\caption{{{self.title.translate(LATEX)}. {self.note.translate(LATEX)}}}\n"
            f"\\label{{tab:{self.name}}}\n\\begin{{tabular}}{{{align}}}\n\\toprule\n{head} \\\\\n\\midrule\n{body}"
            "\\bottomrule\n\\end{tabular}\n\\end{table}\n"
        )
