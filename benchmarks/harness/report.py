"""Tables, in Markdown."""

from __future__ import annotations

from benchmarks.harness.racers import LEVELS, key

SHOWN = ("1e-03", "1e-06")
UNKNOWN = 1e-6
"""Relative gap of the best known J above which a note is printed."""
HEAD = "| data | task | lam | solver | {} | best | how |"


def seconds(value):
    """Three digits, or a dash."""
    return "-" if value is None else f"{value:.3g}" if value < 100 else f"{value:.0f}"


def at(found, clock):
    return None if found is None else found[clock]


def small(value):
    return f"{max(value, 0.0):.0e}"


# ---------------------------------------------------------------- one cell in full
def head():
    levels = " | ".join(key(level) for level in LEVELS)
    return HEAD.format(levels) + "\n" + "|---" * (len(LEVELS) + 6) + "|"


def lines(cell, clock):
    """One line per solver with the times to all levels; two for riskmin: proved, and reached by J."""
    where = f"| {cell['data']} | {cell['task']} | {cell['lam']:g} |"
    for name, told in cell["solvers"].items():
        if told["kind"] == "ours":
            times, gap = _times(told["certified"], clock), small(told["gap"])
            yield f"{where} {name}, proved | {times} | {gap} | {told['steps']} steps, {told['calls']} calls |"
            times, who = _times(told["reached"], clock), told["said"].split("(")[0]
            yield f"{where} {name} | {times} | {small(told['suboptimality'])} | {who}, {told['status']} |"
        else:
            best = min(told["rungs"], key=lambda rung: rung["J"])
            times = _times(told["reached"], clock)
            said = f"tol {best['tol']:g}" + (f", {best['steps']}" if best["steps"] else "")
            yield f"{where} {name} | {times} | {small(told['suboptimality'])} | {said} |"
    for name, why in cell["left_out"].items():
        yield f"{where} {name} | left out: {why.splitlines()[0]} |"


def _times(found, clock):
    return " | ".join(seconds(at(found[key(level)], clock)) for level in LEVELS)


# ---------------------------------------------------------------- one line per cell
def mine(cell):
    """The run of riskmin to compare: that of the default, else the first that proves the tightest level."""
    names = [name for name, told in cell["solvers"].items() if told["kind"] == "ours"]
    if not names or "auto" in names:
        return "auto" if names else None
    return min(names, key=lambda name: _order(cell["solvers"][name]["certified"]))


def _order(certified):
    return [certified[level]["cpu"] if certified[level] else float("inf") for level in reversed(SHOWN)]


def best_peer(cell, level, clock):
    """The first peer to reach the level, and its time; else the closest peer and its suboptimality."""
    peers = {name: told for name, told in cell["solvers"].items() if told["kind"] == "peer" and told["rungs"]}
    if not peers:
        return None, None
    there = [(told["reached"][level][clock], name) for name, told in peers.items() if told["reached"][level]]
    if there:
        return min(there)[::-1]
    return min(peers, key=lambda name: peers[name]["suboptimality"]), None


def compact_line(cell, clock):
    """Certified times of riskmin, the best peer per level, and the ratio of times."""
    name = mine(cell)
    parts = [cell["data"] + ("\\*" if cell["known"] > UNKNOWN else ""), cell["task"], f"{cell['lam']:g}"]
    certified = cell["solvers"][name]["certified"] if name else dict.fromkeys(SHOWN)
    own = {level: at(certified[level], clock) for level in SHOWN}
    parts.append(" / ".join(seconds(own[level]) for level in SHOWN))
    for level in SHOWN:
        peer, took = best_peer(cell, level, clock)
        if peer is None:
            parts += ["-", ""]
            continue
        told = cell["solvers"][peer]
        if took is None:
            parts.append(f"{peer} - ({small(told['suboptimality'])})")
            most = max(
                other["longest"][clock] for other in cell["solvers"].values() if other["kind"] == "peer"
            )
            parts.append(f"> {most / own[level]:.2g}" if own[level] and most > own[level] else "")
        else:
            parts.append(f"{peer} {seconds(took)}")
            parts.append(f"{took / own[level]:.2g}" if own[level] else "")
    return "| " + " | ".join(parts) + " |"


def notes(cells):
    """A note if min J is not known well enough to distinguish the tightest levels."""
    known = [cell["known"] for cell in cells if cell["known"] > UNKNOWN]
    return [f"\n\\* min J is known to {small(min(known))} to {small(max(known))} only"] if known else []


def compact(cells, clock="cpu"):
    """The compact table of many cells."""
    return "\n".join(
        [
            "| data | task | lam | ours, proved 1e-3 / 1e-6 | peer to 1e-3 | ratio | peer to 1e-6 | ratio |",
            "|---|---|---|---|---|---|---|---|",
            *(compact_line(cell, clock) for cell in cells),
            *notes(cells),
        ]
    )


def memory_lines(cell):
    for name, told in cell["solvers"].items():
        if "memory" in told:
            more = told["memory"]["more"]
            yield (
                f"| {cell['data']} | {cell['task']} | {cell['lam']:g} | {name} | {more / 2**20:.1f} MiB "
                f"| {more / cell['bytes']:.2f} |"
            )
