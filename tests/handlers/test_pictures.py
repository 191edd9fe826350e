"""Pictures show what they claim: the right slices, lines where structures are, and one file per case."""

import io
import math

import ignite.distributed as idist
import numpy as np
import pytest
import torch
from ignite.engine import Engine
from matplotlib.colors import to_hex
from matplotlib.image import imread
from monai.data import DataLoader, Dataset, MetaTensor
from monai.engines import SupervisedEvaluator
from monai.transforms import AsDiscreted
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from monai_spct.handlers import SaveHistory, SavePictures, TensorBoardPictures, contour_picture

CARDIAC = {1: "RV", 2: "Myo", 3: "LV"}
COLORS = {1: "#56b4e9", 2: "#e69f00", 3: "#cc79a7"}
WHITE = "#ffffff"


def heart(shape=(40, 30, 8), slices=slice(1, 7), classes=(1, 2, 3)):
    truth = np.zeros(shape, np.int64)
    for index in classes:
        truth[8 * index : 8 * index + 6, 10:20, slices] = index
    return truth


def lines(axes):
    """Colors of the contours of a panel, from matplotlib's own records."""
    return {to_hex(contour.get_edgecolor()[0]) for contour in axes.collections}


def has_pixels(figure, axes, color):
    """Whether a color was really painted inside a panel."""
    figure.canvas.draw()
    pixels = np.asarray(figure.canvas.buffer_rgba())[..., :3].astype(int)
    box = axes.get_window_extent()
    height = len(pixels)
    panel = pixels[height - round(box.y1) : height - round(box.y0), round(box.x0) : round(box.x1)]
    wanted = np.array([int(color[n : n + 2], 16) for n in (1, 3, 5)])
    return bool((np.abs(panel - wanted).max(-1) < 12).any())


def gray(shape=(40, 30, 8)):
    return np.random.default_rng(0).integers(0, 100, shape)


@pytest.mark.parametrize("predicted", [(), (1,), (2, 3), (1, 2, 3)], ids=str)
def test_a_color_is_there_exactly_when_its_structure_is_predicted(predicted):
    truth = np.roll(heart(), 4, axis=1)
    figure = contour_picture(np.full((40, 30, 8), 50), truth, heart(classes=predicted), structures=CARDIAC, slices=[3])
    (axes,) = figure.axes
    assert lines(axes) == {WHITE, *(COLORS[index] for index in predicted)}
    for index, color in COLORS.items():
        assert has_pixels(figure, axes, color) == (index in predicted)


def test_without_truth_there_is_no_white_line_no_score_and_no_key_for_it():
    figure = contour_picture(gray(), None, heart(), structures=CARDIAC, title="patient001", slices=[3])
    assert lines(figure.axes[0]) == set(COLORS.values())
    assert figure.get_suptitle() == "patient001"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["RV", "Myo", "LV"]


def test_the_heading_and_the_key_name_case_structures_and_scores():
    pred = heart()
    pred[pred == 3] = 0
    pred[8:14, 10:15] = 0
    figure = contour_picture(gray(), heart(), pred, structures=CARDIAC, title="patient001")
    assert figure.get_suptitle() == "patient001\nDSC  RV 0.67   Myo 1.00   LV 0.00"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["RV", "Myo", "LV", "truth"]


@pytest.mark.parametrize(
    ("slices", "shown"),
    [
        (None, [1, 2, 3, 4, 5, 6]),
        (3, [1, 3, 6]),
        (1, [1]),
        (99, [1, 2, 3, 4, 5, 6]),
        ([7, 0], [7, 0]),
        (range(8), range(8)),
    ],
    ids=str,
)
def test_panels_are_the_slices_asked_for_or_those_with_a_structure(slices, shown):
    figure = contour_picture(gray(), heart(), heart(slices=slice(2, 4)), structures=CARDIAC, slices=slices)
    assert [axes.texts[0].get_text() for axes in figure.axes] == [f"slice {index + 1} of 8" for index in shown]
    for axes, index in zip(figure.axes, shown, strict=True):
        np.testing.assert_array_equal(axes.images[0].get_array(), gray()[..., index].T)


@pytest.mark.parametrize("depth", [1, 8])
def test_an_empty_volume_is_drawn_from_end_to_end(depth):
    shape = (40, 30, depth)
    figure = contour_picture(gray(shape), np.zeros(shape), np.zeros(shape), structures=CARDIAC)
    assert len(figure.axes) == min(6, depth)
    assert figure.axes[-1].texts[0].get_text() == f"slice {depth} of {depth}"
    assert all(not lines(axes) for axes in figure.axes)
    assert figure.axes[0].get_xlim() == (-0.5, 39.5)


def test_the_first_axis_points_right_and_the_second_down_in_true_proportion():
    pred = np.zeros((40, 30, 2), int)
    pred[30:34, 2:6] = 3
    figure = contour_picture(
        gray(pred.shape), None, pred, structures=CARDIAC, spacing=(1, 2, 10), margin=np.inf, slices=[0]
    )
    (axes,) = figure.axes
    figure.canvas.draw()
    outline = axes.collections[0].get_paths()[0].vertices
    assert outline.min(0) == pytest.approx((29.5, 1.5))
    assert outline.max(0) == pytest.approx((33.5, 5.5))
    right, down = axes.transData.transform((10, 0)), axes.transData.transform((0, 10))
    origin = axes.transData.transform((0, 0))
    assert right[0] > origin[0]
    assert down[1] < origin[1]  # display coordinates grow upward
    assert (origin[1] - down[1]) / (right[0] - origin[0]) == pytest.approx(2)


def test_panels_show_the_surroundings_of_the_structures_in_millimeters():
    pred = np.zeros((100, 100, 3), int)
    pred[40:50, 60:64] = 1
    figure = contour_picture(gray(pred.shape), None, pred, structures=CARDIAC, spacing=(2, 1, 10), margin=20)
    assert figure.axes[0].get_xlim() == (29.5, 59.5)
    assert figure.axes[0].get_ylim() == (83.5, 39.5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pred": heart((40, 30, 7))}, r"`image` and `pred` differ in shape: \(40, 30, 8\) and \(40, 30, 7\)"),
        ({"truth": heart((40, 31, 8))}, r"`image` and `truth` differ in shape"),
        ({"uncertainty": heart((40, 31, 8))}, r"`image` and `uncertainty` differ in shape"),
        ({"image": gray()[0], "pred": heart()[0], "truth": None}, r"must have three axes, got shape \(30, 8\)"),
        ({"slices": [8]}, r"`slices` must be indices from 0 to 7, got \[8\]"),
        ({"slices": []}, r"`slices` must be indices"),
        ({"slices": 0}, r"`slices` must be positive, got 0"),
    ],
    ids=["pred", "truth", "uncertainty", "axes", "outside", "none", "zero"],
)
def test_what_cannot_be_drawn_is_said(changes, message):
    arguments = {"image": gray(), "truth": heart(), "pred": heart(), "slices": None, **changes}
    things = [arguments.pop(name) for name in ("image", "truth", "pred")]
    with pytest.raises(ValueError, match=message):
        contour_picture(*things, structures=CARDIAC, **arguments)


# entropy


def test_below_each_slice_is_its_map_on_the_scale_of_all_pictures():
    entropy = np.random.default_rng(1).uniform(0, 0.5, (40, 30, 8))
    figure = contour_picture(gray(), None, heart(), structures=CARDIAC, uncertainty=entropy, slices=[3, 5])
    *panels, bar = figure.axes
    figure.canvas.draw()
    for slice_, above, below in zip((3, 5), panels[:2], panels[2:], strict=True):
        [image] = below.images
        np.testing.assert_array_equal(image.get_array(), entropy[..., slice_].T)
        assert image.get_clim() == (0, pytest.approx(math.log(4)))
        assert (below.get_xlim(), below.get_ylim()) == (above.get_xlim(), above.get_ylim())
        assert below.get_window_extent().x0 == pytest.approx(above.get_window_extent().x0)
        assert below.get_window_extent().y1 < above.get_window_extent().y0
        assert lines(above) == set(COLORS.values())
    assert bar.get_ylabel() == "entropy (nats), up to ln 4"
    assert [text.get_text() for text in bar.get_yticklabels()] == ["0.00", "0.35", "0.69", "1.04", "1.39"]
    width, height = figure.canvas.get_width_height()
    box = bar.get_tightbbox()
    assert 0 < box.x0 < box.x1 <= width
    assert 0 < box.y0 < box.y1 <= height


def test_steady_pictures_show_the_same_whatever_is_predicted():
    nothing, elsewhere = np.zeros((40, 30, 8), int), np.roll(heart(), 9, 1)
    for pred in (nothing, elsewhere):
        settings = {"structures": CARDIAC, "slices": 2, "margin": 2}
        figure = contour_picture(gray(), heart(slices=slice(2, 4)), pred, **settings, steady=True)
        assert [axes.texts[0].get_text() for axes in figure.axes] == ["slice 3 of 8", "slice 4 of 8"]
        assert figure.axes[0].get_ylim() == (21.5, 7.5)
    settings["steady"] = True
    assert len(contour_picture(gray(), None, heart(), **settings).axes) == 2  # without a truth there is nothing else


# the handler


class Perfect(torch.nn.Module):
    def forward(self, image):
        return torch.nn.functional.one_hot(image[:, 0].long(), 4).movedim(-1, 1).float()


def evaluator(handler, files, *, decollate=True, batch_size=1, labeled=True):
    affine = torch.diag(torch.tensor([-1.25, -1.25, 10, 1]))
    items = [
        {
            key: MetaTensor(heart()[None], affine=affine, meta={"filename_or_obj": f"data/{file}"})
            for key in (("image", "label") if labeled else ("image",))
        }
        for file in files
    ]
    run = SupervisedEvaluator(
        device=torch.device("cpu"),
        val_data_loader=DataLoader(Dataset(items), batch_size=batch_size),
        network=Perfect(),
        postprocessing=AsDiscreted("pred", argmax=True) if decollate else None,
        decollate=decollate,
        val_handlers=[handler],
    )
    if not labeled:
        run.prepare_batch = lambda batch, *_, **__: (batch["image"], None)
    return run


def names(folder):
    return sorted(path.name for path in folder.iterdir())


FILES = ["patient001_frame01.nii.gz", "patient001_frame12.nii.gz", "patient002_frame01.nii.gz"]


@pytest.mark.parametrize(("most", "batch_size"), [(0, 1), (2, 2), (None, 3)])
def test_every_case_gets_a_picture_up_to_the_maximum(tmp_path, most, batch_size):
    folder = tmp_path / "pictures"
    handler = SavePictures(folder, structures=CARDIAC, max_pictures=most, slices=1)
    evaluator(handler, FILES, batch_size=batch_size, labeled=most is None).run()
    assert (names(folder) if folder.exists() else []) == [f"{file[:18]}.png" for file in FILES[:most]]


def test_a_saved_picture_can_be_seen_and_shows_all_structures(tmp_path):
    evaluator(SavePictures(tmp_path, structures={"1": "RV", "2": "Myo", "3": "LV"}), FILES[:1]).run()
    picture = imread(tmp_path / "patient001_frame01.png")
    assert min(picture.shape[:2]) > 300
    panels = picture[: int(0.8 * len(picture)), :, :3]  # above the key, which has all colors
    for color in COLORS.values():
        wanted = np.array([int(color[n : n + 2], 16) for n in (1, 3, 5)]) / 255
        assert (np.abs(panels - wanted).max(-1) < 0.05).any()


def test_plain_tensors_are_numbered(tmp_path):
    item = {"image": torch.ones(1, 8, 8, 2), "pred": torch.ones(1, 8, 8, 2)}
    engine = Engine(lambda _, batch: batch)
    SavePictures(tmp_path, structures=CARDIAC).attach(engine)
    engine.run([[item, item], [item]])
    assert names(tmp_path) == ["case001.png", "case002.png", "case003.png"]


def test_an_engine_that_gives_no_single_volumes_is_told_so(tmp_path):
    handler = SavePictures(tmp_path, structures=CARDIAC)
    with pytest.raises(ValueError, match="needs `decollate=True`, got dict"):
        evaluator(handler, FILES, decollate=False).run()
    engine = Engine(lambda _, batch: batch)
    handler.attach(engine)
    with pytest.raises(ValueError, match=r"got no \['pred'\]"):
        engine.run([[{"image": torch.ones(1, 8, 8, 2)}]])


def test_the_channel_that_one_asks_for_is_drawn(tmp_path):
    pred = torch.nn.functional.pad(torch.ones(1, 8, 8, 2), (1, 1, 4, 12, 4, 12))
    channels = [torch.rand(1, 24, 24, 4, generator=torch.Generator().manual_seed(n)) for n in range(2)]

    def drawn(name: str, image: torch.Tensor, channel: int) -> bytes:
        engine = Engine(lambda _, batch: batch)
        SavePictures(tmp_path / name, structures={1: "LV"}, channel=channel).attach(engine)
        engine.run([[{"case": "a", "image": image, "pred": pred}]])
        return (tmp_path / name / "a.png").read_bytes()

    both = torch.cat(channels)
    assert drawn("second of two", both, 1) == drawn("second alone", channels[1], 0) != drawn("first", both, 0)
    with pytest.raises(ValueError, match="`channel` must be below 2, the number of channels, got 2"):
        drawn("third", both, 2)


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)], ids=["left and right", "front and back", "both"])
def test_whichever_way_a_file_goes_its_picture_is_the_same(tmp_path, axes):
    """ACDC's files go to the left and the back, those of the Decathlon mostly the other way around."""
    image = torch.arange(20 * 16 * 4.0).reshape(1, 20, 16, 4)
    pred = torch.zeros(1, 20, 16, 4)
    pred[:, 3:9, 2:6, 1:3] = 1
    affine = torch.diag(torch.tensor([-1.0, -1.0, 1.0, 1.0]))
    turned = affine.clone()
    for axis in axes:
        turned[axis, axis] = 1.0
    for name, flipped, way in (("a", (), affine), ("b", [axis + 1 for axis in axes], turned)):
        meta = {"filename_or_obj": "case.nii.gz"}
        item = {
            "image": MetaTensor(image.flip(flipped), affine=way, meta=meta),
            "pred": pred.flip(flipped),
            "label": pred.flip(flipped),
        }
        engine = Engine(lambda _, batch: batch)
        SavePictures(tmp_path / name, structures={1: "spleen"}).attach(engine)
        engine.run([[item]])
    assert (tmp_path / "a" / "case.png").read_bytes() == (tmp_path / "b" / "case.png").read_bytes()


# TensorBoard


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


def in_tensorboard(folder, *, epochs=2, **settings):
    engine = Engine(lambda engine, batch: [found(item, engine.state.epoch) for item in batch])
    TensorBoardPictures(SaveHistory(folder), structures={"1": "LV"}, **settings).attach(engine)
    for epoch in range(1, epochs + 1):
        engine.state.max_epochs, engine.state.epoch, engine.state.iteration = epoch, epoch - 1, 0
        engine.run([ITEMS[:1], ITEMS[1:]])


def test_the_first_volumes_come_in_each_epoch_as_pictures_of_one_size(tmp_path):
    in_tensorboard(tmp_path, slices=2)
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


def test_of_several_processes_one_draws(tmp_path, monkeypatch):
    monkeypatch.setattr(idist, "get_rank", lambda: 1)
    in_tensorboard(tmp_path / "eval", epochs=1)
    assert not (tmp_path / "eval").exists()
