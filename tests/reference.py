"""The minimum of J by cvxpy and Clarabel, with independent formulas of all losses and regularizers."""

import contextlib
import itertools
import warnings

import cvxpy as cp
import numpy as np
import scipy.sparse.linalg as spl

from riskmin import (
    L1,
    L2,
    Absolute,
    Box,
    ChainCrf,
    ChainMaxMargin,
    Cox,
    Elastic,
    Entropy,
    EpsilonInsensitive,
    Equality,
    ExpectedRankUtility,
    Expectile,
    Exponential,
    FBeta,
    Gamma,
    GroupLasso,
    HierarchicalSoftmax,
    Hinge,
    Huber,
    HuberScale,
    LinearConstraints,
    Logistic,
    Mrr,
    MulticlassHinge,
    MulticlassSquaredHinge,
    MultivariateSquared,
    Ndcg,
    NegativeBinomial,
    Novelty,
    Nu,
    Ordinal,
    PairwiseHinge,
    Poisson,
    PowerHinge,
    Prbep,
    PrecisionAtK,
    Probit,
    QNorm,
    Quadratic,
    Quantile,
    RecallAtK,
    RocArea,
    SmoothedHinge,
    Softmax,
    Squared,
    SquaredHinge,
    Tweedie,
)


def _power(t, p):
    return t if p == 1 else cp.power(t, p) / p


def _envelope(deficit, mu):
    """The smoothed hinge: part of the margin deficit is penalized quadratically."""
    part = cp.Variable(deficit.shape[0])
    return cp.pos(deficit - part) + cp.square(part) / (2 * mu)


def losses(loss, z, y):
    """The loss of each row, for scores z."""
    m, r = cp.multiply(y, z), z - y
    return {
        Hinge: lambda: cp.pos(loss.margin - m),
        SquaredHinge: lambda: cp.square(cp.pos(loss.margin - m)) / 2,
        PowerHinge: lambda: _power(cp.pos(loss.margin - m), loss.p),
        SmoothedHinge: lambda: _envelope(1 - m, loss.mu),
        Exponential: lambda: cp.exp(-m),
        Logistic: lambda: cp.logistic(-m),
        Novelty: lambda: cp.pos(1 - z),
        Squared: lambda: cp.square(r) / 2,
        Absolute: lambda: cp.abs(r),
        Quantile: lambda: cp.maximum(-loss.level * r, (1 - loss.level) * r),
        EpsilonInsensitive: lambda: _power(cp.pos(cp.abs(r) - loss.epsilon), loss.power),
        Huber: lambda: cp.huber(r, loss.delta) / 2,
        Expectile: lambda: loss.level * cp.square(cp.pos(-r)) + (1 - loss.level) * cp.square(cp.pos(r)),
        Poisson: lambda: cp.exp(z) - cp.multiply(y, z) + _xlogx(y) - y,
        Gamma: lambda: cp.multiply(y, cp.exp(-z)) + z - np.log(y) - 1,
        Tweedie: lambda: _tweedie(loss.power, z, y),
        NegativeBinomial: lambda: _negative_binomial(1 / loss.dispersion, z, y),
    }[type(loss)]()


def _xlogx(y):
    return y * np.log(np.where(y > 0, y, 1.0))


def _tweedie(p, z, y):
    """Half the deviance, by the powers of the mean exp(z)."""
    falling, rising = cp.exp((1 - p) * z), cp.exp((2 - p) * z)
    return cp.multiply(y, falling) / (p - 1) + rising / (2 - p) - y ** (2 - p) / ((p - 1) * (2 - p))


def _negative_binomial(r, z, y):
    """The logarithm of the likelihood at the mean y, less that at the mean exp(z)."""
    t, best = z - np.log(r), _xlogx(y) + r * np.log(r) - (y + r) * np.log(y + r)
    return best + cp.multiply(y + r, cp.logistic(t)) - cp.multiply(y, t)


def _weights_of_pairs(loss, y, c):
    """The weights of the rows i and j, of which i has the higher grade."""
    p, grade = (y[:, None] > y) * c[:, None] * c, np.unique(y, return_inverse=True)[1]
    for i, j in np.argwhere(p) if getattr(loss, "costs", None) else ():
        p[i, j] *= loss.costs[grade[i]][grade[j]]
    return p / p.sum()


def _pairs(loss, z, y, c):
    i, j = np.nonzero(y[:, None] > y)
    return _weights_of_pairs(loss, y, c)[i, j] @ cp.pos(1 - z[i] + z[j])


def pairs(loss, z, y, c, mu=0.0):
    """sum_ij p_ij max_b b (1 - z_i + z_j) - mu b^2 / 2, its gradient, and the minorant offset."""
    p, t = _weights_of_pairs(loss, y, c), 1 - (z[:, None] - z)
    b = np.clip(t / mu, 0, 1) if mu else (t > 0).astype(float)
    offset = mu / 2 * np.sum(p * b * b)
    return np.sum(p * b * t) - offset, (p * b).sum(axis=0) - (p * b).sum(axis=1), offset


def _cox(z, y, c):
    """Minus the logarithm of each event's share of those at risk, less that of the events of its time."""
    events = list(np.flatnonzero((y > 0) & (c > 0)))
    at_risk = [np.flatnonzero((np.abs(y) >= y[i]) & (c > 0)) for i in events]
    tied = [c[y == y[i]].sum() for i in events]
    return sum(
        c[i] * (cp.log_sum_exp(z[rows] + np.log(c[rows])) - z[i] - np.log(total))
        for i, rows, total in zip(events, at_risk, tied, strict=True)
    )


def _discrepancy(loss, y, other):
    """Delta(y', y); None for labellings outside the set over which the loss maximizes."""
    hits, positives, predicted = np.sum((y > 0) & (other > 0)), np.sum(y > 0), np.sum(other > 0)
    if isinstance(loss, FBeta):
        return 1 - (1 + loss.beta**2) * hits / (loss.beta**2 * positives + predicted)
    if isinstance(loss, Prbep):
        return 1 - hits / positives if predicted == positives else None
    if predicted != loss.k:
        return 0.0 if np.all(y == other) else None
    return 1 - hits / (positives if isinstance(loss, RecallAtK) else loss.k)


def labellings(loss, y):
    """The slopes (y' - y) / n of all labellings y' that count, and their Delta(y', y)."""
    slopes, deltas = [], []
    for labels in itertools.product([-1.0, 1.0], repeat=len(y)):
        other = np.array(labels)
        delta = _discrepancy(loss, y, other)
        if delta is not None:
            slopes.append((other - y) / len(y))
            deltas.append(delta)
    return np.array(slopes), np.array(deltas)


def _utility(loss, grades):
    """The utilities of rankings with these grades, best position first, along the last axis."""
    i = np.arange(grades.shape[-1])
    if isinstance(loss, Ndcg):
        return np.sum(((2.0**grades - 1) / np.log2(i + 2))[..., : loss.k], axis=-1)
    if isinstance(loss, Mrr):
        return 1 / (1 + np.argmax(grades > 0, axis=-1))
    return grades @ 2.0 ** (-i / (loss.half_life - 1))


def position_weights(loss, m):
    """The weights of the m positions, of the loss's own discount or of a power."""
    i, weights = np.arange(1.0, m + 1), loss.weights
    if weights != "discount":
        return np.where(i <= (weights.k or m), 1 / (i + weights.shift) ** weights.power, 0)
    if isinstance(loss, Ndcg):
        return np.where(i <= loss.k, 1 / np.log2(i + 1), 0)
    return 1 / i if isinstance(loss, Mrr) else 2.0 ** (-(i - 1) / (loss.half_life - 1))


def rankings(loss, grades):
    """1 minus the metric of every ranking of a query, and the gradient of its lead in the scores."""
    grades = (grades > 0).astype(float) if isinstance(loss, Mrr) else grades
    orders = np.array(list(itertools.permutations(range(len(grades)))))
    deltas = 1 - _utility(loss, grades[orders]) / _utility(loss, -np.sort(-grades))
    places = np.argsort(orders, axis=1)
    if loss.weights is not None:  # the weights of the rows, less their mean over all ideal rankings
        slopes = position_weights(loss, len(grades))[places]
        ideal = np.all(np.diff(grades[orders], axis=1) <= 0, axis=1)
        return deltas, slopes - slopes[ideal].mean(axis=0)
    i, j = np.nonzero(grades[:, None] > grades)
    rows = np.eye(len(grades))
    return deltas, (places[:, i] > places[:, j]) @ (rows[j] - rows[i]) / len(i)


def _queries(loss, z, y, queries):
    """The mean over queries of the maximum over all rankings, enumerated."""
    per_query = []
    for query in np.unique(queries):
        rows = np.flatnonzero(queries == query)
        grades, one = y[rows], z[rows]
        if isinstance(loss, PairwiseHinge):
            i, j = np.nonzero(grades[:, None] > grades)
            per_query.append(cp.sum(cp.pos(1 - one[i] + one[j])) / len(i))
        else:
            deltas, slopes = rankings(loss, grades)
            per_query.append(cp.max(deltas + slopes @ one))
    return sum(per_query) / len(per_query)


def risk(loss, z, y, c, queries=None):
    """R for scores z: a sum over rows, over pairs, or a maximum over labellings or rankings."""
    if isinstance(loss, Ndcg | Mrr | ExpectedRankUtility | PairwiseHinge):
        return _queries(loss, z, y, queries)
    if isinstance(loss, RocArea | Ordinal):
        return _pairs(loss, z, y, c)
    if isinstance(loss, Cox):
        return _cox(z, y, c)
    if isinstance(loss, Nu):
        threshold = cp.Variable(nonneg=True)
        return loss.nu * threshold + c @ cp.pos(losses(loss.loss, z, y) - threshold)
    if isinstance(loss, HuberScale):  # H(t) is min_u (t - u)^2 + 2 epsilon |u|; s + q^2 / s >= 2 q
        outlying = cp.Variable(len(y))
        inside = cp.norm(cp.multiply(np.sqrt(c), z - y - outlying))
        return 2 * np.sqrt(np.sum(c)) * inside + 2 * loss.epsilon * (c @ cp.abs(outlying))
    if isinstance(loss, FBeta | Prbep | PrecisionAtK):
        if len(y) <= 10:
            slopes, deltas = labellings(loss, y)
            return cp.max(deltas + slopes @ z)
        if isinstance(loss, Prbep):
            return _break_even(z, y)
    return c @ losses(loss, z, y)


def _break_even(z, y):
    """The dual of the linear program over fractions of wrong rows; `price` is the balance's multiplier."""
    n, positive, price = len(y), (y > 0).astype(float), cp.Variable()
    excess = positive / positive.sum() - 2 / n * cp.multiply(y, z) - price * y
    return cp.sum(cp.pos(excess))


def multi_output_losses(loss, Z, y):
    """The loss of each row, for scores Z of shape (n, k)."""
    n, k = Z.shape
    if isinstance(loss, MultivariateSquared):
        values, vectors = np.linalg.eigh(np.eye(k) if loss.M is None else loss.M)
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        return cp.sum(cp.square((Z - y) @ root), axis=1) / 2
    one_hot = np.eye(k)[y.astype(int)]
    true_score = cp.sum(cp.multiply(one_hot, Z), axis=1)
    if isinstance(loss, Softmax):
        return cp.log_sum_exp(Z, axis=1) - true_score
    lead = Z - cp.reshape(true_score, (n, 1), order="C") @ np.ones((1, k))
    if isinstance(loss, MulticlassSquaredHinge):
        return cp.sum(cp.multiply(1 - one_hot, cp.square(cp.pos(1 + lead))), axis=1) / 2
    cost = (1 - np.eye(k) if loss.cost is None else loss.cost)[y.astype(int)]
    factor = cost ** float(loss.rescaled)
    return cp.max(cp.multiply(factor, lead) + (factor if loss.scaled_margin else 1) * cost, axis=1)


def without_tree(loss):
    """The multiclass loss of a hierarchical one, and which nodes (rows) are on the path of which label."""
    tree = loss.tree
    on_path = np.zeros((len(tree.nodes), len(tree.labels)))
    for j, label in enumerate(tree.labels):
        node = tree.nodes.index(label)
        while node >= 0:
            on_path[node, j] = 1.0
            node = tree.parents[node]
    if isinstance(loss, HierarchicalSoftmax):
        return Softmax(), on_path
    depth = on_path.sum(axis=0)
    edges = depth[:, None] + depth - 2 * on_path.T @ on_path
    cost = {"tree distance": edges, "zero one": np.sign(edges)}.get(str(loss.cost), loss.cost)
    return MulticlassHinge(cost, loss.rescaled, loss.scaled_margin), on_path


def chain_scores(X, paths, k):
    """The coefficients of w in the score of each label sequence, one row per sequence."""
    n, p = X.shape
    W, T, ends = (np.zeros((len(paths), *shape)) for shape in ((p, k), (k, k), (2, k)))
    for i, path in enumerate(paths):
        ends[i, 0, path[0]] += 1
        ends[i, 1, path[-1]] += 1
        for t in range(n):
            W[i, :, path[t]] += X[t]
            if t:
                T[i, path[t - 1], path[t]] += 1
    return np.concatenate([a.reshape(len(paths), -1) for a in (W, T, ends)], axis=1)


def chains(loss, X, y, k, lengths):
    """The losses of all sequences as a function of w, by enumeration of their label sequences."""
    ends = np.cumsum(lengths)

    def one(w, i, j):
        paths = list(itertools.product(range(k), repeat=j - i))
        labels = tuple(y[i:j].astype(int))
        A = chain_scores(X[i:j], paths, k)
        lead = (A - A[paths.index(labels)]) @ w
        if isinstance(loss, ChainCrf):
            return cp.log_sum_exp(lead)
        cost = np.array([sum(a != b for a, b in zip(path, labels, strict=True)) for path in paths])
        return cp.max(cost + cp.multiply(np.power(cost, float(loss.rescaled)), lead))

    return lambda w: cp.hstack([one(w, j - n, j) for n, j in zip(lengths, ends, strict=True)])


def _dense(K, p):
    if isinstance(K, spl.LinearOperator):
        return np.array([K @ e for e in np.eye(p)])
    return K if isinstance(K, np.ndarray) else K.toarray()


def omega(reg, w):
    """The regularizer and its constraints on w."""
    p = w.shape[0]

    def by_feature(setting):
        return np.broadcast_to(np.asarray(setting, float), p)

    if isinstance(reg, Box):
        inner, _ = omega(reg.reg, w)
        lower, upper = by_feature(reg.lower), by_feature(reg.upper)
        low, high = np.flatnonzero(np.isfinite(lower)), np.flatnonzero(np.isfinite(upper))
        return inner, [w[low] >= lower[low]] * bool(len(low)) + [w[high] <= upper[high]] * bool(len(high))
    if isinstance(reg, LinearConstraints):
        inner, domain = omega(reg.reg, w)
        lower, upper = (bound + np.zeros(len(reg.A)) for bound in (reg.lower, reg.upper))
        low, high = np.flatnonzero(np.isfinite(lower)), np.flatnonzero(np.isfinite(upper))
        rows = [reg.A[low] @ w >= lower[low]] * bool(len(low)) + [reg.A[high] @ w <= upper[high]] * bool(
            len(high)
        )
        return inner, domain + rows
    if isinstance(reg, Entropy):
        mu = by_feature(reg.prior)
        if not reg.balanced:
            return cp.sum(cp.kl_div(w, mu)), [cp.sum(w) == mu.sum()] * reg.normalized
        u, v = cp.Variable(p), cp.Variable(p)
        total = [cp.sum(u) + cp.sum(v) == 2 * mu.sum()] * reg.normalized
        return cp.sum(cp.kl_div(u, mu) + cp.kl_div(v, mu)), [u - v == w, *total]
    if isinstance(reg, Equality):  # the distance from the unpenalized directions
        return omega(reg.reg, w - reg.C.T @ cp.Variable(len(reg.C)))
    if isinstance(reg, GroupLasso):
        groups = [np.flatnonzero(reg.groups == g) for g in range(reg.n_groups)]
        sizes = [len(g) ** 0.5 for g in groups] if reg.weights is None else reg.weights * np.ones(len(groups))
        norms = sum(size * cp.norm(w[g], 2) for size, g in zip(sizes, groups, strict=True))
        return norms + reg.ridge * cp.sum_squares(w) / 2, []
    return {
        L2: lambda: cp.sum(cp.multiply(by_feature(reg.weights), cp.square(w))) / 2,
        L1: lambda: cp.sum(cp.multiply(by_feature(reg.weights), cp.abs(w))),
        Elastic: lambda: cp.sum(cp.multiply(by_feature(reg.weights), reg.eps * cp.abs(w) + cp.square(w) / 2)),
        Quadratic: lambda: cp.quad_form(w, cp.psd_wrap(_dense(reg.K, p))) / 2,
        QNorm: lambda: cp.power(cp.pnorm(w, reg.q), reg.power) / reg.power,
    }[type(reg)](), []


def program(loss, reg, X, y, c, lam, intercept, queries, lengths):
    """The cvxpy problem of the objective."""
    p, k = X.shape[1], int(np.max(y)) + 1 if y.ndim == 1 else y.shape[1]
    if isinstance(loss, ChainCrf | ChainMaxMargin):
        w = cp.Variable(p * k + k * k + 2 * k)
        value, domain = omega(reg, w)
        return cp.Problem(cp.Minimize(lam * value + c @ chains(loss, X, y, k, lengths)(w)), domain)
    if loss.multi_output:
        loss, on_path = without_tree(loss) if hasattr(loss, "tree") else (loss, np.eye(k))
        nodes, k = on_path.shape
        w, b = cp.Variable(p * nodes), cp.Variable((1, k)) if intercept else np.zeros((1, k))
        value, domain = omega(reg, w)
        Z = X @ cp.reshape(w, (p, nodes), order="C") @ on_path + np.ones((len(X), 1)) @ b
        return cp.Problem(cp.Minimize(lam * value + c @ multi_output_losses(loss, Z, y)), domain)
    w, b = cp.Variable(p), cp.Variable() if intercept else 0.0
    value, domain = omega(reg, w)
    return cp.Problem(cp.Minimize(lam * value + risk(loss, X @ w + b, y, c, queries)), domain)


def value(loss, reg, X, y, weights, lam, w, queries=None, lengths=None):
    """J(w) without intercept, by the formulas of the program."""
    n = len(X) if lengths is None else len(lengths)
    c = np.full(n, 1 / n) if weights is None else weights / weights.sum()
    problem = program(loss, reg, X, y, c, lam, False, queries, lengths)
    (variable,) = (v for v in problem.variables() if v.shape == w.shape)
    variable.value = w
    return float(problem.objective.value)


def optimum(loss, reg, X, y, weights, lam, intercept, queries=None, lengths=None):
    """The minimum of lam Omega(w) + R(w), to 1e-8 or better. NaN if the solver fails or is inaccurate."""
    if isinstance(loss, Probit):
        return np.nan  # no cone has it; statsmodels has
    n = len(X) if lengths is None else len(lengths)
    c = np.full(n, 1 / n) if weights is None else weights / weights.sum()
    problem = program(loss, reg, X, y, c, lam, intercept, queries, lengths)
    for tol in (1e-11, 1e-9, 1e-8):
        accurate = dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), tol)
        with warnings.catch_warnings(), contextlib.suppress(cp.SolverError):
            warnings.simplefilter("ignore")  # warnings of cvxpy
            problem.solve(solver=cp.CLARABEL, **accurate)
            if problem.status == "optimal":
                return float(problem.value)
    return np.nan
