"""Write the site's pages of methods, from the methods' docstrings and cards, below FOLDER.

python tools/method_pages.py FOLDER
"""

import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from equations import typeset
from pomona.core.settings import Settings
from pomona.methods import METHODS, resolve
from pomona.methods.base import Method
from pomona.methods.robustness.robust import RULES

DOCS = Path(__file__).parents[1] / "docs"
DOCUMENTED = METHODS | {name: resolve(name) for name in (f"fedavg+{rule}" for rule in RULES)}
"""Methods with a page; robust rules are shown behind FedAvg."""
EXAMPLE = "pomona run {name} --data digits --partition dirichlet rounds=20 --out runs/{name}"
"""A command that works for every method; slow tests run it."""
MEASURED = "guides/choose-a-method.md"
"""The document below docs/ whose first table under "Measured" has numbers of methods."""

INTRODUCTION = """# Methods

One page a paper: its equations, what differs here from the paper and from published code, settings and measured
numbers. Made from the modules of `src/pomona/methods`. A method runs by its name:

<!-- slow: twenty rounds -->
```sh
COMMAND
```

| symbol | meaning |
| --- | --- |
| $n_{i}, n$ | training samples of client $i$, and of all clients |
| $D_{i}, F_{i}$ | the training data of client $i$, and the mean loss on it |
| $g_{i}(w)$ | gradient of $F_{i}$ at $w$ on a batch, one step of local training |
| $w \\leftarrow \\mathrm{SGD}(v; E$ epochs on $D_{i})$ | local training from $v$, by the run's `optimizer`, makes $w$ |
| $\\mathrm{lr}$ | the run's learning rate, in its schedule |
| $\\odot$ | product element by element |

A model is `received` as the server sent it, and `trained` after local training; the *headline model* is the one that
the paper reports. Momentum starts at zero in every round. Unless a page says otherwise, only the data is private, a
client keeps nothing between rounds, and any cohort makes a round. Models down and up are per client and round.
Measured numbers are the mean accuracy of the clients' headline models after 20 rounds on digits, over three seeds,
and in brackets the share of clients that do worse than alone.

| method | what it does | down | up | headline model |
| --- | --- | --- | --- | --- |
"""


def pages() -> dict[str, str]:
    """Return Markdown by path below docs/: one page per module of methods, and an index."""
    measured = measurements()
    modules: defaultdict[str, list[str]] = defaultdict(list)
    for name, settings in DOCUMENTED.items():
        modules[settings.__module__].append(name)
    documents = {
        f"methods/{module.rpartition('.')[2]}.md": _page(module, names, measured)
        for module, names in modules.items()
    }
    introduction = INTRODUCTION.replace("COMMAND", EXAMPLE.format(name="apple"))
    return {"methods/README.md": introduction + _index(modules), **documents}


def measurements() -> dict[str, str]:
    """Return the measured numbers of each method in the table of ``MEASURED``."""
    text = (DOCS / MEASURED).read_text(encoding="utf-8").partition("\n## Measured\n")[2]
    table = "| " + text.partition("\n| ")[2].partition("\n\n")[0]
    (_, *columns), _, *rows = (line.strip("| ").split(" | ") for line in table.splitlines())
    return {
        name: ", ".join(f"{column} {value}" for column, value in zip(columns, values, strict=True))
        for name, *values in rows
    }


def _index(modules: Mapping[str, list[str]]) -> str:
    lines = []
    for module, names in modules.items():
        for name in names:
            card = DOCUMENTED[name]().method().card
            downlink, uplink = card.exchange.down, card.exchange.up
            page = f"{module.rpartition('.')[2]}.md"
            lines.append(
                f"| [{name}]({page}) | {card.summary} | {downlink} | {uplink} | "
                f"{', '.join(card.headline)} |"
            )
    return "\n".join(lines) + "\n"


def _page(module: str, names: list[str], measured: Mapping[str, str]) -> str:
    title, _, text = (sys.modules[module].__doc__ or "").strip().partition("\n\n")
    source, *paragraphs = re.split(r"\n\n+|\n(?=Differs from )", text.strip("\n"))
    blocks = [f"# {' '.join(title.split()).rstrip('.')}"]
    if source.startswith("    "):  # a method without a paper
        paragraphs.insert(0, source)
    else:
        blocks.append(_linked(source))
    blocks += [_equations(p) if p.startswith("    ") else _prose(p) for p in paragraphs]
    methods = {name: DOCUMENTED[name]().method() for name in names}
    facts = {name: list(_method_facts(m, len(names) == 1)) for name, m in methods.items()}
    keys = {name: _keys(DOCUMENTED[name]) for name in names}
    common = set.intersection(*map(set, facts.values())), set.intersection(*map(set, keys.values()))
    if len(names) > 1 and any(common):
        first = names[0]
        blocks += ["## All of them", *_facts([f for f in facts[first] if f in common[0]])]
        blocks += _table([k for k in keys[first] if k in common[1]])
        facts = {name: [f for f in lines if f not in common[0]] for name, lines in facts.items()}
        keys = {name: [k for k in lines if k not in common[1]] for name, lines in keys.items()}
    for name in names:
        blocks += [f"## {name}", *_facts(facts[name])]
        if name in measured:
            blocks.append(f"[Measured](../{MEASURED}#measured), in %: {measured[name]}.")
        blocks += _table(keys[name])
    return "\n\n".join(blocks) + "\n"


def _facts(lines: list[str]) -> list[str]:
    return ["\n".join(lines)] if lines else []


def _table(rows: list[str]) -> list[str]:
    return ["\n".join(["| key | default | |", "| --- | --- | --- |", *rows])] if rows else []


def _linked(source: str) -> str:
    """Return a citation with links to arXiv, DOI and addresses."""
    text = source.replace("``", "`")
    text = re.sub(r"arXiv\s+(\d{4}\.\d{5})", r"[arXiv \1](https://arxiv.org/abs/\1)", text)
    text = re.sub(r"doi\s+(10\.\S+?)(?=[);,]|\.?\s|\.?$)", r"[doi \1](https://doi.org/\1)", text)
    return re.sub(r"(?<![(\w/])(https://[^\s);,]+?)(?=[);,]|\.?\s|\.?$)", r"<\1>", text)


def _prose(paragraph: str) -> str:
    """Return a paragraph or list with its mathematics typeset."""
    lines = re.sub(r"\n(?:  )?(?!- )", " ", paragraph).split("\n")
    return "\n".join(
        "- " + typeset(line[2:]) if line.startswith("- ") else typeset(line) for line in lines
    )


def _equations(block: str) -> str:
    """Return the lines of an indented block as a table: what a line is about, and its equation."""
    rows: list[tuple[str, str]] = []
    for line in block.split("\n"):
        label, text = line[4:21].rstrip(), line[21:]
        if len(line) > 20 and line[20] != " ":  # no column of labels
            label, text = "", line[4:]
        equation = _line(text)
        if label or not rows:
            rows.append((typeset(label), equation))
        else:
            subject, previous = rows[-1]
            continues = re.search(r"[a-z,;]$", previous) and re.match(r"[a-z]\S* [^ ]", text)
            rows[-1] = subject, f"{previous}{' ' if continues else '<br>'}{equation}"
    return "\n".join(["| | |", "| --- | --- |", *(f"| {label} | {text} |" for label, text in rows)])


def _line(text: str) -> str:
    """Return one line of a block; wide gaps in it separate equations from each other and from
    remarks.
    """
    text = re.sub(r" {2,}(?=(?:<-|=|-|\+) )", " ", text)  # aligned below each other
    text = re.sub(r"(min_(?:\{[^}]*\}|\w+)) {2,}", r"\1 ", text)
    return " &emsp; ".join(typeset(formula) for formula in re.split(r" {2,}", text.strip()))


def _method_facts(method: Method, single: bool) -> Iterator[str]:
    """Yield a method's facts; the title and the source of a page of one method say the first
    two.
    """
    card = method.card
    if not single:
        yield f"- **paper**: {card.paper}"
        yield f"- **does**: {card.summary}"
    yield f"- **models**: {card.exchange.down} down, {card.exchange.up} up"
    if card.exchange.private != "nothing but the data":
        yield f"- **private**: {card.exchange.private}"
    if card.exchange.reveals:
        yield f"- **the server also learns**: {'; '.join(card.exchange.reveals.values())}"
    if method.server.sums:
        yield "- **[secure aggregation](../guides/secure-aggregation.md)**: the server needs sums only"
    yield f"- **headline model**: {', '.join(card.headline)}"
    if card.tasks:
        yield f"- **for**: {', '.join(card.tasks)}"
    if card.needs.cohort != "any cohort":
        yield f"- **needs**: {card.needs.cohort}"
    if card.exchange.keeps != "nothing":
        yield f"- **a client keeps**: {typeset(card.exchange.keeps)}"
    yield f"- **clients come and go**: {typeset(card.joining)}"


def _keys(settings: type[Settings]) -> list[str]:
    rows = []
    for name, field in settings.model_fields.items():
        if name != "name":
            default = "not set" if field.default is None else f"`{field.default}`"
            rows.append(f"| `{field.alias or name}` | {default} | {field.description} |")
    return rows


def write(documents: Mapping[str, str], folder: Path) -> None:
    """Write documents by their path below a folder."""
    for name, text in documents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(pages(), Path(sys.argv[1]))
