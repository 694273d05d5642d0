"""What the masked server shows of a client: predictions, its submodel, its mask; failed batches."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

from adasplit_flwr.masked_server import MaskedServer
from adasplit_flwr.server_masks import fresh_mask
from tests.adasplit_flwr.server_batches import Batch, batch, same_bits, small_server
from zerofl_flwr.errors import ClientFailedError, SettingsError

KINDS = ("soft", "hard", "none")


@pytest.mark.parametrize("masks", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_client_with_its_submodel_computes_what_the_server_does(
    masks: str, dtype: torch.dtype
) -> None:
    model = small_server(dtype)
    model.insert(5, nn.Dropout(0.5))
    server = MaskedServer(model, None, masks=masks)
    for number in range(6):
        server.train_batch(number % 2, *batch(number, dtype))
    for client in (0, 1, 2, 0):  # 2 was never seen
        plain = copy.deepcopy(model)
        plain.load_state_dict(server.submodel(client))
        plain.eval()
        for samples in (1, 7, 64):
            activations, _ = batch(50 + samples, dtype, samples)
            with torch.no_grad():
                assert torch.equal(server.predict(client, activations), plain(activations))


def test_looking_changes_nothing() -> None:
    server = MaskedServer(small_server(), None)
    server.train_batch(0, *batch(0))
    before = server.state_arrays()
    for client in (0, 1):
        server.predict(client, batch(1)[0])
        server.submodel(client)["0.weight"].zero_()
        server.density(client)
        server.kept(client).zero_()
    assert same_bits(server.state_arrays(), before)
    assert server.clients() == [0]


def test_a_prediction_follows_each_step() -> None:
    server = MaskedServer(small_server(), None)
    activations, labels = batch(0)
    seen = []
    for _ in range(3):
        server.train_batch(0, activations, labels)
        seen.append(server.predict(0, activations))
        assert torch.equal(server.predict(0, activations), seen[-1])
        assert not torch.equal(server.predict(1, activations), seen[-1])
    assert not torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[1], seen[2])


def test_density_and_kept_of_a_client_that_was_never_seen() -> None:
    model = small_server()
    fresh = fresh_mask(4, length=277, dtype=torch.float64, seed=9)
    soft = MaskedServer(model, None, seed=9)
    assert soft.density(4) == pytest.approx(float(torch.sigmoid(fresh).mean()), rel=1e-12)
    assert torch.equal(soft.kept(4), fresh > 0)
    hard = MaskedServer(model, None, masks="hard", seed=9)
    assert hard.density(4) == float((fresh > 0).sum()) / 277
    assert torch.equal(hard.kept(4), fresh > 0)
    none = MaskedServer(model, None, masks="none")
    assert none.density(4) == 1.0
    assert none.kept(4).tolist() == [True] * 277
    assert none.clients() == []
    shapes = none.shapes
    assert sum(int(np.prod(shape)) for shape in shapes.values()) == 277
    assert next(iter(shapes.items())) == ("0.weight", (3, 2, 3, 3))


def failing(name: str) -> Batch:
    activations, labels = batch(0)
    if name == "nan":
        activations[2, 1, 0, 0] = math.nan
    elif name == "infinite":
        activations[0] = math.inf
    elif name == "class":
        labels[3] = 3
    elif name == "shape":
        activations = activations[:, :, :2]
    elif name == "channels":
        activations = activations[:, :1]
    elif name == "count":
        labels = labels[1:]
    elif name == "dtype":
        activations = activations.float()
    elif name == "alone":
        activations, labels = activations[:1, :, :1, :1], labels[:1]
    return activations, labels


@pytest.mark.parametrize("masks", KINDS)
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nan", "client 6: the loss of its batch is nan"),
        ("infinite", "client 6: the loss of its batch is nan"),
        ("class", "client 6: the server part does not take its batch: Target 3 is out of bounds"),
        ("shape", "client 6: the server part does not take its batch: mat1 and mat2 shapes"),
        ("channels", "client 6: the server part does not take its batch: .*channels"),
        ("count", r"client 6: .* activations of shape \(6, 2, 3, 3\) came with 5 labels"),
        ("dtype", r"client 6: .* are torch\.float32, the server part is torch\.float64"),
        ("alone", "client 6: .* Expected more than 1 value per channel"),
    ],
)
def test_a_failed_batch_leaves_everything_as_it_was(masks: str, name: str, message: str) -> None:
    server, other = (MaskedServer(small_server(), None, masks=masks) for _ in range(2))
    for each in (server, other):
        each.train_batch(0, *batch(1))
    before = server.state_arrays()
    for client in (6, 0):
        named = message.replace("client 6", f"client {client}")
        with pytest.raises(ClientFailedError, match=named):
            server.train_batch(client, *failing(name), input_gradient=True)
    assert same_bits(server.state_arrays(), before)
    assert server.clients() == other.clients()
    for each in (server, other):  # nothing invisible is left either
        each.train_batch(6, *batch(2))
        each.train_batch(0, *batch(3))
    assert same_bits(server.state_arrays(), other.state_arrays())
    assert torch.equal(server.predict(0, batch(4)[0]), other.predict(0, batch(4)[0]))


class Root(nn.Module):
    """The square root of a linear layer: finite at zero, with a gradient that is not."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(2, affine=False)
        self.layer = nn.Linear(2, 2, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sqrt(self.layer(self.norm(x)).abs())


def test_a_gradient_that_is_not_finite_leaves_everything_as_it_was() -> None:
    server = MaskedServer(Root(), None)
    good = torch.tensor([[1.0, 2.0], [-1.0, 5.0]]), torch.tensor([0, 1])
    server.train_batch(0, *good)
    before = server.state_arrays()
    with pytest.raises(ClientFailedError, match="client 3: the gradient of its batch is not fini"):
        server.train_batch(3, torch.zeros(2, 2), torch.tensor([0, 1]))
    assert same_bits(server.state_arrays(), before)
    assert server.clients() == [0]


def test_activations_that_do_not_fit_are_blamed_on_the_client_also_in_predictions() -> None:
    server = MaskedServer(small_server(), None)
    with pytest.raises(ClientFailedError, match="client 2: the server part does not take"):
        server.predict(2, torch.zeros(1, 5, 3, 3, dtype=torch.float64))
    with pytest.raises(ClientFailedError, match=r"client 2: .* are torch\.int64, the server"):
        server.predict(2, torch.zeros(1, 2, 3, 3, dtype=torch.int64))


def test_a_client_is_a_whole_number() -> None:
    server = MaskedServer(small_server(), None)
    with pytest.raises(SettingsError, match="a client is a whole number from 0, not -1"):
        server.train_batch(-1, *batch(0))
    with pytest.raises(SettingsError, match="a client is a whole number from 0, not -1"):
        server.predict(-1, batch(0)[0])
