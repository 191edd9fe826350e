"""TensorBoard shows the same slices of the same volumes in every epoch."""

import io

import ignite.distributed as idist
import pytest
import torch
from ignite.engine import Engine
from matplotlib.image import imread
from monai.data import MetaTensor
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from monai_spct.handlers import TensorBoardPictures, TensorBoardWriter

SIZES = torch.tensor([-6.0, -6.0, 10.0, 1.0])  # mm
ITEMS = [
    {
        "case": f"patient{n}",
        "image": MetaTensor(
            torch.rand(1, 24, 24, 4, generator=torch.Generator().manual_seed(n)), affine=torch.diag(SIZES)
        ),
        "label": torch.nn.functional.pad(torch.ones(1, 8, 8, 2), (1, 1, 4, 12, 4, 12)),
        "pred": torch.zeros(1, 24, 24, 4),
    }
    for n in range(3)
]


def events(folder):
    accumulator = EventAccumulator(str(folder), size_guidance={"images": 0})
    accumulator.Reload()
    return accumulator


def found(item, epoch):
    """Nothing in the first epoch, and then something beside the truth."""
    return {**item, "pred": item["label"].roll((1, 9), (3, 1)) * (epoch - 1)}


def run(folder, *, epochs=2, **settings):
    engine = Engine(lambda engine, batch: [found(item, engine.state.epoch) for item in batch])
    TensorBoardPictures(TensorBoardWriter(folder), structures={"1": "LV"}, **settings).attach(engine)
    for epoch in range(1, epochs + 1):
        engine.state.max_epochs, engine.state.epoch, engine.state.iteration = epoch, epoch - 1, 0
        engine.run([ITEMS[:1], ITEMS[1:]])


def test_the_first_volumes_come_in_each_epoch_as_pictures_of_one_size(tmp_path):
    run(tmp_path, slices=2)
    written = events(tmp_path)
    assert written.Tags()["images"] == ["validation/patient0", "validation/patient1"]
    for tag in written.Tags()["images"]:
        first, second = written.Images(tag)
        assert (first.step, second.step) == (1, 2)
        one, two = (imread(io.BytesIO(image.encoded_image_string))[..., :3] for image in (first, second))
        assert one.shape == two.shape
        assert min(one.shape[:2]) > 150
        assert abs(one - two).max() > 0.3  # the prediction in color
        assert len(second.encoded_image_string) < 200_000


@pytest.mark.parametrize("most", [0, 1, 3])
def test_there_are_as_many_as_were_asked_for(tmp_path, most):
    run(tmp_path, epochs=1, max_pictures=most, slices=1)
    assert len(events(tmp_path).Tags()["images"] if list(tmp_path.iterdir()) else []) == most


def test_nothing_is_written_before_there_is_a_picture(tmp_path):
    writer = TensorBoardWriter(tmp_path / "eval")
    TensorBoardPictures(writer, structures={1: "LV"}).attach(Engine(lambda engine, batch: batch))  # noqa: ARG005
    assert not (tmp_path / "eval").exists()


def test_of_several_processes_one_draws(tmp_path, monkeypatch):
    monkeypatch.setattr(idist, "get_rank", lambda: 1)
    run(tmp_path / "eval", epochs=1)
    assert not (tmp_path / "eval").exists()
