"""One process at a time in a run's folder."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from simulations.run_lock import LOCK, lock_folder
from zerofl_flwr.errors import SettingsError

HOLDER = """
import sys
from pathlib import Path
from simulations.run_lock import lock_folder

lock = lock_folder(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_the_folder_is_made_and_locked_until_released_from_any_thread(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "run"
    lock = lock_folder(folder)
    assert (folder / LOCK).exists()
    with pytest.raises(SettingsError) as caught:
        lock_folder(folder)
    assert str(caught.value).startswith(f"{folder} is being written by another run")
    lock_folder(tmp_path / "other").release()
    releasing = threading.Thread(target=lock.release)
    releasing.start()
    releasing.join()
    lock_folder(folder).release()


def test_another_process_holds_it_until_it_is_killed(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(SettingsError, match="is being written by another run"):
            lock_folder(tmp_path)
        holder.kill()
        holder.wait()
        lock_folder(tmp_path).release()


def test_a_folder_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match=f"cannot write to {tmp_path / 'file'}"):
        lock_folder(tmp_path / "file")
