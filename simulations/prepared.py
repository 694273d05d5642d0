"""Prepared folders: arrays that are computed once and memory-mapped by every process."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import uuid
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from zerofl_flwr.errors import DataError

FORMAT_VERSION = 2  # 2: rows without an id are NO_ID
_META_FILE = "meta.json"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Prepared:
    """The content of one prepared folder.

    Parameters
    ----------
    key : str
        Hexadecimal hash of the identity that the folder was made for.
    meta : dict of str to JSON values
        What the builder returned.
    arrays : dict of str to ndarray
        Read-only memory maps of the folder's ``.npy`` files, by file name without suffix.
    """

    key: str
    meta: dict[str, Any]
    arrays: dict[str, NDArray[Any]]


def cache_root() -> Path:
    """Return the cache directory, which may not exist yet.

    ``LEAN_FLWR_CACHE`` if set, else ``lean-flwr`` in ``XDG_CACHE_HOME``, else in ``~/.cache``.
    """
    own = os.environ.get("LEAN_FLWR_CACHE")
    if own:
        return Path(own).expanduser().resolve()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache").resolve() / "lean-flwr"


def prepare(
    kind: str, identity: Mapping[str, object], build: Callable[[Path], dict[str, Any]]
) -> Prepared:
    """Open the prepared folder of an identity, making it first where it is missing or damaged.

    Of many processes that ask for the same folder at once, one builds and the others wait.
    A folder appears under its final name only when it is complete, and its checksums are
    verified whenever it is opened.

    Parameters
    ----------
    kind : str
        Subfolder of the cache, e.g. ``"sources"``.
    identity : mapping of str to JSON values
        Everything that the content depends on.
    build : callable
        Writes ``.npy`` files into the folder that it is given, and returns the meta data.

    Returns
    -------
    Prepared
        The opened folder.

    Raises
    ------
    DataError
        If the cache directory cannot be written. What `build` raises is passed on.
    """
    described = json.dumps({"format": FORMAT_VERSION, **identity}, sort_keys=True)
    key = hashlib.sha256(described.encode()).hexdigest()[:32]
    folder = cache_root() / kind / key
    if folder.is_dir() and (found := _open(folder, key)) is not None:
        return found
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder.parent / f"{key}.lock")
        lock.acquire()
    except OSError as error:
        raise DataError(
            f"cannot write to the cache folder {folder.parent} ({error}); "
            "point LEAN_FLWR_CACHE at a writable folder"
        ) from error
    try:
        if folder.is_dir() and (found := _open(folder, key)) is not None:
            return found
        _build_in_place(folder, key, build)
    finally:
        lock.release()
    built = _open(folder, key)
    if built is None:
        raise DataError(f"the prepared folder {folder} was damaged right after it was written")
    return built


def _build_in_place(folder: Path, key: str, build: Callable[[Path], dict[str, Any]]) -> None:
    """Build into a hidden sibling and rename it; the caller holds the lock of this key."""
    for leftover in folder.parent.glob(f".{key}.*"):
        shutil.rmtree(leftover, ignore_errors=True)
    fresh = folder.parent / f".{key}.{uuid.uuid4().hex}"
    fresh.mkdir()
    try:
        meta = build(fresh)
        files = {path.name: _fingerprint(path) for path in sorted(fresh.glob("*.npy"))}
        text = json.dumps({"key": key, "files": files, "meta": meta}, indent=1)
        (fresh / _META_FILE).write_text(text, encoding="utf-8")
        if folder.exists():
            folder.rename(folder.parent / f".{key}.damaged-{uuid.uuid4().hex}")
        fresh.rename(folder)
    finally:
        for leftover in folder.parent.glob(f".{key}.*"):
            shutil.rmtree(leftover, ignore_errors=True)


def _open(folder: Path, key: str) -> Prepared | None:
    """Open a folder; None (and a warning in the log) if it is incomplete or damaged."""
    try:
        stored = json.loads((folder / _META_FILE).read_text(encoding="utf-8"))
        if stored["key"] != key:
            raise ValueError(f"it was made for {stored['key']}")
        arrays: dict[str, NDArray[Any]] = {}
        for name, fingerprint in stored["files"].items():
            if _fingerprint(folder / name) != fingerprint:
                raise ValueError(f"{name} does not have the size and checksum it was written with")
            arrays[Path(name).stem] = np.load(folder / name, mmap_mode="r", allow_pickle=False)
        return Prepared(key=key, meta=dict(stored["meta"]), arrays=arrays)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        _log.warning("rebuilding the prepared folder %s: %s", folder, error)
        return None


def _fingerprint(path: Path) -> list[int]:
    """Return size in bytes and CRC-32 of a file."""
    checksum = 0
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            checksum = zlib.crc32(block, checksum)
    return [path.stat().st_size, checksum]
