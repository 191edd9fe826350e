"""The time of an evaluation is that of its predictions alone."""

import json
from types import SimpleNamespace

import ignite.distributed as idist
import pytest
import torch
from ignite.engine import Events
from monai.engines import SupervisedEvaluator
from torch import nn

from monai_spct.handlers import SaveInferenceTime


class Clock(nn.Module):
    """A network that takes as long as each volume says; loading and postprocessing take long as well."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        self.now += image.max().item()
        return image

    def load(self, volumes):
        for batch, slices, seconds in volumes:
            self.now += 1000
            image = torch.full((batch, 1, 4, 4, slices), float(seconds))
            yield {"image": image, "label": image}

    def postprocess(self, output):
        self.now += 1000
        return output


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("monai_spct.handlers.inference_time.time", SimpleNamespace(perf_counter=lambda: clock.now))
    return clock


def evaluator_of(clock: Clock, path, volumes) -> SupervisedEvaluator:
    """Of volumes, each of a batch, of slices and of seconds."""

    class Loader:
        def __len__(self) -> int:
            return len(volumes)

        def __iter__(self):
            return clock.load(volumes)

    return SupervisedEvaluator(
        device=torch.device("cpu"),
        val_data_loader=Loader(),
        network=clock,
        postprocessing=clock.postprocess,
        val_handlers=[SaveInferenceTime(path)],
    )


def test_seconds_per_slice_are_the_median_over_volumes_of_what_the_network_takes(clock, tmp_path):
    path = tmp_path / "eval" / "inference_time.json"
    # of a slice 9, 0.5, 2 and 1 seconds; the first is often slow
    evaluator_of(clock, path, [(1, 10, 90), (1, 8, 4), (2, 3, 12), (1, 5, 5)]).run()
    device = f"CPU, {torch.get_num_threads()} threads"
    assert json.loads(path.read_text()) == {"seconds_per_slice": 1.5, "volumes": 4, "device": device}


def test_each_run_of_an_evaluator_counts_its_own_volumes(clock, tmp_path):
    volumes = [(1, 4, 4), (1, 4, 8)]
    evaluator = evaluator_of(clock, tmp_path / "time.json", volumes)
    evaluator.run()
    assert json.loads((tmp_path / "time.json").read_text())["seconds_per_slice"] == 1.5
    volumes[:] = [(1, 4, 40), (1, 4, 80)]
    evaluator.run()
    record = json.loads((tmp_path / "time.json").read_text())
    assert (record["seconds_per_slice"], record["volumes"]) == (15, 2)


def test_a_run_that_fails_leaves_the_record_before_it(clock, tmp_path):
    (tmp_path / "time.json").write_text("before")
    evaluator = evaluator_of(clock, tmp_path / "time.json", [(1, 4, 4), (1, 4, 4)])

    def crash() -> None:
        raise KeyError("the machine is gone")

    evaluator.add_event_handler(Events.ITERATION_COMPLETED(once=2), crash)
    with pytest.raises(KeyError):
        evaluator.run()
    assert (tmp_path / "time.json").read_text() == "before"


def test_of_several_processes_one_writes(clock, tmp_path, monkeypatch):
    evaluator = evaluator_of(clock, tmp_path / "time.json", [(1, 4, 4)])
    monkeypatch.setattr(idist, "get_rank", lambda: 1)
    evaluator.run()
    assert not (tmp_path / "time.json").exists()
