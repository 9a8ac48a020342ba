"""`riskmin cv`: choose the regularization strength by cross-validation and fit the final model with it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np

from riskmin.cli.completion import complete_metrics
from riskmin.cli.constraints import constrain
from riskmin.cli.inputs import (
    DATA_TYPE,
    PATH_TYPE,
    check_distinct_paths,
    check_writable,
    data_shape,
    describe_data_size,
    fit_summary,
    not_converged_message,
    note_zero_weights,
    reg_name,
    report_facts,
    summary_lines,
    suppress_warnings,
    verbose_option,
)
from riskmin.cli.loading import command_clock, fit_kwargs, load_for_fit, remember_source
from riskmin.cli.options import check_lams, estimator_settings, lam_options, problem_options
from riskmin.cli.output import print_pairs, print_table
from riskmin.cli.tasks.base import TASK_BEHAVIORS
from riskmin.cli.tasks.measures import score
from riskmin.core import Iterate
from riskmin.core.signals import ignore_interrupts
from riskmin.data.raw_tables.preparation import PreparedRows
from riskmin.report.progress import StatusLine, relative_gap

METRIC_SEPARATOR = r",(?!\s*\w+=)"
"""Commas between metrics; others separate the settings of one, as in "ndcg:k=5,gain=1"."""


def _parse_metrics(ctx: click.Context, param: click.Parameter, value: str | None) -> list[str]:
    """Return the names of metrics; none for the default."""
    names = [] if value is None else [name.strip() for name in re.split(METRIC_SEPARATOR, value)]
    if not all(names) or len(set(names)) < len(names):
        raise click.BadParameter(f"{value!r} must name each metric once: write roc_auc,f1.", ctx, param)
    return names


_EPILOG = """\b
Examples:
  riskmin cv train.svm --loss hinge -o best.riskmin
  riskmin cv houses.csv --target price --loss huber --reg l1 --folds 10 -o best.riskmin --report cv.html
  riskmin cv train.svm --loss logistic --lam-range 1e-4 1 --eps 0 -o best.riskmin
  riskmin cv train.svm --loss logistic --metric average_precision,f1,roc_auc -o best.riskmin

--metric takes the name of a loss for a metric: roc_area, prbep, f_beta:beta=2, precision_at_k:k=20,
ndcg:k=5, mrr, ...; or the name of a scikit-learn scorer: balanced_accuracy, neg_mean_absolute_error, ...
"""


@click.command(epilog=_EPILOG)
@click.argument("data", type=DATA_TYPE)
@click.option(
    "-o", "--output", type=PATH_TYPE, required=True, help="Where to save the model fitted to all rows."
)
@click.option("--folds", type=click.IntRange(2), default=5, show_default=True, help="Number of folds.")
@click.option(
    "--metric",
    "--scoring",
    "metrics",
    metavar="A,B,...",
    callback=_parse_metrics,
    shell_complete=complete_metrics,
    help="Metrics of the held-out rows, of which the first chooses lam (default: that of the loss, else "
    "accuracy or R^2).",
)
@lam_options
@click.option(
    "--lam-range",
    "--alpha-range",
    "lam_range",
    type=(float, float),
    metavar="LOW HIGH",
    help="Instead of a grid: find the best lam of all between two (logistic, squared and poisson with l2).",
)
@click.option(
    "--eps",
    type=float,
    default=0.0,
    show_default=True,
    help="With --lam-range: by how much another lam may be better at most.",
)
@click.option(
    "--rule",
    type=click.Choice(["best", "one-standard-error"]),
    default="best",
    show_default=True,
    help="Which lam to choose: that of the best mean score, or the largest within one standard error of it.",
)
@problem_options
@click.option("--report", type=PATH_TYPE, help="Write an HTML page with a chart of the scores.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
@verbose_option
@click.option("-q", "--quiet", is_flag=True, help="Print nothing (except with --json).")
def cv(data: Path, output: Path, report: Path | None, as_json: bool, quiet: bool, **given: Any) -> int:
    """Choose the regularization strength for DATA by cross-validation.

    In each fold a path of certified fits is computed. The strength lam with the best mean score (the largest
    one among ties) is used to fit all rows, and that model is saved. For rankings, the rows of a query stay
    in one fold. The exit code is 3 if any fit did not converge.
    """
    check_lams(given)
    if given["lam_range"] is not None and (given["lams"] is not None or given["n_lams"] is not None):
        raise click.UsageError("--lam-range takes the place of --lams and --n-lams: give one of them")
    search, scored = _estimator(given)
    check_writable(output, report)
    check_distinct_paths({"DATA": data}, {"--output": output, "--report": report})
    reading = partial(load_for_fit, quiet=quiet or as_json)
    table = command_clock(given["max_seconds"]).call(reading, data, search, given)
    constrain(search, given["linear_constraints"], table)
    TASK_BEHAVIORS[search.task].check(search, table.y, table.qid)
    with suppress_warnings(), StatusLine(quiet or as_json) as status:
        search._fold_callback = _fold_callback(status, given)
        search._range_progress = _range_progress(status, given)
        _fit(search, table, scored)
    model = search.best_estimator_
    _save(search, table, output, report, scored, title=f"{given['loss']} on {data.name}")
    facts = fit_summary(model, data_shape(model, table), model.tol)
    if as_json:
        click.echo(json.dumps(_search_facts(search, scored) | facts | {"model": str(output)}))
    elif not quiet:
        click.echo(
            f"{given['loss']} on {data.name}, {describe_data_size(model, table)}, {reg_name(model)}, "
            f"{len(search.scores_)} folds"
        )
        print_table(_cells(search, scored))
        more = [("report", str(report))] if report else []
        proved = [("proved", _proved(search))] if _has_range(search) else []
        print_pairs(
            [
                ("best lam", f"{search.alpha_:.4g}"),
                *proved,
                *summary_lines(facts),
                ("model", str(output)),
                *more,
            ]
        )
    return _report_convergence(search, facts, as_json)


def _estimator(given: dict[str, Any]) -> tuple[Any, str]:
    """Make the search estimator; also return the name of the metric that it compares."""
    from riskmin import estimators

    estimators.import_sklearn()  # for folds and scorers
    from riskmin.estimators._common.fit import resolve_regularizer
    from riskmin.estimators._common.scoring import GradeError, measure_by_name, measure_for_loss
    from riskmin.losses import get_loss

    kind, settings = estimator_settings(given)
    task = kind.task
    if task == "novelty":
        raise ValueError("novelty has no labels to score by, so there is nothing to cross-validate: use fit")
    if task == "tagging" and given["metrics"]:
        raise ValueError("taggers are compared by the accuracy of tokens: leave --metric out")
    # without --metric: the metric that the loss bounds, else the score of the estimator
    measures = [measure_by_name(name, task) for name in given["metrics"]]
    measure = measures[0] if measures else measure_for_loss(get_loss(given["loss"]))
    scoring = None if measure is None else measure.scorer
    if len(measures) > 1:
        scoring = MetricsScorer(measures)
    grid = {"alphas": given["lams"], "n_alphas": given["n_lams"] or 13, "cv": given["folds"]}
    grid["rule"] = given["rule"].replace("-", " ")
    if given["lam_range"] is not None and task not in ("classification", "regression"):
        raise ValueError("--lam-range is for sums of losses of one score per row: give --lams")
    searching: Any = {
        "classification": estimators.LinearClassifierCV,
        "regression": estimators.LinearRegressorCV,
        "ordinal": estimators.OrdinalClassifierCV,
        "ranking": estimators.LinearRankerCV,
        "tagging": estimators.ChainTaggerCV,
    }[task]
    if given["lam_range"] is not None:
        grid = {"alpha_range": given["lam_range"], "eps": given["eps"], "cv": given["folds"]}
        scoring = measures[0].name if measures else None
    model = searching(**settings, **grid, scoring=scoring)
    resolve_regularizer(model)
    defaults = {"classification": "accuracy", "regression": "R^2", "ordinal": GradeError.name}
    defaults |= {"ranking": "NDCG@10", "tagging": "accuracy of tokens"}
    return model, defaults[task] if measure is None else measure.name


def _fit(search: Any, table: PreparedRows, scored: str) -> None:
    """Run the search; errors that are due to --metric name that option."""
    try:
        search.fit(table.X, table.y, **fit_kwargs(search, table))
    # scorers of scikit-learn raise these errors without naming the option
    except AttributeError as error:
        if "predict_proba" not in str(error):
            raise
        raise ValueError(
            f"--metric {scored} needs probabilities, which {search.loss} does not give: "
            "choose another, or --loss logistic"
        ) from None
    except ValueError as error:
        if "multi_class must be in" in str(error):  # by roc_auc_score
            raise ValueError(
                "--metric roc_auc is for two classes, but the labels have more: choose roc_auc_ovr, which "
                "needs --loss logistic, or another such as accuracy"
            ) from None
        if "could not convert string to float" not in str(error):
            raise
        raise ValueError(
            f"--metric {scored} takes numbers, but the labels are words: choose another, such as accuracy"
        ) from None


def _fold_callback(status: StatusLine, given: dict[str, Any]) -> Any:
    """Return the callbacks of the folds, which report the fold, lam and the gap."""

    def callback_of(fold: str) -> Any:
        def report(iterate: Iterate, row: dict[str, float]) -> None:
            def text() -> str:
                at = f"{fold}, lam {row['lam']:.3g}, iteration {row['iteration']:.0f}"
                return f"{at}, gap {relative_gap(row):.1e}"

            if given["verbose"]:
                click.echo(f"riskmin: {text()}", err=True)
            else:
                status(text)

        return report

    return callback_of


def _range_progress(status: StatusLine, given: dict[str, Any]) -> Any:
    """Return the report of a search of a range: the best score, and the bound that closes on it."""

    def report(n_values: int, best: float, bound: float) -> None:
        text = f"{n_values} values of lam, best score {best:.6g}, none above {bound:.6g}"
        if given["verbose"]:
            click.echo(f"riskmin: {text}", err=True)
        else:
            status(lambda: text)

    return report


def _statistics(search: Any) -> list[tuple[float, float, float]]:
    """For each lam: lam, the mean score over the folds, and its standard deviation."""
    mean, sd = search.scores_.mean(axis=0), search.scores_.std(axis=0)
    return [(float(a), float(m), float(s)) for a, m, s in zip(search.alphas_, mean, sd, strict=True)]


def _has_range(search: Any) -> bool:
    """Whether all values of lam in a range were bounded."""
    return "score_bound_" in vars(search)


def _proved(search: Any) -> str:
    lo, hi = search.alpha_range
    return f"no lam between {lo:g} and {hi:g} scores above {search.score_bound_:.6g}"


def _cells(search: Any, scored: str) -> list[list[str]]:
    others = _other_metrics(search)
    rows = [
        [
            f"{lam:.4g}",
            f"{m:.6g}",
            f"+- {s:.2g}",
            *(cell for of_lam in others.values() for cell in _mean_sd(of_lam[lam])),
            "best" if lam == search.alpha_ else "",
        ]
        for lam, m, s in _statistics(search)
    ]
    return [["lam", scored, "sd", *(cell for name in others for cell in (name, "sd")), ""], *rows]


def _mean_sd(scores: list[float]) -> tuple[str, str]:
    return f"{np.mean(scores):.6g}", f"+- {np.std(scores):.2g}"


def _other_metrics(search: Any) -> dict[str, dict[float, list[float]]]:
    """The scores by metrics that do not choose lam: by metric, by lam, one per fold."""
    return search.scoring.others if isinstance(search.scoring, MetricsScorer) else {}


def _search_facts(search: Any, scored: str) -> dict[str, Any]:
    """The scores of all strengths as JSON-compatible data."""
    scores = [
        {"lam": lam, "mean": m, "sd": s, "scores": search.scores_[:, k].tolist()}
        for k, (lam, m, s) in enumerate(_statistics(search))
    ]
    others = _other_metrics(search)
    for entry in scores:
        entry["metrics"] = {name: float(np.mean(of_lam[entry["lam"]])) for name, of_lam in others.items()}
    best = {"best_lam": search.alpha_, "best_score": search.best_score_}
    bound = {"score_bound": search.score_bound_} if _has_range(search) else {}
    return best | bound | {"metric": scored, "cv": scores}


@ignore_interrupts()
def _save(
    search: Any, table: PreparedRows, output: Path, report: Path | None, scored: str, title: str
) -> None:
    from riskmin.estimators import save_model
    from riskmin.report import write_search

    model = search.best_estimator_
    # the estimator was fitted to an array: names come from the file
    remember_source(model, table)
    save_model(model, output)
    if report is not None:
        lams, others = search.alphas_.tolist(), _other_metrics(search)
        scores = {scored: search.scores_}
        scores |= {name: np.array([of_lam[lam] for lam in lams]).T for name, of_lam in others.items()}
        about = {k: v for k, v in report_facts(model, data_shape(model, table)).items() if k != "lam"}
        write_search(report, lams, scores, search.alpha_, title=title, about=about)


def _report_convergence(search: Any, facts: dict[str, Any], as_json: bool) -> int:
    """Report fits that did not converge on stderr and return the exit code."""
    # fits of the folds; the status of the final fit is in `facts`
    n_failed = search.n_not_converged_
    if n_failed and not as_json:
        click.echo(
            f"riskmin: {n_failed} of {search.scores_.size} fits of the folds did not reach the certified "
            f"gap of {search.tol:g}: raise --max-iter, --max-seconds or --tol, or leave out the smallest lam",
            err=True,
        )
    if not as_json:
        note_zero_weights(search.best_estimator_)
        if edge := search.edge():
            click.echo(
                f"riskmin: the best lam is the {edge} one tried: give others beyond it by --lams", err=True
            )
    if facts["status"] != "converged" and not as_json:
        click.echo(not_converged_message(search.best_estimator_, facts, "the last fit is "), err=True)
    return 3 if n_failed or facts["status"] != "converged" else 0


class MetricsScorer:
    """Scorer by the first of several measures, which also records the others.

    Parameters
    ----------
    measures : sequence of Measure
    """

    def __init__(self, measures: Sequence[Any]) -> None:
        self.first, *rest = measures
        self.rest = rest
        # by metric and by lam, one score per fold, in the order in which the folds end
        self.others: dict[str, dict[float, list[float]]] = {measure.name: {} for measure in rest}

    def __call__(self, model: Any, X: Any, y: Any, sample_weight: Any = None, qid: Any = None) -> float:
        """Score a fitted model on rows and labels."""
        more = {} if qid is None else {"qid": qid}
        for measure in self.rest:
            scores = self.others[measure.name].setdefault(float(model.alpha), [])
            scores.append(score(measure, model, X, y, sample_weight, **more))
        return score(self.first, model, X, y, sample_weight, **more)
