"""Labels for the tokens of sequences: chain models, as conditional random fields and with maximal margins."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from riskmin.estimators.base import (
    check_number,
    check_parameters,
    fit_objective,
    loss_of,
    regularizer_of,
    warn_unless_converged,
)
from riskmin.estimators.rows import executor_for, here
from riskmin.estimators.tagger_decode import best_labels, emissions, probabilities
from riskmin.estimators.tagger_input import (
    flat_labels,
    label_codes,
    labels_of,
    last_weights,
    read_tokens,
    split,
    weights_of,
)
from riskmin.estimators.tagger_rules import rules_of
from riskmin.linear import linear_risk
from riskmin.losses.chain import ChainCrf, ChainMaxMargin
from riskmin.objective import Objective
from riskmin.solvers import get_solver
from riskmin.types import NDArray


class ChainTagger(BaseEstimator):  # type: ignore[misc] # scikit-learn has no types
    r"""A linear chain that labels the tokens of sequences, with a certified objective.

    .. math:: \min_w\; J(w) = \alpha\,\Omega(w) + \frac1n \sum_{i=1}^n l(s_w(x_i, \cdot), y_i), \qquad
        s_w(x, y) = \mathrm{start}_{y_1} + \sum_t W_{y_t}^\top x_t + \sum_{t > 1} T_{y_{t-1}, y_t}
        + \mathrm{end}_{y_m},

    the mean over n sequences, w all weights together. The fit ends when
    :math:`J - \min J \le \text{tol} \cdot J` is proved.

    Parameters
    ----------
    loss : str or Loss
        "crf": :math:`\log \sum_{y'} \exp s_w(x, y') - s_w(x, y)`, a conditional random field. "max_margin":
        :math:`\max_{y'} s_w(x, y') + \Delta(y, y') - s_w(x, y)`, where :math:`\Delta` is the number of wrong
        labels. "max_margin_rescaled": :math:`\max_{y'} \Delta(y, y')\,(1 + s_w(x, y') - s_w(x, y))`. Or a
        loss object such as ``ChainCrf()``.
    alpha : float
        The strength of the regularizer. CRFsuite's objective is a sum over sequences:
        its c2 is :math:`\alpha\, n / 2`, and its c1, with ``regularizer="l1"``, is :math:`\alpha\, n`.
    regularizer : str or Regularizer
        As in `LinearClassifier`. It acts on all weights, those of transitions, starts and ends too.
    solver, tol, atol, max_iter, max_seconds, n_jobs, callback, checkpoint, verbose
        As in `LinearClassifier`.
    warm_start : bool
        Start from the weights of the last fit, for the features and labels that are in both.
    constraints : {"bio", "iob1", "bioes", "bilou"}, list of pairs or None
        What predictions keep to: the rules of a scheme of labels such as B-NP, I-NP and O ("bio": I-NP comes
        after B-NP or I-NP alone), or a list of the pairs (label, next label) that are forbidden, with None
        for the start and the end. They play no part in the fit.
    template : {"window"}, callable or None
        How features are made. None: the tokens come with features. "window": the tokens are tuples of
        columns, as `riskmin.data.load_conll` gives them, and `riskmin.data.window_features` makes the
        features; or a function of your own from a sequence to the feature dicts of its tokens.
    min_count : int
        Leave out features that fewer tokens have.

    Attributes
    ----------
    classes_ : (k,) array
        The labels, in order.
    coef_ : (k, p) array
        W: the weights of the features for each label.
    transitions_ : (k, k) array
        T: what a label adds after another, ``transitions_[from, to]``.
    start_, end_ : (k,) arrays
        What the first and the last label add.
    features_ : dict of str to int, or None
        The column of each feature by its name; None after a fit to a matrix.
    objective_, lower_bound_, gap_ : float
        J at the weights, what min J is proved not to be below, and their difference.
    n_iter_, result_, weighted_, n_features_in_
        As in `LinearClassifier`.
    n_samples_fit_ : int
        How many sequences were fitted.

    Notes
    -----
    Features are as sklearn-crfsuite takes them. For each token a dict: ``{"word": "the"}`` is the indicator
    "word:the", ``{"width": 2.5}`` a feature with this weight, True is 1 and False is 0; or a list of strings,
    each an indicator. There is a weight for every feature and label, also where they never meet in training,
    and for every transition: CRFsuite's with ``all_possible_states=True, all_possible_transitions=True``.
    CRFsuite has no start and end weights; they are as features of the first and last tokens would be.

    References
    ----------
    J. Lafferty, A. McCallum and F. Pereira, Conditional random fields, ICML 2001.
    B. Taskar, C. Guestrin and D. Koller, Max-margin Markov networks, NIPS 2003.

    Examples
    --------
    >>> from riskmin import ChainTagger
    >>> X = [[{"word": "the"}, {"word": "cat"}, {"word": "sleeps"}], [{"word": "the"}, {"word": "dog"}]]
    >>> y = [["B-NP", "I-NP", "O"], ["B-NP", "I-NP"]]
    >>> model = ChainTagger("crf", alpha=1e-3, constraints="bio").fit(X, y)
    >>> model.predict([[{"word": "the"}, {"word": "mouse"}]])
    [['B-NP', 'I-NP']]
    >>> model.gap_ <= model.tol * model.objective_
    True
    """

    task = "tagging"
    positive = False
    nicknames: ClassVar[dict[str, Any]] = {
        "crf": ChainCrf(),
        "max_margin": ChainMaxMargin(),
        "max_margin_rescaled": ChainMaxMargin(rescaled=True),
    }
    """What losses are called where they can only be of chains."""

    def __init__(
        self,
        loss: Any = "crf",
        *,
        alpha: float = 1e-4,
        regularizer: Any = "l2",
        solver: Any = None,
        tol: float = 1e-3,
        atol: float | None = None,
        max_iter: int = 10_000,
        max_seconds: float | None = None,
        warm_start: bool = False,
        n_jobs: int | None = None,
        callback: Any = None,
        checkpoint: Any = None,
        verbose: bool = False,
        constraints: Any = None,
        template: Any = None,
        min_count: int = 1,
    ) -> None:
        self.loss = loss
        self.alpha = alpha
        self.regularizer = regularizer
        self.solver = solver
        self.tol = tol
        self.atol = atol
        self.max_iter = max_iter
        self.max_seconds = max_seconds
        self.warm_start = warm_start
        self.n_jobs = n_jobs
        self.callback = callback
        self.checkpoint = checkpoint
        self.verbose = verbose
        self.constraints = constraints
        self.template = template
        self.min_count = min_count

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.input_tags.sparse = True
        tags.target_tags.required = True
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None, lengths: Any = None) -> ChainTagger:
        """Fit the model.

        Parameters
        ----------
        X : list of sequences, or (n_tokens, p) array or sparse matrix
            For each sequence the features of its tokens, in order: dicts, lists of strings, or one array with
            a row a token. Or the tokens of all sequences as the rows of one matrix, with `lengths`; they may
            be elsewhere, see `LinearClassifier.fit`, with all tokens of a sequence in one part.
        y : list of sequences of labels
            A label for each token; for a matrix, it may be one array.
        sample_weight : (n,) array, optional
            Weights >= 0, one a sequence.
        lengths : (n,) array of int, optional
            For a matrix: the number of tokens of each sequence, in order.

        Returns
        -------
        ChainTagger
            Itself.
        """
        loss = loss_of(self)  # what is wrong with parameters is said before the data are looked at
        check_parameters(self)
        check_number(self, "min_count", "an integer >= 1", lambda v: v >= 1 and v == int(v))
        last = vars(self).copy() if self.warm_start and hasattr(self, "result_") else None
        tokens, features = read_tokens(self, X, lengths, reset=True)
        labels = flat_labels(here(y), tokens)
        if (tokens.lengths == 0).any():
            empty = int(np.flatnonzero(tokens.lengths == 0)[0])
            raise ValueError(f"sequence {empty} is empty: leave it out, with its labels and its weight")
        classes = labels_of(labels)
        rules_of(self.constraints, classes.tolist())
        codes = label_codes(labels, classes.tolist())
        weight = weights_of(sample_weight, len(tokens.lengths))
        risk = linear_risk(
            tokens.X,
            codes,
            loss,
            lengths=tokens.lengths,
            sample_weight=weight,
            executor=executor_for(self, tokens.X),
            n_outputs=len(classes),
        )
        objective = Objective(risk, regularizer_of(self), float(self.alpha))
        start = None if last is None else last_weights(last, features, classes, risk.dim, objective)
        solver, n = get_solver(self.solver), len(tokens.lengths)
        w, _ = fit_objective(self, objective, solver, start, n_rows=n, weighted=weight is not None)
        self._keep(w, classes, features, tokens.X.shape[1])
        warn_unless_converged(self)
        return self

    def _keep(self, w: NDArray, classes: NDArray, features: dict[str, int] | None, p: int) -> None:
        """Set what predictions need."""
        k = len(classes)
        self.classes_, self.features_, self.n_features_in_ = classes, features, p
        self.coef_ = w[: p * k].reshape(p, k).T
        self.transitions_ = w[p * k : p * k + k * k].reshape(k, k)
        self.start_, self.end_ = w[-2 * k : -k], w[-k:]

    def predict(self, X: Any, lengths: Any = None) -> Any:
        """The labels of the highest score s(x, y) among all that keep to `constraints`.

        Parameters
        ----------
        X, lengths
            As in `fit`. Features that were not seen there are left out; a sequence may be empty.

        Returns
        -------
        list of lists
            The labels of each sequence; for a matrix with lengths, one array.
        """
        check_is_fitted(self)
        tokens, _ = read_tokens(self, X, lengths, reset=False)
        codes = best_labels(self, tokens)
        found = self.classes_[codes]
        return found if tokens.flat else split(found.tolist(), tokens.lengths)

    def predict_marginals(self, X: Any, lengths: Any = None) -> Any:
        """The probability of each label of each token, among all labellings that keep to `constraints`.

        Only conditional random fields have probabilities.

        Parameters
        ----------
        X, lengths
            As in `predict`.

        Returns
        -------
        list of lists of dicts
            For each token the probability by label; for a matrix with lengths, an array of shape
            (n_tokens, k) with a column for each of `classes_`.
        """
        check_is_fitted(self)
        if not isinstance(loss_of(self), ChainCrf):
            raise ValueError(f"loss={self.loss!r} has no probabilities: fit with loss='crf'")
        tokens, _ = read_tokens(self, X, lengths, reset=False)
        found = probabilities(self, tokens)
        if tokens.flat:
            return found
        names = self.classes_.tolist()
        return split([dict(zip(names, row, strict=True)) for row in found.tolist()], tokens.lengths)

    def decision_function(self, X: Any, lengths: Any = None) -> NDArray:
        """The scores of each label for each token by itself, before transitions are looked at.

        Parameters
        ----------
        X, lengths
            As in `predict`.

        Returns
        -------
        (n_tokens, k) array
        """
        check_is_fitted(self)
        return emissions(self, read_tokens(self, X, lengths, reset=False)[0].X)

    def score(self, X: Any, y: Any, sample_weight: Any = None, lengths: Any = None) -> float:
        """The share of the tokens that get the right label.

        Parameters
        ----------
        X, y, lengths
            As in `fit`; a label that was not seen there raises a ValueError that names it.
        sample_weight : (n,) array, optional
            Weights >= 0, one a sequence; its tokens weigh so.

        Returns
        -------
        float
            1 for perfect predictions.
        """
        check_is_fitted(self)
        tokens, _ = read_tokens(self, X, lengths, reset=False)
        right = label_codes(flat_labels(here(y), tokens), self.classes_.tolist()) == best_labels(self, tokens)
        weight = weights_of(sample_weight, len(tokens.lengths))
        return float(np.average(right, weights=None if weight is None else np.repeat(weight, tokens.lengths)))
