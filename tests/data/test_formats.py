"""The contract of all formats: the bits that were written, whatever the chunks; what is broken is refused."""

import bz2
import gzip
import lzma

import numpy as np
import pytest
import scipy.sparse as sp
from data_sets import FORMATS, bits, same
from fuzz.targets import outcome

from riskmin.data import DataError, check, convert, load

N, P = 9, 4


def drawn(seed=0, words=False):
    """Rows with zeros and numbers of all magnitudes; labels and query ids are numbers or words."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((N, P)) * np.exp(rng.uniform(-700, 700, (N, P))) * (rng.random((N, P)) < 0.6)
    X += 0.0  # sparse formats do not keep the sign of a zero
    X[0, -1] = 1.0  # so that svmlight has all columns
    if words:
        return X, np.resize(["no", "Ja", "née"], N), np.repeat(["a b", "c", "7"], 3)
    return X, rng.standard_normal(N), np.repeat([2**62 + 1, 2**62, -3], 3)


def dense(X):
    return X.toarray() if sp.issparse(X) else X


def test_the_written_bits_are_read(file_format, tmp_path):
    X, y, qid = drawn()
    data = load(file_format.write(tmp_path, X, y, qid))
    assert bits(dense(data.X)) == bits(X)
    assert bits(data.y) == bits(y)
    assert (data.qid.tolist(), data.qid.dtype) == (qid.tolist(), np.int64)
    if file_format.words:
        X, y, qid = drawn(words=True)
        (tmp_path / "words").mkdir()
        data = load(file_format.write(tmp_path / "words", X, y, qid))
        assert bits(dense(data.X)) == bits(X)
        assert (data.y.tolist(), data.qid.tolist()) == (y.tolist(), qid.tolist())


def test_stored_data_are_those_of_the_file(file_format, tmp_path):
    """By any chunks, in one shard or several, in both precisions and with more columns."""
    if file_format.suffix == ".rsk":
        with pytest.raises(ValueError, match="stored already"):
            convert(file_format.write(tmp_path, *drawn()), tmp_path / "out.rsk")
        return
    for words in (False, True)[: 1 + file_format.words]:
        X, y, qid = drawn(words=words)
        path = file_format.write(tmp_path, np.sign(X) / 3, y, qid)
        for k, chunk in enumerate([1, 340, None]):
            dtype = ["float64", "float32"][k % 2]
            settings = {"chunk_bytes": chunk, "shard_mb": [1e-6, 1][k % 2], "dtype": dtype}
            convert(path, tmp_path / "out.rsk", force=True, **settings)
            check(tmp_path / "out.rsk")
            read = load(path, dtype=dtype)
            assert read.X.dtype == dtype
            same(load(tmp_path / "out.rsk"), read)
    if not file_format.words:
        convert(path, tmp_path / "wide.rsk", n_features=9)
        same(load(tmp_path / "wide.rsk"), load(path, n_features=9))


def test_the_result_does_not_depend_on_chunks(file_format, tmp_path):
    path = file_format.write(tmp_path, *drawn())
    whole = load(path)
    for chunk in [*range(1, 12), *range(12, 1500, 93)] if file_format.text else [1]:
        same(load(path, chunk_bytes=chunk), whole)


def test_files_that_are_no_data_are_named(file_format, tmp_path):
    path = tmp_path / f"data{file_format.suffix}"
    is_store = file_format.suffix == ".rsk"
    with pytest.raises(DataError, match=f"{path.name}: there is no such (file|folder)"):
        load(path)
    for content in (b"", b"\n\n") if file_format.text else (b"", b"no such thing"):
        path.write_bytes(file_format.compress(content))
        with pytest.raises(DataError, match=path.name + r".*: .*;") as caught:
            load(path)
        assert not file_format.text or "it has no rows" in str(caught.value)
    path.unlink()
    path.mkdir()
    with pytest.raises(DataError, match="no meta.json" if is_store else f"{path.name}: this is a folder"):
        load(path)


@pytest.mark.parametrize("compress", [gzip.compress, lzma.compress, bz2.compress])
@pytest.mark.parametrize("name", ["a.svm.gz", "a.csv.xz"])
def test_damaged_archives(compress, name, tmp_path):
    row = "{} 1:{}\n" if "svm" in name else "{},{}\n"
    values = np.random.default_rng(0).random((2000, 2)).tolist()
    archive = compress("".join(row.format(*v) for v in values).encode())
    for damaged in (archive[: len(archive) // 2], archive[:9], archive[:1000] + bytes(50) + archive[1050:]):
        (tmp_path / name).write_bytes(damaged)
        with pytest.raises(DataError, match=rf"{name}: (the compressed|it cannot be read).*get it anew"):
            load(tmp_path / name)


def test_files_that_are_cut_are_refused(file_format, tmp_path):
    """But for text, which may be cut between two rows."""
    path = file_format.write(tmp_path, *drawn())
    if path.is_dir():
        pytest.skip("its arrays are cut in test_store.py")
    blob = path.read_bytes()
    for k in range(1, len(blob) - 1, max(1, len(blob) // 30)):
        path.write_bytes(blob[:k])
        message = outcome(lambda: load(path))
        plain = file_format.text and file_format.compress is bytes
        assert (plain and message is None) or path.name in message


@pytest.mark.parametrize("compress", [bytes, gzip.compress, lzma.compress, bz2.compress])
@pytest.mark.parametrize("name", ["data.svm", "data.svm.gz", "data"])
def test_compression_is_detected_by_the_first_bytes(compress, name, tmp_path):
    X, y, qid = drawn()
    path = FORMATS["svmlight"].write(tmp_path, X, y, qid)
    text = path.read_bytes()
    (tmp_path / name).write_bytes(compress(text))
    same(load(tmp_path / name, chunk_bytes=11), load(FORMATS["svmlight"].write(tmp_path, X, y, qid)))


def test_invalid_limits(file_format, tmp_path):
    path = file_format.write(tmp_path, *drawn())
    for value in (0, -1, float("nan"), float("inf"), True):
        with pytest.raises(ValueError, match="max_memory="):
            load(path, max_memory=value)
