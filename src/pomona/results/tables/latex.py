# ruff: noqa: RUF001 - the look-alike characters are the ones to replace
"""LaTeX tables for pdflatex and booktabs only: ASCII, no wider than a column of the article class.

All text goes through ``escaped``. Widths are those of Computer Modern. A table that is too wide is
set in a smaller size, and then split into parts; each part repeats the leading text columns.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from math import ceil
from unicodedata import lookup, normalize

from pomona.core.table import Table

ROOM = 340.0
"""Points; article has 345."""
GAP = 8.0
"""Points between two columns."""
SIZES = (("", 1.0), ("\\small", 0.925), ("\\footnotesize", 0.85))
"""Type sizes, with their widths relative to the normal size."""
CELL, HEADING = 130.0, 46.0
"""Points at normal size after which a cell, or the heading of a narrow column, is wrapped."""
LINES = 42
"""Maximum lines of a part with its caption, so that it fits on a page."""
FLOATS = 12
"""Number of parts after which LaTeX is forced to place its floats, of which it holds only a few."""
# fmt: off
_ESCAPES = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "|": r"\textbar{}", "[": "{[}", "]": "{]}", "*": "{*}",
    "<": "$<$", ">": "$>$", "±": r"$\pm$", "−": "$-$", "×": r"$\times$", "·": r"$\cdot$", "÷": r"$\div$",
    "≤": r"$\leq$", "≥": r"$\geq$", "≠": r"$\neq$", "≈": r"$\approx$", "∞": r"$\infty$", "√": r"$\surd$",
    "∑": r"$\sum$", "∈": r"$\in$", "→": r"$\to$", "←": r"$\leftarrow$", "‖": r"$\|$", "∂": r"$\partial$",
    "\N{WORD JOINER}": "{}", "–": "--", "—": "---", "‘": "`", "’": "'", "“": "``", "”": "''", "„": ",,",
    "…": r"\dots{}", "•": r"$\bullet$",
    "°": r"$^\circ$", "§": r"\S{}", "¶": r"\P{}", "©": r"\copyright{}", "£": r"\pounds{}", "†": r"\dag{}",
    "‡": r"\ddag{}", "ß": r"\ss{}", "æ": r"\ae{}", "Æ": r"\AE{}", "œ": r"\oe{}", "Œ": r"\OE{}", "ø": r"\o{}",
    "Ø": r"\O{}", "ł": r"\l{}", "Ł": r"\L{}", "ı": r"\i{}", "¡": "!`", "¿": "?`", "\N{MICRO SIGN}": r"$\mu$",
    **{c: f"$^{d}$" for d, c in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")}, "⁻": "$^-$", "⁺": "$^+$",
    **{c: f"$_{d}$" for d, c in enumerate("₀₁₂₃₄₅₆₇₈₉")},
}
_GREEK = (
    "alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "kappa", "mu", "nu", "xi", "pi", "rho",
    "sigma", "tau", "phi", "chi", "psi", "omega", "Gamma", "Delta", "Theta", "Xi", "Pi", "Sigma", "Phi", "Psi", "Omega",
)
_ESCAPES |= {lookup(f"GREEK {'CAPITAL' if n[0].isupper() else 'SMALL'} LETTER {n}"): f"$\\{n}$" for n in _GREEK}
_ESCAPES |= {"λ": r"$\lambda$", "Λ": r"$\Lambda$"}
_ACCENTS = {
    "\u0300": "`", "\u0301": "'", "\u0302": "^", "\u0303": "~", "\u0304": "=", "\u0306": "u", "\u0307": ".",
    "\u0308": '"', "\u030a": "r", "\u030b": "H", "\u030c": "v", "\u0323": "d", "\u0327": "c",
}
_WIDTHS = {
    **dict.fromkeys(" -", 3.4), **dict.fromkeys(".,:;iljI!'|", 2.9), **dict.fromkeys("frst()[]*/", 4.0),
    **dict.fromkeys("mwMWO%@&#", 9.3), **dict.fromkeys("ABCDEFGHKLNPQRTUVXYZ=+<>±−×", 7.7),
}
# fmt: on
_LETTER, _UNSUPPORTED = 5.56, 46.0


def escaped(text: str) -> str:
    """Escape a text for pdflatex, as ASCII in one line; unsupported characters become code points,
    e.g. [U+8A3A].
    """
    return "".join(map(_escaped, " ".join(text.split()).replace("--", "-\N{WORD JOINER}-")))


def _escaped(sign: str) -> str:
    if escape := _ESCAPES.get(sign):
        return escape
    if " " <= sign <= "~":
        return sign
    base, *marks = list(normalize("NFD", sign))
    is_letter = "A" <= base <= "Z" or "a" <= base <= "z"
    if not (marks and is_letter and all(mark in _ACCENTS for mark in marks)):
        return f"{{[}}U+{ord(sign):04X}{{]}}"
    for mark in marks:
        base = f"\\{_ACCENTS[mark]}{{{base}}}"
    return base


def width(text: str) -> float:
    """Estimate a text's width in points at 10 pt, erring on the wide side."""
    return sum(
        _WIDTHS.get(sign, _LETTER if sign <= "~" or len(_escaped(sign)) < 12 else _UNSUPPORTED)
        for sign in " ".join(text.split())
    )


def latex(table: Table) -> str:
    """Render one or more ``table`` environments with booktabs rules, none wider than ``ROOM`` or
    longer than a page.
    """
    columns = [_Column(table, k) for k in range(len(table.header))]
    size, scale = next((s for s in SIZES if _total(columns, s[1]) <= ROOM), SIZES[-1])
    text = " ".join([table.title + "." * (table.title[-1:] not in "?!."), *table.notes])
    pages = _pages(table, columns, LINES - ceil(width(text) / ROOM))
    chunks = [(group, rows) for rows in pages for group in _split(columns, scale)]
    full_caption = escaped(text)
    tables = []
    for k, (group, rows) in enumerate(chunks):
        caption = (
            full_caption if k == 0 else f"{escaped(table.title)}, part {k + 1} of {len(chunks)}."
        )
        label = f"\\label{{tab:{table.name}}}\n" if k == 0 else ""
        tables.append(
            f"\\begin{{table}}\n\\centering{size}\n\\setlength{{\\tabcolsep}}{{{GAP / 2:g}pt}}\n"
            f"\\caption{{{caption}}}\n{label}{_tabular(group, rows)}\\end{{table}}\n"
        )
    # LaTeX holds only a limited number of floats at a time.
    runs = ["\n".join(tables[k : k + FLOATS]) for k in range(0, len(tables), FLOATS)]
    return "\\clearpage\n".join(runs) + "\\clearpage\n" * (len(tables) > 1)


def _tabular(columns: Sequence["_Column"], rows: Iterable[int]) -> str:
    """Render these rows and columns as a ``tabular`` environment."""
    align = "".join(column.align for column in columns)
    head = " & ".join(column.head() for column in columns)
    body = "".join(" & ".join(column.cell(row) for column in columns) + " \\\\\n" for row in rows)
    return (
        f"\\begin{{tabular}}{{@{{}}{align}@{{}}}}\n\\toprule\n{head} \\\\\n\\midrule\n{body}"
        "\\bottomrule\n\\end{tabular}\n"
    )


class _Column:
    """A column of a table: its texts, split into lines, and its width at 10 pt."""

    def __init__(self, table: Table, index: int) -> None:
        self.align = "l" if index in table.words else "r"
        self.words = index in table.words
        self._marked = {i for i, j in table.marked if j == index}
        self.lines = [_wrapped(row[index], CELL) for row in table.rows]
        cells = max((width(line) for lines in self.lines for line in lines), default=0.0)
        self.heading = _wrapped(table.header[index], max(cells, HEADING))
        bold = 1.17 if self._marked else 1.0
        self.width = max(cells * bold, *map(width, self.heading), 1.0)

    def cell(self, row: int) -> str:
        """Return a row's cell, in bold if it is marked."""
        lines = [
            f"\\textbf{{{escaped(line)}}}" if row in self._marked else escaped(line)
            for line in self.lines[row]
        ]
        return self._stacked(lines, "t")

    def head(self) -> str:
        """Return the heading."""
        return self._stacked([escaped(line) for line in self.heading], "b")

    def _stacked(self, lines: Sequence[str], anchor: str) -> str:
        if len(lines) == 1:
            return lines[0]
        stack = " \\\\ ".join(lines)
        return f"\\begin{{tabular}}[{anchor}]{{@{{}}{self.align}@{{}}}}{stack}\\end{{tabular}}"


def _wrapped(text: str, room: float) -> list[str]:
    """Wrap a text into lines of at most ``room`` points; words that are longer are broken."""
    lines = [""]
    for token in text.split():
        for piece in _pieces(token, room):
            if lines[-1] and width(f"{lines[-1]} {piece}") > room:
                lines.append(piece)
            else:
                lines[-1] = f"{lines[-1]} {piece}".strip()
    return lines


def _pieces(token: str, room: float) -> Iterator[str]:
    limit, start, length = max(room, CELL), 0, 0.0
    for k, sign in enumerate(token):
        length += width(sign)
        if length > limit and k > start:
            yield token[start:k]
            start, length = k, width(sign)
    yield token[start:]


def _total(columns: Sequence[_Column], scale: float) -> float:
    return sum(column.width * scale for column in columns) + GAP * (len(columns) - 1)


def _split(columns: Sequence[_Column], scale: float) -> list[list[_Column]]:
    """Group the columns so that each group fits, preceded by the leading text columns."""
    lead = next((k for k, column in enumerate(columns) if not column.words), 1)
    while lead > 1 and _total(columns[:lead], scale) > 0.6 * ROOM:
        lead -= 1
    keys, groups = list(columns[:lead]), list[list[_Column]]()
    for column in columns[lead:]:
        if groups and _total([*keys, *groups[-1], column], scale) <= ROOM:
            groups[-1].append(column)
        else:
            groups.append([column])
    return [[*keys, *group] for group in groups] or [keys]


def _pages(table: Table, columns: Sequence[_Column], limit: int) -> list[range]:
    """Split the rows into pages of at most ``limit`` lines."""
    breaks, used = [0], 0
    for row in range(len(table.rows)):
        height = max(len(column.lines[row]) for column in columns)
        if used and used + height > limit:
            breaks.append(row)
            used = 0
        used += height
    return [range(a, b) for a, b in pairwise([*breaks, len(table.rows)])]
