"""Bytes of one ResNet-18 upload for each sparsity and mask ratio, beside the paper's table."""

from __future__ import annotations

import numpy as np
import pandas as pd
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters

from simulations.commands import command
from simulations.markdown import to_markdown
from simulations.models import resnet18
from strategies.metering import message_bytes
from zerofl_flwr import masked_weight_names, sparsify
from zerofl_flwr.model_arrays import Array, array_names, get_arrays
from zerofl_flwr.payload import encode
from zerofl_flwr.uplink import uplink_entries, uploaded_fraction

# Megabytes that the paper prints (Table 1); the full model has 43.7 there.
PAPER_MEGABYTES = {
    (0.9, 0.0): 10.1,
    (0.9, 0.1): 18.7,
    (0.9, 0.2): 27.3,
    (0.95, 0.0): 5.9,
    (0.95, 0.1): 14.4,
    (0.95, 0.2): 23.0,
}


def reply_bytes(arrays: list[Array]) -> int:
    """Return the bytes of the serialized message content that carries these arrays."""
    result = FitRes(Status(Code.OK, ""), ndarrays_to_parameters(arrays), 1, {})
    return message_bytes(result)


def upload_sizes() -> pd.DataFrame:
    """Measure each setting's upload.

    Returns
    -------
    DataFrame
        sparsity, mask_ratio, megabytes (decimal, of the serialized message), ours (times smaller
        than the dense message) and the paper's megabytes and factor.
    """
    model = sparsify(resnet18(10), 0.95)
    names, masked = array_names(model), masked_weight_names(model)
    positions = ",".join(str(names.index(name)) for name in masked)
    before = get_arrays(model)
    generator = np.random.default_rng(0)
    after = [
        array + generator.normal(0, 0.01, array.shape).astype(array.dtype)
        if np.issubdtype(array.dtype, np.floating)
        else array
        for array in before
    ]
    dense = reply_bytes(after)
    rows = []
    for (sparsity, mask_ratio), paper in PAPER_MEGABYTES.items():
        entries = uplink_entries(
            names,
            before,
            after,
            masked=masked,
            rule="top-k-weights",
            keep=uploaded_fraction(sparsity, mask_ratio),
        )
        size = reply_bytes(encode(entries, {"round": 1, "masked": positions}))
        rows.append(
            {
                "sparsity": sparsity,
                "mask_ratio": mask_ratio,
                "MB": round(size / 1e6, 2),
                "smaller by": round(dense / size, 1),
                "paper MB": paper,
                "paper smaller by": round(43.7 / paper, 1),
            }
        )
    return pd.DataFrame(rows)


def main() -> None:
    """Print each setting's upload beside the paper's."""
    print(to_markdown(upload_sizes()))


if __name__ == "__main__":
    command(main)()
