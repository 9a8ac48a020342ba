"""What the commands know of the command line that called them."""

from __future__ import annotations

from typing import NamedTuple


class Invocation(NamedTuple):
    """The words of the command line, and what messages call files that it did not name."""

    arguments: list[str]
    aliases: dict[str, str]

    def readable(self, message: str) -> str:
        """Return a message with the paths of temporary files replaced by what the user gave."""
        for path, alias in self.aliases.items():
            message = message.replace(path, alias)
        return message
