"""Settings of Sphinx for the site; `python -m docs.build` copies the pages and this file, and runs it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import riskmin
from docs import api_pages

# the repository; the build reads a copy of this file, in its own folder
ROOT = Path(os.environ.get("SITE_ROOT", Path(__file__).parents[1]))

project = "riskmin"
author = "The riskmin developers"
copyright = "the riskmin developers"
version = release = riskmin.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
    "numpydoc",
]
root_doc = "index"
exclude_patterns = ["gallery/**/*.ipynb", "gallery/**/*.py"]
suppress_warnings = ["config.cache"]  # the gallery's order is an object, which cannot be stored
default_role = "py:obj"
nitpicky = False

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

templates_path = ["templates"]
autosummary_generate = True
autodoc_default_options = {"member-order": "bysource"}
autodoc_typehints = "none"
numpydoc_show_class_members = False
numpydoc_xref_param_type = False
numpydoc_class_members_toctree = False

# Links to other packages need their inventories; the build itself needs no network.
_inventories = Path(os.environ.get("SITE_INVENTORIES", "inventories-are-optional"))
_packages = {
    "numpy": "https://numpy.org/doc/stable/",
    "scipy": "https://docs.scipy.org/doc/scipy/",
    "sklearn": "https://scikit-learn.org/stable/",
    "matplotlib": "https://matplotlib.org/stable/",
}
intersphinx_mapping = {
    name: (address, str(_inventories / f"{name}.inv"))
    for name, address in _packages.items()
    if (_inventories / f"{name}.inv").exists()
}

sphinx_gallery_conf = {
    "examples_dirs": str(ROOT / "examples" / "gallery"),
    "gallery_dirs": "gallery",
    "within_subsection_order": "FileNameSortKey",
    "download_all_examples": False,
    "thumbnail_size": (640, 448),
    "show_memory": False,
    "show_signature": False,
    "remove_config_comments": True,
    "abort_on_example_error": True,
    # what the last line of a block returns is shown if it is HTML, such as an estimator or a table
    "capture_repr": ("_repr_html_",),
    "plot_gallery": os.environ.get("SITE_GALLERY", "1") == "1",
}

html_math_renderer = "mathml"
html_sidebars = {
    page: [] for page in ("index", "install", "quickstart", "command", "faq", "changelog", "pages")
}
html_theme = "pydata_sphinx_theme"
html_extra_path = ["verify.html", "verify.py"]  # at addresses of their own
html_title = "riskmin"
html_static_path = ["theme"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_search_scorer = str(ROOT / "docs" / "theme" / "search.js")
toc_object_entries_show_parents = "hide"  # "fit()" in the contents of a page that is about one class
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "logo": {"text": f"riskmin {release}"},
    "header_links_before_dropdown": 6,
    "navbar_end": ["theme-switcher"],
    "navbar_align": "left",
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}


# ---------------------------------------------------------------- docstrings
def escape_absolute_values(
    app: Any, kind: str, name: str, thing: Any, options: Any, lines: list[str]
) -> None:
    """Escape the bars of |w| in text, which are substitutions in reStructuredText; code and formulas stay."""
    doctest = False
    block: int | None = None  # the indentation of the line that starts a block of code or a formula
    for i, line in enumerate(lines):
        indent = len(line) - len(line.lstrip())
        doctest = line.lstrip().startswith(">>>") or (doctest and bool(line.strip()))
        if block is not None and line.strip() and indent <= block:
            block = None
        if doctest or block is not None:
            continue
        if re.match(r"\s*\.\. math::|.*::\s*$", line):
            block = indent
            continue
        parts = re.split(r"(`+[^`]*`+)", line)
        lines[i] = "".join(part if part.startswith("`") else part.replace("|", r"\|") for part in parts)


ESTIMATORS = set(api_pages.grouped()["Estimators"])


def skip_request_methods(app: Any, kind: str, name: str, thing: Any, skip: bool, options: Any) -> bool | None:
    """Leave out what scikit-learn adds for metadata routing, and the class attributes of estimators."""
    page = app.env.current_document.docname.rpartition(".")[2]
    inner = page in ESTIMATORS and not callable(thing) and not isinstance(thing, property)
    return True if inner or re.fullmatch(r"set_\w+_request|set_output|get_metadata_routing", name) else None


# ---------------------------------------------------------------- formulas
def write_formula(self: Any, node: Any, display: str = "inline") -> None:
    """Write a formula as MathML, which browsers draw without a script from the network."""
    from docutils.nodes import SkipNode
    from latex2mathml.converter import convert

    formula = convert(node.astext().strip(), display=display)
    self.body.append(f'<div class="formula">{formula}</div>' if display == "block" else formula)
    raise SkipNode


def write_displayed_formula(self: Any, node: Any) -> None:
    """Write a formula on a line of its own."""
    write_formula(self, node, "block")


def setup(app: Any) -> None:
    """Connect the functions above; numpydoc's own come later."""
    app.connect("autodoc-process-docstring", escape_absolute_values, priority=400)
    app.connect("autodoc-skip-member", skip_request_methods)
    app.add_html_math_renderer("mathml", (write_formula, None), (write_displayed_formula, None))
