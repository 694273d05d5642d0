"""The server learns batch by batch across the clients, in partition order, and tells who taught."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from adasplit_flwr.activation_payload import ActivationBatch
from adasplit_flwr.mask_store import DEFAULT_BUDGET_BYTES
from adasplit_flwr.masked_server import BatchOutcome, MaskedServer
from adasplit_flwr.orchestrator import Orchestrator
from adasplit_flwr.server_masks import fresh_mask
from adasplit_flwr.settings import AdaSplitSettings
from strategies.adasplit_server import ServerTrainer, build_server, check_mask_memory
from tests.adasplit_flwr.masked_reference import Reference
from tests.strategies.adasplit_federation import frozen
from zerofl_flwr.errors import SettingsError

CUT, CLASSES = 3, 2


def part(*, dropout: float = 0.0, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        return nn.Sequential(
            nn.Linear(CUT, 4),
            nn.BatchNorm1d(4),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(4, CLASSES),
        ).to(dtype)


def trainer(
    module: nn.Module | None = None, *, keep_gradients: bool = False, **options: Any
) -> tuple[ServerTrainer, MaskedServer, Orchestrator]:
    settings = AdaSplitSettings(**{"adam_learning_rate": 0.05, **options})
    server = build_server(module or part(), settings, seed=1, folder=None)
    orchestrator = Orchestrator(settings.gamma, seed=1)
    orchestrator.pick(range(6), 1)
    made = ServerTrainer(server, orchestrator, seed=1, keep_gradients=keep_gradients)
    return made, server, orchestrator


def exchange_of(client: int, count: int, samples: int = 4) -> list[ActivationBatch]:
    generator = np.random.default_rng(client)
    return [
        ActivationBatch(
            number,
            generator.normal(size=(samples, CUT)).astype(np.float32),
            generator.integers(0, CLASSES, samples),
        )
        for number in range(count)
    ]


UPLOADS = {4: exchange_of(4, 2), 0: exchange_of(0, 3), 2: exchange_of(2, 1)}
ORDER = [(0, 0), (2, 0), (4, 0), (0, 1), (4, 1), (0, 2)]


def test_batches_come_iteration_by_iteration_in_partition_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, server, orchestrator = trainer()
    seen: list[tuple[int, int]] = []
    told: list[dict[int, float]] = []

    def train(
        client: int, activations: torch.Tensor, labels: torch.Tensor, **_: Any
    ) -> BatchOutcome:
        number = next(
            batch.batch_id
            for batch in UPLOADS[client]
            if np.array_equal(batch.activations, activations.numpy().astype(np.float32))
        )
        seen.append((client, number))
        return BatchOutcome(len(seen) / 8, 0, None)

    monkeypatch.setattr(server, "train_batch", train)
    monkeypatch.setattr(orchestrator, "update", lambda losses, failed: told.append(losses))
    lessons = made.learn(UPLOADS)
    assert seen == ORDER
    # One entry for the exchange: e.g. of client 0, (1 + 4 + 6) / 8 over three batches.
    assert told == [{0: pytest.approx(11 / 24), 2: 0.25, 4: 0.5}]
    assert list(lessons) == [0, 2, 4]
    assert [lesson.samples for lesson in lessons.values()] == [12, 4, 8]
    assert [lesson.mean_loss for lesson in lessons.values()] == pytest.approx(
        [(0.125 + 0.5 + 0.75) / 3, 0.25, 0.5]
    )


def test_an_entry_may_be_made_of_several_exchanges_and_names_who_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, server, orchestrator = trainer()
    told: list[tuple[dict[int, float], set[int]]] = []
    losses = iter([1.0, 3.0, 0.5])
    monkeypatch.setattr(server, "train_batch", lambda *_, **__: BatchOutcome(next(losses), 0, None))
    monkeypatch.setattr(
        orchestrator, "update", lambda losses, failed: told.append((losses, set(failed)))
    )
    made.learn({0: exchange_of(0, 1)}, [0], is_entry=False)
    made.learn({0: exchange_of(0, 1)}, [0], is_entry=False)
    made.learn({}, [3], is_entry=False)
    other, _, second = trainer()
    other.load_state_arrays(made.state_arrays())
    monkeypatch.setattr(second, "update", lambda losses, failed: told.append((losses, set(failed))))
    monkeypatch.setattr(other._server, "train_batch", lambda *_, **__: BatchOutcome(0.5, 0, None))
    for each in (made, other):
        each.learn({2: exchange_of(2, 1)}, [2])
        each.learn({})
    # Client 0 had losses 1 and 3 of as many samples; client 3 was to upload and did not.
    assert told == [({0: 2.0, 2: 0.5}, {3})] * 2


def test_a_step_of_one_weight_by_hand() -> None:
    """Logits (w a, 0) with w = 0 and label 1: the loss is ln 2, its gradient a/2."""
    module = nn.Linear(1, CLASSES, bias=False).double()
    nn.init.zeros_(module.weight)
    made, server, orchestrator = trainer(
        module, mask="none", adam_weight_decay=0, adam_learning_rate=0.5, keep_gradients=True
    )
    batch = ActivationBatch(0, np.array([[2.0]], np.float32), np.array([1]))
    lesson = made.learn({3: [batch]})[3]
    # Adam's first step is the learning rate against the gradient's sign.
    weight = server.shared_state()["weight"]
    np.testing.assert_allclose(weight, [[-0.5], [0.5]], rtol=1e-7)
    assert lesson.loss == pytest.approx(math.log(2), abs=1e-12)
    ((batch_id, gradient),) = lesson.gradients
    assert (batch_id, gradient.tolist()) == (0, [[0.0]])  # both weights were 0
    assert orchestrator.exchanges == 1
    # The second step: logits (-1, 1), the softmax of class 1 is 1 / (1 + e^-2).
    lesson = made.learn({3: [batch]})[3]
    rest = 1 - 1 / (1 + math.exp(-2))
    assert lesson.mean_loss == pytest.approx(math.log(1 + math.exp(-2)), abs=1e-6)
    np.testing.assert_allclose(lesson.gradients[0][1], [[rest * -0.5 - rest * 0.5]], rtol=1e-6)


def test_without_masks_it_is_a_plain_loop_of_torch() -> None:
    made, server, _ = trainer(mask="none", adam_weight_decay=0.01)
    lessons = made.learn(UPLOADS)
    module = part().train()
    adam = torch.optim.Adam(module.parameters(), lr=0.05, weight_decay=0.01)
    losses: dict[int, list[float]] = {}
    for client, number in ORDER:
        batch = UPLOADS[client][number]
        loss = nn.functional.cross_entropy(
            module(torch.tensor(batch.activations).double()), torch.tensor(batch.labels)
        )
        adam.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        adam.step()
        losses.setdefault(client, []).append(float(loss.detach()))
    state = server.shared_state()
    assert list(state) == list(module.state_dict())
    for name, tensor in module.state_dict().items():
        np.testing.assert_allclose(state[name], tensor.numpy(), rtol=1e-10, atol=1e-12)
    for client, expected in losses.items():
        assert lessons[client].mean_loss == pytest.approx(np.mean(expected), abs=1e-12)


def test_with_masks_it_is_the_reference_in_the_same_order() -> None:
    made, server, _ = trainer(mask_penalty=0.01, adam_weight_decay=0.001)
    made.learn(UPLOADS)
    length = sum(p.numel() for p in part().parameters())
    masks = {
        client: fresh_mask(client, length=length, dtype=torch.float64, seed=1) for client in UPLOADS
    }
    reference = Reference(part(), masks, penalty=0.01, lr=0.05, wd=0.001)
    for client, number in ORDER:
        batch = UPLOADS[client][number]
        reference.step(client, torch.tensor(batch.activations).double(), torch.tensor(batch.labels))
    state = server.shared_state()
    for name, weight in reference.weights.items():
        np.testing.assert_allclose(state[name], weight.detach().numpy(), rtol=1e-9, atol=1e-12)
    for client in UPLOADS:
        expected = torch.sigmoid(reference.mask(client)).mean()
        assert made.density(client) == pytest.approx(float(expected), abs=1e-12)


def test_a_client_that_fails_is_left_out_from_there_on() -> None:
    spoiled = copy.deepcopy(UPLOADS)
    spoiled[0][1].activations[...] = np.float32(3e38)
    made, server, orchestrator = trainer(part(dtype=torch.float32), keep_gradients=True)
    lessons = made.learn(spoiled)
    assert "client 0: " in lessons[0].failure
    assert lessons[0].failure.endswith("(batch 1 of its exchange, the rest left out)")
    assert [lesson.samples for lesson in lessons.values()] == [4, 4, 8]
    assert lessons[0].gradients == []
    assert [number for number, _ in lessons[4].gradients] == [0, 1]
    # As if those batches had never come.
    same, other, picks = trainer(part(dtype=torch.float32), keep_gradients=True)
    same.learn({**UPLOADS, 0: UPLOADS[0][:1]})
    assert frozen(server.state_arrays()) == frozen(other.state_arrays())
    assert frozen(orchestrator.state_arrays()) == frozen(picks.state_arrays())
    assert orchestrator.exchanges == 1


def test_an_exchange_is_one_entry_for_everybody_however_many_batches() -> None:
    made, _, orchestrator = trainer(gamma=0.5)
    lessons = made.learn(UPLOADS)
    state = orchestrator.state_arrays()
    assert state["entries"] == 3
    # 1.5 / 2 + 1 for the picked, whether of one batch or of three, and 1.5 / 2 for the others.
    assert (state["pick-sums"] * 0.5 ** state["waits"]).tolist() == [
        1.75 if client in UPLOADS else 0.75 for client in range(6)
    ]
    assert state["last-losses"][:, 1].tolist() == [
        lessons[client].mean_loss if client in UPLOADS else 100.0 for client in range(6)
    ]


def test_losses_weigh_by_samples() -> None:
    uneven = [exchange_of(0, 1, samples=12)[0], ActivationBatch(1, *rest_of(exchange_of(1, 1)[0]))]
    made, _, orchestrator = trainer()
    lesson = made.learn({0: uneven})[0]
    assert lesson.samples == 16
    assert orchestrator.state_arrays()["last-losses"][0, 1] == lesson.loss / 16


def rest_of(batch: ActivationBatch) -> tuple[Any, Any]:
    return batch.activations, batch.labels


def test_nothing_to_learn_from() -> None:
    made, server, orchestrator = trainer()
    before = frozen(server.state_arrays())
    assert made.learn({}) == {}
    assert frozen(server.state_arrays()) == before
    assert orchestrator.exchanges == 0


def test_dropout_depends_on_seed_iteration_and_client_alone() -> None:
    def learned(split_at: int) -> dict[str, Any]:
        made, server, _ = trainer(part(dropout=0.5))
        torch.manual_seed(split_at)
        untouched = torch.random.get_rng_state()
        for start, stop in ((0, split_at), (split_at, 3)):
            made.learn(dict.fromkeys((0, 4), UPLOADS[0][start:stop]))
        assert torch.equal(torch.random.get_rng_state(), untouched)
        return frozen(server.state_arrays())

    assert learned(1) == learned(2) == learned(3)


def test_dropout_does_not_depend_on_what_the_orchestrator_has_counted() -> None:
    def learned(entries: int, *, resumed: bool = False) -> dict[str, Any]:
        made, server, orchestrator = trainer(part(dropout=0.5))
        for _ in range(entries):
            orchestrator.update({5: 1.0})
        made.learn({0: UPLOADS[0][:2]})
        if resumed:
            again = ServerTrainer(server, orchestrator, seed=1, keep_gradients=False)
            again.load_state_arrays(made.state_arrays())
            made = again
        made.learn({0: UPLOADS[0][2:]})
        assert made.state_arrays()["iterations"] == 3
        return frozen(server.state_arrays())

    assert learned(0) == learned(4) == learned(0, resumed=True)


def test_activations_are_taken_in_the_servers_precision() -> None:
    for dtype in (torch.float32, torch.float64):
        made, server, _ = trainer(part(dtype=dtype), keep_gradients=True)
        lessons = made.learn(UPLOADS)
        assert server.dtype is dtype
        gradient = lessons[0].gradients[0][1]
        assert gradient.dtype == np.dtype(str(dtype).removeprefix("torch."))
        assert gradient.shape == (4, CUT)


def test_read_only_activations_are_copied_and_left_alone() -> None:
    batch = UPLOADS[0][0]
    values = batch.activations.copy()
    values.flags.writeable = False
    module = nn.Sequential(nn.ReLU(inplace=True), part())
    made, _, _ = trainer(module)
    before = values.copy()
    made.learn({0: [ActivationBatch(0, values, batch.labels)]})
    np.testing.assert_array_equal(values, before)


def test_the_shared_state_is_that_before_any_mask() -> None:
    _, server, _ = trainer()
    own = part().state_dict()
    assert list(server.shared_state()) == list(own)
    for name, array in server.shared_state().items():
        np.testing.assert_array_equal(array, own[name].numpy())
    effective = server.submodel(0)
    assert not np.array_equal(effective["0.weight"], own["0.weight"])


def test_memory_that_has_no_room_for_a_mask_is_refused(tmp_path: Path) -> None:
    wide = nn.Linear(600, 600, dtype=torch.float64)
    # 3 * 8 * 360,600 bytes are 8,654,400; a tenth is rounded up.
    message = r"mask_memory_mb is 8; one client's mask and its two moments take 8\.7 megabytes"
    too_small = AdaSplitSettings(mask_memory_mb=8)
    with pytest.raises(SettingsError, match=message):
        build_server(wide, too_small, seed=0, folder=tmp_path)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(SettingsError, match=message):
        check_mask_memory(wide, too_small)
    enough = build_server(wide, AdaSplitSettings(mask_memory_mb=9), seed=0, folder=tmp_path)
    assert enough.clients() == []


@pytest.mark.parametrize(("outputs", "fits"), [(125, True), (126, False)])
def test_a_megabyte_is_a_million_bytes(outputs: int, fits: bool) -> None:
    # 3 * 8 * 333 * 125 bytes are 999,000; with one more output 1,006,992, less than 2**20.
    part = nn.Linear(333, outputs, bias=False, dtype=torch.float64)
    settings = AdaSplitSettings(mask_memory_mb=1)
    if fits:
        check_mask_memory(part, settings)
    else:
        with pytest.raises(SettingsError, match=r"take 1\.1 megabytes"):
            check_mask_memory(part, settings)
    check_mask_memory(part, AdaSplitSettings(mask="none"))
    assert AdaSplitSettings().mask_memory_mb * 10**6 == DEFAULT_BUDGET_BYTES


def test_without_a_folder_no_budget_ends_a_run() -> None:
    wide = nn.Linear(600, CLASSES, dtype=torch.float64)
    server = build_server(wide, AdaSplitSettings(mask_memory_mb=1), seed=0, folder=None)
    batch = torch.ones(2, 600, dtype=torch.float64)
    for client in range(40):  # 29 kB each
        server.train_batch(client, batch, torch.tensor([0, 1]))
    assert server.clients() == list(range(40))
