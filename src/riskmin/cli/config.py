"""Files of options in TOML: defaults of a command, which its command line overrides."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import click

from riskmin.cli.commands import COMMANDS
from riskmin.core.messages import unknown_name
from riskmin.core.persist import parse_nested


def _read_config(ctx: click.Context, param: click.Parameter, value: Path | None) -> None:
    """Take the options of a file as defaults of the command."""
    if value is None or ctx.resilient_parsing:
        return
    try:
        content = parse_nested(tomllib.loads, value.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise click.BadParameter(f"{value} cannot be read ({error}): check it.", ctx, param) from None
    params = {option: p for p in ctx.command.params if p is not param for option in _option_names(p)}
    try:
        defaults = _defaults(str(ctx.info_name), params, content)
    except ValueError as error:
        raise click.BadParameter(f"{value}: {error}.", ctx, param) from None
    ctx.default_map = {**(ctx.default_map or {}), **defaults}


def _defaults(command: str, params: dict[str, click.Parameter], content: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a file by the names of parameters, as written on the command line."""
    # options at the top are for every command, those of [fit] for that one
    given = {name: value for name, value in content.items() if name not in COMMANDS or name in params}
    if command in content:
        if not isinstance(content[command], dict):
            raise ValueError(f"{command} is the name of a command; write [{command}] above its options")
        given |= content[command]
    defaults = {}
    for name, value in given.items():
        option = name.replace("_", "-")
        if option not in params:
            raise ValueError(unknown_name(f"there is no option {name!r}", option, params))
        defaults[str(params[option].name)] = _as_written(params[option], name, value)
    return defaults


def _option_names(param: click.Parameter) -> list[str]:
    """The names of a parameter in a file: options without dashes in front, or the name of an argument."""
    names = [name.lstrip("-") for name in param.opts if name.startswith("--")]
    return names or [str(param.name)]


def _as_written(param: click.Parameter, name: str, given: Any) -> Any:
    """Return a value as it would be written on the command line; a list is a text with commas."""
    is_flag = isinstance(param, click.Option) and param.is_flag
    if is_flag and isinstance(given, bool):
        return given
    values = given if isinstance(given, list) else [given]
    if is_flag or any(isinstance(value, bool | list | dict) for value in values):
        kinds = "true or false" if is_flag else "a text, a number, or a list of these"
        raise ValueError(f"{name} takes {kinds}")
    words = tuple(map(str, values))
    return words if param.multiple or param.nargs != 1 else ",".join(words)


config_option = click.option(
    "--config",
    type=click.Path(path_type=Path),
    is_eager=True,
    expose_value=False,
    callback=_read_config,
    help="TOML file of options, such as loss = 'hinge'; the command line overrides it.",
)
