"""What an AdaSplit client (arXiv 2112.01637) keeps between messages, as named arrays and as files.

A client's part of the network, its head and its optimizer stay with it from round to round.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zerofl_flwr.errors import DataError, SettingsError
from zerofl_flwr.npz import load_npz, save_npz

Arrays = dict[str, NDArray[Any]]

_FORMAT = 1
_COUNTERS = ("format", "partition-id", "server-round", "iterations")
_RUN, _ARRAY = "run", "array/"
_RUN_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,98}[A-Za-z0-9_-])?")
_STATE_FILE = re.compile(r"round-(0|[1-9][0-9]{0,17})\.npz")


@dataclass(frozen=True, eq=False)
class ClientState:
    """A client after a round.

    Parameters
    ----------
    arrays : mapping of str to NDArray
        The client's part, head and optimizer, in their order. Bools and numbers of any shape.
    server_round : int
        The round after which this is the state; 0 before the first.
    iterations : int
        Batches trained in the run so far.
    run : str
        The run that it belongs to.
    partition_id : int
        The client.

    Raises
    ------
    SettingsError
        A counter is negative or no int, `run` cannot be a file's name, an array has no printable
        name, or holds something else than bools and numbers.
    """

    arrays: Mapping[str, NDArray[Any]]
    server_round: int
    iterations: int
    run: str
    partition_id: int

    def __post_init__(self) -> None:
        """Refuse what could not be saved."""
        check_run_name(self.run)
        for name in ("server_round", "iterations", "partition_id"):
            _check_counter(name, getattr(self, name))
        for name, array in self.arrays.items():
            if not name or not name.isprintable():
                raise SettingsError(f"{name!r} cannot name an array of a client's state")
            if array.dtype.kind not in "biuf":
                raise SettingsError(f"array {name} has dtype {array.dtype}; expected numbers")

    def to_arrays(self) -> Arrays:
        """Return everything as one flat mapping of named arrays; the arrays are not copied."""
        counters = (_FORMAT, self.partition_id, self.server_round, self.iterations)
        return {
            **{k: np.array(v, np.int64) for k, v in zip(_COUNTERS, counters, strict=True)},
            _RUN: np.frombuffer(self.run.encode(), np.uint8),
            **{_ARRAY + name: array for name, array in self.arrays.items()},
        }

    @classmethod
    def from_arrays(cls, named: Mapping[str, NDArray[Any]]) -> ClientState:
        """Read what :meth:`to_arrays` returned; the arrays are not copied.

        Raises
        ------
        DataError
            Something is missing, unknown, or cannot be a client's state.
        """
        arrays = {k.removeprefix(_ARRAY): v for k, v in named.items() if k.startswith(_ARRAY)}
        own = {k: v for k, v in named.items() if not k.startswith(_ARRAY)}
        if set(own) != {*_COUNTERS, _RUN}:
            raise DataError(
                f"a client's state has {', '.join((*_COUNTERS, _RUN))}, not {sorted(own)}"
            )
        for name in _COUNTERS:
            if own[name].shape != () or own[name].dtype != np.int64:
                raise DataError(
                    f"{name} should be one int64, not {own[name].dtype} of shape {own[name].shape}"
                )
        if own[_RUN].ndim != 1 or own[_RUN].dtype != np.uint8:
            raise DataError(f"{_RUN} should be text in uint8, not {own[_RUN].dtype}")
        version, partition_id, server_round, iterations = (int(own[name]) for name in _COUNTERS)
        if version != _FORMAT:
            raise DataError(f"format {_FORMAT} of a client's state expected, {version} came")
        try:
            run = own[_RUN].tobytes().decode("ascii")
            return cls(arrays, server_round, iterations, run, partition_id)
        except (SettingsError, UnicodeDecodeError) as error:
            raise DataError(str(error)) from error


class StateFolder:
    """The states of a run's clients, in ``root/run/client-3/round-12.npz``.

    Of each client at most four are there, however long the run. Two are those of the last rounds
    that it trained in: the server may not have heard of the last. The others are those that the
    server's last two checkpoints name, should the run be resumed from there: when it stops, the
    newest may not have been written. One process at a time may save a client.

    Parameters
    ----------
    root : Path
        Folder of all runs; made when the first state is saved.
    run : str
        Name of the run: 1 to 100 letters, digits, dots, dashes and underscores, not beginning with
        a mark nor ending with a dot.
    checkpoint_every : int
        Rounds between two checkpoints of the server, which come after its multiples and after the
        last round. 0: there are none, and the states of the last two rounds are enough.

    Raises
    ------
    SettingsError
        `run` is another text, or `checkpoint_every` is negative or no int.
    """

    def __init__(self, root: Path, run: str, *, checkpoint_every: int = 0) -> None:
        check_run_name(run)
        _check_counter("checkpoint_every", checkpoint_every)
        self._run = run
        self._checkpoint_every = checkpoint_every
        self._folder = root / run

    def save(self, partition_id: int, state: ClientState, *, after: int | None = None) -> None:
        """Save a state atomically, and delete those that nobody will ask for.

        These are older ones that neither of the last two checkpoints names, and those of later
        rounds: a run that is resumed from an older checkpoint will not come to them again as they
        are.

        Parameters
        ----------
        partition_id : int
            The client.
        state : ClientState
            Its state.
        after : int, optional
            Round whose state it was trained from; what lies between was given up, and goes too.

        Raises
        ------
        SettingsError
            The state is that of another client or run.
        """
        if (state.run, state.partition_id) != (self._run, partition_id):
            raise SettingsError(
                f"the state of {_whose(state.run, state.partition_id)} was to be saved as that of "
                f"{_whose(self._run, partition_id)}"
            )
        save_npz(self._file(partition_id, state.server_round), state.to_arrays())
        rounds = self._rounds(partition_id)
        given_up = range(state.server_round if after is None else after + 1, state.server_round)
        earlier = [n for n in rounds if n <= state.server_round and n not in given_up]
        kept = _still_needed(earlier, self._checkpoint_every)
        for number in rounds:
            if number not in kept:
                self._file(partition_id, number).unlink(missing_ok=True)

    def load(self, partition_id: int, server_round: int) -> ClientState | None:
        """Give the state saved after that very round; None if there is none.

        Raises
        ------
        DataError
            The file is damaged, or holds something else; it is named.
        SettingsError
            `partition_id` or `server_round` is negative or no int.
        """
        path = self._file(partition_id, server_round)
        try:
            named = load_npz(path, what="client state")
        except FileNotFoundError:
            return None
        try:
            state = ClientState.from_arrays(named)
        except DataError as error:
            raise DataError(f"{path} holds no client state: {error}") from error
        if (state.run, state.partition_id, state.server_round) != (
            self._run,
            partition_id,
            server_round,
        ):
            raise DataError(
                f"{path} holds the state of {_whose(state.run, state.partition_id)} after round "
                f"{state.server_round}"
            )
        return state

    def latest(self, partition_id: int) -> ClientState | None:
        """Give the state of the last saved round; None if there is none.

        Raises
        ------
        DataError, SettingsError
            As :meth:`load`.
        """
        rounds = self._rounds(partition_id)
        return self.load(partition_id, rounds[-1]) if rounds else None

    def _client(self, partition_id: int) -> Path:
        _check_counter("partition_id", partition_id)
        return self._folder / f"client-{partition_id}"

    def _file(self, partition_id: int, server_round: int) -> Path:
        _check_counter("server_round", server_round)
        return self._client(partition_id) / f"round-{server_round}.npz"

    def _rounds(self, partition_id: int) -> list[int]:
        """Return the rounds with a file, ascending; files of other names are not ours."""
        matches = map(
            _STATE_FILE.fullmatch, (p.name for p in self._client(partition_id).glob("*.npz"))
        )
        return sorted(int(match[1]) for match in matches if match)


def check_run_name(run: str) -> None:
    """Refuse a run's name that could not be a folder's on every system.

    Raises
    ------
    SettingsError
        Saying what a name may be.
    """
    if not _RUN_NAME.fullmatch(run):
        raise SettingsError(
            f"{run!r} cannot name a run: 1 to 100 letters, digits, '.', '-' and '_' are needed, "
            "with a letter or digit first and no dot last"
        )


def _still_needed(rounds: list[int], checkpoint_every: int) -> set[int]:
    """Choose, among a client's rounds in ascending order, those whose states must stay."""
    needed = set(rounds[-2:])
    if checkpoint_every:
        newest = rounds[-1] // checkpoint_every * checkpoint_every
        for checkpoint in (newest, newest - checkpoint_every):
            needed.update([number for number in rounds if number <= checkpoint][-1:])
    return needed


def _check_counter(name: str, value: object) -> None:
    if type(value) is not int or not 0 <= value < 2**63:
        raise SettingsError(f"{name} is {value!r}; it must be a whole number from 0")


def _whose(run: str, partition_id: int) -> str:
    return f"client {partition_id} of run {run}"
