"""AdaSplit (Chopra et al., 2021): split training that adapts to the clients' resources.

The parts most projects need are here; each module holds one idea and can be imported by itself.
"""

from adasplit_flwr.batches import ShuffledBatches
from adasplit_flwr.client import AdaSplitClient
from adasplit_flwr.settings import AdaSplitSettings
from adasplit_flwr.split import SplitModel, check_split, split_sequential

__all__ = [
    "AdaSplitClient",
    "AdaSplitSettings",
    "ShuffledBatches",
    "SplitModel",
    "check_split",
    "split_sequential",
]
