"""A run's settings, flat: the same keys in TOML, on the command line and in run-config."""

from __future__ import annotations

import inspect
import math
import re
import tomllib
import typing
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, asdict, dataclass, field, fields, replace
from pathlib import Path
from types import NoneType
from typing import Any

import tomli_w

from simulations.data_settings import DataSettings
from simulations.dataset_names import local_folder
from simulations.models import paper_masked
from zerofl_flwr.errors import SettingsError
from zerofl_flwr.naming import unknown_name
from zerofl_flwr.recommended import recommended_settings
from zerofl_flwr.settings import ZeroFLSettings
from zerofl_flwr.training import TrainingSettings

ALGORITHMS = ("zerofl",)
BACKENDS = ("ray", "in-process")
PAPER = "paper"
"""Key that turns what is not given to the paper's settings instead of the study's."""

_STUDY_DEFAULTS = {
    "sparsity-schedule": "cubic",
    "sparsity-start": "0.3",
    "sparsity-rounds": "60 % of the rounds",
    "aggregation": "senders",
}
"""Settings whose default depends on others: see `recommended_settings`; an empty text is unset."""

UNSET = "unset"
DEFAULT_SERVER_LEARNING_RATES = {"fedadam": 0.01, "fedyogi": 0.01, "fedadagrad": 0.01}
STRATEGIES = ("fedavg", "fedavgm", "fedadam", "fedyogi", "fedadagrad", "fedprox")
Scalar = bool | int | float | str


@dataclass(frozen=True)
class SimulationSettings:
    """How long to run, with whom, on what, and where the results go.

    Parameters
    ----------
    algorithm : str
        Method to run; zerofl.
    rounds : int
        Rounds of training.
    clients_per_round : int
        Clients that train in a round, drawn by (seed, round).
    model : str
        resnet18, femnist_cnn, digits_cnn, or package.module:function of your own.
    masked : str, optional
        Layers that train sparse, by module name, with commas between; default: everything but the
        input layer, 1x1 convolutions and the last layer; with --paper, the input layer of the two
        small models too.
    strategy : str
        Flower strategy that is wrapped: fedavg, fedavgm, fedadam, fedyogi, fedadagrad or fedprox.
    server_learning_rate : float, optional
        Learning rate of the server optimizers; default: 1 for fedavgm, 0.01 for fedadam, fedyogi
        and fedadagrad.
    server_momentum : float
        Momentum of fedavgm.
    server_tau : float
        Adaptivity (tau) of fedadam, fedyogi and fedadagrad.
    proximal_mu : float
        Proximal weight of fedprox.
    evaluate_every : int
        Rounds between two tests of the global model on the server; the last round is always tested.
    fraction_evaluate : float
        Share of clients that also test it on their validation samples.
    backend : str
        ray, or in-process for tests, notebooks and debugging; flwr run always takes Ray.
    cpus_per_client : int
        CPUs, and so threads, of each simulated client. Under flwr run its threads alone: the
        CPUs come from flwr federation simulation-config.
    gpus_per_client : float
        GPUs of each simulated client. Under flwr run they come from flwr federation
        simulation-config.
    ray_address : str
        Address of a running Ray cluster; not for flwr run. Default: start one on this machine.
    device : str
        Device that clients train on: cpu or cuda. The server tests on it too; with a Ray address,
        where this machine has no such device, on the CPU.
    checkpoint_every : int
        Rounds between two checkpoints; the last round is always saved. 0 keeps none.
    tensorboard : bool
        Also write the rounds as TensorBoard scalars, into the run's folder (extra: tensorboard).
    """

    algorithm: str = "zerofl"
    rounds: int = 10
    clients_per_round: int = 10
    model: str = "digits_cnn"
    masked: str | None = None
    strategy: str = "fedavg"
    server_learning_rate: float | None = None
    server_momentum: float = 0.9
    server_tau: float = 1e-3
    proximal_mu: float = 0.01
    evaluate_every: int = 1
    fraction_evaluate: float = 0.0
    backend: str = "ray"
    cpus_per_client: int = 1
    gpus_per_client: float = 0.0
    ray_address: str | None = None
    device: str = "cpu"
    checkpoint_every: int = 1
    tensorboard: bool = False

    def __post_init__(self) -> None:
        """Refuse values that cannot run on any machine."""
        for name, choices in (
            ("algorithm", ALGORITHMS),
            ("backend", BACKENDS),
            ("strategy", STRATEGIES),
        ):
            if getattr(self, name) not in choices:
                raise SettingsError(unknown_name(name, getattr(self, name), choices))
        for name in ("rounds", "clients_per_round", "evaluate_every", "cpus_per_client"):
            if getattr(self, name) < 1:
                raise SettingsError(f"{name} is {getattr(self, name)}; it must be at least 1")
        rate = self.server_learning_rate
        for name, value in (("server_learning_rate", rate), ("server_tau", self.server_tau)):
            if value is not None and not (math.isfinite(value) and value > 0):
                raise SettingsError(f"{name} is {value}; it must be a positive number")
        for name in ("proximal_mu", "gpus_per_client", "checkpoint_every"):
            if not 0 <= getattr(self, name) < math.inf:
                raise SettingsError(f"{name} is {getattr(self, name)}; it must be a number from 0")
        for name in ("fraction_evaluate", "server_momentum"):
            if not 0 <= getattr(self, name) <= 1:
                raise SettingsError(f"{name} is {getattr(self, name)}; it must be in [0, 1]")
        if self.device != "cpu" and not re.fullmatch(r"cuda(:\d+)?", self.device):
            raise SettingsError(f"device is {self.device!r}; it must be cpu or cuda")


@dataclass(frozen=True)
class RunSettings:
    """Everything that decides a run's result; ``config.toml`` of a run's folder holds just this."""

    simulation: SimulationSettings = field(default_factory=SimulationSettings)
    data: DataSettings = field(default_factory=DataSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    zerofl: ZeroFLSettings = field(default_factory=ZeroFLSettings)

    def __post_init__(self) -> None:
        """Check what concerns more than one group of settings."""
        if self.simulation.clients_per_round > self.data.num_clients:
            raise SettingsError(
                f"clients-per-round is {self.simulation.clients_per_round}, but there are only "
                f"{self.data.num_clients} clients (num-clients)"
            )
        if self.zerofl.min_replies > self.simulation.clients_per_round:
            raise SettingsError(
                f"min-replies is {self.zerofl.min_replies}, but only "
                f"{self.simulation.clients_per_round} clients train in a round"
            )

    @property
    def seed(self) -> int:
        """The run's one seed: of partitions, initial weights, sampling and shuffling."""
        return self.data.seed

    def resolved(self) -> RunSettings:
        """Return the same settings with a local data folder's path made absolute.

        Workers on Ray, and a run's ``config.toml``, must not depend on where the run was started.
        """
        folder = local_folder(self.data.dataset)
        if folder is None:
            return self
        return replace(self, data=replace(self.data, dataset=str(folder)))

    def to_mapping(self) -> dict[str, Scalar]:
        """Return all settings under kebab-case keys, without those that are unset."""
        flat: dict[str, Scalar] = {}
        for group in asdict(self).values():
            flat.update({_kebab(name): value for name, value in group.items() if value is not None})
        return flat

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> RunSettings:
        """Build settings from kebab-case keys; what is left out keeps its default.

        Defaults of ZeroFL are those that did best in the study, or with ``paper = true`` the
        paper's own. An empty text unsets an optional setting, since neither TOML nor run-config has
        a None.

        Raises
        ------
        SettingsError
            For an unknown key (naming the nearest), a wrong type, or a value out of range.
        """
        known = {key for _, key, _ in all_fields()} | {PAPER}
        for key in values:
            if key not in known:
                raise SettingsError(unknown_name("setting", key, sorted(known)))
        paper = _typed(PAPER, values.get(PAPER, False), bool, optional=False)
        groups: dict[str, dict[str, Any]] = {group: {} for group in _groups()}
        for group, key, setting in all_fields():
            unset = key in _STUDY_DEFAULTS and values.get(key) == ""
            if key in values and not unset:
                groups[group][setting.name] = _typed(key, values[key], *type_of(group, setting))
        zerofl = groups.pop("zerofl")
        simulation = SimulationSettings(**groups.pop("simulation"))
        if paper and simulation.masked is None:
            simulation = replace(
                simulation, masked=",".join(paper_masked(simulation.model)) or None
            )
        return cls(
            simulation=simulation,
            zerofl=ZeroFLSettings(**zerofl)
            if paper
            else recommended_settings(simulation.rounds, **zerofl),
            **{group: _groups()[group](**given) for group, given in groups.items()},
        )

    def save(self, path: Path) -> None:
        """Write ``config.toml``."""
        path.write_text(tomli_w.dumps(self.to_mapping()), encoding="utf-8")


def read_config(path: Path) -> dict[str, Any]:
    """Read a flat TOML file of settings.

    Raises
    ------
    SettingsError
        If it is missing, cannot be read, or is not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SettingsError(f"there is no config file {path}") from None
    except OSError as error:
        raise SettingsError(f"the config file {path} cannot be read: {error.strerror}") from None
    except ValueError as error:  # not UTF-8, or not TOML
        raise SettingsError(f"{path} is not valid TOML: {error}") from None


def all_fields() -> Iterator[tuple[str, str, Field[Any]]]:
    """Yield (group, kebab-case key, dataclass field) of every setting."""
    for group, owner in _groups().items():
        for setting in fields(owner):
            yield group, _kebab(setting.name), setting


def default_text(setting: Field[Any]) -> str:
    """Describe a setting's default in a few words."""
    plain = UNSET if setting.default in (MISSING, None) else str(setting.default)
    study = _STUDY_DEFAULTS.get(_kebab(setting.name))
    return plain if study is None else f"{study}; with --paper: {plain}"


def type_of(group: str, setting: Field[Any]) -> tuple[type, bool]:
    """Return a setting's plain type and whether it may be unset."""
    hint = typing.get_type_hints(_groups()[group])[setting.name]
    options = typing.get_args(hint) or (hint,)
    plain = next(option for option in options if option is not NoneType)
    return plain, NoneType in options


def help_texts(group: str) -> dict[str, str]:
    """Read each setting's one description from the ``Parameters`` of its class's docstring."""
    texts: dict[str, str] = {}
    names: list[str] = []
    inside = False
    for line in inspect.cleandoc(_groups()[group].__doc__ or "").splitlines():
        if line.startswith("---"):
            continue
        if line and not line.startswith(" "):
            inside = line == "Parameters" or (inside and " : " in line)
            names = line.partition(" : ")[0].split(", ") if " : " in line else []
            texts.update(dict.fromkeys(names, "") if inside else {})
        elif inside:
            for name in names:
                texts[name] = f"{texts[name]} {line.strip()}".strip()
    return texts


def _groups() -> dict[str, Any]:
    return {
        "simulation": SimulationSettings,
        "data": DataSettings,
        "training": TrainingSettings,
        "zerofl": ZeroFLSettings,
    }


def _kebab(name: str) -> str:
    return name.replace("_", "-")


def _typed(key: str, value: Any, plain: type, optional: bool) -> Any:
    if optional and (value is None or value == ""):
        return None
    if plain is float and type(value) is int:
        return float(value)
    if type(value) is not plain:
        raise SettingsError(f"{key} is {value!r}; expected a {plain.__name__}")
    return value
