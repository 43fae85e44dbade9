"""``pomona commands``: every command with its arguments, from the functions behind them."""

from collections.abc import Iterator
from inspect import Parameter, _ParameterKind
from typing import Any

from cyclopts import App, Argument
from pydantic import TypeAdapter

from pomona.cli import output
from pomona.core.table import of_records

Description = dict[str, Any]
ARGUMENT_TYPES: dict[_ParameterKind, str] = {
    Parameter.KEYWORD_ONLY: "option",
    Parameter.VAR_POSITIONAL: "words",
}


def commands(*, json: output.Json = False) -> None:
    """List the commands; with --json their arguments too, each with a JSON Schema of its values."""
    from pomona.cli import app

    entries = list(_below(app, app.name[0]))
    rows = [{"command": entry["command"], "what": entry["what"]} for entry in entries]
    table = of_records(rows, "Commands (--help explains each)")
    output.respond(json, {"commands": entries}, table)


def _below(app: App, name: str) -> Iterator[Description]:
    """Yield the commands of an application, those of its groups after their names."""
    for child in app:
        if child.startswith("-"):
            continue
        command, full_name = app[child], f"{name} {child}"
        below = list(_below(command, full_name))
        if not below:
            arguments = command.assemble_argument_collection(parse_docstring=True)
            described = [_describe(argument) for argument in arguments]
            yield {"command": full_name, "what": command.help, "arguments": described}
        yield from below


def _describe(argument: Argument) -> Description:
    """Describe an argument: an option by all its names, a word by its own."""
    argument_type = ARGUMENT_TYPES.get(argument.field_info.kind, "argument")
    names = argument.names if argument_type == "option" else (argument.names[0].lstrip("-"),)
    default = argument.field_info.default
    description = {
        "names": names,
        "kind": argument_type,
        "required": argument.required,
        "what": argument.parameter.help or "",
        "values": TypeAdapter(argument.hint).json_schema(),
    }
    return description if default is Parameter.empty else {**description, "default": default}
