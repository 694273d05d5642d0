"""AdaSplit's state as named arrays, and when the mask store may forget an older one."""

from __future__ import annotations

from collections.abc import Mapping

from adasplit_flwr.masked_server import MaskedServer
from strategies.state import Resumable, State, prefixed, unprefixed
from zerofl_flwr.errors import SettingsError
from zerofl_flwr.model_arrays import Array


class SavedState:
    """Everything that AdaSplit's next round depends on, by part.

    Parameters
    ----------
    server : MaskedServer
        W with its Adam moments and steps, and the masks or the table that finds them.
    others : mapping of str to Resumable
        Further parts, by their prefix in the state.
    """

    def __init__(self, server: MaskedServer, others: Mapping[str, Resumable]) -> None:
        self._server = server
        self._parts: dict[str, Resumable] = {"server": server, **others}
        self._given = False

    def arrays(self) -> State:
        """Return the arrays of all parts.

        A call says that what the call before returned is on disk: the mask store's file may then
        drop what only older states needed.

        Raises
        ------
        DataError
            If the mask store's file cannot be written.
        """
        if self._given:
            self._server.committed()
        self._given = True
        return {
            name: array
            for part, holder in self._parts.items()
            for name, array in prefixed(part, holder.state_arrays()).items()
        }

    def load(self, state: Mapping[str, Array]) -> None:
        """Put back what :meth:`arrays` returned.

        Raises
        ------
        SettingsError, DataError
            If it is another strategy's or network's, or the mask store's file is not its own.
        """
        if unknown := {name.partition("/")[0] for name in state} - self._parts.keys():
            raise SettingsError(
                f"the state holds {', '.join(sorted(unknown))}, which AdaSplit does not have: it "
                "was saved with another strategy"
            )
        for part, holder in self._parts.items():
            holder.load_state_arrays(unprefixed(part, state))
        self._given = False
