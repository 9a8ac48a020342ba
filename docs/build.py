"""Build the site: `python -m docs.build`, or `make site`.

Copies the Markdown pages to build/site/source with links that work there, writes the API reference and the
menus, runs Sphinx with warnings as errors, and checks all links between the pages of the result.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from docs import api_pages

ROOT = Path(__file__).parents[1]
SITE = ROOT / "build" / "site"

# Pages of the site whose files have other names, most of them outside of docs/.
ELSEWHERE = {
    "README.md": "index.md",
    "docs/index.md": "pages.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "benchmarks/RESULTS.md": "benchmarks.md",
}
# Files that pages link to, and that the site has at its root.
DOWNLOADS = {"docs/verify.html": "verify.html", "src/riskmin/verify.py": "verify.py"}
# The menu of a page: the pages below it.
MENUS = {
    "index.md": [
        "install",
        "quickstart",
        "tutorials/index",
        "gallery/index",
        "howto",
        "api/index",
        "coming-from/index",
        "command",
        "theory",
        "performance",
        "faq",
        "development",
        "changelog",
        "pages",
    ],
    "tutorials/index.md": [
        "table",
        "imbalanced",
        "quantiles",
        "best-alpha",
        "leave-one-out",
        "ranking",
        "tagging",
        "large-data",
        "spark",
        "gpu",
        "proofs",
        "extend",
    ],
    "coming-from/index.md": [
        "scikit-learn",
        "liblinear",
        "svm-perf",
        "statsmodels",
        "crfsuite",
        "lightgbm",
        "glmnet",
        "gblinear",
        "h2o",
        "spark",
        "fairlearn",
        "vw",
        "cvxpy",
    ],
    "papers.md": ["papers/a", "papers/b", "papers/c", "papers/d", "papers/e", "papers/beyond"],
    "howto.md": [
        "estimators",
        "reference",
        "multivariate",
        "multiclass",
        "hierarchy",
        "tagging",
        "kernels",
        "structured",
        "paths",
        "regularizers",
        "solvers",
        "support",
        "add-a-loss",
        "plots",
        "formats",
        "mlflow",
        "executors",
        "clusters",
        "mpi",
        "scaling",
        "constraints",
        "fairness",
        "owners",
    ],
    "theory.md": ["problem", "certificate", "optimum", "proofs", "reliability", "papers"],
    "performance.md": ["benchmarks"],
    "development.md": ["architecture", "glossary", "adr/README", "contributing", "releasing"],
}


def link_in_site(link: str, page: Path) -> str | None:
    """The link of a page of the repository as a link of the site; None if its target is no page.

    Parameters
    ----------
    link : str
        Relative to the page, or an address.
    page : Path
        The page, relative to the repository.
    """
    address, hash_mark, anchor = link.partition("#")
    if re.match(r"[a-z]+:", link) or not address:
        return link
    target = os.path.normpath(page.parent / address).replace(os.sep, "/")
    here = Path(ELSEWHERE.get(page.as_posix(), page.as_posix().removeprefix("docs/")))
    if target == "README.md":
        target = "docs/index.md"
    named = ELSEWHERE | DOWNLOADS
    if target not in named and not target.startswith("docs/"):
        return None
    there = named.get(target, target.removeprefix("docs/"))
    return os.path.relpath(there, here.parent).replace(os.sep, "/") + hash_mark + anchor


def with_site_links(text: str, page: Path) -> str:
    """The text of a page with the links of the site; a link to a file that is no page becomes its text."""

    def replace(match: re.Match[str]) -> str:
        link = link_in_site(match[3], page)
        if link is None:
            return match[2] if "`" in match[2] else f"`{match[2]}`"
        return f"{match[1]}[{match[2]}]({link})"

    return re.sub(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)", replace, text)


def menu(entries: list[str]) -> str:
    """A menu that is not shown on the page itself."""
    return "\n".join(["", "```{toctree}", ":hidden:", "", *entries, "```", ""])


def write(path: Path, text: str) -> None:
    """Write a page if it changed, so that Sphinx does not read it again."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def stage(source: Path) -> None:
    """Write all pages of the site except the gallery's to a folder."""
    pages = {*ROOT.glob("docs/**/*.md"), *(ROOT / name for name in ELSEWHERE)}
    for path in pages:
        page = path.relative_to(ROOT)
        name = ELSEWHERE.get(page.as_posix(), page.as_posix().removeprefix("docs/"))
        entries = MENUS.get(name)
        if name == "adr/README.md":
            entries = sorted(p.stem for p in ROOT.glob("docs/adr/0*.md"))
        text = with_site_links(path.read_text(encoding="utf-8"), page)
        text = re.sub(r"\n\n(\s*```\n)", r"\n\1", text)  # the empty line that ends a doctest
        write(source / name, text + (menu(entries) if entries else ""))
    for name, text in api_pages.pages().items():
        write(source / "api" / name, text)
    for folder in ("img", "theme", "templates", "papers"):
        pages = shutil.ignore_patterns("*.md")  # they were written above
        shutil.copytree(ROOT / "docs" / folder, source / folder, ignore=pages, dirs_exist_ok=True)
    for name, there in DOWNLOADS.items():
        shutil.copy(ROOT / name, source / there)
    write(source / "conf.py", (ROOT / "docs" / "conf.py").read_text(encoding="utf-8"))


# ---------------------------------------------------------------- links
class Links(HTMLParser):
    """The targets of a page's links, and the anchors that it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect `href`, `src` and `id`."""
        for key, value in attrs:
            if key in ("href", "src") and value:
                self.targets.append(value)
            elif key in ("id", "name") and value:
                self.anchors.add(value)


def broken_links(html: Path) -> list[str]:
    """The links between the pages of a folder whose file or anchor does not exist, as "page: link"."""
    found = [path for path in sorted(html.rglob("*.html")) if "_static" not in path.relative_to(html).parts]
    pages = {path: Links(path.read_text(encoding="utf-8")) for path in found}
    broken = []
    for path, links in pages.items():
        for link in links.targets:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            known = pages.get(target)
            if not target.exists() or (
                parts.fragment and known and unquote(parts.fragment) not in known.anchors
            ):
                broken.append(f"{path.relative_to(html)}: {link}")
    return broken


def main() -> int:
    """Build the site and check its links."""
    from sphinx.cmd.build import main as sphinx

    os.environ["SITE_ROOT"] = str(ROOT)
    os.environ.setdefault("MPLBACKEND", "Agg")
    source, html = SITE / "source", SITE / "html"
    stage(source)
    arguments = [
        "-W",
        "--keep-going",
        "-q",
        "-b",
        "html",
        "-d",
        str(SITE / "doctrees"),
        str(source),
        str(html),
    ]
    if code := sphinx(arguments):
        return code
    broken = broken_links(html.resolve())
    print(*broken, sep="\n", file=sys.stderr)
    print(f"{html}: {len(list(html.rglob('*.html')))} pages, {len(broken)} broken links")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
