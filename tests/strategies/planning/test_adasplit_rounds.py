"""Rounds that are told from the settings alone."""

from __future__ import annotations

from adasplit_flwr import AdaSplitSettings
from strategies.planning.adasplit_rounds import picks_are_known, relayed_rounds, rounds_of_all


def test_a_personal_part_goes_down_once_and_gradients_a_round_later() -> None:
    settings = AdaSplitSettings(kappa=0.5, eta=0.4, server_gradient="selected")
    rounds = list(rounds_of_all(settings, 4, clients=5, drawn=5))
    assert [of.phase for of in rounds] == ["local", "local", "global", "global"]
    assert [of.begins for of in rounds] == [True, False, False, False]
    assert [of.uploads for of in rounds] == [0, 0, 2, 2]
    assert [of.returned for of in rounds] == [0, 0, 0, 2]
    assert [(of.state_round, of.number) for of in rounds] == [(0, 0), (1, 1), (2, 2), (3, 3)]


def test_where_some_are_drawn_nobody_knows_how_far_they_are() -> None:
    settings = AdaSplitSettings(kappa=0.0, client_weights="averaged", share_every=2)
    rounds = list(rounds_of_all(settings, 3, clients=5, drawn=3))
    assert [of.number for of in rounds] == [None] * 3
    assert [of.begins for of in rounds] == [True, False, True]
    assert [of.shares for of in rounds] == [False, True, True]


def test_a_relayed_part_has_turns_that_end_with_a_finishing_round() -> None:
    settings = AdaSplitSettings(
        kappa=0.0, client_weights="relayed", selection="all", server_gradient="selected"
    )
    rounds = list(relayed_rounds(settings, 5, clients=2))
    assert [of.phase for of in rounds] == ["global", "finish", "global", "finish", "global"]
    assert [of.client for of in rounds] == [0, 0, 1, 1, 0]
    assert [of.turn for of in rounds] == [0, 0, 1, 1, 2]
    assert [of.state_round for of in rounds] == [0, 1, 0, 3, 2]
    assert [of.returned for of in rounds] == [0, 1, 0, 1, 0]
    assert [of.begins for of in rounds] == [True, False, True, False, True]
    assert [of.shares for of in rounds] == [False, True, False, True, True]


def test_picks_are_known_where_all_upload() -> None:
    assert picks_are_known(AdaSplitSettings(eta=1.0), 9)
    assert picks_are_known(AdaSplitSettings(selection="all"), 9)
    assert picks_are_known(AdaSplitSettings(eta=0.6), 1)
    assert not picks_are_known(AdaSplitSettings(eta=0.9), 9)
