from __future__ import annotations

import datasets
import numpy as np
import pytest

from simulations.columns import (
    find_label_column,
    find_sample_column,
    number_ids,
    number_labels,
    rank_values,
)
from simulations.data_settings import DataSettings
from zerofl_flwr.errors import DataError

TEXT = datasets.Value("string")
NUMBER = datasets.Value("int64")
FILE = {"bytes": datasets.Value("binary"), "path": TEXT}
PLAIN = DataSettings()


@pytest.mark.parametrize(
    ("features", "expected"),
    [
        ({"img": datasets.Image(), "label": NUMBER}, ("img", "image")),
        ({"photo": datasets.Image(), "label": NUMBER}, ("photo", "image")),
        ({"label": NUMBER, "image": FILE}, ("image", "image")),
        ({"label": NUMBER, "image": datasets.Value("binary")}, ("image", "image")),
        ({"speech": datasets.Audio(), "label": NUMBER}, ("speech", "audio")),
        ({"audio": FILE, "label": NUMBER}, ("audio", "audio")),
    ],
)
def test_sample_column_is_found(features: dict[str, object], expected: tuple[str, str]) -> None:
    assert find_sample_column(features, PLAIN) == expected


def test_sample_column_can_be_named() -> None:
    features = {"a": FILE, "b": FILE}
    assert find_sample_column(features, DataSettings(image_column="b")) == ("b", "image")
    assert find_sample_column(features, DataSettings(audio_column="a")) == ("a", "audio")
    with pytest.raises(
        DataError, match=r"unknown image column 'c'; did you mean 'b'\? \(known: a, b\)"
    ):
        find_sample_column(features, DataSettings(image_column="c"))


def test_missing_and_ambiguous_sample_columns_are_refused() -> None:
    with pytest.raises(DataError, match="no image or audio column among 'text', 'label'"):
        find_sample_column({"text": TEXT, "label": NUMBER}, PLAIN)
    with pytest.raises(DataError, match=r"several image columns \(a, b\).*image_column"):
        find_sample_column({"a": datasets.Image(), "b": datasets.Image()}, PLAIN)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("img", "coarse_label", "fine_label"), "fine_label"),
        (("image", "writer_id", "character"), "character"),
        (("label", "character"), "label"),
    ],
)
def test_label_column_is_found(names: tuple[str, ...], expected: str) -> None:
    assert find_label_column(dict.fromkeys(names, NUMBER), PLAIN) == expected


def test_label_column_by_type_or_by_name() -> None:
    features = {"digit": datasets.ClassLabel(names=["0", "1"]), "x": NUMBER}
    assert find_label_column(features, PLAIN) == "digit"
    assert find_label_column(features, DataSettings(label_column="x")) == "x"
    with pytest.raises(DataError, match="unknown label column 'digits'; did you mean 'digit'"):
        find_label_column(features, DataSettings(label_column="digits"))
    with pytest.raises(DataError, match="no label column among 'a', 'b'; name it with"):
        find_label_column({"a": NUMBER, "b": NUMBER}, PLAIN)


def test_class_label_keeps_its_order_and_its_unused_classes() -> None:
    feature = datasets.ClassLabel(names=["zebra", "ape", "cat"])
    codes, names = number_labels([2, 0, 2], feature, "label")
    assert codes.tolist() == [2, 0, 2]
    assert codes.dtype == np.int64
    assert names == ("zebra", "ape", "cat")


def test_texts_and_gaps_are_numbered_in_sorted_order() -> None:
    assert number_labels(["no", "yes", "go"], TEXT, "label")[0].tolist() == [1, 2, 0]
    codes, names = number_labels([30, 10, 30, 20], NUMBER, "label")
    assert codes.tolist() == [2, 0, 2, 1]
    assert names == ("10", "20", "30")
    # As numbers, not as texts: 9 comes before 10.
    assert number_labels([10, 9], NUMBER, "label")[1] == ("9", "10")


@pytest.mark.parametrize(
    ("values", "feature", "message"),
    [
        ([0, -1], datasets.ClassLabel(names=["a", "b"]), "row 1 has the label -1"),
        ([0, 2], datasets.ClassLabel(names=["a", "b"]), "the label 2, but there are 2 classes"),
        ([0, None], datasets.ClassLabel(names=["a", "b"]), "rows without a label"),
        ([0, None], NUMBER, "label column 'label' has missing values"),
        ([0.5, 1.0], datasets.Value("float64"), "must hold integers or texts, found float"),
        ([1, "a"], TEXT, "must hold integers or texts, found int, str"),
    ],
)
def test_bad_labels_are_refused(values: list[object], feature: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        number_labels(values, feature, "label")


def test_ids_may_be_missing_but_not_all_of_them() -> None:
    codes = number_ids(["zoe", None, "ann", "zoe", None], "column 'speaker'")
    assert codes.tolist() == [1, -1, 0, 1, -1]
    assert codes.dtype == np.int64
    assert number_ids([30, 10], "column 'room'").tolist() == [1, 0]
    nothing: list[list[object]] = [[None, None], []]
    for values in nothing:
        with pytest.raises(DataError, match="column 'room' has missing values only"):
            number_ids(values, "column 'room'")
    with pytest.raises(DataError, match="must hold integers or texts, found float"):
        number_ids([None, 0.5], "column 'loudness'")


def test_ranks() -> None:
    distinct, ranks = rank_values(["b", "a", "b"], "column 'speaker'")
    assert distinct == ["a", "b"]
    assert ranks.tolist() == [1, 0, 1]
