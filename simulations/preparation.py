"""Have a data set decoded and divided once, and find both again later.

Nothing here imports the data set libraries until there is something to decode or divide: the
many worker processes of a simulation find everything prepared, and start faster without them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from simulations.data_settings import DataSettings
from simulations.dataset_names import DIGITS, local_folder, split_files
from simulations.prepared import Prepared, prepare


def prepare_source(settings: DataSettings) -> Prepared:
    """Decode a data set, or find it already decoded.

    Parameters
    ----------
    settings : DataSettings
        Only the data set, the columns and the audio features matter.

    Returns
    -------
    Prepared
        Arrays ``images`` (N, C, H, W), uint8 or for audio float32; ``labels`` (N,) int64;
        ``train_rows`` and ``test_rows``, int64 row numbers; and for columns that clients can be
        divided by, ``ids_0``, ``ids_1``, ..., int64, each row's value as its place among the
        sorted values, or -1 where it is missing, for the rows of the original training split. Meta
        data:
        ``class_names``; ``mean`` and ``std`` of each channel over the training rows, in units of
        ``images``; ``id_columns``, which maps a column to the name of its array, or to the
        reason why there is none.

    Raises
    ------
    DataError
        If the data cannot be read.
    """
    identity = {
        "source": describe_source(settings),
        "audio_features": settings.audio_features,
        "columns": [settings.image_column, settings.audio_column, settings.label_column],
    }

    def build(folder: Path) -> dict[str, Any]:
        from simulations.sources import build_source

        return build_source(settings, folder)

    return prepare("sources", identity, build)


def prepare_partitions(settings: DataSettings, source: Prepared) -> Prepared:
    """Divide the training rows, or find them already divided.

    Parameters
    ----------
    settings : DataSettings
        The partitioner, its parameters and the seed matter.
    source : Prepared
        From `prepare_source`, or from `simulations.joined.prepare_joined`.

    Returns
    -------
    Prepared
        Arrays ``rows`` (M,) int64, the row numbers of all partitions in turn; and ``offsets``
        (num_clients + 1,) int64: partition i is ``rows[offsets[i]:offsets[i + 1]]``. Meta data:
        ``without_id``, how many training rows belong to nobody because they lack the id that
        ``natural`` divides by.

    Raises
    ------
    DataError, SettingsError
        If the rows cannot be divided as asked.
    """
    rule = settings.partitioner
    identity: dict[str, object] = {
        "source": source.key,
        "partitioner": rule,
        "num_clients": settings.num_clients,
        "samples_per_client": settings.samples_per_client,
        "partition_by": settings.partition_by if rule != "iid" else None,
        "alpha": float(settings.alpha) if rule == "dirichlet" else None,
        "shards_per_client": settings.shards_per_client if rule == "shards" else None,
        "seed": settings.seed,
    }
    if rule == "classes":
        identity["classes_per_client"] = settings.classes_per_client

    def build(folder: Path) -> dict[str, Any]:
        from simulations.partitions import build_partitions

        return build_partitions(settings, source, folder)

    return prepare("partitions", identity, build)


def describe_source(settings: DataSettings) -> dict[str, Any]:
    """Say what the rows of a data set depend on, for the key of its prepared folder.

    Parameters
    ----------
    settings : DataSettings
        Only `dataset` and `dataset_config` matter.

    Returns
    -------
    dict of str to JSON values
        For a local folder: its absolute path, and the files' sizes in bytes and modification
        times in nanoseconds. For a hub name: that name, so a later version on the hub is not
        noticed.

    Raises
    ------
    DataError
        If a local folder or its training files are missing.
    """
    if settings.dataset == DIGITS:
        return {"kind": DIGITS}
    folder = local_folder(settings.dataset)
    if folder is None:
        return {"kind": "hub", "name": settings.dataset, "config": settings.dataset_config}
    files = [
        [path.name, path.stat().st_size, path.stat().st_mtime_ns]
        for paths in split_files(folder).values()
        for path in paths
    ]
    return {"kind": "folder", "path": str(folder), "files": files}
