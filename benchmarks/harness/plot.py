"""Curves: suboptimality of J against time, and for riskmin also the certified gap."""

from __future__ import annotations

from itertools import cycle

from benchmarks.harness.racers import LEVELS


def curve(result, at):
    """Times, suboptimalities and, for riskmin, gaps. A peer's settings are sorted by time, best so far."""
    if result["kind"] == "ours":
        return tuple(zip(*[(point[at], point[2], point[3]) for point in result["points"]], strict=True))
    best, points = float("inf"), []
    for rung in sorted(result["rungs"], key=lambda rung: rung["cpu" if at == 0 else "wall"]):
        best = min(best, rung["suboptimality"])
        points.append((rung["cpu" if at == 0 else "wall"], best))
    return (*zip(*points, strict=True), None) if points else ((), (), None)


def draw(cells, path, clock="cpu"):
    """Draw one panel per cell."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    at, across = 0 if clock == "cpu" else 1, min(3, len(cells))
    down = -(-len(cells) // across)
    figure, axes = plt.subplots(down, across, figsize=(6 * across, 4.2 * down), squeeze=False)
    for panel, cell in zip(axes.flat, cells, strict=False):
        _panel(panel, cell, at, clock)
    for panel in axes.flat[len(cells) :]:
        panel.set_axis_off()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _panel(panel, cell, at, clock):
    colors = cycle(f"C{k}" for k in range(10))
    for name, result in cell["solvers"].items():
        times, off, gaps = curve(result, at)
        color, floor = next(colors), LEVELS[-1] / 10
        off = [max(value, floor) for value in off]
        ours = result["kind"] == "ours"
        panel.loglog(times, off, color=color, marker="" if ours else ".", lw=2 if ours else 1, label=name)
        if gaps is not None:
            shown = [max(value, floor) for value in gaps]
            panel.loglog(times, shown, color=color, ls="--", lw=2, label=f"{name}: gap proved")
    panel.set(title=f"{cell['task']}, {cell['data']}, lam = {cell['lam']:g}", ylim=(LEVELS[-1] / 10, 2))
    panel.set(xlabel=f"{clock} seconds", ylabel="J / min J - 1")
    panel.grid(alpha=0.3)
    panel.legend(fontsize=6)
