"""The pages of the API reference: every public name, in the group of its room."""

from __future__ import annotations

import importlib
from collections.abc import Iterable

import riskmin

# The title of each group, an introduction, and its rooms.
GROUPS = [
    (
        "Estimators",
        "Models with scikit-learn's `fit` and `predict`, and what proves, saves and scores them.",
        ["estimators", "certificates"],
    ),
    ("Losses", "What a mistake costs, as a function of scores and labels.", ["losses"]),
    ("Regularizers", "What large weights cost.", ["regularizers"]),
    (
        "Problem and minimization",
        "The objective, and functions that minimize it and prove the gap.",
        ["problem", "driver", "core", "linear_maps"],
    ),
    ("Solvers", "Methods of minimization. `Auto` selects one.", ["solvers"]),
    (
        "Executors and arrays",
        "Where the rows are, and where the computation runs.",
        ["executors", "arrays", "owners"],
    ),
    ("Data", "Files of data.", ["data"]),
    ("Displays and progress", "Plots with Matplotlib, and progress lines.", ["report"]),
    ("Checks of your own classes", "Each names the property that fails.", ["testing"]),
]
# Functions of public modules that `riskmin` itself does not export.
MODULES = [
    ("Metrics", "Metrics that scikit-learn lacks.", "riskmin.metrics"),
    ("Readers and writers of data", "Files in all formats.", "riskmin.data"),
]


def room_of_name() -> dict[str, str]:
    """The room of each public name."""
    rooms = {name: module.split(".")[1] for name, module in riskmin._LAZY.items()}
    for module, registry in riskmin._REGISTRIES.items():
        own = getattr(importlib.import_module(module), registry).own_classes
        rooms |= {name: module.split(".")[1] for name in own}
    return rooms


def grouped() -> dict[str, list[str]]:
    """The public names by the title of their group; names that no group has are an error."""
    rooms = room_of_name()
    result = {
        title: sorted((name for name, room in rooms.items() if room in members), key=str.lower)
        for title, _, members in GROUPS
    }
    missing = set(riskmin.__all__) - {name for names in result.values() for name in names}
    if missing:
        raise ValueError(f"{sorted(missing)} are in no group: add their room to GROUPS in docs/api_pages.py")
    return result


def module_names(module: str) -> list[str]:
    """The public classes and functions of a module."""
    things = vars(importlib.import_module(module))
    exported = {id(getattr(riskmin, name)) for name in riskmin.__all__}
    own = [name for name, thing in things.items() if not name.startswith("_") and callable(thing)]
    return sorted((name for name in own if id(things[name]) not in exported), key=str.lower)


def summary(title: str, introduction: str, prefix: str, names: Iterable[str]) -> str:
    """A page with a table of names, each of which gets a page of its own."""
    lines = [title, "=" * len(title), "", introduction, "", f".. currentmodule:: {prefix}", ""]
    template = ["   :template: autosummary/estimator.rst"] if title == "Estimators" else []
    lines += [".. autosummary::", "   :toctree: generated", "   :nosignatures:", *template, ""]
    return "\n".join([*lines, *(f"   {name}" for name in names), ""])


def slug(title: str) -> str:
    """The file name of a page."""
    return title.lower().replace(" ", "-")


def pages() -> dict[str, str]:
    """All pages, by file name."""
    names = grouped()
    result = {
        f"{slug(title)}.rst": summary(title, text, "riskmin", names[title]) for title, text, _ in GROUPS
    }
    for title, text, module in MODULES:
        result[f"{slug(title)}.rst"] = summary(title, text, module, module_names(module))
    head = "API reference"
    intro = f"All {len(riskmin.__all__)} names of `riskmin`, and the functions of its public modules."
    groups = [(title, text) for title, text, _ in [*GROUPS, *MODULES]]
    rows = [f"- :doc:`{slug(title)}`: {text}" for title, text in groups]
    entries = ["", ".. toctree::", "   :hidden:", "", *(f"   {slug(title)}" for title, _ in groups), ""]
    index = [head, "=" * len(head), "", intro, "", *rows, *entries]
    return result | {"index.rst": "\n".join(index)}
