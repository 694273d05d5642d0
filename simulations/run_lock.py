"""One process at a time writes a run's folder."""

from __future__ import annotations

from pathlib import Path

from filelock import FileLock, Timeout

from zerofl_flwr.errors import SettingsError

LOCK = ".lock"
"""The lock's file, which stays; what counts is whether a living process holds it."""


def lock_folder(folder: Path) -> FileLock:
    """Lock a run's folder, without waiting; the folder is made if needed.

    The system releases the lock when its holder ends, however that happens.

    Parameters
    ----------
    folder : Path
        The run's folder.

    Returns
    -------
    FileLock
        Held; ``release()`` it when the run ends, from whichever thread.

    Raises
    ------
    SettingsError
        If another run, of this process or another, writes the folder, or it cannot be written.
    """
    # Flower's server ends a run in a thread of its own: the lock must not belong to one thread.
    lock = FileLock(folder / LOCK, thread_local=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        raise SettingsError(
            f"{folder} is being written by another run: wait until it ends, or choose another "
            "folder"
        ) from None
    except OSError as error:
        raise SettingsError(f"cannot write to {folder}: {error}") from None
    return lock
