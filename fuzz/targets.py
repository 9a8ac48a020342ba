"""One function per reader or loader, which takes bytes and raises on any unexpected outcome."""

from __future__ import annotations

import io
import struct
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from fuzz import mutate, seeds

NAMES = [
    "X",
    "y",
    "qid",
    "feature_names",
    "format",
    "shape",
    "data",
    "indices",
    "indptr",
    "row",
    "col",
    "offsets",
]


@cache
def _folder() -> Path:
    folder = tempfile.TemporaryDirectory()
    _folders.append(folder)
    return Path(folder.name)


_folders: list[Any] = []


def outcome(f: Callable[[], Any]) -> str | None:
    """The message of an expected error, or None after a success; anything else is raised."""
    try:
        f()
    except ValueError as error:  # includes DataError and FileError
        message = str(error)
        if not message or not message.isprintable():
            raise AssertionError(f"not one printable line: {message!r}") from error
        return message
    return None


def _file(name: str, blob: bytes) -> Path:
    path = _folder() / name
    path.write_bytes(blob)
    return path


def _loads(name: str, **settings: Any) -> Callable[[bytes], str | None]:
    def target(blob: bytes) -> str | None:
        from riskmin.data import load

        path = _file(name, blob)
        # small limits bound the time; labels are optional for half of the inputs
        return outcome(lambda: load(path, require_labels=len(blob) % 2 == 0, max_memory=16, **settings))

    return target


def _prepares(name: str) -> Callable[[bytes], str | None]:
    """A raw table: prepared, and read once more by its own preparation."""

    def target(blob: bytes) -> str | None:
        from riskmin.data.limits import memory_limited
        from riskmin.data.raw_tables.fitting import TableOptions, prepare

        path = _file(name, blob)
        # half of the inputs may have missing cells, a third need labels
        options = TableOptions(impute="mean" if len(blob) % 2 else None, min_frequency=1 + len(blob) % 5)

        def twice() -> None:
            with memory_limited(16), np.errstate(over="ignore"):
                rows = prepare([path], options, require_labels=len(blob) % 3 == 0)
                assert rows.preparation is not None
                again = rows.preparation.read([path])
            assert not again.notes
            assert (again.X != rows.X).sum() == 0

        return outcome(twice)

    return target


def conll(blob: bytes) -> str | None:
    """A file of sentences in CoNLL format."""
    from riskmin.data import load_conll
    from riskmin.data.limits import memory_limited

    def read() -> None:
        with memory_limited(16):
            load_conll(_file("d.conll", blob))

    return outcome(read)


def npz_arrays(blob: bytes) -> str | None:
    """A .npz file whose members are length-prefixed parts of the bytes, which bypasses the archive's CRC."""
    from riskmin.data import load

    members, offset = {}, 0
    for name in NAMES:
        if offset + 3 > len(blob):
            break
        size = struct.unpack_from("<H", blob, offset + 1)[0]
        if blob[offset] % 4:
            members[f"{name}.npy"] = blob[offset + 3 : offset + 3 + size]
        offset += 3 + size
    path = _file("d.npz", mutate.archive(members))
    return outcome(lambda: load(path, max_memory=16))


def packed(arrays: dict[str, np.ndarray]) -> bytes:
    """The bytes from which `npz_arrays` builds an archive of these arrays."""
    out = io.BytesIO()
    for name in NAMES:
        body = mutate.npy(arrays[name]) if name in arrays else b""
        out.write(bytes([1 if body else 0]) + struct.pack("<H", len(body)) + body)
    return out.getvalue()


def meta(blob: bytes) -> str | None:
    """The meta.json of stored data."""
    from riskmin.data import check, load

    path = _store(0, {"meta.json": blob})
    return outcome(lambda: check(path)) or outcome(lambda: load(path, verify=False))


def arrays(blob: bytes) -> str | None:
    """The indices of stored data, loaded without verification of checksums."""
    from riskmin.data import load

    files = seeds.stores()[0]
    file_name = "indptr.npy" if blob[:1] < b"\x80" else "indices.npy"
    path = _store(0, {file_name: files[file_name][:128] + blob[1:]})
    return outcome(lambda: load(path, verify=False).X.sum())


def _store(file_name: int, files: dict[str, bytes]) -> Path:
    path = _folder() / "d.rsk"
    path.mkdir(exist_ok=True)
    for name, blob in (seeds.stores()[file_name] | files).items():
        (path / name).write_bytes(blob)
    from riskmin.data.store import reader

    reader._cached_store.cache_clear()  # its key includes the modification time, which may not change
    return path


def model(blob: bytes) -> str | None:
    """A model file."""
    from riskmin import load_model

    path = _file("m.riskmin", blob)
    return outcome(lambda: load_model(path))


def model_meta(blob: bytes) -> str | None:
    """The metadata of a model file, with a valid checksum."""
    import json

    from riskmin import load_model
    from riskmin.estimators.persistence.model_file import checksum

    try:
        metadata = json.loads(blob)
    except (ValueError, RecursionError):
        return None
    if not isinstance(metadata, dict):
        return None
    kind = list(seeds.models().values())[len(blob) % len(seeds.models())][0]
    metadata.pop("sha256", None)
    path = _file("m.riskmin", mutate.tensors(kind, metadata | {"sha256": checksum(kind, metadata)}))
    return outcome(lambda: load_model(path))


def owner_message(blob: bytes) -> str | None:
    """A request to a data owner."""
    from riskmin.owners.wire.codec import decode

    return outcome(lambda: decode(blob, 2**20))


TARGETS: dict[str, Callable[[bytes], str | None]] = {
    "svmlight": _loads("d.svm"),
    "multilabel": _loads("d.svm", multilabel=True),
    "csv": _loads("d.csv"),
    "tsv": _loads("d.tsv"),
    "gz": _loads("d.csv.gz"),
    "npz": _loads("d.npz"),
    "npz_arrays": npz_arrays,
    "parquet": _loads("d.parquet"),
    "raw_csv": _prepares("d.csv"),
    "raw_parquet": _prepares("d.parquet"),
    "conll": conll,
    "meta": meta,
    "arrays": arrays,
    "model": model,
    "model_meta": model_meta,
    "owner_message": owner_message,
}


def examples(name: str) -> list[bytes]:
    """Valid inputs of a target."""
    import gzip
    import json

    files = seeds.stores()[0]
    text = {
        "svmlight": [seeds.SVMLIGHT, seeds.QUERIES],
        "multilabel": [seeds.SVMLIGHT, b"1,2 1:1\n2 2:1\n"],
        "csv": [seeds.CSV, seeds.PLAIN],
        "tsv": [seeds.TSV],
        "gz": [gzip.compress(seeds.CSV)],
        "raw_csv": [seeds.CSV, seeds.RAW],
        "conll": [seeds.CONLL],
    }
    if name in text:
        return text[name]
    if name in ("parquet", "raw_parquet"):
        return [seeds.parquet()]
    if name in ("npz", "npz_arrays"):
        encode = (
            (lambda a: mutate.archive({f"{k}.npy": mutate.npy(v) for k, v in a.items()}))
            if name == "npz"
            else packed
        )
        return [encode(a) for a in seeds.npz_arrays()]
    if name == "meta":
        return [files["meta.json"]]
    if name == "arrays":
        return [b"\x00" + files["indptr.npy"][128:], b"\xff" + files["indices.npy"][128:]]
    if name == "owner_message":
        return [seeds.owner_message()]
    if name == "model":
        return [mutate.tensors(*content) for content in seeds.models().values()]
    return [json.dumps(metadata).encode() for _, metadata in seeds.models().values()]
