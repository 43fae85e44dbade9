"""The pages of ``docs/methods``, generated from the methods' docstrings and cards."""

import sys
from collections import defaultdict

from pomona.core.settings import Settings
from pomona.methods import METHODS


def pages() -> dict[str, str]:
    """Return file name -> Markdown: one page per module of methods, and an index."""
    modules: defaultdict[str, list[str]] = defaultdict(list)
    for name, settings in METHODS.items():
        modules[settings.__module__].append(name)
    made = {f"{module.rpartition('.')[2]}.md": _page(module, names) for module, names in modules.items()}
    return {"README.md": _index(modules), **made}


def _index(modules: dict[str, list[str]]) -> str:
    lines = [
        "# Methods",
        "",
        "Made by `pomona methods --out docs/methods`. Models down and up are per client and round.",
        "",
        "| method | what it does | down | up | headline model |",
        "| --- | --- | --- | --- | --- |",
    ]
    for module, names in modules.items():
        for name in names:
            card = METHODS[name]().method().card
            page = f"{module.rpartition('.')[2]}.md"
            lines.append(
                f"| [{name}]({page}) | {card.summary} | {card.down} | {card.up} | {', '.join(card.headline)} |"
            )
    return "\n".join(lines) + "\n"


def _page(module: str, names: list[str]) -> str:
    title, _, text = (sys.modules[module].__doc__ or "").strip().partition("\n")
    parts = [f"# {title.rstrip('.')}", "```text\n" + text.strip() + "\n```"]
    for name in names:
        kind = METHODS[name]
        card = kind().method().card
        parts.append(f"## {name}")
        parts.append(
            "\n".join(
                [
                    f"- **paper**: {card.paper}",
                    f"- **does**: {card.summary}",
                    f"- **models**: {card.down} down, {card.up} up, per client and round",
                    f"- **private**: {card.private}",
                    *([f"- **the server also learns**: {'; '.join(card.tells.values())}"] if card.tells else []),
                    f"- **headline model**: {', '.join(card.headline)}",
                    f"- **needs**: {card.needs}",
                    f"- **a client keeps**: {card.keeps}",
                    f"- **clients come and go**: {card.joining}",
                ]
            )
        )
        if keys := _keys(kind):
            parts.append("\n".join(["| key | default | |", "| --- | --- | --- |", *keys]))
    return "\n\n".join(parts) + "\n"


def _keys(kind: type[Settings]) -> list[str]:
    rows = []
    for name, field in kind.model_fields.items():
        if name != "name":
            default = "not set" if field.default is None else f"`{field.default}`"
            rows.append(f"| `{field.alias or name}` | {default} | {field.description} |")
    return rows
