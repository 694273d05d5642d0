"""The settings that say which data set to load and how to divide it among clients."""

from __future__ import annotations

import math
from dataclasses import dataclass

from zerofl_flwr.errors import SettingsError
from zerofl_flwr.naming import unknown_name

PARTITIONERS = ("iid", "dirichlet", "natural", "shards", "dataset", "classes")
AUDIO_FEATURES = ("log-mel", "mfcc")
VALIDATION_SOURCES = ("train", "test")
STANDARDS = ("dataset", "client")
_OPTIONAL_COUNTS = (
    "classes",
    "image_size",
    "image_channels",
    "samples_per_client",
    "validation_samples",
    "test_samples",
)


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
        there is a test split, ``test-*.parquet``. With partitioner ``dataset``, several of them
        with commas between; they share the outputs, class by class.
    dataset_config : str, optional
        The hub's configuration name, e.g. ``"v0.02"`` of ``"google/speech_commands"``.
    classes : int, optional
        Keep only the first so many classes of each data set; default: all of them.
    image_size : int, optional
        Height and width of the images, in pixels: smaller ones are put in the middle of black,
        larger ones are refused. Default: as they are.
    image_channels : int, optional
        1 makes the images grey, 3 coloured: grey is repeated in each channel. Default: as they
        are.
    standardise : {"dataset", "client"}
        Whose mean and standard deviation of each channel a client's images are standardised with:
        the whole training split's of its ``dataset``, or those of the ``client``'s own training
        samples. The server's test samples always take their data set's.
    partitioner : {"iid", "dirichlet", "natural", "shards", "dataset", "classes"}
        ``dirichlet`` is equal-size latent Dirichlet allocation; ``natural`` gives each client
        the rows of one value of `partition_by`, and leaves out rows that have none; ``shards``
        deals out label-sorted shards; ``dataset`` gives each client one of several data sets, and
        ``classes`` a few classes that no other has. Where the clients are twice as many or more,
        those of one data set, or of the same classes, divide it evenly.
    alpha : float
        Concentration of the Dirichlet distribution, greater than 0. Used by ``dirichlet``.
    num_clients : int
        Number of partitions.
    samples_per_client : int, optional
        Samples of each client, validation included where it is held out of them; with
        partitioner ``dataset``, at most so many, since a small data set may have fewer. Default:
        the whole training split, divided.
    partition_by : str, optional
        Column that ``natural``, ``dirichlet`` and ``shards`` divide by, e.g. ``"speaker"``.
        ``iid`` has no use for it, ``dataset`` and ``classes`` refuse it. Default: the label
        column.
    shards_per_client : int
        Shards that each client gets. Used by ``shards``.
    classes_per_client : int
        Classes that each client gets, in their order. Used by ``classes``.
    validation_from : {"train", "test"}
        What a client validates on: a share of its own samples, held out (``train``), or those
        samples of its data set's ``test`` split that are of the classes it trains on.
    validation_fraction : float
        Share of each client's samples that is held out, in [0, 1). Used by validation from
        ``train``.
    validation_samples : int, optional
        At most so many validation samples a client, always the same ones. Goes with validation
        from ``test``; default: all.
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
    classes: int | None = None
    image_size: int | None = None
    image_channels: int | None = None
    standardise: str = "dataset"
    partitioner: str = "iid"
    alpha: float = 1.0
    num_clients: int = 10
    samples_per_client: int | None = None
    partition_by: str | None = None
    shards_per_client: int = 2
    classes_per_client: int = 2
    validation_from: str = "train"
    validation_fraction: float = 0.1
    validation_samples: int | None = None
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
        for name in _OPTIONAL_COUNTS:
            if getattr(self, name) is not None:
                _check_int(name, getattr(self, name), lowest=1)
        for name in ("num_clients", "shards_per_client", "classes_per_client"):
            _check_int(name, getattr(self, name), lowest=1)
        _check_int("seed", self.seed, lowest=0)
        _check_choice("partitioner", self.partitioner, PARTITIONERS)
        _check_choice("audio features", self.audio_features, AUDIO_FEATURES)
        _check_choice("source of validation samples", self.validation_from, VALIDATION_SOURCES)
        _check_choice("way to standardise", self.standardise, STANDARDS)
        if not (_is_number(self.alpha) and math.isfinite(self.alpha) and self.alpha > 0):
            raise SettingsError(f"alpha must be a number greater than 0, got {self.alpha!r}")
        if not (_is_number(self.validation_fraction) and 0 <= self.validation_fraction < 1):
            raise SettingsError(
                f"validation_fraction must lie in [0, 1), got {self.validation_fraction!r}"
            )
        if self.image_channels not in (None, 1, 3):
            raise SettingsError(f"image_channels must be 1 or 3, got {self.image_channels!r}")
        self._check_together()

    def _check_together(self) -> None:
        """Refuse settings that do not go with each other."""
        if self.image_column and self.audio_column:
            raise SettingsError("give image_column or audio_column, not both")
        if self.partitioner == "shards" and self.samples_per_client is not None:
            _check_whole_shards(self.samples_per_client, self.shards_per_client)
        if self.validation_samples is not None and self.validation_from == "train":
            raise SettingsError(
                "validation_samples goes with validation_from 'test'; of its own samples a client "
                "holds out the share validation_fraction"
            )
        if self.partitioner in ("dataset", "classes") and self.partition_by is not None:
            raise SettingsError(
                f"partitioner {self.partitioner!r} has no use for partition_by, which is "
                f"{self.partition_by!r}"
            )
        if self.partitioner == "dataset":
            _check_data_sets(self.datasets, self.num_clients)
        if self.partitioner == "classes" and self.classes is not None:
            check_whole_groups(self.classes, self.classes_per_client, self.num_clients)

    @property
    def datasets(self) -> tuple[str, ...]:
        """The data sets by name: what stands between commas with ``dataset``, else the one."""
        if self.partitioner != "dataset":
            return (self.dataset,)
        return tuple(name.strip() for name in self.dataset.split(","))


def check_whole_groups(classes: int, classes_per_client: int, num_clients: int) -> None:
    """Refuse classes that partitioner ``classes`` cannot deal out to clients.

    Parameters
    ----------
    classes : int
        Number of classes.
    classes_per_client, num_clients : int
        The settings of these names.

    Raises
    ------
    SettingsError
        If the classes do not make whole groups, or the clients no whole number of turns.
    """
    groups, rest = divmod(classes, classes_per_client)
    if rest or not groups:
        raise SettingsError(
            f"classes_per_client is {classes_per_client}, but {classes} classes do not divide by it"
        )
    if num_clients % groups:
        raise SettingsError(
            f"num_clients is {num_clients}, but {classes} classes with classes_per_client "
            f"{classes_per_client} are for {groups} clients, or a multiple of that"
        )


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


def _check_data_sets(names: tuple[str, ...], num_clients: int) -> None:
    if len(names) == 1:
        raise SettingsError(
            "partitioner 'dataset' gives each client a data set of its own, but there is only "
            f"{names[0]!r}: name several in dataset, with commas between"
        )
    for position, name in enumerate(names):
        if not name:
            raise SettingsError("dataset has an empty name between its commas")
        if name in names[:position]:
            raise SettingsError(f"dataset names {name!r} twice")
    if num_clients % len(names):
        raise SettingsError(
            f"num_clients is {num_clients}, but {len(names)} data sets are for {len(names)} "
            "clients, or a multiple of that"
        )
