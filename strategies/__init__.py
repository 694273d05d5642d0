"""Strategies that a Flower ServerApp plugs in."""

from strategies.adasplit import AdaSplit
from strategies.adasplit_masks import MaskSummary
from strategies.adasplit_report import AdaSplitClientReport, AdaSplitRoundReport
from strategies.alone import Alone
from strategies.baseline import Baseline
from strategies.budget import Budget
from strategies.client_tests import (
    AdaSplitClientTest,
    AdaSplitTestReport,
    ClientTest,
    ClientTestReport,
)
from strategies.fednova import FedNova
from strategies.reports import BaselineRoundReport, ClientReport, RoundReport
from strategies.scaffold import Scaffold
from strategies.zerofl import ZeroFL

__all__ = [
    "AdaSplit",
    "AdaSplitClientReport",
    "AdaSplitClientTest",
    "AdaSplitRoundReport",
    "AdaSplitTestReport",
    "Alone",
    "Baseline",
    "BaselineRoundReport",
    "Budget",
    "ClientReport",
    "ClientTest",
    "ClientTestReport",
    "FedNova",
    "MaskSummary",
    "RoundReport",
    "Scaffold",
    "ZeroFL",
]
