"""SCAFFOLD's client: its steps, its control variate, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import RecordDict
from torch import nn

from simulations.baselines import BaselineClient, ScaffoldClient
from tests.simulations.baselines.learners import arrays, config, loader, network, zeros_like
from tests.strategies.federation import f32, same_bits
from zerofl_flwr.errors import ClientFailedError, DataError, PayloadError, SettingsError
from zerofl_flwr.model_arrays import Array
from zerofl_flwr.training import TrainingSettings, seed_of

TRAINING = TrainingSettings(learning_rate=0.2)
MODEL = 4
"""Arrays of the model."""


def client(state: RecordDict | None = None, **options: Any) -> ScaffoldClient:
    given: dict[str, Any] = {"training": TRAINING, "partition_id": 3, "seed": 7, **options}
    model = given.pop("model", None) or network()
    return ScaffoldClient(
        model,
        loader(),
        loader(1, shuffle=False),
        state=RecordDict() if state is None else state,
        **given,
    )


def message(control: list[Array] | None = None) -> list[Array]:
    return [*arrays(), *(zeros_like(arrays()) if control is None else control)]


def drawn(seed: int) -> list[Array]:
    generator = np.random.default_rng(seed)
    return [generator.normal(scale=0.1, size=a.shape).astype("f4") for a in arrays()]


def test_without_control_variates_it_trains_as_fedavgs_client_bit_for_bit() -> None:
    plain = BaselineClient(network(), loader(), training=TRAINING, partition_id=3, seed=7)
    expected, samples, _ = plain.fit(arrays(), {"round": 1})
    reply, count, metrics = client().fit(message(), config(1))
    assert same_bits(reply[:MODEL], expected)
    assert (count, metrics["round"], metrics["local_steps"]) == (samples, 1, 3)
    # Three steps of 0.2 long: the mean of the gradients that it met.
    for change, before, after in zip(reply[MODEL:], arrays(), expected, strict=True):
        np.testing.assert_allclose(change, (before - after) / 0.6, rtol=1e-6)  # float32


def test_the_correction_is_in_every_step_and_the_variate_is_the_mean_raw_gradient() -> None:
    """Against SGD in plain torch with the correction written out, over two rounds."""
    state, own = RecordDict(), zeros_like(arrays())
    common = [zeros_like(arrays()), drawn(1)]
    for number in (1, 2):
        reply, _, _ = client(state).fit(message(common[number - 1]), config(number, number - 1))
        model, met = network(), zeros_like(arrays())
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed_of(7, number, 3))
            for inputs, labels in loader():
                model.zero_grad()
                nn.functional.cross_entropy(model(inputs), labels).backward()  # type: ignore[no-untyped-call]
                with torch.no_grad():
                    for index, parameter in enumerate(model.parameters()):
                        assert parameter.grad is not None
                        raw = parameter.grad.numpy()
                        met[index] = met[index] + raw / 3
                        step = raw - own[index] + common[number - 1][index]
                        parameter.sub_(torch.from_numpy(0.2 * step))
        # Weights below 1 are 6e-8 apart in float32, and each of three steps rounds once or twice.
        # The variate is told from the way of 3 * 0.2 that they took, so that its error is larger.
        for index, parameter in enumerate(model.parameters()):
            np.testing.assert_allclose(reply[index], parameter.detach().numpy(), atol=4e-7)
            change = met[index] - own[index]
            np.testing.assert_allclose(reply[MODEL + index], change, atol=8e-7)
        own = met
    assert np.abs(own[0]).max() > 0.01


def test_it_goes_on_from_the_round_that_the_server_names() -> None:
    state = RecordDict()
    client(state).fit(message(), config(1))
    second, _, _ = client(state).fit(message(drawn(1)), config(2, 1))
    # Its reply was lost: the same again, from round 1.
    again, _, _ = client(state).fit(message(drawn(1)), config(2, 1))
    assert same_bits(second, again)
    third, _, _ = client(state).fit(message(drawn(1)), config(3, 1))
    assert not same_bits(second, third)  # another round shuffles otherwise
    with pytest.raises(ClientFailedError, match="client 3 of run run: the state of round 2 is lo"):
        client(state).fit(message(), config(4, 2))
    fresh, _, _ = client(state).fit(message(), config(5))
    assert same_bits(fresh, client().fit(message(), config(5))[0])


def test_a_folder_keeps_it_for_a_client_that_is_started_again(tmp_path: Path) -> None:
    state = RecordDict()
    client(state, state_dir=tmp_path).fit(message(), config(1))
    kept, _, _ = client(state, state_dir=tmp_path).fit(message(drawn(1)), config(2, 1))
    anew, _, _ = client(state_dir=tmp_path).fit(message(drawn(1)), config(2, 1))
    assert same_bits(kept, anew)
    assert sorted(path.name for path in tmp_path.rglob("*.npz")) == ["round-1.npz", "round-2.npz"]


def test_statistics_and_integers_have_no_gradients_to_correct() -> None:
    model = arrays(normed=True)
    names = list(network(normed=True).state_dict())
    controlled = [name for name in names if not name.endswith("num_batches_tracked")]
    reply, _, _ = client(model=network(normed=True)).fit([*model, *zeros_like(model)], config(1))
    assert len(reply) == len(names) + len(controlled)
    changes = dict(zip(controlled, reply[len(names) :], strict=True))
    assert not changes["1.running_mean"].any()
    assert not changes["1.running_var"].any()
    assert changes["1.weight"].any()
    assert int(reply[names.index("1.num_batches_tracked")]) == 3


def test_frozen_parameters_stay() -> None:
    model = network()
    first = next(model.parameters())
    first.requires_grad_(False)
    reply, _, _ = client(model=model).fit(message(drawn(1)), config(1))
    assert same_bits(reply[:1], arrays()[:1])
    assert not reply[MODEL].any()
    assert reply[MODEL + 1].any()


@pytest.mark.parametrize(
    ("parameters", "message_text"),
    [
        (arrays(), "server, field control_variates: expected 4 arrays of a control variate, got 0"),
        (message()[:-1], "server, field control_variates: expected 4 arrays .* got 3"),
        (
            [*message()[:-1], f32([0.0])],
            r"server, layer 2.bias, field control_variates: expected float32 .* got float32 \(1,",
        ),
        (
            [*message()[:-1], np.zeros(3)],
            r"server, layer 2.bias, field control_variates: expected float32 .* got float64 \(3,\)",
        ),
        ([f32([1.0]), *message()[1:]], "server, layer 0.weight, field shape: expected shape"),
    ],
)
def test_what_is_no_model_with_its_control_variate_is_refused(
    parameters: list[Array], message_text: str
) -> None:
    with pytest.raises(PayloadError, match=message_text):
        client().fit(parameters, config(1))


def test_it_answers_its_own_strategy_only() -> None:
    with pytest.raises(SettingsError, match="needs the strategy Scaffold at the server"):
        client().fit(message(), {"round": 1})


def test_another_models_control_variate_is_refused(tmp_path: Path) -> None:
    small = nn.Sequential(nn.Linear(4, 3))
    values = [tensor.numpy() for tensor in small.state_dict().values()]
    client(model=small, state_dir=tmp_path).fit([*values, *zeros_like(values)], config(1))
    with pytest.raises(DataError, match="client 3 kept the control variate of another model"):
        client(state_dir=tmp_path).fit(message(), config(2, 1))


@pytest.mark.parametrize(
    "training", [TrainingSettings(optimizer="adam"), TrainingSettings(momentum=0.9)]
)
def test_only_plain_sgd_is_k_gradients_in_k_steps(training: TrainingSettings) -> None:
    with pytest.raises(SettingsError, match="Scaffold's clients train with sgd without momentum"):
        client(training=training)
