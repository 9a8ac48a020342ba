"""Mutations of valid files: of bytes, tokens, JSON, and the arrays inside containers."""

from __future__ import annotations

import io
import json
import random
import struct
import zipfile
import zlib
from typing import Any

import numpy as np

TOKENS = [
    b"nan", b"inf", b"-inf", b"1e999", b"-1", b"0", b"1e-999", b"9223372036854775807",
    b"9223372036854775808", b"4294967296", b"99999999999999999999999", b"1_000",
    b"0x10", b'"', b'""', b"'", b"\x00", b"\x1b[31m", b"\r",
    b"\n", b"\r\n", b"\t", b" ", b",", b";", b":", b"qid:1", b"qid:", b"qid:-1", b"1:1", b"0:1",
    b"3:nan", b"#", b"\xff\xfe", b"\xef\xbb\xbf", b"\xed\xa0\x80", "１２".encode(), "\u202e".encode(),
    b"a" * 300, b"1 " * 50, b"{", b"}", b"[", b"]", b"null", b"true", b"B-X", b"O", b"-DOCSTART-",
]  # fmt: skip
"""Tokens that are difficult for parsers."""

ODD: list[Any] = [
    None, True, False, 0, -1, 1, 2, 7, 2**31, 2**32, 2**63, 2**64, 10**400, 0.5, -0.0, 1e308, float("inf"),
    float("nan"), "", "a", "\x1b[2J", "1", "nan", [], {}, [1, "a"], ["a", None], [[1, 2], [3]], {"a": 1},
    "datetime64[D]", "O", "float64", "<f8", "V8", "x" * 100, [0, 0], [0, 10**9], "l1", "hinge", "softmax",
]  # fmt: skip
"""JSON values that replace others."""


def mutated(rng: random.Random, data: bytes, times: int = 3) -> bytes:
    """Bytes with a few changes: flips, cuts, copies, tokens."""
    blob = bytearray(data)
    for _ in range(rng.randint(1, times)):
        i = rng.randrange(len(blob) + 1)
        kind = rng.randrange(8)
        if kind == 0 and blob:
            blob[i % len(blob)] ^= 1 << rng.randrange(8)
        elif kind == 1 and blob:
            blob[i % len(blob)] = rng.randrange(256)
        elif kind == 2:
            del blob[i:]
        elif kind == 3:
            del blob[i : i + rng.randint(1, 16)]
        elif kind == 4:
            blob[i:i] = blob[i : i + rng.randint(1, 64)]
        elif kind == 5:
            blob[i:i] = rng.choice(TOKENS)
        elif kind == 6:
            token = rng.choice(TOKENS)
            blob[i : i + len(token)] = token
        else:
            blob[i : i + 8] = struct.pack("<q", rng.choice([0, 1, -1, 2**31, 2**32, 2**62, -(2**63)]))
    return bytes(blob)


# ---------------------------------------------------------------- JSON
def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values below a JSON value."""
    below: Any = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    paths = [path] if path else []
    for key, one in below:
        paths += places(one, (*path, key))
    return paths


def edited(rng: random.Random, value: Any) -> Any:
    """A copy of a JSON value with one or two entries changed, removed or replaced."""
    value = json.loads(json.dumps(value))
    for _ in range(rng.randint(1, 2)):
        paths = places(value)
        if not paths:
            return value
        *way, last = rng.choice(paths)
        holder = value
        for key in way:
            holder = holder[key]
        kind = rng.randrange(6)
        if kind == 0:
            del holder[last]
        elif kind == 1 and isinstance(holder, dict):
            holder[rng.choice(["x", "", "data", "lam"])] = holder[last]
        elif kind == 2:
            holder[last] = [holder[last]]
        elif kind == 3 and isinstance(holder[last], (int, float)):
            holder[last] = rng.choice([-holder[last], holder[last] + 1, 10.0**300, str(holder[last])])
        else:
            holder[last] = rng.choice(ODD)
    return value


def deep(rng: random.Random) -> str:
    """JSON nested deeper than parsers allow."""
    depth = rng.choice([100, 2000, 100_000])
    return "[" * depth + "]" * depth


# ---------------------------------------------------------------- arrays
def odd_array(rng: random.Random, a: np.ndarray) -> np.ndarray:
    """An array with an entry, the dtype or the shape changed."""
    kind = rng.randrange(7)
    a = np.array(a)
    if kind == 0 and a.size and a.dtype.kind in "iuf":
        a.flat[rng.randrange(a.size)] = rng.choice([-1, 0, 2**31 - 1, 1000] if a.dtype.kind != "f" else
                                                   [np.nan, np.inf, -1e300, 0.5])  # fmt: skip
    elif kind == 1:
        a = (np.zeros(a.shape) if a.dtype.kind in "US" else a).astype(
            rng.choice(["f4", "f8", "i4", "i8", "u8", "c16", "?", ">f8", "U8", "M8[s]", "f2", "i2"])
        )
    elif kind == 2:
        a = a.reshape(-1)[: rng.randrange(a.size + 1)]
    elif kind == 3:
        a = np.append(a.reshape(-1), a.reshape(-1)[: rng.randint(0, 2)])
    elif kind == 4:
        a = a.reshape(rng.choice([(-1,), (1, -1), (-1, 1), (1, 1, -1)]))
    elif kind == 5:
        a = np.asfortranarray(a.reshape(-1)[::-1].reshape(a.shape))
    else:
        a = np.zeros(rng.choice([(), (0,), (3, 0), (2, 2), (1,)]), a.dtype)
    return a


def npy(a: np.ndarray) -> bytes:
    """An array as the bytes of a .npy file."""
    out = io.BytesIO()
    np.save(out, a, allow_pickle=True)
    return out.getvalue()


def odd_npy(rng: random.Random, a: np.ndarray) -> bytes:
    """A .npy file with a wrong header or changed numbers."""
    if rng.random() < 0.5:
        with np.errstate(all="ignore"):
            return npy(odd_array(rng, a))
    blob = npy(a)
    old = f"'shape': {a.shape}".encode()
    new = rng.choice(
        [b"(10000000000,)", b"(-1,)", b"(3,", b"(1e3,)", b"(2, 2, 2)", b"('a',)", b"(9223372036854775807, 9)"]
    )
    swaps = [
        (old, b"'shape': " + new),
        (b"'descr': '<f8'", b"'descr': '|O'"),
        (b"'descr': '<f8'", b"'descr': [('a', '<f8')]"),
        (b"False", b"True "),
        (b"{", b"[" * 50),
        (b"'descr'", b"'desc'"),
    ]
    one, other = rng.choice(swaps)
    return blob.replace(one, other, 1) if rng.random() < 0.8 else mutated(rng, blob)


def archive(members: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    """A zip file."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as file:
        for name, blob in members.items():
            file.writestr(name, blob)
    return out.getvalue()


def odd_npz(rng: random.Random, arrays: dict[str, np.ndarray]) -> bytes:
    """A .npz file with one array mutated, missing or renamed, or with changed bytes of the archive."""
    members = {f"{name}.npy": npy(a) for name, a in arrays.items()}
    name = rng.choice(list(arrays))
    kind = rng.randrange(5)
    if kind <= 2:
        members[f"{name}.npy"] = odd_npy(rng, arrays[name])
    elif kind == 3:
        members[rng.choice(["X.npy", "format.npy", "\x1b[31m.npy", "y"])] = members.pop(f"{name}.npy")
    blob = archive(members, rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]))
    return mutated(rng, blob) if kind == 4 else blob


# ---------------------------------------------------------------- containers of riskmin
def tensors(arrays: dict[str, np.ndarray], meta: Any, text: str | None = None) -> bytes:
    """A safetensors file whose metadata are JSON, or any text."""
    from safetensors.numpy import save

    blob = {k: np.ascontiguousarray(v) for k, v in arrays.items()}
    return bytes(save(blob, {"riskmin": json.dumps(meta) if text is None else text}))


def odd_model(rng: random.Random, arrays: dict[str, np.ndarray], meta: dict[str, Any]) -> bytes:
    """A model file with mutated metadata or arrays and a valid checksum, or with changed bytes."""
    from riskmin.estimators.persistence.model_file import checksum

    meta = {k: v for k, v in meta.items() if k != "sha256"}
    arrays = dict(arrays)
    kind = rng.randrange(10)
    if kind <= 5:
        meta = edited(rng, meta)
    elif kind == 6:
        name = rng.choice(list(arrays))
        with np.errstate(all="ignore"):
            new = odd_array(rng, arrays[name])
        arrays[name] = new if new.dtype.kind in "iuf?" and new.dtype.isnative else arrays[name][:1]
    elif kind == 7:
        arrays.pop(rng.choice(list(arrays)))
    if kind == 8:
        return tensors(arrays, meta, deep(rng))
    if isinstance(meta, dict):
        meta["sha256"] = checksum(arrays, meta)
    blob = tensors(arrays, meta)
    if kind == 9:
        return mutated(rng, blob) if rng.random() < 0.5 else retyped(rng, blob)
    return blob


def retyped(rng: random.Random, blob: bytes) -> bytes:
    """A safetensors file whose header has another dtype or another offset."""
    size = struct.unpack("<Q", blob[:8])[0]
    head = json.loads(blob[8 : 8 + size])
    names = [k for k in head if k != "__metadata__"]
    if names and rng.random() < 0.7:
        head[rng.choice(names)]["dtype"] = rng.choice(
            ["BF16", "F8_E4M3", "F8_E5M2", "F16", "I64", "F4", "BOOL", "C64"]
        )
    else:
        head = edited(rng, head)
    text = json.dumps(head).encode()
    return struct.pack("<Q", len(text)) + text + blob[8 + size :]


def odd_store(rng: random.Random, files: dict[str, bytes]) -> dict[str, bytes]:
    """The files of stored data with mutated metadata or arrays, with or without valid checksums."""
    files = dict(files)
    kind = rng.randrange(8)
    if kind <= 3:
        files["meta.json"] = json.dumps(edited(rng, json.loads(files["meta.json"]))).encode()
        return files
    if kind == 4:
        files["meta.json"] = deep(rng).encode() if rng.random() < 0.3 else mutated(rng, files["meta.json"])
        return files
    name = rng.choice([k for k in files if k.endswith(".npy")])
    if kind == 5:
        files[name] = mutated(rng, files[name])
    elif kind == 6:
        files.pop(name)
    else:
        blob = bytearray(files[name])
        i = rng.randrange(128, max(len(blob) - 7, 129))
        blob[i : i + 4] = rng.choice([b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f", b"\x00\x00\x00\x80"])
        files[name] = bytes(blob[: len(files[name])])
        refresh(files)
    return files


def refresh(files: dict[str, bytes]) -> None:
    """Recompute the checksums of stored data, if the shapes still match."""
    meta = json.loads(files["meta.json"])
    for shard in meta["shards"]:
        (i, j), (first, last) = shard["rows"], shard["numbers"]
        for name in meta["arrays"]:
            flat = np.frombuffer(files[f"{name}.npy"], np.uint8)[128:]
            size = np.dtype(meta["arrays"][name]).itemsize
            width = meta["columns"] if name == "X" else 1
            a, b = {"data": (first, last), "indices": (first, last), "indptr": (i, j + 1)}.get(name, (i, j))
            shard["crc32"][name] = zlib.crc32(flat[a * size * width : b * size * width].tobytes())
    files["meta.json"] = json.dumps(meta).encode()
