"""The federation that most tests of the strategy play: four honest clients of one small model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flwr.common import Parameters
from flwr.server.client_manager import SimpleClientManager

from strategies import ZeroFL
from tests.strategies.federation import Played, Toy, honest_nodes, managed, play, toy

MODEL = toy(batch_norm=True)
EXAMPLES = [10, 20, 30, 40]
RULES = ["top-k-weights", "diff-on-top-k-weights", "top-k-diff"]


def honest_manager(
    model: Toy = MODEL, examples: Sequence[int] = tuple(EXAMPLES)
) -> SimpleClientManager:
    """Register one honest client a partition."""
    return managed(honest_nodes(model, examples))


def play_rounds(
    strategy: ZeroFL,
    manager: SimpleClientManager,
    parameters: Parameters,
    rounds: Iterable[int],
) -> list[Played]:
    """Play several rounds, each from the model that the one before made."""
    played: list[Played] = []
    for server_round in rounds:
        start = played[-1].parameters if played else parameters
        played.append(play(strategy, manager, start, server_round))
    return played
