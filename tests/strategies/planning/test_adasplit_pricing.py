"""Prices of rounds: what they depend on, and what not."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from adasplit_flwr import AdaSplitSettings
from strategies.exchange_costs import ExchangeCosts, ForetoldExchange
from strategies.planning.adasplit_pricing import Pricing
from strategies.planning.adasplit_rounds import Round
from strategies.planning.exchanges import exchanges_of
from tests.strategies.adasplit_federation import CLASSES, FEATURES
from tests.strategies.planning.measured_runs import small_cut

COSTS = ExchangeCosts(
    small_cut(),
    AdaSplitSettings(server_gradient="selected"),
    sample_shape=(FEATURES,),
    num_classes=CLASSES,
    run="run",
)


@settings(max_examples=200, deadline=None)
@given(server_round=st.integers(1, 3000), begins=st.booleans(), upload=st.booleans())
def test_rounds_whose_numbers_are_as_long_have_messages_as_large(
    server_round: int, begins: bool, upload: bool
) -> None:
    alike = max(10 ** (len(str(server_round)) - 1), 1 << (server_round.bit_length() - 1))
    one, other = (
        ForetoldExchange(
            number,
            (4, 4, 2),
            upload=upload,
            shares=begins,
            begins=begins,
            returned=() if begins else (4, 2),
            state_round=number - 1 if number - 1 else 0,
        )
        for number in (server_round, alike)
    )
    assert COSTS.uplink(one) == COSTS.uplink(other)
    if (server_round - 1).bit_length() == (alike - 1).bit_length():
        assert COSTS.downlink(one) == COSTS.downlink(other)


@settings(max_examples=100, deadline=None)
@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=9))
def test_how_batches_divide_an_exchange_makes_no_difference(sizes: list[int]) -> None:
    each, more = divmod(sum(sizes), len(sizes))
    even = (each + 1,) * more + (each,) * (len(sizes) - more)
    one, other = (
        ForetoldExchange(3, tuple(some), upload=True, returned=tuple(some), state_round=2)
        for some in (sizes, even)
    )
    assert COSTS.uplink(one) == COSTS.uplink(other)
    assert COSTS.downlink(one) == COSTS.downlink(other)


def test_a_client_of_unknown_position_takes_the_most_and_promises_the_least() -> None:
    pricing = Pricing(COSTS, exchanges_of([9], 4, 1))  # batches of 4 and 5
    of = Round(5, 4, "global", False, False, uploads=1, returned=1)
    rows = pricing.rows(of)
    known = pricing.rows(Round(5, 4, "global", False, False, uploads=1, returned=1, number=1))
    assert rows.base[0, :-2].tolist() == known.base[0, :-2].tolist()
    assert rows.upload[0, -1] == -4
    assert known.upload[0, -1] == -5
