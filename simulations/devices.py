"""On which device the server tests, and what CUDA devices this process sees."""

from __future__ import annotations

import torch

from simulations.simulation_settings import SimulationSettings


def server_device(simulation: SimulationSettings) -> str:
    """Return the device that the server tests on, as the setting ``device`` describes it."""
    elsewhere = simulation.ray_address is not None
    if simulation.device == "cpu" or not elsewhere or has_cuda(simulation.device):
        return simulation.device
    return "cpu"


def has_cuda(device: str) -> bool:
    """Say whether this process sees a CUDA device, such as ``cuda`` or ``cuda:1``."""
    return (torch.device(device).index or 0) < torch.cuda.device_count()
