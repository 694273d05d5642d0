"""Refuse a run that cannot work before anything is started."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import torch
from flwr.app import RecordDict

from simulations import adasplit_parts, baseline_parts, zerofl_parts
from simulations.adasplit_checks import check_split_run
from simulations.data import FederatedData, load_data
from simulations.devices import has_cuda, server_device
from simulations.ray_cluster import check_address
from simulations.settings import RunSettings
from simulations.simulation_settings import SimulationSettings
from simulations.tensorboard import check_tensorboard
from zerofl_flwr.errors import SettingsError
from zerofl_flwr.threads import available_cpus


def check(settings: RunSettings) -> None:
    """Try, on this machine, everything that a run needs: resources, data, model, strategy.

    Raises
    ------
    LeanFlwrError
        SettingsError or DataError, saying what to change.
    """
    _check_resources(settings)
    if settings.simulation.tensorboard:
        check_tensorboard()
    data = load_data(settings.data)
    _check_validation(settings, data)
    # On a device of this machine; clients on a cluster may have others.
    here = replace(settings.simulation, device=server_device(settings.simulation))
    settings_here = replace(settings, simulation=here)
    if settings.algorithm == "adasplit":
        check_split_run(settings, data)
        adasplit_parts.make_client(settings_here, 0, RecordDict(), Path())
        adasplit_parts.make_strategy(settings, None)
        return
    if settings.algorithm == "baseline":
        baseline_parts.check_baseline(settings)
        baseline_parts.make_client(settings_here, 0, RecordDict(), Path())
        baseline_parts.make_strategy(settings)
        return
    _check_schedules(settings)
    zerofl_parts.make_client(settings_here, 0)
    zerofl_parts.make_strategy(settings)


def _check_resources(settings: RunSettings) -> None:
    simulation = settings.simulation
    on_this_machine = simulation.ray_address is None
    cpus = available_cpus()
    if on_this_machine and simulation.cpus_per_client > cpus:
        raise SettingsError(
            f"cpus-per-client is {simulation.cpus_per_client}, but this machine offers {cpus}"
        )
    gpus = torch.cuda.device_count()
    if on_this_machine and simulation.gpus_per_client > gpus:
        raise SettingsError(
            f"gpus-per-client is {simulation.gpus_per_client}, but this machine has {gpus}"
        )
    if simulation.device != "cpu":
        if on_this_machine:
            _check_cuda_here(simulation.device)
        if simulation.backend == "ray":
            _check_cuda_of_workers(simulation)
    if simulation.ray_address is not None:
        if simulation.backend != "ray":
            raise SettingsError("ray-address goes with backend ray, not in-process")
        check_address(simulation.ray_address)


def _check_cuda_here(device: str) -> None:
    gpus = torch.cuda.device_count()
    if gpus == 0:
        raise SettingsError(f"device is {device!r}, but torch finds no CUDA device")
    if not has_cuda(device):
        raise SettingsError(
            f"device is {device!r}, but the last CUDA device that torch finds is cuda:{gpus - 1}"
        )


def _check_cuda_of_workers(simulation: SimulationSettings) -> None:
    """Ray shows each worker the GPUs of its client only, and numbers them from 0."""
    if not simulation.gpus_per_client:
        raise SettingsError(
            "device is cuda, but gpus-per-client is 0, which hides every GPU from Ray's workers: "
            "give each client a share, such as 0.25"
        )
    shown = math.ceil(simulation.gpus_per_client)
    if (torch.device(simulation.device).index or 0) >= shown:
        raise SettingsError(
            f"device is {simulation.device!r}, but Ray shows a client of gpus-per-client "
            f"{simulation.gpus_per_client:g} no more than {shown}, numbered from cuda:0: give cuda"
        )


def _check_validation(settings: RunSettings, data: FederatedData) -> None:
    fraction = settings.simulation.evaluating_fraction
    if fraction == 0:
        return
    without = [
        partition_id
        for partition_id in range(data.num_partitions)
        if data.validation_size(partition_id) == 0
    ]
    if without:
        raise SettingsError(
            f"fraction-evaluate is {fraction}, but {len(without)} of "
            f"{data.num_partitions} clients would hold no validation samples (the first is client "
            f"{without[0]}): raise validation-fraction, now {settings.data.validation_fraction}"
        )


def _check_schedules(settings: RunSettings) -> None:
    rounds, zerofl = settings.simulation.rounds, settings.zerofl
    for name in ("sparsity_rounds", "mask_ratio_rounds"):
        if getattr(zerofl, name) > rounds:
            raise SettingsError(
                f"{name.replace('_', '-')} is {getattr(zerofl, name)}, but the run has only "
                f"{rounds} rounds: the final value would never be reached"
            )
    frozen_after = zerofl.freeze_mask_after_round
    if frozen_after is not None and frozen_after >= rounds:
        raise SettingsError(
            f"freeze-mask-after-round is {frozen_after}, but the run has only {rounds} rounds: "
            "no mask would ever be frozen"
        )
