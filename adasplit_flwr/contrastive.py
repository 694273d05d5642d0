"""The client's loss: supervised NT-Xent over the labels of one batch."""

from __future__ import annotations

import math

import torch
from torch.nn import functional

from zerofl_flwr.errors import DataError, SettingsError


def nt_xent(
    embeddings: torch.Tensor, labels: torch.Tensor, temperature: float = 0.07
) -> torch.Tensor:
    """Compute the supervised NT-Xent loss of a batch, the client loss of AdaSplit.

    From AdaSplit, arXiv 2112.01637. With s the cosine similarity and t the temperature, an anchor
    q and a positive p (another sample of its label) cost
    ``-log(exp(s(q, p)/t) / (exp(s(q, p)/t) + sum over the negatives k of q of exp(s(q, k)/t)))``;
    negatives are all samples of other labels. The loss is the mean over all ordered pairs (q, p),
    so other positives of q are in none of its denominators.

    A batch without such a pair (one sample, none, or no label twice) costs 0, and its backward
    pass gives zeros. So does a batch of one label only, which has no negatives.

    Parameters
    ----------
    embeddings : Tensor
        Float, (n, d), of any length: only directions count. A vector too near to zero to have one
        (no entry above 1e-30 in float32) has similarity 0 to all, and gradient 0. Half precision
        is computed in float32.
    labels : Tensor
        Integer, (n,).
    temperature : float
        A positive number.

    Returns
    -------
    Tensor
        Scalar, at least 0; NaN if there is a pair and an embedding is not finite.

    Raises
    ------
    SettingsError
        If the temperature is not positive, or the embeddings are no float matrix.
    DataError
        If the labels are not integers, or not one for each embedding.

    Examples
    --------
    >>> embeddings = torch.tensor([[1.0, 0.0], [0.0, 1.0], [3.0, 4.0]])
    >>> labels = torch.tensor([0, 0, 1])
    >>> round(nt_xent(embeddings, labels, temperature=1.0).item(), 4)
    1.1043
    """
    _check(embeddings, labels, temperature)
    if embeddings.dtype in (torch.float16, torch.bfloat16):
        embeddings = embeddings.float()
    directions = _directions(embeddings)
    similarities = directions @ directions.T / temperature
    same = labels[:, None] == labels[None, :]
    pairs = same & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    # The lowest finite number, not -inf: an anchor without negatives must not give inf - inf.
    lowest = torch.finfo(similarities.dtype).min
    negatives = similarities.masked_fill(same, lowest).logsumexp(dim=1, keepdim=True)
    margins = (similarities - negatives)[pairs]
    losses: torch.Tensor = -functional.logsigmoid(margins)
    return losses.sum() / max(len(losses), 1)


def _directions(embeddings: torch.Tensor) -> torch.Tensor:
    """Scale each row to length 1, from the smallest to the largest numbers of its dtype.

    Rows are divided by their largest entry first, so that their squares neither overflow nor
    vanish. The direction does not depend on that divisor, so no gradient runs through it.
    """
    largest = embeddings.detach().abs().amax(dim=1, keepdim=True)
    without_direction = largest < torch.finfo(embeddings.dtype).tiny * 1e8
    divisors = largest.masked_fill(without_direction, 1.0)
    scaled = (embeddings / divisors).masked_fill(without_direction, 0.0)
    # No row is shorter than 1 now, but the ones that are zero.
    lengths: torch.Tensor = torch.linalg.vector_norm(scaled, dim=1, keepdim=True)
    return scaled / lengths.clamp_min(1.0)


def _check(embeddings: torch.Tensor, labels: torch.Tensor, temperature: float) -> None:
    if not _is_positive(temperature):
        raise SettingsError(f"temperature is {temperature!r}; it must be a positive number")
    if embeddings.dim() != 2 or embeddings.shape[1] == 0 or not embeddings.is_floating_point():
        raise SettingsError(
            "embeddings must be a float tensor of shape (n, d), d at least 1; they are "
            f"{embeddings.dtype} of shape {tuple(embeddings.shape)}"
        )
    if labels.is_floating_point() or labels.is_complex() or labels.dtype is torch.bool:
        raise DataError(f"labels must be integers, they are {labels.dtype}")
    if labels.dim() != 1 or len(labels) != len(embeddings):
        raise DataError(
            f"there must be one label for each of {len(embeddings)} embeddings, "
            f"the labels have shape {tuple(labels.shape)}"
        )


def _is_positive(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value) and value > 0
