"""Cutting a network in three, and checking the parts against each other."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from adasplit_flwr.head import ProjectionHead
from adasplit_flwr.split import SplitModel, SplitShapes, check_split, split_sequential
from zerofl_flwr.errors import SettingsError

IMAGE = (1, 8, 8)


def network() -> nn.Sequential:
    return nn.Sequential(
        OrderedDict[str, nn.Module](
            conv=nn.Conv2d(1, 6, 3, padding=1),
            norm=nn.BatchNorm2d(6),
            relu=nn.ReLU(inplace=True),
            pool=nn.MaxPool2d(2),
            flatten=nn.Flatten(),
            fc1=nn.Linear(96, 10),
            drop=nn.Dropout(),
            fc2=nn.Linear(10, 4),
        )
    )


def weights(module: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])


@pytest.mark.parametrize("cut", [2, "norm"])
def test_parts_hold_the_networks_own_modules(cut: int | str) -> None:
    net = network()
    split = split_sequential(net, cut)
    assert list(dict(split.client.named_children())) == ["conv", "norm"]
    assert list(dict(split.server.named_children())) == [
        "relu",
        "pool",
        "flatten",
        "fc1",
        "drop",
        "fc2",
    ]
    for name, module in net.named_children():
        part = split.client if name in ("conv", "norm") else split.server
        assert part.get_submodule(name) is module
    assert isinstance(split.head, ProjectionHead)


def test_state_of_both_parts_is_the_networks_state() -> None:
    net = network()
    split = split_sequential(net, 3)
    parts = {**split.client.state_dict(), **split.server.state_dict()}
    assert list(parts) == list(net.state_dict())
    assert all(torch.equal(parts[name], value) for name, value in net.state_dict().items())


@given(cut=st.integers(1, 7), by_name=st.booleans(), batch=st.integers(1, 4))
@settings(deadline=None, max_examples=30)
def test_forward_is_the_uncut_network(cut: int, by_name: bool, batch: int) -> None:
    net = network().eval()
    name = list(dict(net.named_children()))[cut - 1]
    split = split_sequential(net, name if by_name else cut, sample_shape=IMAGE)
    x = torch.randn(batch, *IMAGE)
    assert torch.equal(split(x), net(x))
    assert len(dict(split.client.named_children())) == cut
    assert split.head(split.client(x)).shape == (batch, 64)


@pytest.mark.parametrize(
    ("cut", "activation"),
    [("conv", (6, 8, 8)), ("pool", (6, 4, 4)), ("flatten", (96,)), ("drop", (10,))],
)
def test_shapes_of_a_split(cut: str, activation: tuple[int, ...]) -> None:
    split = split_sequential(network(), cut, projection_dim=5, sample_shape=IMAGE)
    assert check_split(split, IMAGE) == SplitShapes(activation, projection_dim=5, num_outputs=4)


def test_a_width_that_is_not_told_is_asked_for() -> None:
    with pytest.raises(SettingsError, match="give sample_shape"):
        split_sequential(network(), "flatten")
    # The layers tell what a trial shows.
    for cut in ("conv", "norm", "relu", "pool", "fc1", "drop"):
        told = split_sequential(network(), cut).head
        seen = split_sequential(network(), cut, sample_shape=IMAGE).head
        assert torch.equal(weights(told), weights(seen))


def test_seed_alone_decides_the_head() -> None:
    torch.manual_seed(1)
    first = weights(split_sequential(network(), 2, seed=5).head)
    torch.manual_seed(2)
    assert torch.equal(weights(split_sequential(network(), 2, seed=5).head), first)
    assert not torch.equal(weights(split_sequential(network(), 2, seed=6).head), first)
    assert not torch.equal(weights(split_sequential(network(), 2, seed=-5).head), first)


def test_head_does_not_repeat_a_network_of_the_same_seed() -> None:
    torch.manual_seed(5)
    twin = ProjectionHead(6, flat=False)
    assert not torch.equal(weights(split_sequential(network(), 2, seed=5).head), weights(twin))


def test_global_random_state_is_left_alone() -> None:
    net = network()
    before = torch.get_rng_state()
    check_split(split_sequential(net, "flatten", sample_shape=IMAGE), IMAGE)
    assert torch.equal(torch.get_rng_state(), before)


def test_modes_are_kept() -> None:
    net = network()
    net.get_submodule("norm").eval()  # a frozen batch norm in a network that trains
    split = split_sequential(net, 3)
    assert split.training
    assert split.client.training
    assert not split.client.get_submodule("norm").training
    net.eval()
    split = split_sequential(net, 3)
    assert not any(part.training for part in (split, split.client, split.head, split.server))


def test_head_has_the_dtype_of_the_client() -> None:
    split = split_sequential(network().double(), 3)
    assert {parameter.dtype for parameter in split.parameters()} == {torch.float64}
    assert check_split(split, IMAGE).activation == (6, 8, 8)


def test_a_module_may_come_twice_if_it_has_no_weights() -> None:
    relu = nn.ReLU()
    net = nn.Sequential(nn.Linear(4, 6), relu, nn.Linear(6, 6), relu, nn.Linear(6, 2))
    split = split_sequential(net, 2)
    x = torch.randn(3, 4)
    assert torch.equal(split(x), net(x))
    assert list(split.server.state_dict()) == ["2.weight", "2.bias", "4.weight", "4.bias"]
    assert check_split(split_sequential(net, 4), (4,)).activation == (6,)


def test_a_name_of_digits_is_a_name() -> None:
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    split = split_sequential(net, "1")
    assert list(dict(split.client.named_children())) == ["0", "1"]


@pytest.mark.parametrize(
    ("cut", "message"),
    [
        (0, "cut is 0; it must be from 1 to 7, for the network has 8 children"),
        (8, "cut is 8; it must be from 1 to 7"),
        (-1, "cut is -1; it must be from 1 to 7"),
        (True, "cut is True; it must be a number of children or the name of a child"),
        (2.0, "cut is 2.0; it must be a number of children"),
        (None, "cut is None; it must be a number of children"),
        ("pol", "unknown child to cut after 'pol'; did you mean 'pool'"),
        ("", "unknown child to cut after ''"),
        (
            "fc2",
            "'fc2', the last child, which leaves nothing to the server; the last cut is 'drop'",
        ),
    ],
)
def test_cuts_that_are_refused(cut: Any, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        split_sequential(network(), cut, sample_shape=IMAGE)


class OwnForward(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


@pytest.mark.parametrize("net", [nn.Linear(3, 2), OwnForward(nn.ReLU(), nn.ReLU()), "a net"])
def test_only_sequences_are_cut(net: Any) -> None:
    with pytest.raises(SettingsError, match=rf"a {type(net).__name__}; .*\(client, head, server\)"):
        split_sequential(net, 1)


@pytest.mark.parametrize("children", [[], [nn.ReLU()]])
def test_a_network_too_short_to_cut(children: list[nn.Module]) -> None:
    with pytest.raises(SettingsError, match=f"of {len(children)} children cannot be cut"):
        split_sequential(nn.Sequential(*children), 1)


def test_other_bad_arguments() -> None:
    with pytest.raises(SettingsError, match="projection_dim of a projection head is 0"):
        split_sequential(network(), 2, projection_dim=0)
    bad: Any = 1.5
    with pytest.raises(SettingsError, match=r"seed is 1\.5; it must be a whole number"):
        split_sequential(network(), 2, seed=bad)
    with pytest.raises(SettingsError, match="sample_shape is"):
        split_sequential(network(), 2, sample_shape=())


@pytest.mark.parametrize("part", ["client", "head", "server"])
def test_parts_must_be_modules(part: str) -> None:
    parts: dict[str, Any] = {name: nn.ReLU() for name in ("client", "head", "server")}
    parts[part] = torch.relu
    with pytest.raises(SettingsError, match=f"{part} of a SplitModel must be an nn.Module, it is"):
        SplitModel(**parts)


@pytest.mark.parametrize(
    ("net", "name"),
    [
        (nn.Sequential(nn.LazyConv2d(7, 3), nn.ReLU()), r"client\.0\.weight"),
        (nn.Sequential(nn.Linear(4, 3), nn.LazyLinear(2)), r"server\.1\.weight"),
        (
            nn.Sequential(nn.Linear(4, 3), nn.LazyBatchNorm1d(affine=False)),
            r"server\.1\.running_mean",
        ),
    ],
)
def test_layers_that_never_ran_are_refused(net: nn.Sequential, name: str) -> None:
    with pytest.raises(SettingsError, match=f"^{name} has no shape yet; run the network once"):
        split_sequential(net, 1)


def test_weights_tied_across_the_cut_are_refused() -> None:
    encoder, decoder = nn.Linear(4, 4), nn.Linear(4, 4)
    decoder.weight = encoder.weight
    net = nn.Sequential(OrderedDict(first=encoder, second=nn.ReLU(), third=decoder))
    with pytest.raises(SettingsError, match=r"client\.first\.weight and server\.third\.weight"):
        split_sequential(net, 2)
    net = nn.Sequential(encoder, decoder, nn.Linear(4, 2))
    assert check_split(split_sequential(net, 2), (4,)).num_outputs == 2  # tied on one side


@pytest.mark.parametrize(
    ("places", "message"),
    [
        (("client", "head"), r"client\.0\.weight and head\.0\.weight"),
        (("head", "server"), r"head\.0\.weight and server\.0\.weight"),
        (("client", "server"), r"client\.0\.weight and server\.0\.weight"),
    ],
)
def test_a_layer_in_two_parts_is_refused(places: tuple[str, str], message: str) -> None:
    shared = nn.Linear(4, 4)
    parts: dict[str, nn.Module] = {
        name: nn.Sequential(shared if name in places else nn.Linear(4, 4))
        for name in ("client", "head", "server")
    }
    with pytest.raises(SettingsError, match=f"{message} are one and the same parameter"):
        SplitModel(**parts)


def test_own_parts_of_any_shape() -> None:
    split = SplitModel(
        nn.Conv1d(2, 5, 3), nn.Sequential(nn.Flatten(), nn.Linear(30, 7)), nn.Flatten()
    )
    assert check_split(split, (2, 8)) == SplitShapes((5, 6), projection_dim=7, num_outputs=30)


def test_a_check_changes_nothing() -> None:
    split = split_sequential(network(), "conv")  # the server starts with the batch norm
    before = {name: value.clone() for name, value in split.state_dict().items()}
    check_split(split, IMAGE)
    assert split.training
    assert all(torch.equal(before[name], value) for name, value in split.state_dict().items())
    assert all(parameter.grad is None for parameter in split.parameters())


def test_a_layer_that_writes_into_the_activations_spares_the_other_part() -> None:
    class Head(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.zero_().flatten(1)

    class Server(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not x.any():
                raise RuntimeError("the head has been here")
            return x.flatten(1)

    client = nn.Linear(3, 4)
    shapes = check_split(SplitModel(client, Head(), Server()), (3,))
    assert shapes == SplitShapes((4,), projection_dim=4, num_outputs=4)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            (nn.Linear(9, 4), nn.Linear(4, 2), nn.Linear(4, 2)),
            r"^the client of the split fails on a batch of shape \(2, 3\): .*shapes",
        ),
        (
            (nn.Linear(3, 4), nn.Linear(5, 2), nn.Linear(4, 2)),
            r"^the head of the split fails on a batch of shape \(2, 4\): .*shapes",
        ),
        (
            (nn.Linear(3, 4), nn.Linear(4, 2), nn.Linear(5, 2)),
            r"^the server of the split fails on a batch of shape \(2, 4\): .*shapes",
        ),
        (
            (nn.Flatten(0), nn.Linear(4, 2), nn.Linear(4, 2)),
            r"^the client of the split must return one vector or more .* shape \(6,\)",
        ),
        (
            (nn.Linear(3, 4), nn.Unflatten(1, (2, 2)), nn.Linear(4, 2)),
            r"^the head of the split must return one row for each sample, .*\(2, 2, 2\)",
        ),
        (
            (nn.Linear(3, 4), nn.Linear(4, 2), nn.Unflatten(1, (4, 1, 1))),
            r"^the server of the split must return one row for each sample, .*\(2, 4, 1, 1\)",
        ),
    ],
)
def test_the_part_at_fault_is_named(parts: tuple[nn.Module, ...], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        check_split(SplitModel(*parts), (3,))


def test_only_splits_are_checked() -> None:
    net: Any = network()
    with pytest.raises(SettingsError, match="only a SplitModel can be checked, not a Sequential"):
        check_split(net, IMAGE)
