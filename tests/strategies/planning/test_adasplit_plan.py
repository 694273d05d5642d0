"""Plans of AdaSplit: the grid, the objective, limits of single clients, refusals."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from adasplit_flwr import AdaSplitSettings, SplitModel
from strategies.planning import AdaSplitCosts, Plan, plan_adasplit
from strategies.planning.adasplit_plan import KAPPAS
from tests.strategies.adasplit_federation import CLASSES, FEATURES
from tests.strategies.planning.measured_runs import cut_at, network, small_cut
from zerofl_flwr.errors import SettingsError

SAMPLES = (12, 12, 12, 12)


def planned(
    model: Any = None, samples: tuple[int, ...] = SAMPLES, rounds: int = 20, **options: Any
) -> Plan[AdaSplitSettings]:
    return plan_adasplit(
        small_cut() if model is None else model,
        samples,
        sample_shape=(FEATURES,),
        num_classes=CLASSES,
        rounds=rounds,
        batch_size=4,
        **options,
    )


def choices(plan: Plan[AdaSplitSettings], name: str) -> list[Any]:
    return list(dict.fromkeys(candidate.choice[name] for candidate in plan.candidates))


def test_the_grid_has_steps_of_kappa_every_number_of_uploads_and_every_cut() -> None:
    plan = planned(network())
    assert choices(plan, "kappa") == [pytest.approx(step / 20) for step in range(20)]
    assert list(KAPPAS[:4]) == [0.0, 0.05, 0.1, 0.15]
    assert choices(plan, "eta") == [0.2, 0.5, 0.8, 1.0]
    assert choices(plan, "cut") == [1, 2, 3, 4]
    assert len(plan.candidates) == 20 * 4 * 4


def test_kappas_with_as_many_local_rounds_come_once() -> None:
    assert choices(planned(rounds=4), "kappa") == [0.0, 0.25, 0.5, 0.75]


def test_without_a_local_loss_there_is_no_local_phase_and_where_all_upload_no_eta() -> None:
    plan = planned(settings=AdaSplitSettings(kappa=0.0, local_loss=False, selection="all"))
    assert [candidate.choice for candidate in plan.candidates] == [
        {"kappa": 0.0, "cut": "as given"}
    ]


def test_many_clients_have_twenty_etas() -> None:
    plan = planned(samples=(4,) * 97, rounds=1)
    uploads = [candidate.settings.uploads(97) for candidate in plan.candidates]
    assert len(uploads) == 20
    assert (uploads[0], uploads[-1]) == (5, 97)


def test_a_child_is_named_and_a_part_without_weights_is_left_out() -> None:
    model = nn.Sequential()
    for name, layer in (("act", nn.Tanh()), ("one", nn.Linear(6, 5)), ("two", nn.Linear(5, 3))):
        model.add_module(name, layer)
    assert choices(planned(model), "cut") == ["one"]
    with pytest.raises(SettingsError, match="can be cut nowhere"):
        planned(nn.Sequential(nn.Tanh(), nn.Linear(6, 3)))


def test_samples_that_the_server_learns_from_come_first_then_the_fewest_bytes() -> None:
    free = planned({"late": cut_at(3), "early": cut_at(1)})
    assert dict(free.chosen.choice) == {"kappa": 0.0, "eta": 1.0, "cut": "late"}  # narrower
    learned = [candidate.costs.least_learned for candidate in free.candidates if candidate.fits]
    assert free.costs.least_learned == max(learned)
    # 20 x 4 uploads; with a byte less than these take, a round's or a client's are left out.
    plan = planned({"late": cut_at(3)}, bytes_budget=free.costs.total.bytes - 1)
    assert plan.costs.total.uploads == 19 * 4
    assert plan.slack["bytes"] >= 0


def test_a_client_alone_can_be_the_limit() -> None:
    free = planned()
    own = free.costs.clients[2].bytes
    plan = planned(client_bytes_budget={2: own - 1})
    assert plan.costs.clients[2].bytes < own
    assert plan.costs.total.bytes < free.costs.total.bytes
    work = free.costs.clients[1].client_ops
    with pytest.raises(SettingsError, match=f"multiply-adds of client 1 {work:,}, of {work - 1:,}"):
        planned(client_flops_budget={1: work - 1})
    assert planned(client_flops_budget=work).settings == free.settings


def test_unequal_clients_are_planned_by_the_least_that_the_server_learns() -> None:
    plan = planned(samples=(4, 40), rounds=2, settings=AdaSplitSettings())
    by_choice = {
        (candidate.choice["kappa"], candidate.choice["eta"]): candidate.costs
        for candidate in plan.candidates
    }
    assert by_choice[(0.0, 1.0)].least_learned == 88
    # The smaller client may be picked in both rounds, or the larger.
    one = by_choice[(0.0, 0.5)]
    assert (one.least_learned, one.total.learned, one.is_exact) == (8, 80, False)


def test_shared_parts_and_gradients_are_planned_too() -> None:
    settings = AdaSplitSettings(client_weights="relayed", server_gradient="selected")
    plan = planned(settings=settings, kappas=[0.0, 0.5], etas=[1.0], bytes_budget=1e9)
    expected = AdaSplitCosts(
        small_cut(),
        settings,
        SAMPLES,
        sample_shape=(FEATURES,),
        num_classes=CLASSES,
        batch_size=4,
    ).of(20, kappa=0.0, eta=1.0)
    assert plan.costs == expected
    assert plan.settings.client_weights == "relayed"


def test_who_uploads_of_a_relayed_pass_are_picked_among_all() -> None:
    settings = AdaSplitSettings(client_weights="relayed")
    plan = planned(settings=settings, kappas=[0.0], clients_per_round=2)
    assert [candidate.settings.uploads(4) for candidate in plan.candidates] == [1, 2, 3, 4]


def test_the_table_has_a_row_for_each_candidate() -> None:
    plan = planned(bytes_budget=100_000)
    table = plan.table()
    assert len(table) == len(plan.candidates) == 80
    assert table["chosen"].sum() == 1
    chosen = table[table["chosen"]].iloc[0]
    assert chosen["fits"]
    assert (chosen["kappa"], chosen["bytes"]) == (plan.settings.kappa, plan.costs.total.bytes)
    assert (table["fits"] == (table["bytes"] <= 100_000)).all()
    assert (table["over"] == "").tolist() == table["fits"].tolist()
    assert (table["uplink_bytes"] + table["downlink_bytes"] == table["bytes"]).all()
    assert plan.ranked()[0] is plan.chosen


def test_where_nothing_fits_the_cheapest_is_named() -> None:
    cheapest = min(candidate.costs.total.bytes for candidate in planned().candidates)
    with pytest.raises(SettingsError) as caught:
        planned(bytes_budget=5000)
    text = str(caught.value)
    assert "none of 80 candidates fits into the budget; the cheapest, with kappa 0.95" in text
    assert f"takes {cheapest:,} bytes" in text
    assert f"bytes {cheapest:,}, of 5,000" in text


def test_a_budget_of_nothing_is_exceeded() -> None:
    with pytest.raises(SettingsError, match="none of 80 candidates fits"):
        planned(flops_budget=0)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"bytes_budget": -1}, "bytes is -1"),
        ({"client_bytes_budget": {4: 1e6}}, "names client 4"),
        ({"cuts": [1]}, "this one is cut already"),
        ({"kappas": [1.0]}, "kappa is 1"),
        ({"rounds": 0}, "rounds is 0"),
        ({"kappas": []}, "nothing to choose from"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(SettingsError, match=reason):
        planned(**options)


def test_one_split_model_is_planned_as_it_is() -> None:
    split = small_cut()
    plan = planned(SplitModel(split.client, split.head, split.server))
    assert choices(plan, "cut") == ["as given"]
