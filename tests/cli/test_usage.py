"""Wrong arguments, data and models: exit code 2, one sentence, and no file is written or changed."""

import os

import numpy as np
import pytest

from helpers import check_sentence
from riskmin.core.persist import save_arrays

FIT, PATH, CV = ("fit two.svm -o new", "path two.svm", "cv two.svm -o new")
TAG, TABLE, NONE = "fit tags.conll", "fit two.csv -o new", "tcp://127.0.0.1:9"
TLS = "--dask tls://127.0.0.1:9"
RANK = "fit clicks.csv --loss pairwise_hinge -o new"
CV_3 = "cv two.svm -o new --lams 1 --folds 3"
CV_RANKED = "cv ranked.svm -o new --lams 0.1 --folds 3"
SENTENCES = [
    # files
    ("fit missing.svm -o new", "no such file"),
    ("fit . -o new", "folder"),
    ("fit two.svm", "--output"),
    ("fit two.svm -o no/m", "there is no folder"),
    ("fit two.svm -o .", "folder"),
    (f"fit two.svm -o {os.devnull}", "regular file"),
    (f"{FIT} --report no/r.html", "there is no folder"),
    (f"{FIT} --checkpoint no/c", "there is no folder"),
    (f"{FIT} --checkpoint two.svm", "two.svm"),
    ("fit two.svm -o two.svm", "--output and DATA are the same file"),
    ("fit two.svm -o ../{here}/two.svm", "--output and DATA are the same file"),
    ("fit two.svm -o soft.svm", "are the same file"),
    ("fit hard.svm -o two.svm", "are the same file"),
    (f"{FIT} --report two.svm", "--report and DATA are the same file"),
    (f"{FIT} --report ./new", "--report and --output are the same file"),
    (f"{FIT} --checkpoint new", "--checkpoint and --output are the same"),
    ("path two.svm -o two.svm", "--output and DATA are the same file"),
    ("cv two.svm -o two.svm", "--output and DATA are the same file"),
    ("predict two.svm data -o two.svm", "--output and MODEL are the same file"),
    ("predict hinge.model two.svm -o two.svm", "--output and DATA are the same file"),
    ("fit two.svm --validation two.csv -o two.csv", "--output and --validation are the same file"),
    ("path two.svm -o no/such/page.html", "cannot be written"),
    ("path two.svm -o .", "folder"),
    ("demo -o no/page.html", "there is no folder"),
    ("export hinge.model new.pmml", "onnx"),
    # names and values of options
    ("wrong", "wrong"),
    ("fit two.svm --wrong", "--wrong"),
    (f"{FIT} --loss wrong", "the names are"),
    (f"{FIT} --loss poisson", "y >= 0"),
    (f"{FIT} --solver wrong", "the names are"),
    (f"{FIT} --lam 0 --loss exponential", "without a penalty (alpha=0)"),
    (f"{FIT} --lam nan", "'--lam' / '--alpha': nan is not a finite number"),
    ("fit missing.svm -o new --lam inf", "'--lam' / '--alpha': inf is not a finite number"),
    ("fit missing.svm -o new --lam -1", "'--lam' / '--alpha': -1.0"),
    ("fit missing.svm -o new --tol nan", "'--tol': nan"),
    ("fit missing.svm -o new --max-seconds nan", "'--max-seconds': nan"),
    ("fit missing.svm -o new --jobs 0", "'--jobs': 0 is neither"),
    (f"{FIT} --tol -1", "--tol"),
    (f"{FIT} --max-iter 0", "--max-iter"),
    (f"{FIT} --loss precision_at_k:k=-1", "k to be a whole number >= 1"),
    (f"{FIT} --loss ordinal:costs=2", "costs"),
    ("warmup --task everything", "everything"),
    # options without effect
    (f"{FIT} --target foo", "--target names a column of a table"),
    ("fit missing.npz -o new --target 0", "--target names a column of a table"),
    (f"{FIT} --loss mrr --qid query", "--qid names a column of a table"),
    (f"{FIT} --impute mean", "--impute is for tables", "svmlight"),
    (f"{FIT} --contamination 0.2", "--contamination is for novelty"),
    (f"{FIT} --loss novelty --contamination nan", "--contamination"),
    (f"{FIT} --loss novelty --no-intercept", "--no-intercept"),
    (f"{FIT} --loss novelty --class-weight balanced", "--class-weight"),
    (f"{FIT} --loss squared --class-weight balanced", "--class-weight"),
    (f"{FIT} --loss prbep --class-weight balanced", "counts rows"),
    (f"{FIT} --loss ordinal --class-weight balanced", "--class-weight is for classification"),
    (f"{FIT} --loss ordinal --no-intercept", "--no-intercept has no effect"),
    (f"{FIT} --order a,b", "--order is for"),
    ("fit two.csv --validation two.csv --processes 2 -o new", "--validation"),
    ("fit raw.csv -o - --json", "stdout"),
    (f"{TABLE} --constraint zz<=1", "--constraint: there is no column 'zz'; the columns are"),
    (f"{TABLE} --constraint a", "'a' is no constraint: write age + 2 income <= 1"),
    (f"{TABLE} --constraint 1<=2", "'1<=2' has no weight: name a column"),
    (f"{TABLE} --constraint a$b<=1", "'a$b' is no sum of weights"),
    (f"{TABLE} --constraint a<=b<=1", "has weights at its ends: write two constraints"),
    ("fit two.svm --constraint x0<=1 --reg l1 -o new", "--constraint is for --reg l2 or elastic, not l1"),
    ("fit two.svm --constraint x0<=1 --constraint x0>=2 -o new", "contradict each other"),
    (f"{TAG} --loss chain_crf --constraint a<=1 -o new", "--constraint is for models of rows"),
    ("predict hinge.model two.svm --id name", "--id names a column of a table, but two.svm is svmlight"),
    ("predict hinge.model two.csv --id nome", "there is no column 'nome' (the ids)"),
    # labels, grades and queries
    ("fit houses.csv -o new", "but hinge takes classes", "--loss squared"),
    ("fit graded.csv --loss exponential -o new", "4 classes (best, fair, good, ...), but exponential"),
    ("fit graded.csv --loss ordinal -o new", "order is not known", "--order"),
    ("fit graded.csv --loss ordinal -o new --order poor,fair,good", "best"),
    ("fit graded.csv --loss ordinal -o new --order poor,poor", "--order"),
    (RANK, "no query ids", "--qid"),
    (f"{RANK} --qid subject", "there is no column 'subject'"),
    ("fit graded.svm --loss ndcg -o new", "no query ids", "--qid"),
    ("cv graded.svm --loss ndcg -o new", "no query ids", "--qid"),
    ("certify ranker.model graded.svm", "no query ids"),
    ("evaluate ranker.model graded.svm", "no query ids"),
    # raw tables
    ("fit raw.csv -o new", "line", "the cell is empty", "--impute median"),
    ("fit raw.csv --impute mean -o new", "'since'", "dates"),
    *((f"fit two.csv -o new --columns {text}", "--columns") for text in ("''", ",", "' '")),
    # sentences
    (f"{TAG} -o new", "holds sentences, which are for taggers: fit one by --loss chain_crf"),
    (f"{TAG} --constraints bio -o new", "--constraints is for tagging"),
    (f"{TAG} --loss chain_crf --target pos -o new", "columns have no names"),
    (f"{TAG} --loss chain_crf --positive -o new", "--positive is for models of rows"),
    (f"{TAG} --loss chain_crf --standardize -o new", "--standardize is for models"),
    ("path tags.conll --loss chain_crf", "path is for models of rows"),
    ("cv tags.conll --loss chain_crf --metric accuracy -o new", "are compared by the accuracy of tokens"),
    # where the rows are
    (f"{TABLE} --dask {NONE} --mpi", "--dask and --mpi exclude each other"),
    (f"{TABLE} --processes 2 --dask {NONE}", "--processes and --dask exclude each other"),
    (f"{TABLE} --processes 2 --jobs 2", "--jobs is for threads of this process"),
    (f"{TABLE} --dask scheduler", "write tcp://HOST:PORT"),
    (f"{TABLE} --tls-ca ca.pem", "--tls-ca is for --dask tls://"),
    (f"{TABLE} {TLS}", "needs certificates"),
    (f"{TABLE} {TLS} --tls-key no.pem", "there is no file no.pem"),
    (f"fit two.svm {TLS} --tls-key key --tls-cert key --tls-ca key -o key", "certificates cannot be used"),
    (f"{TABLE} --processes 2 --loss chain_crf", "a tagger extracts its features from all sentences"),
    ("fit two.csv other.csv -o new", "other.csv: its column 'z' is where"),
    (f"{TABLE} --device cuda", "device='cuda': CuPy", "or use the CPU"),
    # path and cv
    (f"{PATH} --lams 1,x", "'1,x' is no list of numbers: write 1,0.1,0.01"),
    (f"{PATH} --lams 1,-1", "must hold finite numbers > 0"),
    (f"{PATH} --lams 1 --n-lams 3", "--lams and --n-lams exclude each other"),
    (f"{PATH} --reg lasso", "there is no regularizer named 'lasso'", "elastic"),
    (f"{PATH} --solver owlqn", "OwlQn needs a smooth loss", "use Bundle"),
    (f"{PATH} --solver line_search_bmrm --reg l1", "LineSearchBmrm needs a differentiable conjugate"),
    (f"{CV} --loss novelty", "novelty has no labels to score by"),
    (f"{CV} --scoring neg_log_loss", "needs probabilities, which hinge does not give"),
    (f"{CV} --folds 1", "--folds"),
    (f"{CV} --loss squared --class-weight balanced", "--class-weight is for classification"),
    (f"{CV_3} --loss precision_at_k:k=50", "k=50 rows, but there are 40", "in fold 1 of 3"),
    (f"{CV_3} --scoring recall_at_k:k=50", "k=50, but there are 20 rows", "in fold 1 of 3"),
    (f"{CV_3} --scoring ordinal", "no scorer named 'ordinal'", "roc_area, prbep"),
    (f"{CV_3} --metric f1,f1", "each metric once"),
    (f"{CV_RANKED} --loss ndcg --folds 13", "queries", "12"),
    (f"{CV_RANKED} --loss ndcg --scoring roc_area", "no measure for ranking", "mrr"),
    (
        "cv graded.csv --loss ordinal --order poor,fair,good,best --lams 1 --scoring r2 -o new",
        "--metric r2 takes numbers, but the labels are words",
    ),
    (
        "cv graded.csv --loss logistic --lams 1 --folds 2 --metric roc_auc -o new",
        "--metric roc_auc is for two classes",
        "choose roc_auc_ovr",
    ),
    # models
    ("predict missing two.svm", "missing"),
    ("predict two.svm two.svm", "not a whole riskmin file"),
    ("predict short.model two.svm", "truncated"),
    ("predict hinge.model two.svm --proba", "logistic"),
    ("predict hinge.model two.svm --proba --scores", "exclude"),
    ("predict hinge.model two.svm -o no/out", "no folder"),
    ("predict hinge.model narrow.csv", "1 features where 4 are expected"),
    ("evaluate hinge.model strange.svm", "the label 0 is none of the model's"),
    ("evaluate hinge.model two.svm --weight w", "--weight names a column of a table"),
    ("certify ordinal.model strange.svm", "the grade 9 is none of the model's"),
    ("evaluate ordinal.model good.csv", "words"),
    ("evaluate reversed.model strange.svm", "the grade 9 is none"),
    ("predict ordinal.model graded.svm --proba", "logistic"),
    ("evaluate ranker.model good.csv", "not numbers"),
    ("predict ranker.model ranked.svm --qid a", "--qid names a column of a table"),
    # values that are nested too deeply
    *((f"fit -o new --owners {deep}", deep) for deep in ("lists", "toml", "json")),
    *((f"{FIT} --config {deep}", deep) for deep in ("lists", "toml", "json")),
    *((f"show {deep}", deep) for deep in ("lists", "toml", "json", "nested")),
    ("serve two.csv --name x --ca lists --cert lists --key lists --policy lists", "riskmin"),
]  # fmt: skip


@pytest.fixture(scope="module")
def here(files):
    """The shared files, with links to one, and files that do not fit the models."""
    (files / "soft.svm").symlink_to(files / "two.svm")
    (files / "hard.svm").hardlink_to(files / "two.svm")
    (files / "short.model").write_bytes((files / "hinge.model").read_bytes()[:200])
    (files / "key").write_text("secret")
    (files / "narrow.csv").write_text("x0,x1\n1,1\n")
    (files / "other.csv").write_text("a,b,z,d,label\n1,2,3,4,1\n")
    (files / "tags.conll").write_text("Rain NN B-NP\nfell VBD B-VP\n")
    (files / "strange.svm").write_text("9 1:1\n0 1:2\n")
    (files / "good.csv").write_text("a,b,c,d,qid,y\n1,2,3,4,5,good\n")
    deep = {"lists": "[" * 200_000, "toml": "a = " + "[" * 9000, "json": '{"a":' * 100_000}
    for name, text in deep.items():
        (files / name).write_text(text)
    nested: list = []
    for _ in range(700):
        nested = [nested]
    save_arrays(files / "nested", {"x": np.zeros(1)}, {"kind": "model", "sha256": nested})
    return files


def state_of(folder):
    return {path.name: (path.stat().st_size, path.stat().st_mtime_ns) for path in folder.iterdir()}


@pytest.mark.parametrize(("command", "words"), [(c, w) for c, *w in SENTENCES], ids=[s[0] for s in SENTENCES])
def test_invalid_usage(command, words, here, monkeypatch, run):
    if TLS in command:
        pytest.importorskip("distributed")
    monkeypatch.chdir(here)
    before = state_of(here)
    args = [arg.strip("'").format(here=here.name) for arg in command.split(" ")]
    check_sentence(run(*args), *words)
    assert state_of(here) == before


BAD_FILES = {
    "nan.svm": ("1 1:1\n-1 1:nan\n", "hinge", "line 2"),
    "empty.svm": ("", "hinge", "no rows"),
    "one.svm": ("1 1:1\n1 1:2\n", "hinge", "one class"),
    "fake.npz": ("PK no zip", "hinge", "fake.npz"),
    "order.csv": ("x,y\n1,very good\n2,< bad\n", "ordinal", "by --order '< bad,very good'"),
    "some.svm": ("2 qid:1 1:1\n0 1:2\n", "ndcg", "line 2: the row has no qid"),
    "alone.svm": ("2 qid:1 1:1\n0 qid:2 1:2\n", "pairwise_hinge", "no query has rows of two"),
    "same.svm": ("2 qid:1 1:1\n2 qid:1 1:2\n", "ndcg", "no query has rows of two"),
    "minus.svm": ("-1 qid:1 1:1\n2 qid:1 1:2\n", "ndcg", "grades >= 0"),
    "text.csv": ("a,qid,y\n1,1,good\n2,1,bad\n", "mrr", "words"),
    "empty.csv": ("a,qid,y\n1,1,2\n2,,1\n", "mrr", "line 3: column 'qid': the cell is empty"),
    "grade.svm": ("3 1:1\n3 1:2\n", "ordinal", "one grade (3)"),
    "short.svm": ("1 1:1\n-1 1:2\n1 1:3\n-1 1:4\n", "precision_at_k:k=9", "k=9"),
    "three.svm": ("1 1:1\n2 1:2\n3 1:3\n", "prbep", "3 classes"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_invalid_data(name, tmp_path, run):
    """An older model is kept."""
    text, loss, words = BAD_FILES[name]
    (tmp_path / name).write_text(text)
    (tmp_path / "m").write_text("old")
    for command in ("fit", "path", "cv"):
        output = ["-o", tmp_path / "m", *(["--folds", "2"] if command == "cv" else [])]
        check_sentence(run(command, tmp_path / name, "--loss", loss, *output), words)
    assert {each.name: each.read_text() for each in tmp_path.iterdir()} == {name: text, "m": "old"}


def test_deeply_nested_logs_are_refuted(here, run):
    for name in ("lists", "toml", "json"):
        assert run("audit", "log", here / name)[0] == 1


def test_outputs_within_an_input_are_refused(files, tmp_path, run):
    """By name, through links to the folder, and as links to files in it."""
    stored, svm, model = tmp_path / "d.rsk", files / "two.svm", files / "hinge.model"
    assert run("convert", svm, stored, "--quiet")[0] == 0
    before = {path: path.read_bytes() for path in stored.iterdir()}
    link, free = tmp_path / "link.rsk", tmp_path / "m"
    link.symlink_to(stored)
    (tmp_path / "soft").symlink_to(stored / "y.npy")
    (tmp_path / "hard").hardlink_to(stored / "y.npy")
    (tmp_path / "inner").symlink_to(stored / "new")
    places = [stored / "data.npy", stored / "new", link / "new"]
    places += [tmp_path / name for name in ("soft", "hard", "inner")]
    for k, inside in enumerate(places):
        commands = [
            ["fit", stored, "-o", inside],
            ["fit", svm, stored, "-o", inside],
            ["fit", link, "-o", inside],
            ["fit", stored, "-o", free, "--checkpoint", inside],
            ["fit", stored, "-o", free, "--report", inside],
            ["path", stored, "-o", inside],
            ["cv", stored, "-o", inside],
            ["cv", stored, "-o", free, "--report", inside],
            ["predict", model, stored, "-o", inside],
        ]
        for args in commands[k % 2 :: 2]:
            check_sentence(run(*args), "name another")
    assert {path: path.read_bytes() for path in stored.iterdir()} == before
    assert not free.exists()


# ---------------------------------------------------------------- config files
VALUES = ("true", "[true]", "{}", "{a = 1}", "[{a = 1}]", "[[1], [2]]")
OPTIONS = ("checkpoint", "lam", "target", "columns", "loss", "max-memory", "order", "jobs", "output", "data")
SECTIONS = [
    *("fit = 3", "fit = 'x'", "[[fit]]", "[fitt]", "positive = 3", "config = 'x'", "[fit.loss]"),
    "loss = " + "[" * 9000,
    *(f"{head}{option} = {value}" for option in OPTIONS for head in ("", "[fit]\n") for value in VALUES),
]
MESSAGES = {
    "los = 1": "there is no option 'los': did you mean 'loss'?",
    "lam = ": "cannot be read",
    "lam = 'much'": "'much' is not a valid float",
}


def test_invalid_config_files(files, tmp_path, run):
    config = tmp_path / "c.toml"
    for text in [*SECTIONS, *MESSAGES]:
        config.write_text(text + "\n")
        completed = run("fit", files / "two.csv", "-o", tmp_path / "m", "--config", config)
        check_sentence(completed, MESSAGES.get(text, "riskmin: "))
    assert [path.name for path in tmp_path.iterdir()] == ["c.toml"]


def test_more_threads_than_a_machine_has(files, tmp_path, run):
    assert run("fit", files / "two.svm", "-o", tmp_path / "m", "--jobs", 10**14)[0] == 0
