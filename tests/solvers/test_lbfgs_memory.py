"""The inner-product form of L-BFGS equals the two-loop recursion, also after updates and restores."""

import numpy as np
import pytest

from riskmin.executors.base import SerialExecutor
from riskmin.executors.local import ThreadExecutor
from riskmin.solvers.quasi_newton.memory import LbfgsMemory
from riskmin.solvers.quasi_newton.owlqn import two_loop


def square(rng, dim):
    A = rng.standard_normal((dim, dim))
    return A @ A.T + np.eye(dim)


@pytest.mark.parametrize("memory", [1, 3, 20])
@pytest.mark.parametrize("every", [1, 2])
def test_directions_equal_the_two_loop_recursion(memory, every):
    rng = np.random.default_rng(memory)
    H, pairs, recent = square(rng, 7), LbfgsMemory(memory, np.zeros(7)), []
    for step in range(12):
        s = rng.standard_normal(7)
        pairs.add(s, H @ s)
        pairs.add(s, -H @ s)  # violates the curvature condition
        recent = [*recent, (s, H @ s)][-memory:]
        if step % every == 0:  # a direction need not be computed in each step
            g = rng.standard_normal(7)
            np.testing.assert_allclose(pairs.direction(g), two_loop(recent, g), rtol=1e-9, atol=1e-11)
    assert len(pairs) == min(memory, 12)


def test_saved_pairs_give_the_same_directions_and_are_unchanged():
    rng = np.random.default_rng(0)
    H, pairs, g = square(rng, 5), LbfgsMemory(4, np.zeros(5)), rng.standard_normal(5)
    steps = rng.standard_normal((7, 5))
    for s in steps[:6]:
        pairs.add(s, H @ s)
    slots, expected = tuple(pairs.slots), pairs.direction(g)
    pairs.add(steps[6], H @ steps[6])  # the next step may have begun when the last iterate is saved
    state = pairs.state(slots)
    for inner in (state["inner"], None):
        restored = LbfgsMemory.from_arrays(4, np.zeros(5), state["S"], state["Y"], inner)
        np.testing.assert_allclose(restored.direction(g), expected, rtol=1e-10)


def test_long_pairs_have_the_same_bits_on_threads_and_the_same_direction(monkeypatch):
    rng = np.random.default_rng(0)
    monkeypatch.setattr(ThreadExecutor, "MIN_WORK_PER_THREAD", 1)
    p = LbfgsMemory.COMPILED_FROM_COLUMNS + 5
    h, steps, g = rng.uniform(0.5, 2.0, p), rng.standard_normal((6, p)), rng.standard_normal(p)

    def directions(executor):
        pairs, found = LbfgsMemory(4, np.zeros(p), executor), []
        for s in steps:
            pairs.add(s, h * s)
            found.append(pairs.direction(g))
        return np.array(found)

    serial = directions(SerialExecutor())
    assert all(directions(ThreadExecutor([], k)).tobytes() == serial.tobytes() for k in (1, 2, 3))
    # the array code of short pairs
    monkeypatch.setattr(LbfgsMemory, "COMPILED_FROM_COLUMNS", p + 1)
    np.testing.assert_allclose(serial, directions(SerialExecutor()), rtol=1e-9, atol=1e-9)
