"""Tables, in Markdown."""

from __future__ import annotations

from statistics import median

from benchmarks.harness.racers import LEVELS, key

SHOWN = ("1e-03", "1e-06")
UNKNOWN = 1e-6
"""Relative gap of the best known J above which a note is printed."""
HEAD = "| data | task | lam | solver | {} | best | how |"


def seconds(value):
    """Three digits, or a dash."""
    return "-" if value is None else f"{value:.3g}" if value < 100 else f"{value:.0f}"


def at(times, clock):
    return None if times is None else times[clock]


def small(value):
    return f"{max(value, 0.0):.0e}"


def task_name(cell):
    return cell["task"] + ", b" * cell.get("intercept", False)


# ---------------------------------------------------------------- one cell in full
def head():
    levels = " | ".join(key(level) for level in LEVELS)
    return HEAD.format(levels) + "\n" + "|---" * (len(LEVELS) + 6) + "|"


def lines(cell, clock):
    """One line per solver with the times to all levels; two for riskmin: proved, and reached by J."""
    where = f"| {cell['data']} | {task_name(cell)} | {cell['lam']:g} |"
    for name, result in cell["solvers"].items():
        if result["kind"] == "ours":
            times, gap = _times(result["certified"], clock), small(result["gap"])
            work = f"{result['steps']} steps, {result['calls']} calls"
            yield f"{where} {name}, proved | {times} | {gap} | {work} |"
            times, who = _times(result["reached"], clock), result["solver"].split("(")[0]
            yield f"{where} {name} | {times} | {small(result['suboptimality'])} | {who}, {result['status']} |"
        else:
            best = min(result["rungs"], key=lambda rung: rung["J"])
            times = _times(result["reached"], clock)
            settings = f"tol {best['tol']:g}" + (f", {best['steps']}" if best["steps"] else "")
            yield f"{where} {name} | {times} | {small(result['suboptimality'])} | {settings} |"
    for name, why in cell["left_out"].items():
        yield f"{where} {name} | left out: {why.splitlines()[0]} |"


def _times(times, clock):
    return " | ".join(seconds(at(times[key(level)], clock)) for level in LEVELS)


# ---------------------------------------------------------------- one line per cell
def our_run(cell):
    """The run of riskmin to compare: that of the default, else the first that proves the tightest level."""
    names = [name for name, result in cell["solvers"].items() if result["kind"] == "ours"]
    if not names or "auto" in names:
        return "auto" if names else None
    return min(names, key=lambda name: _order(cell["solvers"][name]["certified"]))


def _order(certified):
    return [certified[level]["cpu"] if certified[level] else float("inf") for level in reversed(SHOWN)]


def best_peer(cell, level, clock):
    """The first peer to reach the level, and its time; else the closest peer and its suboptimality."""
    peers = {
        name: result
        for name, result in cell["solvers"].items()
        if result["kind"] == "peer" and result["rungs"]
    }
    if not peers:
        return None, None
    arrived = [
        (result["reached"][level][clock], name) for name, result in peers.items() if result["reached"][level]
    ]
    if arrived:
        return min(arrived)[::-1]
    return min(peers, key=lambda name: peers[name]["suboptimality"]), None


def compact_line(cell, clock):
    """Certified times of riskmin, the best peer per level, and the ratio of times."""
    name = our_run(cell)
    parts = [cell["data"] + ("\\*" if cell["known"] > UNKNOWN else ""), task_name(cell), f"{cell['lam']:g}"]
    certified = cell["solvers"][name]["certified"] if name else dict.fromkeys(SHOWN)
    times_of_ours = {level: at(certified[level], clock) for level in SHOWN}
    parts.append(" / ".join(seconds(times_of_ours[level]) for level in SHOWN))
    for level in SHOWN:
        peer, took = best_peer(cell, level, clock)
        if peer is None:
            parts += ["-", ""]
            continue
        result = cell["solvers"][peer]
        if took is None:
            parts.append(f"{peer} - ({small(result['suboptimality'])})")
            most = max(
                other["longest"][clock] for other in cell["solvers"].values() if other["kind"] == "peer"
            )
            parts.append(
                f"> {most / times_of_ours[level]:.2g}"
                if times_of_ours[level] and most > times_of_ours[level]
                else ""
            )
        else:
            parts.append(f"{peer} {seconds(took)}")
            parts.append(f"{took / times_of_ours[level]:.2g}" if times_of_ours[level] else "")
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


# ---------------------------------------------------------------- one line per task
def ratio(cell, level, clock):
    """Time of the best peer / time of ours; None if nobody arrives, or no peer has the task.

    Who does not arrive within the limit counts with the limit, peers with their longest fit if it is longer.
    """
    name = our_run(cell)
    peers = [result for result in cell["solvers"].values() if result["kind"] == "peer"]
    if name is None or not peers:
        return None
    mine, theirs = at(cell["solvers"][name]["certified"][level], clock), best_peer(cell, level, clock)[1]
    if mine is None and theirs is None:
        return None
    longest = max([cell["seconds"], *(result["longest"][clock] for result in peers)])
    return (longest if theirs is None else theirs) / (cell["seconds"] if mine is None else mine)


def summary_line(title, cells, clock):
    """Median, smallest ratio, and the cells that ours did not certify, for each level."""
    parts = [title, str(len(cells))]
    for level in SHOWN:
        ratios = [r for r in (ratio(cell, level, clock) for cell in cells) if r is not None]
        failed = [cell for cell in cells if not cell["solvers"][our_run(cell)]["certified"][level]]
        parts.append(f"{median(ratios):.2g} ({min(ratios):.2g})" if ratios else "-")
        parts.append(str(sum(r < 0.7 for r in ratios)))
        parts.append(str(len(failed)))
    return "| " + " | ".join(parts) + " |"


def summary(cells, clock="cpu"):
    """Ratios by task, with and without intercept, and by half of the unseen sets."""
    columns = "median (worst) to {0} | below 0.7 | not certified"
    head = " | ".join(columns.format(level) for level in ("1e-3", "1e-6"))
    out = [f"| task | cells | {head} |", "|---" * 8 + "|"]
    cells = [cell for cell in cells if our_run(cell)]
    keys = dict.fromkeys((cell.get("half", ""), cell["task"], cell.get("intercept", False)) for cell in cells)
    for half, task, intercept in sorted(keys):
        chosen = [
            cell
            for cell in cells
            if (cell.get("half", ""), cell["task"], cell.get("intercept", False)) == (half, task, intercept)
        ]
        title = task + ", intercept" * intercept + (f" ({half})" if half else "")
        out.append(summary_line(title, chosen, clock))
    return "\n".join(out)


def memory_lines(cell):
    for name, result in cell["solvers"].items():
        if "memory" in result:
            more = result["memory"]["more"]
            yield (
                f"| {cell['data']} | {cell['task']} | {cell['lam']:g} | {name} | {more / 2**20:.1f} MiB "
                f"| {more / cell['bytes']:.2f} |"
            )
