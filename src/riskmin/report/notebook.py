"""Live progress in notebooks: a bar and the bounds, updated in place where the cell prints."""

from __future__ import annotations

import sys
from html import escape
from typing import Any


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    # a process that has not imported IPython is none
    module = sys.modules.get("IPython")
    shell: Any = None if module is None else module.get_ipython()
    return "IPKernelApp" in getattr(shell, "config", ())


class NotebookDisplay:
    """The display of a run in the output of a cell, in the colors of the page around it.

    It needs no widgets: the output is replaced by messages that all front ends of Jupyter understand, and its
    last state is saved with the notebook.
    """

    def __init__(self) -> None:
        self._handle: Any = None

    @property
    def is_shown(self) -> bool:
        """Whether there is output to update."""
        return self._handle is not None

    def update(self, share: float, text: str) -> None:
        """Show the share of the way that is done, from 0 to 1, and a line of text."""
        from IPython.display import display

        bar = f'<progress value="{share:.3f}" max="1" aria-label="share of the way to tol"></progress>'
        content = {
            "text/plain": f"{100 * share:.0f}% · {text}",
            "text/html": f'<div style="font-variant-numeric: tabular-nums">{bar} {escape(text)}</div>',
        }
        if self._handle is None:
            self._handle = display(content, raw=True, display_id=True)  # type: ignore[no-untyped-call]
        else:
            self._handle.update(content, raw=True)
