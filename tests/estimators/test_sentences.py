"""Files of sentences, chunks of labels, and the features of windows."""

import gzip

import pytest
from test_tagger import TEXT

from riskmin.data import DataError, load_conll, window_features
from riskmin.metrics import ChunkCount, chunk_counts, chunk_f1
from riskmin.metrics.chunks import chunks


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ("O I-NP I-NP O", [(1, 3, "NP")]),
        ("I-NP B-NP I-NP", [(0, 1, "NP"), (1, 3, "NP")]),
        ("B-NP I-VP I-VP", [(0, 1, "NP"), (1, 3, "VP")]),
        ("B-NP B-NP O B-NP", [(0, 1, "NP"), (1, 2, "NP"), (3, 4, "NP")]),
        ("S-NP B-NP E-NP E-NP O", [(0, 1, "NP"), (1, 3, "NP"), (3, 4, "NP")]),
        ("B-A-B I-A-B", [(0, 2, "A-B")]),
        ("B I O", [(0, 2, "")]),
        ("", []),
    ],
)
def test_chunks_agree_with_conlleval(labels, expected):
    assert chunks(labels.split()) == expected


def test_chunks_are_counted_by_type():
    true = [["B-NP", "I-NP", "O", "B-VP"], ["B-NP", "B-NP"]]
    predicted = [["B-NP", "I-NP", "I-NP", "B-VP"], ["B-NP", "I-NP"]]
    # predicted: NP(0-3), VP(3), NP(0-2); only VP is correct
    assert chunk_counts(true, predicted) == {"NP": ChunkCount(3, 2, 0), "VP": ChunkCount(1, 1, 1)}
    assert chunk_f1(true, predicted) == 2 * 1 / (4 + 3)
    assert chunk_f1(true, true) == 1
    assert chunk_f1([["O"]], [["O"]]) == 0
    count = ChunkCount(4, 3, 1)
    assert (count.precision, count.recall) == (1 / 3, 1 / 4)
    assert count.f1 == pytest.approx(2 / (3 + 4))


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_sentences_are_read(tmp_path, ending):
    text = "# text = He\n\n\n" + TEXT.replace(" ", "\t", 1) + "\n# # B-NP\n# a longer comment\n6 CD I-NP"
    (tmp_path / "a.conll").write_bytes(text.replace("\n", ending).encode())
    (tmp_path / "b.conll.gz").write_bytes(gzip.compress(text.encode()))
    for name in ("a.conll", "b.conll.gz"):
        tokens, labels = load_conll(tmp_path / name)
        assert [len(sentence) for sentence in tokens] == [8, 2, 2]
        assert tokens[1] == [("Rain", "NN"), ("fell", "VBD")]
        assert tokens[2] == [("#", "#"), ("6", "CD")]
        assert labels[1:] == [["B-NP", "B-VP"], ["B-NP", "I-NP"]]
    tokens, labels = load_conll(tmp_path / "a.conll", comments=True, target=0)
    assert tokens[0][0] == ("PRP", "B-NP")
    assert labels[-1] == ["6"]
    assert load_conll(tmp_path / "a.conll", n_columns=3).labels is None
    assert load_conll(tmp_path / "a.conll", n_columns=2).labels is not None


@pytest.mark.parametrize(
    ("text", "more", "message"),
    [
        (TEXT + "and CC", {}, "line 12: 2 columns where other tokens have 3: 'and CC'; add the missing"),
        (TEXT + "and CC O x", {}, "line 12: 4 columns where other tokens have 3.*remove the extra columns"),
        ("\n\n", {}, "it has no tokens"),
        (TEXT, {"target": 3}, "there is no column 3: it has 3 columns"),
        (TEXT, {"n_columns": 1}, "it has 3 columns where 1 columns, or 2 with labels are expected"),
        ("a\nb\n", {}, "it has one column"),
        ("caf\xe9 NN O", {}, "it is not text in utf-8"),
        (gzip.compress(TEXT.encode() * 50)[:-20].decode("latin-1"), {}, "truncated"),
    ],
)
def test_errors_in_files_name_the_line(tmp_path, text, more, message):
    path = tmp_path / "a.conll"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(DataError, match=message) as caught:
        load_conll(path, **more)
    assert str(path) in str(caught.value)


def test_window_features_follow_crfsuite():
    sentence = [(word, tag) for word, tag in zip("abcde", "vwxyz", strict=True)]
    features = window_features(sentence)
    assert len(features[2]) == 19
    assert features[2]["w[-2]"] == "a"
    assert features[2]["w[-1]|w[0]"] == "b|c"
    assert features[2]["pos[0]|pos[1]|pos[2]"] == "x|y|z"
    assert set(features[0]) == {
        *("w[0]", "w[1]", "w[2]", "w[0]|w[1]", "pos[0]", "pos[1]", "pos[2]"),
        *("pos[0]|pos[1]", "pos[1]|pos[2]", "pos[0]|pos[1]|pos[2]"),
    }
    assert [set(one) for one in window_features([("a",)])] == [{"w[0]"}]
    assert window_features([]) == []
