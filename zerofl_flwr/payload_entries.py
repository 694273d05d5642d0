"""What a payload consists of: one entry per tensor, and what a receiver expects of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from zerofl_flwr.errors import PayloadError
from zerofl_flwr.sparse_array import SparseArray

Content: TypeAlias = Literal["weights", "difference"]
MetaValue: TypeAlias = str | int | float | bool


@dataclass(frozen=True, eq=False)
class Values:
    """Values at a pattern of positions that both sides know already (frozen masks).

    Parameters
    ----------
    shape : tuple of int
        Shape of the tensor.
    values : NDArray, shape (k,)
        In the ascending order of the pattern's C-order flat positions.

    Raises
    ------
    PayloadError
        `values` is not 1-D, or has more elements than the tensor.
    """

    shape: tuple[int, ...]
    values: NDArray[Any]

    def __post_init__(self) -> None:
        if self.values.ndim != 1 or self.values.size > math.prod(self.shape):
            raise PayloadError(
                f"values of shape {self.values.shape} cannot lie at a pattern within {self.shape}",
                field="values",
            )


@dataclass(frozen=True)
class NotSent:
    """A tensor that stays where it is, such as BatchNorm's ``num_batches_tracked``.

    Parameters
    ----------
    shape : tuple of int
        Shape of the tensor.
    dtype : np.dtype
        Its data type.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


@dataclass(frozen=True, eq=False)
class Entry:
    """One tensor of a payload.

    Parameters
    ----------
    name : str
        State-dict key: 1 to 256 printable characters, unique in the payload.
    data : NDArray, SparseArray, Values or NotSent
        The tensor, or the part of it that travels.
    content : {"weights", "difference"}
        Whether the values are the sender's weights, or what is to be added to the receiver's.
    sparse : bool, default False
        Whether the sender left positions out: always True with a `SparseArray`. True with a dense
        array says that it stands for a sparse one and that what is not zero was sent.

    Raises
    ------
    PayloadError
        `sparse` is set for `Values` or `NotSent`.
    """

    name: str
    data: NDArray[Any] | SparseArray | Values | NotSent
    content: Content = "weights"
    sparse: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.data, SparseArray):
            object.__setattr__(self, "sparse", True)
        elif self.sparse and not isinstance(self.data, np.ndarray):
            raise PayloadError("only arrays can be sparse", layer=self.name, field="sparse")


@dataclass(frozen=True)
class TensorSpec:
    """Shape and data type that a receiver expects at one position of a payload."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


@dataclass(frozen=True, eq=False)
class Payload:
    """A decoded payload: its entries in the order of the model, and the sender's scalars.

    Parameters
    ----------
    entries : list of Entry
        One per tensor of the model.
    meta : dict of str to str, int, float or bool
        Scalars of the sender's choice; floats are finite, ints fit 64 bits.
    """

    entries: list[Entry]
    meta: dict[str, MetaValue] = field(default_factory=dict)
