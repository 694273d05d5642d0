"""What runs cost before they are started, and settings that keep to budgets."""

from strategies.planning.adasplit_costs import AdaSplitCosts
from strategies.planning.adasplit_plan import plan_adasplit
from strategies.planning.bill import RunCosts
from strategies.planning.plan import Candidate, Plan
from strategies.planning.zerofl_costs import ZeroFLCosts
from strategies.planning.zerofl_plan import plan_zerofl

__all__ = [
    "AdaSplitCosts",
    "Candidate",
    "Plan",
    "RunCosts",
    "ZeroFLCosts",
    "plan_adasplit",
    "plan_zerofl",
]
