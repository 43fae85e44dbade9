"""Equations of docstrings as TeX: plain text in, Markdown with ``$...$`` out, as GitHub and MathJax
show it.

A docstring writes ``w_i <- w_i - lr (g_i(v) + lambda (v - w))``. Names of one letter, Greek
letters, names with subscripts and operators are mathematics; other words are prose. TeX made here
has no backslash before punctuation, and no underscore behind a brace, which Markdown would read as
its own.
"""

import re
from dataclasses import dataclass

GREEK = frozenset(
    "alpha beta gamma delta epsilon eta theta kappa lambda mu xi pi rho sigma tau phi".split()  # noqa: SIM905
) | {"omega", "Omega"}
FUNCTIONS = {
    "sum": r"\sum",
    "min": r"\min",
    "max": r"\max",
    "argmin": r"\arg\min",
    "exp": r"\exp",
    "log": r"\log",
    "cos": r"\cos",
    "grad": r"\nabla",
    **{name: rf"\mathrm{{{name}}}" for name in ("SGD", "clip", "sign", "sigmoid", "tr")},
}
NAMES = {
    "lr": r"\mathrm{lr}",
    "dr_lr": r"\mathrm{lr_{DR}}",
    "server_lr": r"\mathrm{lr_{server}}",
    "personal_lr": r"\mathrm{lr_{personal}}",
    "eps": r"\epsilon",
    "penalty": r"\mathrm{penalty}",
    "gbar": r"\bar{g}",
    "b1": "b_{1}",
    "b2": "b_{2}",
    "b3": "b_{3}",
    "e1": "e_{1}",
    "e2": "e_{2}",
    "h0": "h_{0}",
}
OPERATORS = {
    "<-": r"\leftarrow",
    "<=": r"\leq",
    ">=": r"\geq",
    "!=": r"\neq",
    "||": r"\Vert",
    "|": r"\vert",
    "*": r"\odot",
    "~": r"\approx",
    "..": r"\dots",
    "...": r"\dots",
    "{": r"\lbrace",
    "}": r"\rbrace",
}
VERBS = frozenset(
    ("the", "is", "are", "at", "of", "in", "and", "or", "for", "to", "be", "starts", "moves")
)
"""Words after which a letter is a name, and no article."""
TOKEN = re.compile(
    r"""(?P<code>``.+?``)
    |(?P<plain>
        \b(?:eqs?\.|[Ff]igures?|[Tt]ables?|[Tt]heorems?|[Aa]lgorithms?|definition|[Ss]ections?|appendix)
            \ (?:A\.)?\d[\d.]*(?:(?:,|\ and|\ to)\ \d+)*  # references to places in a paper
        |\bA\.\d|e\.g\.|i\.e\.|'s\b
        |(?<=\S)\.(?=\s|$)  # the end of a sentence
        |(?<=\S)-(?=[a-z]{2,})  # a hyphen
    )
    |(?P<name>[A-Za-z]{2,}\d*(?:-[A-Za-z]+)+|[A-Za-z][A-Za-z0-9]*)
    |(?P<number>\d+(?:\.\d+)?(?:e-?\d+)?)
    |(?P<operator><-|<=|>=|!=|\|\||\.\.\.?|[|*~<>=+{}-])
    |(?P<punctuation>[()\[\],;:./])
    |(?P<space>\s+)
    |(?P<other>.)""",
    re.VERBOSE,
)
SUBSCRIPT = re.compile(r"_(?:\{((?:[^{}]|\{[^{}]*\})*)\}|([A-Za-z0-9]+(?:,[a-z](?![a-z]))?))")
SUPERSCRIPT = re.compile(
    r"\^(?:\{((?:[^{}]|\{[^{}]*\})*)\}|\(([^()]*)\)|(-?\w+?(?:_\w+)?(?!\w))|\|([^|]*)\|)"
)


@dataclass(frozen=True)
class Token:
    """A piece of a line, as prose and as TeX; one is ``strong`` if what is around it is mathematics
    too.
    """

    prose: str
    tex: str
    strong: bool = False
    verbal: bool = False
    relation: bool = False


def typeset(text: str) -> str:
    """Return a line or paragraph as Markdown, its mathematics between dollars."""
    runs: list[str] = []
    run: list[Token] = []
    for token in [*_tokens(text), Token("", "", verbal=True)]:
        if not token.verbal:
            run.append(token)
            continue
        runs += [_run(run), token.prose]
        run = []
    return "".join(runs)


def _run(run: list[Token]) -> str:
    """Return tokens without a word between them as one formula, if there is one in them."""
    for k, token in enumerate(run):
        if k and token.prose == "(" and run[k - 1].prose.isspace() and not _closed(run[k:]):
            return _run(run[:k]) + "(" + _run(run[k + 1 :])  # a remark begins
    numbers = any(token.prose.isdigit() for token in run)
    if not any(token.strong or (numbers and token.relation) for token in run):
        return "".join(token.prose for token in run)
    outside = {"", ",", ";", ":", "."}
    start = next(k for k, token in enumerate(run) if token.prose.strip() not in {*outside, ")"})
    left = next(
        k for k, token in enumerate(reversed(run)) if token.prose.strip() not in {*outside, "("}
    )
    end = len(run) - left
    prefix, suffix = ("".join(t.prose for t in tokens) for tokens in (run[:start], run[end:]))
    tex = " ".join(t.tex for t in run[start:end] if t.tex.strip())
    return f"{prefix}${_tight(tex)}${suffix}"


def _closed(run: list[Token]) -> bool:
    """Return whether the bracket that begins a run is closed in it."""
    depth = 0
    for token in run:
        depth += (token.prose == "(") - token.prose.startswith(")")
        if not depth:
            return True
    return False


def _tight(tex: str) -> str:
    """Return TeX without spaces that brackets and commas need not have, and with one behind an
    upright name.
    """
    tex = re.sub(r"(\\mathrm\{(?:lr|penalty)[^}]*\}\}?) (?=[\\\w])", r"\1 \\ ", tex)
    return re.sub(r"(?<=[\[(]) | (?=[\]),;])|(?<=[\w}]) (?=\()", "", tex)


def _tokens(text: str) -> list[Token]:
    """Return the tokens of a line; sub- and superscripts belong to what they are on."""
    tokens: list[Token] = []
    position, angles = 0, 0
    while position < len(text):
        match = TOKEN.match(text, position)
        assert match
        group, piece, position = match.lastgroup, match.group(), match.end()
        tex, verbal, strong, relation = piece, False, False, False
        if group == "code":
            piece, verbal = piece[1:-1], True
        elif group == "name":
            tex, position = _scripted(text, match.start(), piece, match.end())
            piece = text[match.start() : position]
            verbal = not tex or _prose(piece, text[position:])
            strong = not verbal
            if verbal and not tex:
                piece, position = match.group(), match.end()
        elif group == "operator":
            tex, angles = _operator(piece, text, position, angles)
            relation = piece in {"<-", "=", ">=", "<=", "||", "|"}
            piece = {"<": "&lt;", "<-": "&lt;-", "<=": "&lt;=", "*": r"\*"}.get(piece, piece)
            if piece in {"|", "||"}:
                tex, position = _scripts(text, position, tex)
        elif group in {"plain", "other"}:
            verbal = True
        elif group == "number":
            tex, position = _scripts(
                text, position, re.sub(r"^1?e(-?\d+)$", r"10^{\1}", re.sub(r"^1e", "e", tex))
            )
            piece = text[match.start() : position]
        elif piece in {")", "]"}:
            tex, position = _scripts(text, position, tex)
        tokens.append(Token(piece, tex, strong, verbal, relation))
    return tokens


def _scripted(text: str, start: int, name: str, end: int) -> tuple[str, int]:
    """Return a name as TeX with its scripts, and where it ends; no TeX for a word."""
    if longer := re.compile(r"(?:dr|server|personal)_lr\b").match(text, start):
        return NAMES[longer.group()], longer.end()
    if root := re.compile(r"sqrt\(((?:[^()]|\([^()]*\))*)\)").match(text, start):
        return rf"\sqrt{{{_tight(_inner(root.group(1)))}}}", root.end()
    scripted = SUBSCRIPT.match(text, end)
    tex = _plain(name)
    if name == "o" and scripted:
        tex = "o"
    if not tex and scripted and name.isalpha():
        tex = rf"\mathrm{{{name}}}"
    return _scripts(text, end, tex) if tex else ("", end)


def _plain(name: str) -> str:
    """Return a name without scripts as TeX; empty for a word."""
    if name in NAMES or name in FUNCTIONS:
        return NAMES.get(name) or FUNCTIONS[name]
    if name in GREEK:
        return "\\" + name
    if len(name) == 1:
        return r"\circ" if name == "o" else name
    if name[0] == "d" and (name[1:] in GREEK or (len(name) == 2 and name[1] in "FWBphtw")):
        return f"d{_plain(name[1:])}"
    return ""


def _prose(piece: str, following_text: str) -> bool:
    """Return whether what may be mathematics is a word: an article, or a sum of what is in
    words.
    """
    following = re.match(r" (``|[A-Za-z][A-Za-z-]+)", following_text)
    if piece in {"a", "A", "I"}:
        next_word = following.group(1) if following else ""
        return (
            bool(next_word)
            and next_word not in VERBS
            and (next_word in {"sum", "min"} or not _plain(next_word))
        )
    if piece == "penalty":
        return not re.match(r" (sum_|tr\()", following_text)
    if piece == "SGD":
        return not following_text.startswith("(")
    return piece in {"sum", "min", "max"} and not re.match(r" ?\(| [-{|]| cos", following_text)


def _operator(piece: str, text: str, position: int, angles: int) -> tuple[str, int]:
    """Return an operator as TeX; ``angles`` counts the inner products that are open."""
    opens = (
        piece == "<"
        and text[position : position + 1].isalpha()
        and not text[: position - 1][-1:].isalnum()
    )
    if opens:
        return r"\langle", angles + 1
    if piece == ">" and angles and not text[: position - 1].endswith(" "):
        return r"\rangle", angles - 1
    return OPERATORS.get(piece, piece), angles


def _scripts(text: str, position: int, tex: str) -> tuple[str, int]:
    """Return TeX with the scripts that follow in the text, and where they end."""
    star, lower, upper, primes = False, "", "", 0
    while True:
        remainder = text[position:]
        if not lower and (match := SUBSCRIPT.match(remainder)):
            lower = _inner(match.group(1) or match.group(2))
        elif not upper and (match := SUPERSCRIPT.match(remainder)):
            inner = next(group for group in match.groups() if group is not None)
            upper = rf"\vert {_inner(inner)} \vert" if match.group(4) else _inner(inner)
        elif match := re.match(r"'(?![a-z])", remainder):
            primes += 1
        elif (
            not star
            and tex[-1:].isalnum()
            and (match := re.match(r"\*(?=[_,;)|]| =| [a-z]{2,})", remainder))
        ):
            star = True
        elif lower and (match := re.match(r"\+(?=[ )])", remainder)):
            upper = "+"
        else:
            break
        position += match.end()
    if lower:
        tex = f"{tex[:-1]}_{{{lower}}}}}" if tex.endswith("}") else f"{tex}_{{{lower}}}"
    powers = upper + "*" * star + r"\prime" * primes
    return f"{tex}^{{{powers}}}" if powers else tex, position


def _inner(text: str) -> str:
    """Return a script as TeX."""
    if re.fullmatch(r"[A-Za-z0-9]+(,[a-z])?", text):
        return _plain(text) or (rf"\mathrm{{{text}}}" if text == "eff" else text)
    pieces = [r"\in" if token.prose == "in" else token.tex for token in _tokens(text)]
    return " ".join(piece for piece in pieces if piece.strip())
