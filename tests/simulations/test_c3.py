from __future__ import annotations

import math

import numpy as np
import pytest

from simulations.c3 import Budgets, c3_score, c3_scores
from zerofl_flwr.errors import SettingsError

# The runs of AdaSplit's authors on Mixed-NonIID: accuracy [%], GB, 10^12 multiply-adds of the
# clients (forward), and the score.
_AUTHORS = {
    "AdaSplit .6/.6": (88.88, 9.71, 5.38, 0.842),
    "random picks": (88.74, 9.91, 5.38, 0.841),
    "only masks": (89.38, 43.81, 3.76, 0.815),
    "SL-basic": (84.65, 84.64, 3.76, 0.727),
    "SplitFed": (84.64, 84.54, 3.76, 0.727),
    "FedAvg": (84.21, 2.39, 17.13, 0.741),
    "FedProx": (85.09, 2.39, 17.13, 0.748),
    "Scaffold": (84.73, 4.78, 17.13, 0.742),
    "FedNova": (36.87, 2.39, 17.13, 0.324),
}


def test_the_authors_table_comes_out_with_the_largest_among_its_rows_as_budgets() -> None:
    accuracy, gigabytes, compute, printed = np.array(list(_AUTHORS.values())).T
    scores = c3_scores(list(accuracy / 100), list(gigabytes), list(compute))
    assert np.round(scores, 3).tolist() == printed.tolist()
    given = c3_scores(
        list(accuracy / 100),
        list(gigabytes),
        list(compute),
        Budgets(bandwidth=84.64, compute=17.13),
    )
    assert given.tolist() == scores.tolist()


def test_the_score_falls_with_what_is_used_and_also_over_the_budget() -> None:
    def score(bandwidth: float, compute: float, temperature: float = 8.0) -> float:
        return c3_score(
            0.5,
            bandwidth,
            compute,
            bandwidth_budget=10.0,
            compute_budget=4.0,
            temperature=temperature,
        )

    assert score(0, 0) == 0.5
    assert score(10, 0) == pytest.approx(0.5 * 0.8824969026)  # e^(-1/8)
    assert score(10, 4) == pytest.approx(0.5 * 0.7788007831)  # e^(-2/8)
    assert score(20, 8) == pytest.approx(0.5 * 0.6065306597)  # twice both: e^(-4/8)
    assert score(10, 4, temperature=1) == pytest.approx(0.5 * 0.1353352832)  # e^-2


def test_of_a_budget_of_zero_nothing_may_be_used() -> None:
    assert c3_score(0.8, 0, 3, bandwidth_budget=0, compute_budget=3) == pytest.approx(
        0.8 * 0.8824969026
    )
    with pytest.raises(SettingsError, match="bandwidth is 1, but its budget is 0"):
        c3_score(0.8, 1, 3, bandwidth_budget=0, compute_budget=3)
    with pytest.raises(SettingsError, match="compute is 3, but its budget is 0"):
        c3_score(0.8, 0, 3, bandwidth_budget=1, compute_budget=0)
    # Nobody sends anything, as when each client trains alone.
    assert c3_scores([0.9, 0.8], [0, 0], [2, 1]).tolist() == pytest.approx(
        [0.9 * 0.8824969026, 0.8 * 0.9394130628]
    )


def test_an_error_names_the_method() -> None:
    with pytest.raises(SettingsError, match=r"^method 'b': compute is 3, but its budget is 0"):
        c3_scores([0.5, 0.5], [0, 0], [0, 3], Budgets(compute=0), names=["a", "b"])
    with pytest.raises(SettingsError, match=r"^compute is 3, but its budget is 0"):
        c3_scores([0.5, 0.5], [0, 0], [0, 3], Budgets(compute=0))


def test_a_figure_that_is_not_known_gives_no_score_and_sets_no_budget() -> None:
    nan = math.nan
    scores = c3_scores([0.5, nan, 0.5, 0.5], [1, 1, nan, 2], [3, 3, 3, nan])
    assert np.isnan(scores).tolist() == [False, True, True, True]
    # 2 is the largest bandwidth that is known: 1/2 and 3/3.
    assert scores[0] == pytest.approx(0.5 * math.exp(-1.5 / 8))
    assert np.isnan(c3_scores([0.5], [nan], [nan])).all()
    assert Budgets().for_methods([nan, 4, 2], [nan]) == Budgets(4, 0)
    assert Budgets(3, temperature=2).for_methods([4], [7]) == Budgets(3, 7, 2)
    assert c3_scores([], [], []).size == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"accuracy": 88.9}, "accuracy is 88.9; it must lie between 0 and 1"),
        ({"accuracy": -0.1}, "accuracy is -0.1"),
        ({"bandwidth": -1}, "bandwidth is -1; it must be a number of at least 0"),
        ({"compute": math.inf}, "compute is inf"),
        ({"bandwidth_budget": math.nan}, "the bandwidth budget is nan"),
        ({"compute_budget": -2}, "the compute budget is -2"),
        ({"compute_budget": math.inf}, "the compute budget is inf"),
        ({"temperature": 0}, "the temperature is 0; it must be a number above 0"),
        ({"temperature": math.nan}, "the temperature is nan"),
    ],
)
def test_what_is_out_of_range_is_refused(change: dict[str, float], message: str) -> None:
    good = {"accuracy": 0.5, "bandwidth": 1, "compute": 1, "bandwidth_budget": 1}
    with pytest.raises(SettingsError) as caught:
        c3_score(**(good | {"compute_budget": 1.0} | change))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"bandwidth": -1.0}, "the bandwidth budget is -1.0"),
        ({"compute": math.nan}, "the compute budget is nan"),
        ({"temperature": 0.0}, "the temperature is 0.0"),
    ],
)
def test_budgets_are_checked_before_anything_is_scored(
    given: dict[str, float], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        Budgets(**given)
