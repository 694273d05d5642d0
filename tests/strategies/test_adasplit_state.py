"""AdaSplit's state is everything: a run that is stopped and resumed is the unbroken one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from adasplit_flwr import SplitModel
from adasplit_flwr.client_state import StateFolder
from strategies import AdaSplit
from strategies.adasplit_clients import KnownClients
from strategies.adasplit_state import SavedState
from strategies.state import State, check_resumable
from tests.strategies.adasplit_federation import (
    FEATURES,
    Exchanged,
    SplitNode,
    adasplit,
    evaluation,
    exchange,
    frozen,
    run_rounds,
    split_nodes,
    tiny_split,
)
from tests.strategies.federation import managed
from zerofl_flwr.errors import DataError, SettingsError
from zerofl_flwr.npz import load_npz, save_npz

ROUNDS = range(1, 7)
KINDS: dict[str, dict[str, Any]] = {
    "the method": {"kappa": 0.4, "eta": 0.5},
    "hard masks, some train": {"mask": "hard", "fraction_fit": 0.5, "min_available_clients": 4},
    "gradients": {"server_gradient": "selected", "eta": 0.5},
    "averaged": {"client_weights": "averaged", "selection": "random", "eta": 0.5},
    "relayed": {"client_weights": "relayed", "kappa": 0.2, "eta": 0.5},
    "no masks": {"mask": "none", "adam_schedule": "cosine"},
}


def dropout_split() -> SplitModel:
    split = tiny_split()
    split.server.insert(1, nn.Dropout(0.3))  # type: ignore[operator]
    return split


def nodes_in(folder: Path) -> list[SplitNode]:
    return split_nodes(4, split=dropout_split, state_dir=folder)


def saved_state(node: SplitNode) -> Any:
    assert node.state_dir is not None
    state = StateFolder(node.state_dir, "run").latest(node.partition)
    return frozen(state.to_arrays()) if state else {}


def end_of(strategy: AdaSplit, nodes: list[SplitNode], last: Exchanged) -> tuple[Any, ...]:
    arrays = [array.tobytes() for array in last.arrays]
    clients = [saved_state(node) for node in nodes]
    tests = evaluation(strategy, managed(nodes), 6).report.clients
    # Where a record lies in the store's file is no part of the run.
    state = {k: v for k, v in strategy.state_arrays().items() if not k.startswith("server/masks/")}
    return frozen(state), arrays, clients, [(t.accuracy, t.loss) for t in tests]


FOLLOWING: dict[str, Any] = {
    "mask": "none",
    "selection": "all",
    "server_gradient": "selected",
    "local_loss": False,
    "iterations_per_round": 1,
    "share_every": 2,
}
SHARING: dict[str, dict[str, Any]] = {
    "SplitFed": {"client_weights": "averaged", **FOLLOWING},
    "SL-basic": {"client_weights": "relayed", **FOLLOWING},
    "AdaSplit": {
        "client_weights": "averaged",
        "server_gradient": "selected",
        "share_every": 2,
        "fraction_fit": 0.5,
        "min_available_clients": 4,
        "eta": 0.5,
    },
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_is_the_unbroken_one(kind: str, tmp_path: Path) -> None:
    options = KINDS[kind] if kind == "no masks" else {"mask_memory_mb": 1, **KINDS[kind]}
    resumed, unbroken = resumed_and_unbroken(tmp_path, 3, options)
    assert resumed == unbroken


@pytest.mark.parametrize("stop", [1, 2, 3], ids=["in a period", "before its end", "after it"])
@pytest.mark.parametrize("kind", SHARING)
def test_a_run_is_resumed_wherever_it_stands_between_two_sharings(
    kind: str, stop: int, tmp_path: Path
) -> None:
    """Rounds 3 and 6 are finishing rounds."""
    resumed, unbroken = resumed_and_unbroken(tmp_path, stop, SHARING[kind])
    assert resumed == unbroken


def resumed_and_unbroken(
    folder: Path, stop: int, options: dict[str, Any]
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Play a run twice, once with a stop a round after the checkpoint; return how both end."""

    def built(name: str) -> AdaSplit:
        return adasplit(dropout_split(), folder=folder / name, **options)

    whole, nodes = built("whole"), nodes_in(folder / "a")
    expected = end_of(whole, nodes, run_rounds(whole, nodes, ROUNDS)[-1])

    first, early = built("broken"), nodes_in(folder / "b")
    run_rounds(first, early, ROUNDS[:stop])
    save_npz(folder / "checkpoint.npz", first.state_arrays())
    run_rounds(first, early, ROUNDS[stop : stop + 1])  # past the checkpoint, when the run dies
    resumed, late = built("broken"), nodes_in(folder / "b")
    resumed.load_state_arrays(load_npz(folder / "checkpoint.npz", what="checkpoint"))
    last = run_rounds(resumed, late, ROUNDS[stop:])[-1]
    return end_of(resumed, late, last), expected


def test_masks_in_memory_are_part_of_the_state() -> None:
    strategy, nodes = adasplit(eta=0.5), split_nodes(3)
    run_rounds(strategy, nodes, (1, 2))
    other = adasplit(eta=0.5)
    other.load_state_arrays(strategy.state_arrays())
    assert frozen(other.state_arrays()) == frozen(strategy.state_arrays())
    assert other.server.clients() == strategy.server.clients() != []
    manager = managed(nodes)
    pairs = [each.configure_evaluate(2, None, manager) for each in (strategy, other)]  # type: ignore[arg-type]
    first, second = ([ins for _, ins in pair] for pair in pairs)
    assert first == second


def test_it_can_be_checkpointed_like_any_strategy() -> None:
    strategy = adasplit()
    check_resumable(strategy)
    assert {name.partition("/")[0] for name in strategy.state_arrays()} == {
        "server",
        "trainer",
        "orchestrator",
        "clients",
        "weights",
        "relay",
    }


def test_the_store_may_forget_only_what_a_later_state_has_replaced() -> None:
    calls: list[str] = []

    class Part:
        def __init__(self, name: str) -> None:
            self.name = name

        def state_arrays(self) -> State:
            calls.append(f"{self.name} saved")
            return {"x": np.zeros(1)}

        def load_state_arrays(self, state: object) -> None:
            calls.append(f"{self.name} loaded")

        def committed(self) -> None:
            calls.append(f"{self.name} committed")

    saved = SavedState(Part("server"), {"more": Part("more")})  # type: ignore[arg-type]
    assert list(saved.arrays()) == ["server/x", "more/x"]
    assert calls == ["server saved", "more saved"]
    saved.arrays()
    assert calls[2:] == ["server committed", "server saved", "more saved"]
    saved.load({"server/x": np.zeros(1)})
    saved.arrays()
    assert calls[5:] == ["server loaded", "more loaded", "server saved", "more saved"]


def test_a_crash_between_two_checkpoints_finds_the_masks_of_the_first(tmp_path: Path) -> None:
    def built() -> AdaSplit:
        return adasplit(folder=tmp_path, selection="all")

    strategy, nodes = built(), split_nodes(3)
    manager = managed(nodes)
    exchange(strategy, manager, 1)
    exchange(strategy, manager, 2)
    checkpoint = strategy.state_arrays()
    densities = [strategy.server.density(client) for client in range(3)]
    exchange(strategy, manager, 3)
    strategy.state_arrays()  # the process dies before this one is on disk
    resumed = built()
    resumed.load_state_arrays(checkpoint)
    assert [resumed.server.density(client) for client in range(3)] == densities


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"wrapped/x": np.zeros(1)}, SettingsError, "holds wrapped, which AdaSplit does not have"),
        ({"server/steps": None}, SettingsError, "lacks steps of this server part"),
        (
            {"trainer/iterations": None},
            SettingsError,
            "no count of iterations of AdaSplit's server",
        ),
        ({"trainer/iterations": np.array(-1)}, SettingsError, "no count of iterations"),
        ({"orchestrator/ids": None}, DataError, "an orchestrator's state has"),
        ({"clients/ids": None}, SettingsError, "no state of AdaSplit's clients"),
        ({"weights/head.bias": None}, SettingsError, "do not both have head.bias"),
        ({"relay/queue": None}, SettingsError, "no state of AdaSplit's relay"),
        ({"sharing/counts": np.ones(3, np.int64)}, SettingsError, "state of AdaSplit's shared"),
    ],
)
def test_something_else_is_refused(
    change: dict[str, Any], error: type[Exception], message: str
) -> None:
    changed = {**adasplit().state_arrays(), **change}
    state = {name: array for name, array in changed.items() if array is not None}
    with pytest.raises(error, match=message):
        adasplit().load_state_arrays(state)


def test_the_state_of_another_kind_of_masks_is_refused() -> None:
    with pytest.raises(SettingsError, match="saved with masks soft, not with hard"):
        adasplit(mask="hard").load_state_arrays(adasplit().state_arrays())


def known() -> KnownClients:
    clients = KnownClients()
    clients.trained(
        4, 2, [(number, np.full((2, FEATURES), number, np.float32)) for number in (0, 11)]
    )
    clients.trained(1, 1, [])
    clients.trained(4, 3, clients.gradients(4))
    return clients


def test_what_is_known_of_clients() -> None:
    clients = known()
    assert [clients.state_round(client) for client in (0, 1, 4)] == [0, 1, 3]
    assert [number for number, _ in clients.gradients(4)] == [0, 11]
    assert clients.gradients(1) == clients.gradients(0) == []
    clients.trained(4, 5, [])
    assert (clients.state_round(4), clients.gradients(4)) == (5, [])


def test_what_is_known_of_clients_is_put_back() -> None:
    other = KnownClients()
    other.trained(9, 9, [])
    other.load_state_arrays(known().state_arrays())
    assert other.state_round(9) == 0
    assert frozen(other.state_arrays()) == frozen(known().state_arrays())
    assert [number for number, _ in other.gradients(4)] == [0, 11]


@pytest.mark.parametrize(
    "change",
    [
        {"ids": None},
        {"state-rounds": np.zeros(3, np.int64)},
        {"gradient/4": np.zeros(1)},
        {"gradient/x/1": np.zeros(1)},
        {"other": np.zeros(1)},
    ],
)
def test_what_is_no_state_of_clients(change: dict[str, Any]) -> None:
    changed = {**known().state_arrays(), **change}
    state = {name: array for name, array in changed.items() if array is not None}
    clients = known()
    with pytest.raises(SettingsError, match="no state of AdaSplit's clients"):
        clients.load_state_arrays(state)
    assert clients.state_round(4) == 3
