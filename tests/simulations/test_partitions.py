from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import flwr_datasets.partitioner
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import simulations.partitions
from simulations.data_settings import DataSettings
from simulations.partitions import DIRICHLET_SEED_STEP, divide
from simulations.preparation import prepare_partitions, prepare_source
from tests.simulations.parquet_folders import pictures, write_split
from zerofl_flwr.errors import DataError

LABELS = np.arange(400, dtype=np.int64) % 10


def check_divided(parts: list[NDArray[np.int64]], count: int, rows: int) -> None:
    """What holds for every partitioning."""
    assert len(parts) == count
    assert all(part.size > 0 and part.dtype == np.int64 for part in parts)
    together = np.concatenate(parts)
    assert len(set(together.tolist())) == together.size
    assert 0 <= together.min() <= together.max() < rows


def same(one: list[NDArray[np.int64]], other: list[NDArray[np.int64]]) -> bool:
    return len(one) == len(other) and all(map(np.array_equal, one, other))


@settings(max_examples=40)
@given(
    rows=st.integers(20, 200),
    clients=st.integers(1, 8),
    partitioner=st.sampled_from(["iid", "dirichlet", "shards"]),
    share=st.sampled_from([None, 1.0, 0.5]),
    alpha=st.sampled_from([0.3, 1.0, 1000.0]),
    seed=st.integers(0, 2**31),
)
def test_partitions_are_disjoint_equal_and_deterministic(
    rows: int, clients: int, partitioner: str, share: float | None, alpha: float, seed: int
) -> None:
    labels = np.random.default_rng(seed).integers(0, 5, size=rows)
    samples = None if share is None else max(2, int(share * rows / clients) // 2 * 2)
    asked = DataSettings(
        partitioner=partitioner,
        num_clients=clients,
        samples_per_client=samples,
        alpha=alpha,
        seed=seed,
    )
    parts = divide(labels, asked)
    check_divided(parts, clients, rows)
    assert same(parts, divide(labels, asked))
    sizes = [part.size for part in parts]
    if samples is not None:
        assert set(sizes) == {samples}
    elif partitioner == "iid":
        assert sum(sizes) == rows
        assert max(sizes) - min(sizes) <= 1
    elif partitioner == "dirichlet":
        assert set(sizes) == {rows // clients}
    else:
        assert set(sizes) == {2 * (rows // (2 * clients))}


@pytest.mark.parametrize("partitioner", ["iid", "dirichlet", "shards"])
def test_seed_changes_the_partitions(partitioner: str) -> None:
    asked = DataSettings(partitioner=partitioner, num_clients=4)
    assert not same(divide(LABELS, asked), divide(LABELS, replace(asked, seed=1)))


def test_iid_subset_is_drawn_from_all_rows() -> None:
    parts = divide(LABELS, DataSettings(num_clients=4, samples_per_client=25))
    together = np.concatenate(parts)
    assert together.max() > 300
    assert together.min() < 100


def label_shares(parts: list[NDArray[np.int64]]) -> NDArray[np.float64]:
    counts = np.stack([np.bincount(LABELS[part], minlength=10) for part in parts])
    shares: NDArray[np.float64] = counts / counts.sum(axis=1, keepdims=True)
    return shares


def test_small_alpha_concentrates_labels_and_large_alpha_does_not() -> None:
    largest = {
        alpha: label_shares(
            divide(
                LABELS,
                DataSettings(
                    partitioner="dirichlet", num_clients=5, samples_per_client=40, alpha=alpha
                ),
            )
        )
        .max(axis=1)
        .mean()
        for alpha in (0.1, 1.0, 1000.0)
    }
    assert largest[0.1] > largest[1.0] > largest[1000.0]
    assert largest[0.1] > 0.4
    assert largest[1000.0] < 0.25


def test_shards_hold_few_labels() -> None:
    parts = divide(LABELS, DataSettings(partitioner="shards", num_clients=10, shards_per_client=2))
    # 20 shards of 20 rows, 40 rows a label: each shard has one label.
    assert all(len(set(LABELS[part])) <= 2 for part in parts)
    assert sum(part.size for part in parts) == 400


def test_natural_gives_each_client_one_id() -> None:
    ids = np.repeat([40, 10, 30, 20], [5, 6, 7, 8])
    parts = divide(ids, DataSettings(partitioner="natural", num_clients=4))
    check_divided(parts, 4, 26)
    assert [set(ids[part]) for part in parts] == [{10}, {20}, {30}, {40}]
    assert [part.size for part in parts] == [6, 8, 7, 5]


def test_natural_with_fewer_clients_takes_the_first_ids() -> None:
    ids = np.repeat([40, 10, 30, 20], [5, 6, 7, 8])
    asked = DataSettings(partitioner="natural", num_clients=2, samples_per_client=6)
    parts = divide(ids, asked)
    assert [set(ids[part]) for part in parts] == [{10}, {20}]
    assert [part.size for part in parts] == [6, 6]
    assert same(parts, divide(ids, asked))


def test_too_small_a_natural_id_is_refused() -> None:
    ids = np.repeat([0, 1, 2], [10, 4, 10])
    with pytest.raises(DataError, match="partition 1 has 4 samples, samples_per_client is 5"):
        divide(ids, DataSettings(partitioner="natural", num_clients=3, samples_per_client=5))


def test_more_clients_than_ids_are_refused() -> None:
    asked = DataSettings(partitioner="natural", num_clients=11, partition_by="speaker")
    with pytest.raises(DataError, match="11 clients need as many ids, speaker has 10"):
        divide(LABELS, asked)


@pytest.mark.parametrize("partitioner", ["iid", "dirichlet", "shards", "natural"])
def test_too_few_samples_are_refused(partitioner: str) -> None:
    asked = DataSettings(partitioner=partitioner, num_clients=401)
    with pytest.raises(DataError, match="401 clients with at least 1 samples each need 401"):
        divide(LABELS, asked)
    asked = DataSettings(partitioner=partitioner, num_clients=10, samples_per_client=42)
    with pytest.raises(DataError, match=r"10 clients with 42 samples each need 420 .* are 400"):
        divide(LABELS, asked)


def test_too_few_samples_for_the_shards_are_refused() -> None:
    asked = DataSettings(partitioner="shards", num_clients=100, shards_per_client=5)
    with pytest.raises(DataError, match="at least 500 training samples, there are 400"):
        divide(LABELS, asked)


def test_classes_without_training_rows_do_no_harm() -> None:
    gaps = np.array([2, 7, 7, 2, 5, 5] * 10)
    for partitioner in ("dirichlet", "shards"):
        parts = divide(gaps, DataSettings(partitioner=partitioner, num_clients=3))
        check_divided(parts, 3, 60)
        held = np.sort(gaps[np.concatenate(parts)])
        assert set(held.tolist()) == {2, 5, 7}, partitioner


def test_hopeless_alpha_is_explained() -> None:
    asked = DataSettings(partitioner="dirichlet", num_clients=5, alpha=1e-5)
    with pytest.raises(DataError, match=r"alpha 1e-05 is too small .* raise alpha or lower"):
        divide(LABELS, asked)


def test_void_draw_is_repeated_with_the_documented_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []

    class FailsTwice(flwr_datasets.partitioner.InnerDirichletPartitioner):  # type: ignore[misc]
        def __init__(self, *, seed: int, **kwargs: object) -> None:
            seeds.append(seed)
            super().__init__(seed=seed, **kwargs)

        def load_partition(self, partition_id: int) -> object:
            if len(seeds) < 3:
                raise ValueError("Probabilities contain NaN")
            return super().load_partition(partition_id)

    monkeypatch.setattr(simulations.partitions, "InnerDirichletPartitioner", FailsTwice)
    parts = divide(LABELS, DataSettings(partitioner="dirichlet", num_clients=4, seed=7))
    check_divided(parts, 4, 400)
    assert seeds == [7, 7 + DIRICHLET_SEED_STEP, 7 + 2 * DIRICHLET_SEED_STEP]


def test_prepared_partitions_hold_training_rows_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEAN_FLWR_CACHE", str(tmp_path / "cache"))
    source = prepare_source(DataSettings())
    prepared = prepare_partitions(DataSettings(num_clients=7), source)
    rows, offsets = prepared.arrays["rows"], prepared.arrays["offsets"]
    assert sorted(rows) == source.arrays["train_rows"].tolist()
    assert offsets[0] == 0
    assert offsets[-1] == 1438
    assert set(np.diff(offsets)) == {205, 206}


def speeches(folder: Path, speakers: list[object]) -> DataSettings:
    """Write pictures with speakers, and ask for one client each for ann and zoe."""
    samples = len(speakers)
    columns: dict[str, list[object]] = {
        "image": list(pictures(samples)),
        "label": [0, 1] * (samples // 2),
        "speaker": speakers,
    }
    write_split(folder, "train", columns)
    write_split(folder, "test", {name: values[:2] for name, values in columns.items()})
    return DataSettings(
        dataset=str(folder), partitioner="natural", partition_by="speaker", num_clients=2
    )


def test_rows_without_an_id_belong_to_no_natural_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEAN_FLWR_CACHE", str(tmp_path / "cache"))
    speakers = ["zoe", None, "ann", "zoe", None, "ann", "zoe", None, "zoe", None] * 4
    asked = speeches(tmp_path / "own", list(speakers))
    source = prepare_source(asked)
    prepared = prepare_partitions(asked, source)
    parts = np.split(prepared.arrays["rows"], prepared.arrays["offsets"][1:-1])
    for part, owner in zip(parts, ["ann", "zoe"], strict=True):
        assert sorted(part) == [row for row, speaker in enumerate(speakers) if speaker == owner]
    assert prepared.meta == {"without_id": 16}
    with pytest.raises(DataError, match="3 clients need as many ids, speaker has 2"):
        prepare_partitions(replace(asked, num_clients=3), source)


@pytest.mark.parametrize("partitioner", ["iid", "dirichlet", "shards"])
def test_any_other_rule_deals_out_rows_without_an_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, partitioner: str
) -> None:
    monkeypatch.setenv("LEAN_FLWR_CACHE", str(tmp_path / "cache"))
    asked = speeches(tmp_path / "own", ["zoe", None, "ann", None] * 10)
    source = prepare_source(asked)
    prepared = prepare_partitions(replace(asked, partitioner=partitioner), source)
    assert sorted(prepared.arrays["rows"]) == list(range(40))
    assert prepared.meta == {"without_id": 0}


@pytest.mark.parametrize(
    ("speakers", "message"),
    [
        ([None] * 4, "clients cannot be divided by it: column 'speaker' has missing values only"),
        (["ann", None, None, None], "2 clients with at least 1 samples each need 2 .* there are 1"),
    ],
)
def test_too_many_missing_ids_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, speakers: list[object], message: str
) -> None:
    monkeypatch.setenv("LEAN_FLWR_CACHE", str(tmp_path / "cache"))
    asked = speeches(tmp_path / "own", speakers)
    source = prepare_source(asked)
    with pytest.raises(DataError, match=message):
        prepare_partitions(asked, source)


def test_partition_by_column(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEAN_FLWR_CACHE", str(tmp_path / "cache"))
    speakers = ["zoe", "ann", "bob", "ann"] * 10
    columns: dict[str, list[object]] = {
        "image": list(pictures(40)),
        "label": [0, 1, 1, 0] * 10,
        "speaker": list(speakers),
        "loudness": [0.5] * 40,
    }
    write_split(tmp_path / "own", "train", columns)
    asked = DataSettings(
        dataset=str(tmp_path / "own"),
        partitioner="natural",
        partition_by="speaker",
        num_clients=3,
    )
    source = prepare_source(asked)
    prepared = prepare_partitions(asked, source)
    rows, offsets = prepared.arrays["rows"], prepared.arrays["offsets"]
    owners = [{speakers[row] for row in rows[a:b]} for a, b in pairwise(offsets)]
    assert owners == [{"ann"}, {"bob"}, {"zoe"}]
    by_label = prepare_partitions(replace(asked, partition_by=None, num_clients=2), source)
    first = by_label.arrays["rows"][: by_label.arrays["offsets"][1]]
    assert set(source.arrays["labels"][first]) == {0}
    with pytest.raises(DataError, match="unknown partition_by column 'speakers'; did you mean"):
        prepare_partitions(replace(asked, partition_by="speakers"), source)
    with pytest.raises(DataError, match="column 'loudness' must hold integers or texts"):
        prepare_partitions(replace(asked, partition_by="loudness"), source)
