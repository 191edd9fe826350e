"""Slices are what the networks of a cell say, by its own record, and what cannot be shown is said."""

import csv
import json
import re
import shutil
from dataclasses import replace

import nibabel as nib
import numpy as np
import pytest
import torch

from monai_spct.experiments import FinishedCell, GridError, finished_cells, parse_grid, plan, run_jobs
from monai_spct.experiments.report.slices import predicted_slices
from monai_spct.networks import ENet

GRID = {
    "datasets": ["acdc"],
    "overlays": ["phantom"],
    "settings": {
        "dataset_dir#patients": 4,
        "dataset_dir#size": [40, 44],
        "dataset_dir#spacing": [3.2, 3.5],
        "dataset_dir#slices": [4, 5],
        "max_epochs": 2,
        "epoch_length": 3,
        "kept_epochs": [1],
        "crop_size": 40,
        "labeled_patients": 1,
        "labeled_batch_size": 2,
        "unlabeled_batch_size": 2,
        "max_pictures": 0,
        "device": "$torch.device('cpu')",
        "num_workers": 0,
    },
}


@pytest.fixture(scope="module")
def cell(tmp_path_factory) -> FinishedCell:
    folder = tmp_path_factory.mktemp("runs")
    run_jobs(plan(parse_grid(GRID)).jobs, folder)
    [done] = finished_cells(folder)
    return done


@pytest.fixture(scope="module")
def cases(cell) -> list[str]:
    with (cell.folder / "eval" / "scores.csv").open() as file:
        return sorted({row["case"] for row in csv.DictReader(file)})


@pytest.fixture
def other(cell, tmp_path):
    """The cell in a folder of its own, with changes to the configuration of its evaluation."""

    def changed(**keys) -> FinishedCell:
        (tmp_path / "models").mkdir()
        shutil.copy(cell.folder / "models" / "model.pt", tmp_path / "models")
        content = json.loads((cell.folder / "cell.json").read_text())
        content["configuration"]["evaluating"].update(keys)
        (tmp_path / "cell.json").write_text(json.dumps(content))
        return replace(cell, folder=tmp_path, record={"dataset_dir": str(cell.folder / "data")})

    return changed


def file_of(cell, case, suffix=""):
    [path] = (cell.folder / "data").rglob(f"{case}{suffix}.nii.gz")
    return path


def by_hand(cell, case, number, weights):
    """Image and probabilities of a slice, from the files."""
    volume = nib.load(file_of(cell, case)).get_fdata(dtype=np.float32)
    low, high = np.percentile(volume, [0, 99])
    image = ((volume - low) / (high - low)).clip(0, 1).astype(np.float32)
    state = torch.load(cell.folder / "models" / weights, weights_only=True)
    probabilities = []
    for view in range(2):
        network = ENet(spatial_dims=2, in_channels=1, out_channels=4).eval()
        start = f"networks.{view}."
        network.load_state_dict({k.removeprefix(start): v for k, v in state.items() if k.startswith(start)})
        with torch.no_grad():
            probabilities.append(network(torch.tensor(image[None, None, ..., number - 1])).softmax(1)[0])
    return image[..., number - 1], torch.stack(probabilities).mean(0).double().numpy()


@pytest.mark.parametrize("weights", ["model.pt", "epoch_001.pt"])
def test_a_slice_is_what_the_networks_say_about_it(cell, cases, weights):
    [shown] = predicted_slices(cell, [f"{cases[1]}:3"], weights=weights)
    image, probabilities = by_hand(cell, cases[1], 3, weights)
    label = nib.load(file_of(cell, cases[1], "_gt"))
    assert (shown.case, shown.number, shown.name) == (cases[1], 3, f"{cases[1]}:3")
    assert shown.structures == {1: "RV", 2: "Myo", 3: "LV"}
    assert shown.spacing == pytest.approx(label.header.get_zooms()[:2])
    np.testing.assert_allclose(shown.image, image, atol=1e-6)
    np.testing.assert_array_equal(shown.truth, label.get_fdata()[..., 2])
    np.testing.assert_allclose(shown.entropy, -(probabilities * np.log(probabilities)).sum(0), atol=1e-5)
    sure = np.diff(np.sort(probabilities, 0)[-2:], axis=0)[0] > 1e-5  # where rounding decides nothing
    assert sure.mean() > 0.9
    np.testing.assert_array_equal(shown.pred[sure], probabilities.argmax(0)[sure])


def test_kept_weights_are_those_of_their_epoch(cell, cases):
    first, last = (predicted_slices(cell, [f"{cases[0]}:1"], weights=name)[0] for name in ("epoch_001.pt", "model.pt"))
    assert np.abs(first.entropy - last.entropy).max() > 1e-3


def test_slices_come_in_the_order_they_are_asked_for(cell, cases):
    wanted = [f"{cases[1]}:2", f"{cases[0]}:4", f"{cases[1]}:1"]
    assert [shown.name for shown in predicted_slices(cell, wanted)] == wanted


@pytest.mark.parametrize("count", [1, 2])
def test_a_number_asks_for_the_fullest_slice_of_the_first_cases(cell, cases, count):
    shown = predicted_slices(cell, count)
    assert [one.case for one in shown] == cases[:count]
    for one in shown:
        areas = (nib.load(file_of(cell, one.case, "_gt")).get_fdata() > 0).sum((0, 1))
        assert areas[one.number - 1] == areas.max() > areas.min()


def test_data_may_have_moved_and_only_what_is_shown_is_read(cell, cases, tmp_path):
    moved = shutil.copytree(cell.folder / "data", tmp_path / "moved")
    [broken] = moved.rglob(f"{cases[1]}.nii.gz")
    broken.write_bytes(b"no image")
    [here] = predicted_slices(cell, [f"{cases[0]}:2"])
    for there in (
        predicted_slices(cell, [f"{cases[0]}:2"], data=moved),
        predicted_slices(replace(cell, record={"dataset_dir": str(moved)}), [f"{cases[0]}:2"]),
    ):
        np.testing.assert_array_equal(there[0].entropy, here.entropy)
    with pytest.raises(RuntimeError):
        predicted_slices(cell, [f"{cases[1]}:2"], data=moved)


def test_the_truth_is_on_the_grid_of_the_image(other, cell, cases):
    resampling = [{"_target_": "Spacingd", "keys": "image", "pixdim": [2.0, 2.0, -1.0]}]  # not the label, which scores
    wanted = [f"{cases[0]}:2"]
    [fine], [coarse] = predicted_slices(other(resampling=resampling), wanted), predicted_slices(cell, wanted)
    assert fine.spacing == pytest.approx((2.0, 2.0))
    assert fine.truth.shape == fine.pred.shape == fine.image.shape
    assert fine.truth.size > 1.5 * coarse.truth.size
    for index in (1, 2, 3):
        areas = [np.prod(shown.spacing) * (shown.truth == index).sum() for shown in (fine, coarse)]
        assert areas[0] == pytest.approx(areas[1], rel=0.15)


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (["{case}x:3"], "no case `{case}x` was scored. Did you mean `{case}`?"),
        (["{case}:0"], "slices of {case} have numbers from 1 to {depth}, got 0."),
        (["{case}:99"], "slices of {case} have numbers from 1 to {depth}, got 99."),
        (["{case}"], "a slice is named like `patient004_frame01:5`, by a case and a number, got `{case}`."),
        (["{case}:last"], "got `{case}:last`"),
        (0, "`wanted` must be 1 to 2 of the cases, got 0."),
        (3, "`wanted` must be 1 to 2 of the cases, got 3."),
    ],
    ids=str,
)
def test_what_there_is_not_is_said(cell, cases, wanted, message):
    names = {"case": cases[0], "depth": nib.load(file_of(cell, cases[0])).shape[2]}
    asked = [name.format(**names) for name in wanted] if isinstance(wanted, list) else wanted
    with pytest.raises(GridError, match=re.escape(message.format(**names))):
        predicted_slices(cell, asked)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ("epoch_020.pt", r"epoch_020\.pt: weights of epoch 20 were not kept; set `kept_epochs`\."),
        ("best.pt", r"models.best\.pt: no such weights\."),
    ],
)
def test_missing_weights_are_named(cell, weights, message):
    with pytest.raises(GridError, match=message):
        predicted_slices(cell, 1, weights=weights)


def test_missing_data_are_named(cell, tmp_path):
    for where in ({"data": tmp_path / "nowhere"}, {}):
        lost = cell if where else replace(cell, record={"dataset_dir": str(tmp_path / "nowhere")})
        with pytest.raises(GridError, match=r"the data of `acdc` are not at .*nowhere: say where with `data`\."):
            predicted_slices(lost, 1, **where)


def test_a_network_that_gives_no_probabilities_is_refused(other):
    network = {"_target_": "torch.nn.Conv2d", "in_channels": 1, "out_channels": 4, "kernel_size": 1}
    with pytest.raises(GridError, match="`network` must predict probabilities"):
        predicted_slices(other(network=network), 1)


def test_an_evaluation_of_another_kind_is_refused(cell, tmp_path):
    shutil.copytree(cell.folder / "models", tmp_path / "models")
    (tmp_path / "cell.json").write_text(json.dumps({"configuration": {"evaluating": {"network": "x", "dataset": "y"}}}))
    with pytest.raises(GridError, match="has no `inferer`"):
        predicted_slices(replace(cell, folder=tmp_path), 1)
