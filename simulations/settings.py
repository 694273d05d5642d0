"""A run's settings, flat: the same keys in TOML, on the command line and in run-config."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import tomli_w

from adasplit_flwr.settings import AdaSplitSettings
from simulations.baseline_settings import BaselineSettings
from simulations.budget_settings import BudgetSettings
from simulations.data_settings import DataSettings
from simulations.dataset_names import absolute_names
from simulations.models import paper_masked
from simulations.setting_groups import (
    GROUPS,
    PAPER,
    STUDY_DEFAULTS,
    all_fields,
    fields_of,
    type_of,
    typed,
)
from simulations.simulation_settings import ALGORITHMS, SimulationSettings
from simulations.slow import parse_slow
from simulations.split_settings import SplitSettings
from zerofl_flwr.errors import SettingsError
from zerofl_flwr.naming import unknown_name
from zerofl_flwr.recommended import recommended_settings
from zerofl_flwr.settings import ZeroFLSettings
from zerofl_flwr.training import TrainingSettings

Scalar = bool | int | float | str


@dataclass(frozen=True)
class RunSettings:
    """Everything that decides a run's result; ``config.toml`` of a run's folder holds just this.

    Settings of other methods stay at their defaults and have no effect.
    """

    simulation: SimulationSettings = field(default_factory=SimulationSettings)
    data: DataSettings = field(default_factory=DataSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    zerofl: ZeroFLSettings = field(default_factory=ZeroFLSettings)
    split: SplitSettings = field(default_factory=SplitSettings)
    adasplit: AdaSplitSettings = field(default_factory=AdaSplitSettings)
    budget: BudgetSettings = field(default_factory=BudgetSettings)
    baseline: BaselineSettings = field(default_factory=BaselineSettings)

    def __post_init__(self) -> None:
        """Check what concerns more than one group of settings."""
        if self.simulation.clients_per_round > self.data.num_clients:
            raise SettingsError(
                f"clients-per-round is {self.simulation.clients_per_round}, but there are only "
                f"{self.data.num_clients} clients (num-clients)"
            )
        needed = {"zerofl": self.zerofl.min_replies, "baseline": self.baseline.min_replies}
        if needed.get(self.algorithm, 1) > self.simulation.clients_per_round:
            raise SettingsError(
                f"min-replies is {needed[self.algorithm]}, but only "
                f"{self.simulation.clients_per_round} clients train in a round"
            )
        self._check_optimizer()
        self._check_contrast()
        self.budget.check_clients(self.data.num_clients)
        unknown = sorted(p for p in self.slow_clients if p >= self.data.num_clients)
        if unknown:
            raise SettingsError(
                f"slow names partition {unknown[0]}, but there are only {self.data.num_clients} "
                "clients, numbered from 0"
            )

    @property
    def algorithm(self) -> str:
        """The method that runs."""
        return self.simulation.algorithm

    @property
    def seed(self) -> int:
        """The run's one seed: of partitions, initial weights, sampling and shuffling."""
        return self.data.seed

    @property
    def slow_clients(self) -> dict[int, float]:
        """How many times as long a client takes, by partition id; empty for most runs."""
        return {} if self.simulation.slow is None else parse_slow(self.simulation.slow)

    @property
    def keeps_client_states(self) -> bool:
        """Whether clients keep something of their own from round to round."""
        if self.algorithm == "baseline":
            return self.simulation.strategy in ("scaffold", "alone")
        return self.algorithm == "adasplit"

    def resolved(self) -> RunSettings:
        """Return the same settings with the paths of local data folders made absolute.

        Workers on Ray, and a run's ``config.toml``, must not depend on where the run was started.
        """
        dataset = absolute_names(self.data.datasets)
        split, baseline = _absolute_states(self.split), _absolute_states(self.baseline)
        if (dataset, split, baseline) == (self.data.dataset, self.split, self.baseline):
            return self
        data = replace(self.data, dataset=dataset)
        return replace(self, data=data, split=split, baseline=baseline)

    def to_mapping(self) -> dict[str, Scalar]:
        """Return what the method uses under kebab-case keys, without what is unset."""
        values = {
            key: getattr(getattr(self, group), setting.name)
            for group, key, setting in fields_of(self.algorithm)
        }
        return {key: value for key, value in values.items() if value is not None}

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> RunSettings:
        """Build settings from kebab-case keys; what is left out keeps its default.

        Defaults of ZeroFL are those that did best in the study, or with ``paper = true`` the
        paper's own. An empty text unsets an optional setting, since neither TOML nor run-config has
        a None. A setting of another method may come with its default value, as all do under
        ``flwr run``.

        Raises
        ------
        SettingsError
            For an unknown key (naming the nearest), another method's, a wrong type, or a value out
            of range.
        """
        known = {key for _, key, _ in all_fields()} | {PAPER}
        for key in values:
            if key not in known:
                raise SettingsError(unknown_name("setting", key, sorted(known)))
        algorithm = typed("algorithm", values.get("algorithm", ALGORITHMS[0]), str, optional=False)
        if algorithm not in ALGORITHMS:
            raise SettingsError(unknown_name("algorithm", algorithm, ALGORITHMS))
        paper = typed(PAPER, values.get(PAPER, False), bool, optional=False)
        _refuse_others(values, algorithm, paper=paper)
        groups: dict[str, dict[str, Any]] = {group: {} for group in GROUPS}
        for group, key, setting in fields_of(algorithm):
            unset = key in STUDY_DEFAULTS and values.get(key) == ""
            if key in values and not unset:
                plain, optional = type_of(group, setting)
                groups[group][setting.name] = typed(key, values[key], plain, optional=optional)
        zerofl = groups.pop("zerofl")
        simulation = SimulationSettings(**groups.pop("simulation"))
        if paper and simulation.masked is None:
            simulation = replace(
                simulation, masked=",".join(paper_masked(simulation.model)) or None
            )
        recommended = algorithm == "zerofl" and not paper
        return cls(
            simulation=simulation,
            zerofl=recommended_settings(simulation.rounds, **zerofl)
            if recommended
            else ZeroFLSettings(**zerofl),
            **{group: GROUPS[group](**given) for group, given in groups.items()},
        )

    def save(self, path: Path) -> None:
        """Write ``config.toml``."""
        path.write_text(tomli_w.dumps(self.to_mapping()), encoding="utf-8")

    def _check_optimizer(self) -> None:
        """Refuse what a baseline's arithmetic does not cover."""
        strategy, training = self.simulation.strategy, self.training
        if self.algorithm != "baseline" or strategy not in ("scaffold", "fednova"):
            return
        if training.optimizer != "sgd":
            raise SettingsError(
                f"strategy {strategy} needs optimizer sgd, not {training.optimizer}"
            )
        if strategy == "scaffold" and training.momentum:
            raise SettingsError(
                f"strategy scaffold needs sgd without momentum, which is {training.momentum}"
            )

    def _check_contrast(self) -> None:
        """Refuse batches that the contrastive loss learns nothing of, and a head without it."""
        if self.algorithm != "adasplit":
            return
        if self.adasplit.local_loss and self.training.batch_size == 1:
            raise SettingsError(
                "batch-size is 1, but local-loss is on: a batch of one sample has no pair, so that "
                "the contrastive loss is 0 and clients learn nothing of it: raise batch-size, or "
                "turn local-loss off"
            )
        default = SplitSettings.projection_dim
        if not self.adasplit.local_loss and self.split.projection_dim != default:
            raise SettingsError(
                f"projection-dim is {self.split.projection_dim}, but with local-loss off there is "
                f"no contrastive loss: leave it at {default}"
            )


_Settings = TypeVar("_Settings", SplitSettings, BaselineSettings)


def _absolute_states(settings: _Settings) -> _Settings:
    if settings.state_dir is None:
        return settings
    return replace(settings, state_dir=str(Path(settings.state_dir).absolute()))


def _refuse_others(values: Mapping[str, Any], algorithm: str, *, paper: bool) -> None:
    """Refuse what another method alone would look at, unless it says no more than its default."""
    if paper and algorithm != "zerofl":
        raise SettingsError(f"paper is a choice of zerofl; the algorithm is {algorithm}")
    used = {key for _, key, _ in fields_of(algorithm)}
    for group, key, setting in all_fields():
        if key in used or key not in values:
            continue
        plain, optional = type_of(group, setting)
        if key in STUDY_DEFAULTS and values[key] == "":
            continue
        if typed(key, values[key], plain, optional=optional) != setting.default:
            raise SettingsError(
                f"{key} has no effect with the algorithm {algorithm}: it is a setting of another "
                "method"
            )


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
