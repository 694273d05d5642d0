"""What a round did to the global model's zeros: non-zero ratios and the overlap of masks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from zerofl_flwr.model_arrays import Array
from zerofl_flwr.topk import FractionLike, count_unmasked, topk_indices


@dataclass(frozen=True)
class LayerReport:
    """One masked layer after a round's aggregation.

    Parameters
    ----------
    layer : str
        Name of the weight tensor.
    parameters : int
        Number of weights.
    nonzero_ratio : float
        Share of the aggregate that is not zero (section 4.3 of the paper).
    mask_overlap : float
        Share of the previous round's top-K positions that are in this round's; NaN in the first.
    zero_overlap : float
        The same for the positions outside the top K, which the paper's figures show.
    """

    layer: str
    parameters: int
    nonzero_ratio: float
    mask_overlap: float
    zero_overlap: float


class MaskHistory:
    """Keeps the last round's top-K mask per layer, packed to one bit a weight."""

    def __init__(self) -> None:
        self.packed: dict[str, NDArray[np.uint8]] = {}

    def report(
        self,
        names: Sequence[str],
        arrays: Sequence[Array],
        masked: Sequence[int],
        sparsity: FractionLike,
    ) -> list[LayerReport]:
        """Compare each masked layer with the last round, and remember it for the next."""
        reports = []
        for position in masked:
            name, array = names[position], arrays[position]
            mask = np.zeros(array.size, dtype=bool)
            mask[topk_indices(array, count_unmasked(array.size, sparsity))] = True
            kept, zeros = np.nan, np.nan
            if name in self.packed:
                before = np.unpackbits(self.packed[name], count=array.size).view(bool)
                kept = _share(mask & before, before)
                zeros = _share(~(mask | before), ~before)
            self.packed[name] = np.packbits(mask)
            nonzero = np.count_nonzero(array) / max(array.size, 1)
            reports.append(LayerReport(name, array.size, nonzero, kept, zeros))
        return reports

    def masks(self, reports: Sequence[LayerReport]) -> dict[str, NDArray[np.bool_]]:
        """Return the masks of the reported layers as flat booleans."""
        return {
            report.layer: np.unpackbits(self.packed[report.layer], count=report.parameters).view(
                bool
            )
            for report in reports
        }


def overall_nonzero_ratio(reports: Sequence[LayerReport]) -> float:
    """Return the non-zero share over all masked weights together; NaN without any."""
    total = sum(report.parameters for report in reports)
    if total == 0:
        return float("nan")
    return sum(report.nonzero_ratio * report.parameters for report in reports) / total


def overall_mask_overlap(reports: Sequence[LayerReport]) -> float:
    """Return the mask overlap averaged over layers by their size; NaN in the first round."""
    total = sum(report.parameters for report in reports)
    if total == 0:
        return float("nan")
    return sum(report.mask_overlap * report.parameters for report in reports) / total


def _share(part: NDArray[np.bool_], whole: NDArray[np.bool_]) -> float:
    count = int(np.count_nonzero(whole))
    return int(np.count_nonzero(part)) / count if count else float("nan")
