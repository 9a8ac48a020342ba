"""The map of the package: its rooms in import order, and the way of a fit through them, as SVG."""

from __future__ import annotations

from docs.pictures import BLUE, GRAY, GREEN, INK, card

# Name, what it holds, column and row in the picture. A room imports only rooms that come before it here.
ROOMS = [
    ("core", "records and protocols", 0, 0),
    ("_numba", "compiled loops", 0, 1),
    ("_cuda", "kernels of GPUs", 0, 2),
    ("arrays", "storage of X", 0, 3),
    ("numerics", "small mathematics", 0, 4),
    ("linear_maps", "from w to scores", 1, 0),
    ("losses", "from scores to values", 1, 1),
    ("regularizers", "Omega and conjugates", 1, 2),
    ("executors", "where it runs", 1, 3),
    ("problem", "risk and objective", 2, 0),
    ("solvers", "iterates and cuts", 2, 1),
    ("driver", "minimize, checkpoints", 2, 2),
    ("metrics", "what users report", 2, 3),
    ("report", "progress and pages", 3, 0),
    ("data", "from files to arrays", 3, 1),
    ("certificates", "what multipliers prove", 2, 4),
    ("estimators", "scikit-learn", 3, 2),
    ("spark", "rows of DataFrames", 3, 3),
    ("owners", "rows nobody shares", 3, 4),
    ("cli", "the command", 3, 5),
    ("testing", "contracts to run", 3, 6),
]
# The way of `LinearClassifier("hinge").fit(X, y)` through the rooms.
FIT = [
    "estimators",
    "losses",
    "regularizers",
    "problem",
    "arrays",
    "executors",
    "driver",
    "solvers",
    "_numba",
    "driver",
    "estimators",
]
STEPS = [
    "validate X and y",
    "find the loss",
    "find the regularizer",
    "build the risk and J",
    "wrap X as a matrix",
    "place the shards",
    "start the run",
    "yield iterates with cuts",
    "pass over X",
    "prove the gap, stop",
    "store the weights",
]
WIDTH, HEIGHT, LEFT, TOP, STEP_X, STEP_Y = 176, 58, 28, 106, 208, 82


def corner(name: str) -> tuple[float, float]:
    """Return the upper left corner of the box of a room."""
    column, row = next((column, row) for room, _, column, row in ROOMS if room == name)
    return LEFT + STEP_X * column, TOP + STEP_Y * row


def box(name: str, text: str) -> str:
    """Draw a room with its name and what it holds."""
    x, y = corner(name)
    kind = "room visited" if name in FIT else "room"
    return (
        f'<rect class="{kind}" x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="7"/>'
        f'<text class="name" x="{x + 12}" y="{y + 25}">{name}/</text>'
        f'<text class="note" x="{x + 12}" y="{y + 44}">{text}</text>'
    )


def number(x: float, y: float, k: int) -> str:
    """Draw the number of a step in a circle."""
    circle = f'<circle class="step" cx="{x}" cy="{y}" r="10.5"/>'
    return f'{circle}<text class="number" x="{x}" y="{y + 4.3}">{k}</text>'


def visits() -> str:
    """Draw the numbers of the steps on the upper edges of the boxes that they visit."""
    numbers: dict[str, list[int]] = {}
    for k, name in enumerate(FIT, 1):
        numbers.setdefault(name, []).append(k)
    parts = []
    for name, steps in numbers.items():
        x, y = corner(name)
        parts += [number(x + WIDTH - 14 - 24 * i, y, k) for i, k in enumerate(reversed(steps))]
    return "".join(parts)


def legend(top: float) -> str:
    """Draw the list of the steps in three columns."""
    parts = []
    for k, text in enumerate(STEPS):
        x, y = LEFT + 12 + STEP_X * (k // 4), top + 27 * (k % 4)
        parts.append(number(x, y, k + 1) + f'<text class="note" x="{x + 18}" y="{y + 4.5}">{text}</text>')
    return "".join(parts)


def picture() -> str:
    """Return the map."""
    style = f"""
.room {{ fill: #f6f7f9; stroke: #d5d9de; }}
.visited {{ fill: #eaf1fb; stroke: {BLUE}; }}
.name {{ font-weight: 600; font-size: 15px; fill: {INK}; }}
.note {{ font-size: 13px; fill: {GRAY}; }}
.step {{ fill: {GREEN}; }}
.number {{ fill: #fff; font-size: 11.5px; font-weight: 600; text-anchor: middle; }}
.head {{ font-size: 17px; font-weight: 600; fill: {INK}; }}
"""
    head = (
        f'<text class="head" x="{LEFT}" y="36">The rooms of riskmin</text>'
        f'<text class="note" x="{LEFT}" y="58">A room imports only rooms in columns to its left, or above '
        "it in its own column.</text>"
        f'<text class="note" x="{LEFT}" y="77">The numbers are the steps of '
        "LinearClassifier(&quot;hinge&quot;).fit(X, y).</text>"
    )
    top = TOP + 5 * STEP_Y + 20
    body = head + "".join(box(name, text) for name, text, *_ in ROOMS) + visits() + legend(top)
    bottom = max(TOP + row * STEP_Y + HEIGHT for *_, row in ROOMS)
    return card(LEFT + 4 * STEP_X, int(bottom + 24), "The rooms of riskmin", style, body)
