"""Files of options in TOML: defaults of a command, which its command line overrides."""

from __future__ import annotations

import difflib
import tomllib
from pathlib import Path
from typing import Any

import click


def _read_config(ctx: click.Context, param: click.Parameter, value: Path | None) -> None:
    """Take the options of a file as defaults of the command."""
    if value is None or ctx.resilient_parsing:
        return
    try:
        content = tomllib.loads(value.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise click.BadParameter(f"{value} cannot be read ({error}): check it.", ctx, param) from None
    # options at the top are for every command, those of [fit] for that one
    section = content.pop(str(ctx.info_name), {})
    shared = {name: given for name, given in content.items() if not isinstance(given, dict)}
    params = {option: p for p in ctx.command.params for option in _option_names(p)}
    defaults = {}
    for name, given in (shared | section).items():
        option = name.replace("_", "-")
        if option not in params:
            close = difflib.get_close_matches(option, params, 1)
            guess = f"did you mean {close[0]}?" if close else f"see 'riskmin {ctx.info_name} --help'."
            raise click.BadParameter(f"{value}: there is no option {name!r}; {guess}", ctx, param)
        chosen = params[option]
        assert chosen.name is not None
        defaults[chosen.name] = _as_written(chosen, given)
    ctx.default_map = {**(ctx.default_map or {}), **defaults}


def _option_names(param: click.Parameter) -> list[str]:
    """The names of a parameter in a file: options without dashes in front, or the name of an argument."""
    names = [name.lstrip("-") for name in param.opts if name.startswith("--")]
    return names or [str(param.name)]


def _as_written(param: click.Parameter, given: Any) -> Any:
    """Return a value as it would be written on the command line; a list is a text with commas."""
    several = param.multiple or param.nargs != 1
    if isinstance(given, list):
        return tuple(map(str, given)) if several else ",".join(map(str, given))
    if isinstance(given, bool):
        return given
    return (str(given),) if several else str(given)


config_option = click.option(
    "--config",
    type=click.Path(path_type=Path),
    is_eager=True,
    expose_value=False,
    callback=_read_config,
    help="TOML file of options, such as loss = 'hinge'; the command line overrides it.",
)
