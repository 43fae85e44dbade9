"""``pomona commands``: every command with its arguments, from the functions behind them."""

from collections.abc import Iterator
from inspect import Parameter, _ParameterKind
from typing import Any

from cyclopts import App, Argument
from pydantic import TypeAdapter

from pomona.cli import output
from pomona.core.table import of_records

Told = dict[str, Any]
KINDS: dict[_ParameterKind, str] = {
    Parameter.KEYWORD_ONLY: "option",
    Parameter.VAR_POSITIONAL: "words",
}


def commands(*, json: output.Json = False) -> None:
    """List the commands; with --json their arguments too, each with a JSON Schema of its values."""
    from pomona.cli import app

    found = list(_below(app, app.name[0]))
    if json:
        output.emit({"commands": found})
        return
    rows = [{"command": each["command"], "what": each["what"]} for each in found]
    output.print_table(of_records(rows, "Commands (--help explains each)"))


def _below(app: App, name: str) -> Iterator[Told]:
    """Yield the commands of an application, those of its groups after their names."""
    for word in app:
        if word.startswith("-"):
            continue
        command, full = app[word], f"{name} {word}"
        below = list(_below(command, full))
        if not below:
            arguments = [_told(each) for each in command.assemble_argument_collection()]
            yield {"command": full, "what": command.help, "arguments": arguments}
        yield from below


def _told(argument: Argument) -> Told:
    """Describe an argument: an option by all its names, a word by its own."""
    kind = KINDS.get(argument.field_info.kind, "argument")
    names = argument.names if kind == "option" else (argument.names[0].lstrip("-"),)
    default = argument.field_info.default
    told = {
        "names": names,
        "kind": kind,
        "required": argument.required,
        "what": argument.parameter.help or "",
        "values": TypeAdapter(argument.hint).json_schema(),
    }
    return told if default is Parameter.empty else {**told, "default": default}
