"""What strategies share whose clients keep something from round to round."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from strategies.answers import check_examples
from strategies.checked_fedavg import CheckedFedAvg
from strategies.client_rounds import ClientRounds
from strategies.dense_replies import check_round_told
from strategies.replies import Failure, Reply
from zerofl_flwr.errors import PayloadError


class LastingFedAvg(CheckedFedAvg):
    """Knows of which round each client's state is, and who has lost it.

    Parameters
    ----------
    run : str
        Name of the run, under which clients keep their states.
    **options
        Those of :class:`CheckedFedAvg`.

    Attributes
    ----------
    rounds : ClientRounds
        Subclasses ask it for plans, and tell it who has trained.
    """

    def __init__(self, *, run: str, **options: Any) -> None:
        super().__init__(**options)
        self.rounds = ClientRounds(run)

    def check_reply(self, server_round: int, reply: Reply) -> None:
        """Refuse what was not asked for in this round, or has no number of samples."""
        sender, result = str(reply.member), reply.result
        if not self.rounds.was_asked(reply.member.partition_id):
            reason = "a reply came, but it was not asked in this round"
            raise PayloadError(reason, sender=sender, field="round")
        check_round_told(result.metrics, server_round, sender)
        check_examples(result.num_examples, sender)

    def lost_among(self, failures: Sequence[Failure]) -> list[int]:
        """Return who has lost what it keeps."""
        return self.rounds.lost_among(failures)

    def note_failures(self, server_round: int, failures: Sequence[Failure]) -> int:
        """Let clients begin again that have lost what they keep."""
        lost = self.lost_among(failures)
        for client in lost:
            self.begin_again(server_round, client)
        return len(lost)

    @abstractmethod
    def begin_again(self, server_round: int, client: int) -> None:
        """Forget the state that a client has lost, with a warning."""
