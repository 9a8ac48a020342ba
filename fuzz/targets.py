"""One function a reader or loader: bytes in, and what is no expected end is raised."""

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
    held = tempfile.TemporaryDirectory()
    _kept.append(held)
    return Path(held.name)


_kept: list[Any] = []


def settled(f: Callable[[], Any]) -> str | None:
    """The message of an expected error, None of a success; anything else is raised."""
    try:
        f()
    except ValueError as error:  # DataError and FileError are some
        said = str(error)
        if not said or not said.isprintable():
            raise AssertionError(f"not one printable line: {said!r}") from error
        return said
    return None


def _file(name: str, blob: bytes) -> Path:
    path = _folder() / name
    path.write_bytes(blob)
    return path


def _loads(name: str, **settings: Any) -> Callable[[bytes], str | None]:
    def target(blob: bytes) -> str | None:
        from riskmin.data import load

        path = _file(name, blob)
        # small limits, so that no input takes long; labels or none, as predictions have them
        return settled(lambda: load(path, require_labels=len(blob) % 2 == 0, max_memory=16, **settings))

    return target


def conll(blob: bytes) -> str | None:
    """Sentences."""
    from riskmin.data import load_conll
    from riskmin.data.limits import memory_limited

    def read() -> None:
        with memory_limited(16):
            load_conll(_file("d.conll", blob))

    return settled(read)


def npz_arrays(blob: bytes) -> str | None:
    """A .npz file whose members are these bytes, cut at zeros' lengths: past the archive's own checks."""
    from riskmin.data import load

    members, at = {}, 0
    for name in NAMES:
        if at + 3 > len(blob):
            break
        size = struct.unpack_from("<H", blob, at + 1)[0]
        if blob[at] % 4:
            members[f"{name}.npy"] = blob[at + 3 : at + 3 + size]
        at += 3 + size
    path = _file("d.npz", mutate.archive(members))
    return settled(lambda: load(path, max_memory=16))


def packed(arrays: dict[str, np.ndarray]) -> bytes:
    """The bytes that `npz_arrays` makes an archive of these arrays of."""
    out = io.BytesIO()
    for name in NAMES:
        body = mutate.npy(arrays[name]) if name in arrays else b""
        out.write(bytes([1 if body else 0]) + struct.pack("<H", len(body)) + body)
    return out.getvalue()


def meta(blob: bytes) -> str | None:
    """The meta.json of stored data."""
    from riskmin.data import check, load

    path = _store(0, {"meta.json": blob})
    return settled(lambda: check(path)) or settled(lambda: load(path, verify=False))


def arrays(blob: bytes) -> str | None:
    """The indices of stored data, which nobody verifies."""
    from riskmin.data import load

    files = seeds.stores()[0]
    which = "indptr.npy" if blob[:1] < b"\x80" else "indices.npy"
    path = _store(0, {which: files[which][:128] + blob[1:]})
    return settled(lambda: load(path, verify=False).X.sum())


def _store(which: int, files: dict[str, bytes]) -> Path:
    path = _folder() / "d.rsk"
    path.mkdir(exist_ok=True)
    for name, blob in (seeds.stores()[which] | files).items():
        (path / name).write_bytes(blob)
    from riskmin.data.store import reader

    reader._cached_store.cache_clear()  # which knows a folder by its time of change
    return path


def model(blob: bytes) -> str | None:
    """A model file."""
    from riskmin import load_model

    path = _file("m.riskmin", blob)
    return settled(lambda: load_model(path))


def model_meta(blob: bytes) -> str | None:
    """The JSON of a model file, under a checksum that fits."""
    import json

    from riskmin import load_model
    from riskmin.estimators.persistence.model_file import checksum

    try:
        found = json.loads(blob)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    kind = list(seeds.models().values())[len(blob) % len(seeds.models())][0]
    found.pop("sha256", None)
    path = _file("m.riskmin", mutate.tensors(kind, found | {"sha256": checksum(kind, found)}))
    return settled(lambda: load_model(path))


TARGETS: dict[str, Callable[[bytes], str | None]] = {
    "svmlight": _loads("d.svm"),
    "multilabel": _loads("d.svm", multilabel=True),
    "csv": _loads("d.csv"),
    "tsv": _loads("d.tsv"),
    "gz": _loads("d.csv.gz"),
    "npz": _loads("d.npz"),
    "npz_arrays": npz_arrays,
    "parquet": _loads("d.parquet"),
    "conll": conll,
    "meta": meta,
    "arrays": arrays,
    "model": model,
    "model_meta": model_meta,
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
        "conll": [seeds.CONLL],
    }
    if name in text:
        return text[name]
    if name == "parquet":
        return [seeds.parquet()]
    if name in ("npz", "npz_arrays"):
        whole = (
            (lambda a: mutate.archive({f"{k}.npy": mutate.npy(v) for k, v in a.items()}))
            if name == "npz"
            else packed
        )
        return [whole(a) for a in seeds.npz_arrays()]
    if name == "meta":
        return [files["meta.json"]]
    if name == "arrays":
        return [b"\x00" + files["indptr.npy"][128:], b"\xff" + files["indices.npy"][128:]]
    if name == "model":
        return [mutate.tensors(*held) for held in seeds.models().values()]
    return [json.dumps(found).encode() for _, found in seeds.models().values()]
