"""With several processes: `tests/bundles/test_multi_gpu.py`."""

import torch
from ignite.engine import Events
from monai.engines import SupervisedTrainer
from torch import nn

from monai_spct.handlers import AverageBuffers, average_buffers


def trainer_of(network: nn.Module, *handlers) -> SupervisedTrainer:
    return SupervisedTrainer(
        device="cpu",
        max_epochs=2,
        train_data_loader=[{"image": torch.rand(2, 1, 4, 4), "label": torch.zeros(2, 2, 4, 4)}] * 2,
        network=network,
        optimizer=torch.optim.SGD(network.parameters(), lr=0.1),
        loss_function=nn.MSELoss(),
        train_handlers=list(handlers),
    )


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2))


def test_one_process_learns_as_without_it():
    states = []
    for handlers in (lambda one: [AverageBuffers(one)], lambda one: []):  # noqa: ARG005
        one = network()
        torch.manual_seed(1)
        trainer_of(one, *handlers(one)).run()
        states.append(one.state_dict())
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())


def test_running_statistics_are_averaged_in_each_iteration_before_what_follows_it(monkeypatch):
    one, calls = network(), []

    def note(tensors):
        calls.append([id(tensor) for tensor in tensors])

    monkeypatch.setattr(average_buffers, "average_over_processes", note)
    seen = []
    trainer = trainer_of(one)
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda: seen.append(len(calls)))  # as a teacher before it
    AverageBuffers(one).attach(trainer)
    trainer.run()
    assert calls == [[id(one[1].running_mean), id(one[1].running_var)]] * 4
    assert seen == [1, 2, 3, 4]
