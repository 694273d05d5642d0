"""Strategies that a Flower ServerApp plugs in."""

from strategies.reports import ClientReport, RoundReport
from strategies.zerofl import ZeroFL

__all__ = ["ClientReport", "RoundReport", "ZeroFL"]
