"""Which clients the server learns from: AdaSplit's bandit (arXiv 2112.01637).

Of N clients in the global phase, the orchestrator picks k per iteration: those whose server loss
is high, and those that were not picked for long.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zerofl_flwr.errors import DataError, RoundFailedError, SettingsError

START_LOSS = 100.0
"""The loss that a client starts with, twice: far above any cross-entropy of a few classes."""
_START_ENTRIES = 2
_TINY = 1e-15
_TIE_STREAM = 3  # sets these draws apart from others of the same seed
_LARGEST_LOSS = float(np.finfo(np.float32).max)


@dataclass(frozen=True, eq=False)
class Terms:
    """The two parts of the scores of some clients.

    Parameters
    ----------
    exploitation : NDArray of float64, shape (n,)
        ``l_i / s_i``: the discounted mean of the loss, per pick.
    exploration : NDArray of float64, shape (n,)
        ``sqrt(2 ln T / s_i)``, which grows while a client is not picked.
    """

    exploitation: NDArray[np.float64]
    exploration: NDArray[np.float64]

    @property
    def scores(self) -> NDArray[np.float64]:
        """Advantage ``A_i``, the sum of both; shape (n,)."""
        return self.exploitation + self.exploration


class Orchestrator:
    """Upper confidence bounds over discounted losses.

    A client's score is ``A_i = l_i / s_i + sqrt(2 ln T / s_i)`` with
    ``l_i = sum_t gamma^(T-1-t) L_i^t`` and ``s_i = sum_t gamma^(T-1-t) S_i^t + 1e-15``, over the
    entries t of that client. An iteration adds one entry to each: to a picked one its server loss
    L and S = 1, to another the mean of its last two L and S = 0. T is common to all: the number of
    entries of a client that has been there from the start. One that comes later starts afresh.

    Everybody starts with two entries of L = 100 and S = 1, so T is 2 before the first iteration and
    every score is ``100 + sqrt(2 ln 2 / (1 + gamma))``: a draw. S counts as 1 there because S = 0
    would leave ``s_i = 1e-15``, scores of 1e17, and an exploration term that is lost in their
    rounding. While losses stay below 100, who was never picked has larger L and smaller S than who
    was: of those that start together, all are picked once before any is picked twice.

    The sums are kept recursively (``l <- gamma l + L``). Nothing but the seed, the history and the
    candidates decides a pick.

    Parameters
    ----------
    gamma : float, default 0.75
        Discount per iteration, in (0, 1]; 1 never forgets.
    seed : int, default 0
        Decides between equal scores.

    Raises
    ------
    SettingsError
        `gamma` is not in (0, 1], or `seed` is negative.

    Examples
    --------
    >>> orchestrator = Orchestrator(gamma=0.5, seed=1)
    >>> first = orchestrator.pick([0, 1, 2, 3], 2)
    >>> orchestrator.update({client: 1.6 for client in first})
    >>> sorted(first + orchestrator.pick([0, 1, 2, 3], 2))
    [0, 1, 2, 3]
    """

    def __init__(self, gamma: float = 0.75, *, seed: int = 0) -> None:
        if not 0 < gamma <= 1:
            raise SettingsError(f"gamma is {gamma}; it must be above 0 and at most 1")
        if type(seed) is not int or seed < 0:
            raise SettingsError(f"seed is {seed!r}; it must be a whole number from 0")
        self.gamma = float(gamma)
        self.seed = seed
        self._entries = _START_ENTRIES  # T
        # One row per known client, ids ascending.
        self._ids = np.empty(0, np.int64)
        self._loss_sums = np.empty(0, np.float64)
        self._pick_sums = np.empty(0, np.float64)
        self._last_losses = np.empty((0, 2), np.float64)

    @property
    def iterations(self) -> int:
        """Number of updates so far."""
        return self._entries - _START_ENTRIES

    def pick(self, candidates: Sequence[int], count: int) -> list[int]:
        """Choose the clients with the highest scores; equal ones at random, by the seed.

        Parameters
        ----------
        candidates : sequence of int
            Client ids to choose from, in any order. Who is new is known from here on, with the
            start values as its last two entries.
        count : int
            How many to choose, from 1 to all of them.

        Returns
        -------
        list of int
            Ascending. The same again until the next update.

        Raises
        ------
        SettingsError
            Ids are negative or occur twice, or `count` is out of range.
        """
        ids = _checked_ids(candidates)
        if type(count) is not int or not 1 <= count <= ids.size:
            raise SettingsError(f"count is {count!r}; there are {ids.size} candidates to pick from")
        ids = np.sort(ids)
        self._admit(ids)
        scores = self._terms_at(np.searchsorted(self._ids, ids)).scores
        ties = np.random.default_rng((self.seed, _TIE_STREAM, self._entries)).permutation(ids.size)
        best = np.lexsort((ties, -scores))[:count]
        return [int(client) for client in np.sort(ids[best])]

    def update(self, losses: Mapping[int, float]) -> None:
        """Add one iteration.

        Parameters
        ----------
        losses : mapping of int to float
            The server's loss for each picked client, from 0: its cross-entropy. A penalty on masks
            does not belong here, as it can be far above the 100 that clients start with. All other
            known clients count as not picked.

        Raises
        ------
        SettingsError
            `losses` is empty, or names a client that :meth:`pick` never had among its candidates.
        RoundFailedError
            A loss is negative, NaN, or beyond float32: the server's training diverged.

        Notes
        -----
        An error leaves everything as it was.
        """
        if not losses:
            raise SettingsError("an iteration needs the loss of at least one picked client")
        rows = self._rows_of(list(losses))
        values = np.array([_checked_loss(client, loss) for client, loss in losses.items()])
        newest = self._last_losses.mean(axis=1)
        newest[rows] = values
        picked = np.zeros(self._ids.size)
        picked[rows] = 1
        self._loss_sums = self.gamma * self._loss_sums + newest
        self._pick_sums = self.gamma * self._pick_sums + picked
        self._last_losses = np.column_stack((self._last_losses[:, 1], newest))
        self._entries += 1

    def terms(self, candidates: Sequence[int]) -> Terms:
        """Give both parts of the present scores, for plots and reports.

        Parameters
        ----------
        candidates : sequence of int
            Known clients; the result is in their order.

        Raises
        ------
        SettingsError
            Ids are negative, occur twice, or were never candidates of :meth:`pick`.
        """
        return self._terms_at(self._rows_of(candidates))

    def state_arrays(self) -> dict[str, NDArray[Any]]:
        """Return all that the next picks depend on, besides `gamma` and `seed`.

        Returns
        -------
        dict of str to NDArray
            ``entries``, T as an int64 scalar; per known client, ids ascending: ``ids`` (n,) int64,
            ``loss-sums`` (n,), ``pick-sums`` (n,) and ``last-losses`` (n, 2), float64.
        """
        return {
            "entries": np.array(self._entries, np.int64),
            "ids": self._ids.copy(),
            "loss-sums": self._loss_sums.copy(),
            "pick-sums": self._pick_sums.copy(),
            "last-losses": self._last_losses.copy(),
        }

    def load_state_arrays(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue from what :meth:`state_arrays` returned.

        Raises
        ------
        DataError
            An array is missing, unknown, of another shape or type, or holds what cannot be; then
            nothing has changed.
        """
        entries, ids, loss_sums, pick_sums, last_losses = _checked_state(state)
        self._entries = int(entries)
        self._ids = ids.copy()
        self._loss_sums = loss_sums.copy()
        self._pick_sums = pick_sums.copy()
        self._last_losses = last_losses.copy()

    def _admit(self, ids: NDArray[np.int64]) -> None:
        new = np.setdiff1d(ids, self._ids)
        if not new.size:
            return
        start = sum(self.gamma**t for t in range(_START_ENTRIES))
        every = np.concatenate((self._ids, new))
        order = np.argsort(every)
        self._ids = every[order]
        picks, last = np.full(new.size, start), np.full((new.size, 2), START_LOSS)
        self._loss_sums = np.concatenate((self._loss_sums, picks * START_LOSS))[order]
        self._pick_sums = np.concatenate((self._pick_sums, picks))[order]
        self._last_losses = np.concatenate((self._last_losses, last))[order]

    def _rows_of(self, clients: Sequence[int]) -> NDArray[np.int64]:
        ids = _checked_ids(clients)
        if (unknown := np.setdiff1d(ids, self._ids)).size:
            raise SettingsError(
                f"clients {unknown.tolist()} are not known here: they were never candidates"
            )
        return np.searchsorted(self._ids, ids)

    def _terms_at(self, rows: NDArray[np.int64]) -> Terms:
        picks = self._pick_sums[rows] + _TINY
        exploration = np.sqrt(2 * math.log(self._entries) / picks)
        return Terms(self._loss_sums[rows] / picks, exploration)


def _checked_ids(clients: Sequence[int]) -> NDArray[np.int64]:
    given = np.asarray(clients)
    ids = given.astype(np.int64) if given.dtype.kind in "iu" else np.empty(0, np.int64)
    if ids.size != given.size or (ids < 0).any():
        raise SettingsError(f"client ids must be whole numbers from 0, not {list(clients)}")
    if np.unique(ids).size != ids.size:
        raise SettingsError(f"client ids occur twice in {sorted(ids.tolist())}")
    return ids


def _checked_loss(client: int, loss: float) -> float:
    value = float(loss)
    if not 0 <= value <= _LARGEST_LOSS:
        raise RoundFailedError(
            f"the server's loss for client {client} is {value}; expected a finite one from 0"
        )
    return value


def _checked_state(state: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
    """Return the arrays in the order of ``state_arrays``, or say what is wrong with one."""
    known = ("entries", "ids", "loss-sums", "pick-sums", "last-losses")
    if set(state) != set(known):
        raise DataError(f"an orchestrator's state has {list(known)}, {sorted(state)} came")
    clients = state["ids"].size
    shapes: tuple[tuple[int, ...], ...] = ((), (clients,), (clients,), (clients,), (clients, 2))
    for name, shape in zip(known, shapes, strict=True):
        array, dtype = state[name], np.dtype("int64" if name in ("entries", "ids") else "float64")
        if array.shape != shape or array.dtype != dtype:
            raise DataError(
                f"the orchestrator's {name} should be {dtype} of shape {shape}, "
                f"{array.dtype} of shape {array.shape} came"
            )
        if not (np.isfinite(array).all() and (array >= 0).all()):
            raise DataError(f"the orchestrator's {name} must be finite and not negative")
    if state["entries"] < _START_ENTRIES:
        raise DataError(f"the orchestrator's entries are {state['entries']}; they start at 2")
    if (np.diff(state["ids"]) <= 0).any():
        raise DataError("the orchestrator's ids must ascend")
    return [state[name] for name in known]
