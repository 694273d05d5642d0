from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulations.prepared import Prepared, cache_root, prepare
from zerofl_flwr.errors import DataError

IDENTITY = {"name": "three", "size": 3}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LEAN_FLWR_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


class Builder:
    """Writes one array and counts how often it was asked to."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, folder: Path) -> dict[str, Any]:
        self.calls += 1
        np.save(folder / "numbers.npy", np.arange(1000))
        return {"note": "three"}


def only_folder(cache: Path) -> Path:
    (folder,) = [path for path in (cache / "things").iterdir() if path.is_dir()]
    return folder


def test_builds_once_and_maps_afterwards(cache: Path) -> None:
    build = Builder()
    first = prepare("things", IDENTITY, build)
    second = prepare("things", dict(reversed(IDENTITY.items())), build)
    assert build.calls == 1
    assert first.key == second.key == only_folder(cache).name
    assert second.meta == {"note": "three"}
    assert isinstance(second.arrays["numbers"], np.memmap)
    np.testing.assert_array_equal(second.arrays["numbers"], np.arange(1000))
    assert not second.arrays["numbers"].flags.writeable


def test_another_identity_or_kind_is_built_apart() -> None:
    build = Builder()
    keys = {prepare("things", {"size": size}, build).key for size in (1, 2, 3)}
    assert len(keys) == build.calls == 3
    prepare("others", {"size": 1}, build)
    assert build.calls == 4


def flip_a_byte(folder: Path) -> None:
    data = bytearray((folder / "numbers.npy").read_bytes())
    data[500] ^= 1
    (folder / "numbers.npy").write_bytes(data)


def cut_off(folder: Path) -> None:
    data = (folder / "numbers.npy").read_bytes()
    (folder / "numbers.npy").write_bytes(data[:-8])


@pytest.mark.parametrize(
    "damage",
    [
        flip_a_byte,
        cut_off,
        lambda folder: (folder / "numbers.npy").unlink(),
        lambda folder: (folder / "meta.json").unlink(),
        lambda folder: (folder / "meta.json").write_text("{"),
        lambda folder: (folder / "meta.json").write_text("[]"),
        lambda folder: (folder / "meta.json").write_text('{"key": "other", "files": {}}'),
    ],
)
def test_damaged_folder_is_rebuilt_and_logged(
    cache: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[Path], object]
) -> None:
    build = Builder()
    prepare("things", IDENTITY, build)
    damage(only_folder(cache))
    with caplog.at_level(logging.WARNING):
        again = prepare("things", IDENTITY, build)
    assert build.calls == 2
    assert "rebuilding the prepared folder" in caplog.text
    np.testing.assert_array_equal(again.arrays["numbers"], np.arange(1000))
    # Nothing but the folder and its lock stays behind.
    assert sorted(path.suffix for path in (cache / "things").iterdir()) == ["", ".lock"]


def test_failed_build_leaves_nothing_behind(cache: Path) -> None:
    def fail(folder: Path) -> dict[str, Any]:
        np.save(folder / "numbers.npy", np.arange(3))
        raise DataError("the third row is empty")

    with pytest.raises(DataError, match="the third row is empty"):
        prepare("things", IDENTITY, fail)
    assert [path for path in (cache / "things").iterdir() if path.is_dir()] == []
    assert prepare("things", IDENTITY, Builder()).meta == {"note": "three"}


def test_leftovers_of_a_killed_build_are_removed(cache: Path) -> None:
    key = prepare("things", IDENTITY, Builder()).key
    (cache / "things" / f".{key}.abc").mkdir()
    (cache / "things" / key / "meta.json").unlink()
    prepare("things", IDENTITY, Builder())
    assert not (cache / "things" / f".{key}.abc").exists()


def test_threads_that_ask_at_once_build_once() -> None:
    build = Builder()
    start = threading.Barrier(8)
    results: list[Prepared] = []

    def ask() -> None:
        start.wait()
        results.append(prepare("things", IDENTITY, build))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert build.calls == 1
    assert len({result.key for result in results}) == 1
    assert len(results) == 8


def test_processes_that_ask_at_once_build_once(cache: Path) -> None:
    script = f"""
import os, time, pathlib, numpy as np
from simulations.prepared import prepare
def build(folder):
    time.sleep(0.3)
    np.save(folder / "numbers.npy", np.arange(10))
    pathlib.Path({str(cache.parent)!r}, f"built-{{os.getpid()}}").touch()
    return {{}}
print(prepare("things", {IDENTITY!r}, build).arrays["numbers"].sum())
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", script], stdout=subprocess.PIPE, env=environment, text=True
        )
        for _ in range(2)
    ]
    assert [worker.communicate(timeout=120)[0].strip() for worker in workers] == ["45", "45"]
    assert len(list(cache.parent.glob("built-*"))) == 1


def test_unwritable_cache_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("LEAN_FLWR_CACHE", str(tmp_path / "file"))
    with pytest.raises(DataError, match="point LEAN_FLWR_CACHE at a writable folder"):
        prepare("things", IDENTITY, Builder())


def test_cache_root_follows_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cache_root() == tmp_path / "cache"
    monkeypatch.delenv("LEAN_FLWR_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_root() == tmp_path / "xdg" / "lean-flwr"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_root() == tmp_path / ".cache" / "lean-flwr"
