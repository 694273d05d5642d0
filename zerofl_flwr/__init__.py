"""ZeroFL (Qiu et al., ICLR 2022): sparse training on the client and sparse uplinks.

The parts most projects need are here; each module holds one idea and can be imported by itself.
"""

from zerofl_flwr.client import ZeroFLClient
from zerofl_flwr.errors import (
    ClientFailedError,
    DataError,
    LeanFlwrError,
    PayloadError,
    RoundFailedError,
    SelectionError,
    SettingsError,
)
from zerofl_flwr.follow import follow_plan
from zerofl_flwr.mod import sparse_uplink
from zerofl_flwr.recommended import recommended_settings
from zerofl_flwr.settings import RoundPlan, ZeroFLSettings
from zerofl_flwr.sparsify import describe_masking, masked_weight_names, set_sparsity, sparsify
from zerofl_flwr.training import TrainingSettings

__all__ = [
    "ClientFailedError",
    "DataError",
    "LeanFlwrError",
    "PayloadError",
    "RoundFailedError",
    "RoundPlan",
    "SelectionError",
    "SettingsError",
    "TrainingSettings",
    "ZeroFLClient",
    "ZeroFLSettings",
    "describe_masking",
    "follow_plan",
    "masked_weight_names",
    "recommended_settings",
    "set_sparsity",
    "sparse_uplink",
    "sparsify",
]
