"""Clients of the methods that the package's own are compared with."""

from simulations.baselines.alone import AloneClient
from simulations.baselines.client import BaselineClient
from simulations.baselines.scaffold import ScaffoldClient

__all__ = ["AloneClient", "BaselineClient", "ScaffoldClient"]
