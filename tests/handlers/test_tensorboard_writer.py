"""TensorBoard shows each point once, also of a run that was killed."""

import time

import ignite.distributed as idist
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

from monai_spct.handlers import TensorBoardWriter


def points(folder, tag="loss"):
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)] if tag in events.Tags()["scalars"] else []


@pytest.fixture
def later(monkeypatch):
    """The files of TensorBoard are read in the order of the seconds in their names."""
    clock = [1000.0]
    monkeypatch.setattr(time, "time", lambda: clock[0])
    return lambda: clock.__setitem__(0, clock[0] + 1)


def write(writer, steps, value=0.5) -> None:
    for step in steps:
        writer.add_scalar("loss", value, step)
        writer.add_scalar("score", value, step // 10)  # by epochs


def test_what_came_after_the_checkpoint_is_there_once(tmp_path, later):
    first = TensorBoardWriter(tmp_path)
    write(first, range(10))
    state = first.state_dict()
    write(first, range(10, 15))
    first.flush()  # and killed
    later()
    second = TensorBoardWriter(tmp_path)
    second.load_state_dict(state)
    write(second, range(10, 20), 0.25)
    state = second.state_dict()
    write(second, range(20, 22))
    second.flush()
    later()
    third = TensorBoardWriter(tmp_path)
    third.add_scalar("other", 1.0, 1)  # opened too early
    third.load_state_dict(state)
    write(third, range(20, 30))
    third.flush()
    assert points(tmp_path) == [(step, 0.25 if 10 <= step < 20 else 0.5) for step in range(30)]
    assert len(points(tmp_path, "score")) == 30
    assert points(tmp_path, "other") == []


def test_all_before_a_checkpoint_is_on_the_disk(tmp_path):
    writer = TensorBoardWriter(tmp_path)
    write(writer, range(3))
    writer.state_dict()
    assert len(points(tmp_path)) == 3


def test_a_run_may_go_back_by_more_than_one_checkpoint(tmp_path, later):
    first = TensorBoardWriter(tmp_path)
    write(first, [1])
    state = first.state_dict()
    later()
    second = TensorBoardWriter(tmp_path)
    second.load_state_dict(state)
    write(second, [2])
    second.state_dict()
    later()
    third = TensorBoardWriter(tmp_path)
    third.load_state_dict(state)
    write(third, [2, 3], 0.75)
    third.flush()
    assert points(tmp_path) == [(1, 0.5), (2, 0.75), (3, 0.75)]


def test_a_run_that_starts_anew_hides_the_one_before(tmp_path, later):
    first = TensorBoardWriter(tmp_path)
    write(first, range(10))
    first.flush()
    later()
    second = TensorBoardWriter(tmp_path)
    write(second, range(4), 0.25)
    state = second.state_dict()
    assert points(tmp_path) == [(step, 0.25) for step in range(4)]
    later()
    third = TensorBoardWriter(tmp_path)
    third.load_state_dict(state)
    write(third, range(4, 6), 0.25)
    third.flush()
    assert points(tmp_path) == [(step, 0.25) for step in range(6)]


def test_files_of_others_stay_as_they_are(tmp_path, later):
    other = SummaryWriter(tmp_path)
    other.add_scalar("other", 1.0, 5)
    other.close()
    later()
    writer = TensorBoardWriter(tmp_path)
    writer.load_state_dict({"sizes": {}})
    write(writer, [1])
    writer.flush()
    assert points(tmp_path, "other") == [(5, 1.0)]
    assert points(tmp_path) == [(1, 0.5)]


def test_a_file_that_is_gone_or_shorter_is_no_obstacle(tmp_path):
    writer = TensorBoardWriter(tmp_path)
    write(writer, [1])
    state = writer.state_dict()
    [name] = state["sizes"]
    TensorBoardWriter(tmp_path).load_state_dict({"sizes": {name: 10**6, "events.out.tfevents.1.gone.training": 10}})
    assert points(tmp_path) == [(1, 0.5)]


def test_nothing_to_write_leaves_no_file(tmp_path):
    writer = TensorBoardWriter(tmp_path / "eval")
    writer.flush()
    assert writer.state_dict() == {"sizes": {}}
    writer.load_state_dict({"sizes": {}})
    assert not (tmp_path / "eval").exists()


def test_of_several_processes_one_cuts(tmp_path, monkeypatch):
    writer = TensorBoardWriter(tmp_path)
    write(writer, [1])
    writer.flush()
    monkeypatch.setattr(idist, "get_rank", lambda: 1)
    other = TensorBoardWriter(tmp_path)
    assert other.state_dict() == {"sizes": {}}
    other.load_state_dict({"sizes": {}})
    assert points(tmp_path) == [(1, 0.5)]
