"""Sequence labeling with linear chains: conditional random fields and max-margin Markov networks."""

from __future__ import annotations

from dataclasses import field
from typing import Any, ClassVar, cast

import numpy as np
from scipy.sparse import coo_array

from riskmin.core import NDArray
from riskmin.estimators._common.base import LinearEstimator, RiskArguments, estimator
from riskmin.estimators._common.fit import (
    check_number,
    fit_objective,
    resolve_loss,
    resolve_regularizer,
    warn_unless_converged,
)
from riskmin.estimators._common.input import compute_if_dask, executor_for
from riskmin.estimators._common.labels import Classes
from riskmin.estimators.persistence.records import check_length
from riskmin.estimators.scikit_learn import check_is_fitted
from riskmin.estimators.tagger.constraints import transition_rules
from riskmin.estimators.tagger.decode import best_labels, emissions, label_marginals
from riskmin.estimators.tagger.features import names_from_arrays, names_to_arrays
from riskmin.estimators.tagger.seen_pairs import map_from_arrays, pairs_to_arrays, with_seen_pairs
from riskmin.estimators.tagger.sequences_input import (
    encode_labels,
    flatten_labels,
    normalize_sequence_weights,
    one_sequence,
    read_tokens,
    split_by_length,
    unique_labels,
    warm_start_weights,
)
from riskmin.linear_maps.chain import ChainMap, PairChainMap
from riskmin.losses.chain import ChainCrf, ChainMaxMargin
from riskmin.problem.linear_risk import linear_risk
from riskmin.problem.objective import Objective
from riskmin.solvers import get_solver


class Tags(Classes):
    """The labels of tokens, whose losses are of any number of labels."""

    def loss(self, model: Any) -> Any:
        return resolve_loss(model)


@estimator
class ChainTagger(LinearEstimator):
    r"""A linear chain that labels the tokens of sequences, with a certified objective.

    .. math:: \min_w\; J(w) = \alpha\,\Omega(w) + \frac1n \sum_{i=1}^n l(s_w(x_i, \cdot), y_i), \qquad
        s_w(x, y) = \mathrm{start}_{y_1} + \sum_t W_{y_t}^\top x_t + \sum_{t > 1} T_{y_{t-1}, y_t}
        + \mathrm{end}_{y_m},

    the mean over n sequences, where w holds all weights. The fit stops when
    :math:`J - \min J \le \text{tol} \cdot J` is proved.

    Parameters
    ----------
    loss : str or Loss
        "crf": :math:`\log \sum_{y'} \exp s_w(x, y') - s_w(x, y)`, a conditional random field. "max_margin":
        :math:`\max_{y'} s_w(x, y') + \Delta(y, y') - s_w(x, y)`, where :math:`\Delta` is the number of wrong
        labels. "max_margin_rescaled": :math:`\max_{y'} \Delta(y, y')\,(1 + s_w(x, y') - s_w(x, y))`. Or a
        loss object such as ``ChainCrf()``.
    alpha : float
        Regularization strength. CRFsuite's objective is a sum over sequences:
        its c2 is :math:`\alpha\, n / 2`, and its c1, with ``regularizer="l1"``, is :math:`\alpha\, n`.
    regularizer : str or Regularizer
        :math:`\Omega` of all weights, including transitions, starts and ends: a name of
        `riskmin.REGULARIZERS`, optionally with parameters, or an object such as ``Elastic(0.5)``.
    warm_start : bool
        Start from the weights of the last fit, for the features and labels that both fits have.
    constraints : {"bio", "iob1", "bioes", "bilou"}, list of pairs or None
        Constraints on predictions: the rules of a labeling scheme such as B-NP, I-NP and O ("bio": I-NP
        follows only B-NP or I-NP), or a list of forbidden pairs (label, next label), with None for the start
        and the end. They have no effect on the fit.
    template : {"window"}, callable or None
        How features are computed. None: the tokens are given as features. "window": the tokens are tuples
        of columns, as `riskmin.data.load_conll` returns them, and `riskmin.data.window_features` computes
        the features. Or a function that maps a sequence to the feature dicts of its tokens.
    min_count : int
        Ignore features that fewer tokens have.
    possible_states : bool
        True: every pair of feature and label has a weight. False: only pairs that occur together at a token
        of the training data, as CRFsuite by default; the other weights are zero, and not stored.

    Attributes
    ----------
    classes_ : (k,) array
        The labels, sorted.
    coef_ : (k, p) array
        W: the weights of the features for each label; a sparse array of SciPy with possible_states=False.
    transitions_ : (k, k) array
        T: scores of adjacent labels, ``transitions_[from, to]``.
    start_, end_ : (k,) arrays
        Scores of the first and the last label.
    features_ : dict of str to int, or None
        The column of each feature name; None after a fit to a matrix.
    n_samples_fit_ : int
        Number of sequences fitted.

    Notes
    -----
    Features are as sklearn-crfsuite takes them. For each token a dict: ``{"word": "the"}`` is the indicator
    "word:the", ``{"width": 2.5}`` a feature with this weight, True is 1 and False is 0; or a list of strings,
    each an indicator. There is a weight for every transition, as in CRFsuite with
    ``all_possible_transitions=True``. CRFsuite has no start and end weights; they are equivalent to features
    of the first and last tokens.

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
    # w also has transitions, starts and ends, which belong to no feature
    repeats_settings = False
    loss_aliases: ClassVar[dict[str, Any]] = {
        "crf": ChainCrf(),
        "max_margin": ChainMaxMargin(),
        "max_margin_rescaled": ChainMaxMargin(rescaled=True),
    }
    """Short names of chain losses, unambiguous for this class."""

    loss: Any = field(default="crf", kw_only=False)
    constraints: Any = None
    template: Any = None
    min_count: int = 1
    possible_states: bool = True

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.target_tags.required = True
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None, lengths: Any = None) -> ChainTagger:
        """Fit the model.

        Parameters
        ----------
        X : list of sequences, or (n_tokens, p) array or sparse matrix
            For each sequence the features of its tokens, in order: dicts, lists of strings, or one array with
            one row per token. Or the tokens of all sequences as the rows of one matrix, with `lengths`; they
            may be remote, see `LinearClassifier.fit`, with all tokens of a sequence in one partition.
        y : list of sequences of labels
            A label for each token; for a matrix, it may be one array.
        sample_weight : (n,) array, optional
            Weights >= 0, one per sequence.
        lengths : (n,) array of int, optional
            For a matrix: the number of tokens of each sequence, in order.

        Returns
        -------
        ChainTagger
            The fitted estimator itself.
        """
        loss = resolve_loss(self)  # report invalid parameters before reading the data
        self._check_parameters()
        # `read_tokens` resets attributes of the previous fit
        last = vars(self).copy() if self.warm_start and "result_" in vars(self) else None
        tokens, features = read_tokens(self, X, lengths, reset=True)
        labels = flatten_labels(compute_if_dask(y), tokens)
        # an empty sequence has no labels to fit; `predict` accepts it
        if (tokens.lengths == 0).any():
            empty = int(np.flatnonzero(tokens.lengths == 0)[0])
            raise ValueError(f"sequence {empty} is empty: leave it out, with its labels and its weight")
        classes = unique_labels(labels)
        # raises if the constraints do not match the labels, before the fit
        transition_rules(self.constraints, classes.tolist())
        codes = encode_labels(labels, classes.tolist())
        weight = normalize_sequence_weights(sample_weight, len(tokens.lengths))
        risk = linear_risk(
            tokens.X,
            codes,
            loss,
            lengths=tokens.lengths,
            sample_weight=weight,
            executor=executor_for(self, tokens.X),
            n_outputs=len(classes),
        )
        risk = risk if self.possible_states else with_seen_pairs(risk)
        objective, p = Objective(risk, resolve_regularizer(self), float(self.alpha)), tokens.X.shape[1]
        start = None if last is None else warm_start_weights(last, features, classes, p, objective)
        solver, n = get_solver(self.solver), len(tokens.lengths)
        w, _ = fit_objective(self, objective, solver, start, n_rows=n, weighted=weight is not None)
        self._set_features(cast(ChainMap, risk.linear_map).split(w), Tags(classes), features, p)
        warn_unless_converged(self)
        return self

    def _set_features(
        self, weights: tuple[Any, NDArray], known: Classes, features: dict[str, int] | None, p: int
    ) -> None:
        """Set the fitted attributes, given the emission weights and the rows of T, start and end."""
        self._labels, self.classes_, self.features_, self.n_features_in_ = known, known.values, features, p
        self.coef_, tail = weights
        self.transitions_, self.start_, self.end_ = tail[:-2], tail[-2], tail[-1]

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_number(self, "min_count", "an integer >= 1", lambda v: v >= 1 and v % 1 == 0)

    def _risk_arguments(self, X: Any, y: Any, weight: NDArray | None, **more: Any) -> RiskArguments:
        tokens, _ = read_tokens(self, X, more.get("lengths"), reset=False)
        n, lengths = len(tokens.lengths), tokens.lengths
        codes = encode_labels(flatten_labels(compute_if_dask(y), tokens), self.classes_.tolist())
        # labels of a chain loss have two columns: label index and sequence number
        labels = np.column_stack([codes, np.repeat(np.arange(n), lengths)])
        # score rows: the tokens, then k rows of transitions, the starts and the ends
        z = np.vstack([emissions(self, tokens.X), self.transitions_, self.start_, self.end_])
        c = np.full(n, 1 / n) if weight is None else weight
        return RiskArguments(z, labels, np.repeat(c, lengths))

    def _state(self) -> tuple[dict[str, NDArray], dict[str, Any]]:
        arrays, fitted = super()._state()
        pairs, numbers = pairs_to_arrays(self.coef_)
        return arrays | names_to_arrays(self.features_) | pairs, fitted | numbers

    def _restore(self, w: NDArray, fitted: dict[str, Any], arrays: dict[str, NDArray]) -> None:
        p, known = self.n_features_in_, Tags.read(fitted["labels"])
        names, k = names_from_arrays(arrays, p), len(known.values)
        if names is None and self.template is not None:
            raise ValueError("the names of its features are missing, which its template makes")
        linear_map = map_from_arrays(arrays, fitted, k, p)
        if isinstance(linear_map, PairChainMap) == self.possible_states:
            raise ValueError("its pairs of feature and label contradict its parameter possible_states")
        check_length(w, linear_map.dim(p))
        self._set_features(linear_map.split(w), known, names, p)

    # ------------------------------------------------------------ tables of weights
    @property
    def state_features_(self) -> dict[tuple[Any, Any], float]:
        """The weights of features by (feature, label), without those that are zero, as in sklearn-crfsuite.

        After a fit to a matrix without names, a feature is the number of its column.
        """
        check_is_fitted(self)
        names: Any = vars(self).get("feature_names_in_", range(self.n_features_in_))
        if self.features_ is not None:
            names = sorted(self.features_, key=self.features_.__getitem__)
        W = coo_array(self.coef_.T)
        labels = self.classes_.tolist()
        triples = zip(W.row.tolist(), W.col.tolist(), W.data.tolist(), strict=True)
        return {(names[j], labels[a]): weight for j, a, weight in triples if weight}

    @property
    def transition_features_(self) -> dict[tuple[Any, Any], float]:
        """The weights of transitions by (label, next label), without those that are zero."""
        check_is_fitted(self)
        labels = self.classes_.tolist()
        return {
            (a, b): weight
            for a, row in zip(labels, self.transitions_.tolist(), strict=True)
            for b, weight in zip(labels, row, strict=True)
            if weight
        }

    # ------------------------------------------------------------ predictions
    def predict(self, X: Any, lengths: Any = None) -> Any:
        """Predict the labels of highest score s(x, y) that satisfy `constraints` (Viterbi decoding).

        Parameters
        ----------
        X, lengths
            As in `fit`. Unknown features are ignored; a sequence may be empty.

        Returns
        -------
        list of lists
            The labels of each sequence; for a matrix with lengths, one array.
        """
        check_is_fitted(self)
        tokens, _ = read_tokens(self, X, lengths, reset=False)
        codes = best_labels(self, tokens)
        labels = self.classes_[codes]
        return labels if tokens.from_matrix else split_by_length(labels.tolist(), tokens.lengths)

    def predict_single(self, x: Any) -> list[Any]:
        """Predict the labels of one sequence, as in sklearn-crfsuite.

        Parameters
        ----------
        x : sequence
            The features of its tokens, in order: an item of the list that `predict` takes.

        Returns
        -------
        list
            A label for each token.
        """
        labels: list[Any] = self.predict(one_sequence(self, x))[0]
        return labels

    def predict_marginals(self, X: Any, lengths: Any = None) -> Any:
        """Predict the marginal probability of each label of each token, given `constraints`.

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
        if not resolve_loss(self).probabilistic:
            raise ValueError(f"loss={self.loss!r} has no probabilities: fit with loss='crf'")
        tokens, _ = read_tokens(self, X, lengths, reset=False)
        marginals = label_marginals(self, tokens)
        if tokens.from_matrix:
            return marginals
        names = self.classes_.tolist()
        return split_by_length(
            [dict(zip(names, row, strict=True)) for row in marginals.tolist()], tokens.lengths
        )

    def predict_marginals_single(self, x: Any) -> list[dict[Any, float]]:
        """Predict the marginal probabilities of the labels of one sequence, as in sklearn-crfsuite.

        Parameters
        ----------
        x : sequence
            As in `predict_single`.

        Returns
        -------
        list of dicts
            For each token the probability by label.
        """
        marginals: list[dict[Any, float]] = self.predict_marginals(one_sequence(self, x))[0]
        return marginals

    def decision_function(self, X: Any, lengths: Any = None) -> NDArray:
        """Return the emission scores of each label for each token, without transitions.

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
        """Return the token accuracy.

        Parameters
        ----------
        X, y, lengths
            As in `fit`; a token whose label was not in training counts as an error.
        sample_weight : (n,) array, optional
            Weights >= 0, one per sequence, which apply to its tokens.

        Returns
        -------
        float
            1 for perfect predictions.
        """
        check_is_fitted(self)
        tokens, _ = read_tokens(self, X, lengths, reset=False)
        labels = flatten_labels(compute_if_dask(y), tokens)
        y_true = encode_labels(labels, self.classes_.tolist(), unknown=-1.0)
        correct = y_true == best_labels(self, tokens)
        weight = normalize_sequence_weights(sample_weight, len(tokens.lengths))
        return float(
            np.average(correct, weights=None if weight is None else np.repeat(weight, tokens.lengths))
        )
