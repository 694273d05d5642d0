"""The settings that say which data set to load and how to divide it among clients."""

from __future__ import annotations

import math
from dataclasses import dataclass

from zerofl_flwr.errors import SettingsError
from zerofl_flwr.naming import unknown_name

PARTITIONERS = ("iid", "dirichlet", "natural", "shards")
AUDIO_FEATURES = ("log-mel", "mfcc")


@dataclass(frozen=True)
class DataSettings:
    """Which data set, divided among how many clients, and by which rule.

    The ZeroFL paper (Experiments) uses 100 clients, equal-size Dirichlet partitions with
    ``alpha`` 1.0 (non-IID) or 1000 (IID), and a tenth of each client's samples for validation.

    Parameters
    ----------
    dataset : str
        ``"digits"`` (scikit-learn's 8x8 digits, needs no download), a name on the Hugging Face
        hub such as ``"uoft-cs/cifar10"``, or a local folder with ``train-*.parquet`` and, if
        there is a test split, ``test-*.parquet``.
    dataset_config : str, optional
        The hub's configuration name, e.g. ``"v0.02"`` of ``"google/speech_commands"``.
    partitioner : {"iid", "dirichlet", "natural", "shards"}
        ``dirichlet`` is equal-size latent Dirichlet allocation; ``natural`` gives each client
        the rows of one value of `partition_by`, and leaves out rows that have none; ``shards``
        deals out label-sorted shards.
    alpha : float
        Concentration of the Dirichlet distribution, greater than 0. Used by ``dirichlet``.
    num_clients : int
        Number of partitions.
    samples_per_client : int, optional
        Samples of each client, validation included; default: the whole training split, divided.
    partition_by : str, optional
        Column that ``natural``, ``dirichlet`` and ``shards`` divide by, e.g. ``"speaker"``.
        ``iid`` has no use for it. Default: the label column.
    shards_per_client : int
        Shards that each client gets. Used by ``shards``.
    validation_fraction : float
        Share of each client's samples that is held out, in [0, 1).
    test_samples : int, optional
        Test on so many samples of the test split, always the same ones; default: on all.
    audio_features : {"log-mel", "mfcc"}
        What the 32x32 image of a recording holds: ``log-mel`` or ``mfcc``.
    image_column, audio_column, label_column : str, optional
        Names of the columns, where they cannot be found from types and usual names.
    seed : int
        The run's one seed, at least 0: of partitions, validation splits, initial weights,
        sampling of clients and shuffling. The test set does not depend on it.

    Raises
    ------
    SettingsError
        If a value is out of range or a name is unknown.
    """

    dataset: str = "digits"
    dataset_config: str | None = None
    partitioner: str = "iid"
    alpha: float = 1.0
    num_clients: int = 10
    samples_per_client: int | None = None
    partition_by: str | None = None
    shards_per_client: int = 2
    validation_fraction: float = 0.1
    test_samples: int | None = None
    audio_features: str = "log-mel"
    image_column: str | None = None
    audio_column: str | None = None
    label_column: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("dataset", "dataset_config", "partition_by"):
            _check_text(name, getattr(self, name), optional=name != "dataset")
        for name in ("image_column", "audio_column", "label_column"):
            _check_text(name, getattr(self, name), optional=True)
        for name in ("samples_per_client", "test_samples"):
            if getattr(self, name) is not None:
                _check_int(name, getattr(self, name), lowest=1)
        _check_int("num_clients", self.num_clients, lowest=1)
        _check_int("shards_per_client", self.shards_per_client, lowest=1)
        _check_int("seed", self.seed, lowest=0)
        _check_choice("partitioner", self.partitioner, PARTITIONERS)
        _check_choice("audio features", self.audio_features, AUDIO_FEATURES)
        if not (_is_number(self.alpha) and math.isfinite(self.alpha) and self.alpha > 0):
            raise SettingsError(f"alpha must be a number greater than 0, got {self.alpha!r}")
        if not (_is_number(self.validation_fraction) and 0 <= self.validation_fraction < 1):
            raise SettingsError(
                f"validation_fraction must lie in [0, 1), got {self.validation_fraction!r}"
            )
        if self.image_column and self.audio_column:
            raise SettingsError("give image_column or audio_column, not both")
        if self.partitioner == "shards" and self.samples_per_client is not None:
            _check_whole_shards(self.samples_per_client, self.shards_per_client)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_int(name: str, value: object, *, lowest: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < lowest:
        raise SettingsError(f"{name} must be an integer of at least {lowest}, got {value!r}")


def _check_text(name: str, value: object, *, optional: bool) -> None:
    if value is None and optional:
        return
    if not isinstance(value, str) or not value.strip():
        raise SettingsError(f"{name} must be a non-empty text, got {value!r}")


def _check_choice(kind: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise SettingsError(unknown_name(kind, str(value), known))


def _check_whole_shards(samples_per_client: int, shards_per_client: int) -> None:
    if samples_per_client % shards_per_client:
        raise SettingsError(
            f"samples_per_client ({samples_per_client}) must be a multiple of "
            f"shards_per_client ({shards_per_client}), since shards have equal sizes"
        )
