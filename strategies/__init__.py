"""Strategies that a Flower ServerApp plugs in."""

from strategies.adasplit import AdaSplit
from strategies.adasplit_evaluation import AdaSplitClientTest, AdaSplitTestReport
from strategies.adasplit_masks import MaskSummary
from strategies.adasplit_report import AdaSplitClientReport, AdaSplitRoundReport
from strategies.reports import ClientReport, RoundReport
from strategies.zerofl import ZeroFL

__all__ = [
    "AdaSplit",
    "AdaSplitClientReport",
    "AdaSplitClientTest",
    "AdaSplitRoundReport",
    "AdaSplitTestReport",
    "ClientReport",
    "MaskSummary",
    "RoundReport",
    "ZeroFL",
]
