"""What a run costs, from its settings, and the settings that keep it within a budget."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from flwr.common import Scalar

from adasplit_flwr.settings import AdaSplitSettings
from simulations.budget_settings import BudgetSettings
from simulations.cut_points import CUT_POINTS
from simulations.data import load_data
from simulations.flower_strategies import fit_config
from simulations.run_models import plain_model, sequential_model, split_model
from simulations.run_name import ANY_NAME
from simulations.setting_groups import kebab, type_of, typed
from simulations.settings import RunSettings
from simulations.zerofl_parts import masked_layers
from strategies.budget import Budget
from strategies.planning import (
    AdaSplitCosts,
    Plan,
    RunCosts,
    ZeroFLCosts,
    plan_adasplit,
    plan_zerofl,
)
from zerofl_flwr.errors import SettingsError
from zerofl_flwr.settings import ZeroFLSettings

_LIMITS = {kebab(setting.name): setting for setting in fields(BudgetSettings)}
AnyPlan = Plan[AdaSplitSettings] | Plan[ZeroFLSettings]


def run_costs(settings: RunSettings) -> RunCosts:
    """Foretell what a run costs in training; tests are not counted.

    Raises
    ------
    SettingsError
        If it is a baseline, or cannot be.
    DataError
        If the data cannot be had.
    """
    data, simulation = load_data(settings.data), settings.simulation
    if settings.algorithm == "zerofl":
        costs = ZeroFLCosts(
            plain_model(settings),
            training_sizes(settings),
            sample_shape=data.sample_shape,
            local_epochs=settings.training.local_epochs,
            clients_per_round=simulation.clients_per_round,
            masked=masked_layers(settings),
            config=_config(settings),
        )
        return costs.of(settings.zerofl, simulation.rounds)
    _refuse_baseline(settings)
    return AdaSplitCosts(
        split_model(settings),
        settings.adasplit,
        training_sizes(settings),
        sample_shape=data.sample_shape,
        num_classes=data.num_classes,
        batch_size=settings.training.batch_size,
        full_batches=settings.split.full_batches,
        clients_per_round=simulation.clients_per_round,
        run=ANY_NAME,
    ).of(simulation.rounds)


def run_plan(values: Mapping[str, Any]) -> AnyPlan:
    """Choose kappa, eta and cut, or sparsity and mask ratio, for a run within a budget.

    Parameters
    ----------
    values : mapping of str to value
        Settings of the run under kebab-case keys, with a budget's; what is planned is replaced.

    Returns
    -------
    Plan
        Its ``chosen.choice`` holds the planned settings.

    Raises
    ------
    SettingsError
        If no candidate fits, it is a baseline, or cannot be.
    DataError
        If the data cannot be had.
    """
    limits = {key: values[key] for key in _LIMITS if key in values}
    values = {key: value for key, value in values.items() if key not in _LIMITS}
    settings = RunSettings.from_mapping(values).resolved()
    budget = _budget_of(limits, settings.data.num_clients)
    data, simulation = load_data(settings.data), settings.simulation
    common: dict[str, Any] = {
        "sample_shape": data.sample_shape,
        "rounds": simulation.rounds,
        "bytes_budget": budget.bytes,
        "flops_budget": budget.multiply_adds,
        "client_bytes_budget": budget.client_bytes,
        "client_flops_budget": budget.client_multiply_adds,
        "clients_per_round": simulation.clients_per_round,
    }
    if settings.algorithm == "zerofl":

        def settings_with(sparsity: float, ratio: float) -> ZeroFLSettings:
            planned = {"sparsity": sparsity, "mask-ratio": ratio}
            return RunSettings.from_mapping({**values, **planned}).zerofl

        return plan_zerofl(
            plain_model(settings),
            training_sizes(settings),
            settings=settings_with,
            local_epochs=settings.training.local_epochs,
            masked=masked_layers(settings),
            config=_config(settings),
            **common,
        )
    _refuse_baseline(settings)
    return plan_adasplit(
        sequential_model(settings),
        training_sizes(settings),
        num_classes=data.num_classes,
        settings=settings.adasplit,
        cuts=CUT_POINTS.get(simulation.model),
        projection_dim=settings.split.projection_dim,
        batch_size=settings.training.batch_size,
        full_batches=settings.split.full_batches,
        run=ANY_NAME,
        **common,
    )


def training_sizes(settings: RunSettings) -> list[int]:
    """Count what each client trains on, in partition order.

    Raises
    ------
    DataError
        If the data cannot be had.
    """
    data = load_data(settings.data)
    return [len(data.training_labels(client)) for client in range(data.num_partitions)]


def _config(settings: RunSettings) -> dict[str, Scalar]:
    """Return what the strategy that ZeroFL wraps puts into its messages in round 1."""
    config = fit_config(settings, 1)
    if settings.simulation.strategy == "fedprox":
        config["proximal_mu"] = settings.simulation.proximal_mu
    return config


def _refuse_baseline(settings: RunSettings) -> None:
    if settings.algorithm == "baseline":
        raise SettingsError(
            "only runs of zerofl and adasplit have costs that are foretold; the algorithm is "
            "baseline"
        )


def _budget_of(values: Mapping[str, Any], num_clients: int) -> Budget:
    """Read a budget's settings, which ZeroFL's runs do not have."""
    given: dict[str, Any] = {}
    for key, setting in _LIMITS.items():
        if key in values:
            plain, optional = type_of("budget", setting)
            given[setting.name] = typed(key, values[key], plain, optional=optional)
    settings = BudgetSettings(**given)
    settings.check_clients(num_clients)
    return settings.to_budget() or Budget()
