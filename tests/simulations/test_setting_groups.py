"""Groups of settings: their keys, help texts and types."""

from __future__ import annotations

import dataclasses

import pytest

from simulations.setting_groups import GROUPS, all_fields, fields_of, help_texts


def test_every_setting_has_a_help_text_from_its_docstring() -> None:
    for group, key, field in all_fields():
        text = help_texts(group).get(field.name, "")
        assert len(text) > 10, key
        assert text.endswith("."), (key, text)


@pytest.mark.parametrize("group", GROUPS)
def test_the_docstrings_describe_the_settings_and_nothing_else(group: str) -> None:
    assert set(help_texts(group)) == {field.name for field in dataclasses.fields(GROUPS[group])}


@pytest.mark.parametrize("algorithm", ["zerofl", "adasplit", "baseline"])
def test_a_method_has_each_key_once(algorithm: str) -> None:
    keys = [key for _, key, _ in fields_of(algorithm)]
    assert len(set(keys)) == len(keys)


def test_help_texts_join_lines_and_know_shared_descriptions() -> None:
    texts = help_texts("data")
    assert texts["image_column"] == texts["label_column"]
    assert "\n" not in texts["partitioner"]
    assert texts["alpha"].startswith("Concentration of the Dirichlet distribution, greater than 0.")
