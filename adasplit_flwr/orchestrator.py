"""Which clients the server learns from: AdaSplit's bandit (arXiv 2112.01637).

Of N clients in the global phase, the orchestrator picks k per exchange: those whose server loss
is high, and those that were not picked for long.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zerofl_flwr.errors import DataError, RoundFailedError, SettingsError

START_LOSS = 100.0
"""The loss that a client starts with, twice: far above any cross-entropy of a few classes."""
_START_ENTRIES = 2
_SHOWN_PICKS = 1e-200  # 1/s of less would not fit into the terms that are shown
_TIE_STREAM = 3  # sets these draws apart from others of the same seed
_LARGEST_LOSS = float(np.finfo(np.float32).max)


@dataclass(frozen=True, eq=False)
class Terms:
    """The two parts of the scores of some clients, for plots and reports.

    Who waited so long that ``s_i`` is below 1e-200 is shown with 1e-200; picks know it exactly.

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
    ``l_i = sum_t gamma^(T-1-t) L_i^t`` and ``s_i = sum_t gamma^(T-1-t) S_i^t``, over the entries t
    of that client. An exchange adds one entry to each: to a picked one its server loss L and S = 1,
    to another the mean of its last two L and S = 0. T is common to all: the number of entries of a
    client that has been there from the start. One that comes later starts afresh.

    Everybody starts with two entries of L = 100 and S = 1, so T is 2 before the first exchange and
    every score is ``100 + sqrt(2 ln 2 / (1 + gamma))``: a draw. S counts as 1 there because S = 0
    would leave ``s_i = 1e-15``, scores of 1e17, and an exploration term that is lost in their
    rounding. While losses stay below 100, who was never picked has larger L and smaller S than who
    was: of those that start together, all are picked once before any is picked twice.

    The authors add 1e-15 to ``s_i``. Here no ``s_i`` is ever 0, so it would do nothing but end the
    growth of the scores of clients that wait long, after some 120 exchanges at gamma .75. It is
    left out: ``s_i`` is kept as its value at the last pick and the exchanges since, and scores are
    compared by their logarithms, which neither overflow nor vanish.

    The sums are kept recursively (``l <- gamma l + L``). Nothing but the seed, the history and the
    candidates decides a pick.

    Parameters
    ----------
    gamma : float, default 0.75
        Discount per exchange, in (0, 1]; 1 never forgets.
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
        self._pick_sums = np.empty(0, np.float64)  # s when last picked, so from 1
        self._waits = np.empty(0, np.int64)  # entries since then
        self._last_losses = np.empty((0, 2), np.float64)

    @property
    def exchanges(self) -> int:
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
        given = _checked_ids(candidates).size
        if type(count) is not int or not 1 <= count <= given:
            raise SettingsError(f"count is {count!r}; there are {given} candidates to pick from")
        return sorted(self.rank(candidates)[:count])

    def rank(self, candidates: Sequence[int]) -> list[int]:
        """Order clients by their scores, the highest first; otherwise as :meth:`pick`.

        Raises
        ------
        SettingsError
            Ids are negative or occur twice.
        """
        ids = np.sort(_checked_ids(candidates))
        self._admit(ids)
        scores = self._log_scores_at(np.searchsorted(self._ids, ids))
        ties = np.random.default_rng((self.seed, _TIE_STREAM, self._entries)).permutation(ids.size)
        return [int(client) for client in ids[np.lexsort((ties, -scores))]]

    def update(self, losses: Mapping[int, float], *, failed: Collection[int] = ()) -> None:
        """Add one exchange.

        Parameters
        ----------
        losses : mapping of int to float
            The server's loss for each picked client, from 0: its mean cross-entropy. A penalty on
            masks does not belong here, as it can be far above the 100 that clients start with.
        failed : collection of int
            Other picked clients, from which nothing was learned: they count as picked, with the
            mean of their last two losses, so that one that always fails is not picked for ever. All
            other known clients count as not picked.

        Raises
        ------
        SettingsError
            Nobody was picked, or somebody that :meth:`pick` never had among its candidates.
        RoundFailedError
            A loss is negative, NaN, or beyond float32: the server's training diverged.

        Notes
        -----
        An error leaves everything as it was.
        """
        rows = self._rows_of([*losses, *failed])
        if not rows.size:
            raise SettingsError("an exchange needs at least one picked client")
        values = np.array([_checked_loss(client, loss) for client, loss in losses.items()])
        newest = self._last_losses.mean(axis=1)
        newest[rows[: values.size]] = values
        self._loss_sums = self.gamma * self._loss_sums + newest
        self._waits = self._waits + 1
        self._pick_sums[rows] = self._pick_sums[rows] * self._faded(rows) + 1
        self._waits[rows] = 0
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
            ``loss-sums`` (n,) and ``last-losses`` (n, 2), float64, ``pick-sums`` (n,), float64, s_i
            when the client was last picked, and ``waits`` (n,), int64, the exchanges since.
        """
        return {
            "entries": np.array(self._entries, np.int64),
            "ids": self._ids.copy(),
            "loss-sums": self._loss_sums.copy(),
            "pick-sums": self._pick_sums.copy(),
            "waits": self._waits.copy(),
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
        entries, ids, loss_sums, pick_sums, waits, last_losses = _checked_state(state)
        self._entries = int(entries)
        self._ids = ids.copy()
        self._loss_sums = loss_sums.copy()
        self._pick_sums = pick_sums.copy()
        self._waits = waits.copy()
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
        self._waits = np.concatenate((self._waits, np.zeros(new.size, np.int64)))[order]
        self._last_losses = np.concatenate((self._last_losses, last))[order]

    def _rows_of(self, clients: Sequence[int]) -> NDArray[np.int64]:
        ids = _checked_ids(clients)
        if (unknown := np.setdiff1d(ids, self._ids)).size:
            raise SettingsError(
                f"clients {unknown.tolist()} are not known here: they were never candidates"
            )
        return np.searchsorted(self._ids, ids)

    def _terms_at(self, rows: NDArray[np.int64]) -> Terms:
        picks = np.maximum(self._pick_sums[rows] * self._faded(rows), _SHOWN_PICKS)
        exploration = np.sqrt(2 * math.log(self._entries) / picks)
        return Terms(self._loss_sums[rows] / picks, exploration)

    def _faded(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.power(self.gamma, self._waits[rows])

    def _log_scores_at(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        log_picks = np.log(self._pick_sums[rows]) + self._waits[rows] * math.log(self.gamma)
        with np.errstate(divide="ignore"):  # losses of 0
            exploitation = np.log(self._loss_sums[rows]) - log_picks
        exploration = (math.log(2 * math.log(self._entries)) - log_picks) / 2
        scores: NDArray[np.float64] = np.logaddexp(exploitation, exploration)
        return scores


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
    known = ("entries", "ids", "loss-sums", "pick-sums", "waits", "last-losses")
    if set(state) != set(known):
        raise DataError(f"an orchestrator's state has {list(known)}, {sorted(state)} came")
    clients = state["ids"].size
    row = (clients,)
    shapes: tuple[tuple[int, ...], ...] = ((), row, row, row, row, (clients, 2))
    for name, shape in zip(known, shapes, strict=True):
        array, dtype = (
            state[name],
            np.dtype("int64" if name in ("entries", "ids", "waits") else "float64"),
        )
        if array.shape != shape or array.dtype != dtype:
            raise DataError(
                f"the orchestrator's {name} should be {dtype} of shape {shape}, "
                f"{array.dtype} of shape {array.shape} came"
            )
        if not (np.isfinite(array).all() and (array >= 0).all()):
            raise DataError(f"the orchestrator's {name} must be finite and not negative")
    if state["entries"] < _START_ENTRIES:
        raise DataError(f"the orchestrator's entries are {state['entries']}; they start at 2")
    if (state["pick-sums"] < 1).any():
        raise DataError("the orchestrator's pick-sums must be from 1")
    if (np.diff(state["ids"]) <= 0).any():
        raise DataError("the orchestrator's ids must ascend")
    return [state[name] for name in known]
