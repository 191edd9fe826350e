"""Slices are what the networks of a run say, by its own record, and what cannot be shown is said."""

import csv
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import torch
from monai.bundle import ConfigParser, ConfigWorkflow

from monai_spct.data import write_acdc_phantom
from monai_spct.networks import ENet
from monai_spct.report import Figure, Run, draw, find_runs
from monai_spct.report.slices import predicted_slices
from monai_spct.workflow import bundles_folder
from tests.bundles.little import handler
from tests.report.made_up import write

CONFIGS = bundles_folder() / "acdc" / "configs"
LITTLE = {"crop_size": 40, "labeled_batch_size": 2, "unlabeled_batch_size": 2, "epoch_length": 2, "max_epochs": 2}
LITTLE |= {f"{handler('SaveCurves')}#_disabled_": True}


def trained(folder: Path, evaluating: dict[str, object], **settings: object) -> Run:
    """A run of the bundle, with the record that a grid keeps of it."""
    shared = {"output_dir": str(folder), "device": "cpu", "num_workers": 0}
    for config, kind, more in (
        ("train", "train", {**LITTLE, "kept_epochs": [1], **settings}),
        ("evaluate", "infer", {}),
    ):
        more = {**shared, **(more or {"max_pictures": 0}), **evaluating}
        workflow = ConfigWorkflow(str(CONFIGS / f"{config}.json"), workflow_type=kind, logging_file=False, **more)
        workflow.initialize()
        workflow.run()
    config = {**ConfigParser.load_config_files([str(CONFIGS / "evaluate.json")]), **evaluating}
    record = {"dataset": "acdc", "method": "default", "axes": {"seed": 0}, "configuration": {"evaluating": config}}
    write(folder / "cell.json", record)
    write(folder / "done.json", {"dataset_dir": evaluating.get("dataset_dir")})
    [run] = find_runs(folder)
    return run


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_acdc_phantom(folder, patients=4, size=(40, 44), spacing=(3.2, 3.5), slices=(4, 5))
    return folder


@pytest.fixture(scope="module")
def run(data, tmp_path_factory) -> Run:
    return trained(tmp_path_factory.mktemp("runs") / "a", {"dataset_dir": str(data)}, labeled_patients=1)


@pytest.fixture(scope="module")
def cases(run) -> list[str]:
    with (run.folder / "eval" / "scores.csv").open() as file:
        return sorted({row["case"] for row in csv.DictReader(file)})


def changed(run: Run, **keys: object) -> Run:
    """The run with another configuration of its evaluation."""
    record = json.loads(json.dumps(run.record))
    record["configuration"]["evaluating"].update(keys)
    return replace(run, record=record)


def file_of(data, case, suffix=""):
    [path] = data.rglob(f"{case}{suffix}.nii.gz")
    return path


def by_hand(run, data, case, number, weights):
    """Image and probabilities of a slice, from the files."""
    volume = nib.load(file_of(data, case)).get_fdata(dtype=np.float32)
    low, high = np.percentile(volume, [0, 99])
    image = ((volume - low) / (high - low)).clip(0, 1).astype(np.float32)
    state = torch.load(run.folder / "models" / weights, weights_only=True)
    probabilities = []
    for view in range(2):
        network = ENet(spatial_dims=2, in_channels=1, out_channels=4).eval()
        start = f"networks.{view}."
        network.load_state_dict({k.removeprefix(start): v for k, v in state.items() if k.startswith(start)})
        with torch.no_grad():
            probabilities.append(network(torch.tensor(image[None, None, ..., number - 1])).softmax(1)[0])
    return image[..., number - 1], torch.stack(probabilities).mean(0).double().numpy()


@pytest.mark.parametrize("weights", ["model.pt", "epoch_001.pt"])
def test_a_slice_is_what_the_networks_say_about_it(run, data, cases, weights):
    wanted = [f"{cases[1]}:3", f"{cases[0]}:4", f"{cases[1]}:1"]
    shown, *others = predicted_slices(run, wanted, weights=weights)
    assert [shown.name, *(other.name for other in others)] == wanted
    image, probabilities = by_hand(run, data, cases[1], 3, weights)
    label = nib.load(file_of(data, cases[1], "_gt"))
    assert (shown.case, shown.number) == (cases[1], 3)
    assert shown.structures == {1: "RV", 2: "Myo", 3: "LV"}
    assert shown.spacing == pytest.approx(label.header.get_zooms()[:2])
    np.testing.assert_allclose(shown.image, image, atol=1e-6)
    np.testing.assert_array_equal(shown.truth, label.get_fdata()[..., 2])
    np.testing.assert_allclose(shown.entropy, -(probabilities * np.log(probabilities)).sum(0), atol=1e-5)
    sure = np.diff(np.sort(probabilities, 0)[-2:], axis=0)[0] > 1e-5  # where rounding decides nothing
    assert sure.mean() > 0.9
    np.testing.assert_array_equal(shown.pred[sure], probabilities.argmax(0)[sure])


@pytest.mark.parametrize("count", [1, 2])
def test_a_number_asks_for_the_fullest_slice_of_the_first_cases(run, data, cases, count):
    shown = predicted_slices(run, count)
    assert [one.case for one in shown] == cases[:count]
    for one in shown:
        areas = (nib.load(file_of(data, one.case, "_gt")).get_fdata() > 0).sum((0, 1))
        assert areas[one.number - 1] == areas.max() > areas.min()


def test_data_may_have_moved_and_only_what_is_shown_is_read(run, data, cases, tmp_path):
    moved = shutil.copytree(data, tmp_path / "moved")
    file_of(moved, cases[1]).write_bytes(b"no image")
    [here], [there] = (predicted_slices(run, [f"{cases[0]}:2"], data=folder) for folder in (None, moved))
    np.testing.assert_array_equal(there.entropy, here.entropy)
    picture, notes = draw(Figure("comparison", slices=[f"{cases[1]}:2"]), [run], data={"acdc": moved})
    assert picture is None
    assert f"{cases[1]}.nii.gz" in notes[0], "an image that cannot be read is named, and ends no report"


def test_the_truth_is_on_the_grid_of_the_image(run, cases, tmp_path):
    resampling = [{"_target_": "Spacingd", "keys": "image", "pixdim": [2.0, 2.0, -1.0]}]  # not the label, which scores
    wanted = [f"{cases[0]}:2"]
    resampled = replace(run, folder=Path(shutil.copytree(run.folder, tmp_path / "run")))
    record = resampled.folder / "models" / "model.json"
    write(record, {**json.loads(record.read_text()), "resampling": resampling})
    [fine], [coarse] = predicted_slices(resampled, wanted), predicted_slices(run, wanted)
    assert fine.spacing == pytest.approx((2.0, 2.0))
    assert fine.truth.shape == fine.pred.shape == fine.image.shape
    for index in (1, 2, 3):
        areas = [np.prod(shown.spacing) * (shown.truth == index).sum() for shown in (fine, coarse)]
        assert areas[0] == pytest.approx(areas[1], rel=0.15)


def test_channels_in_files_of_one_name_are_told_apart(data, tmp_path):
    """Each case has a folder, with two channels in files that are called alike in all of them."""
    lists: dict[str, list[dict[str, object]]] = {"labeled": [], "unlabeled": [], "test": []}
    for number, label in enumerate(sorted(data.rglob("*_gt.nii.gz"))[:4]):
        folder = tmp_path / "mine" / f"p{number}"
        folder.mkdir(parents=True)
        for name in ("t1", "t2"):
            shutil.copy(label.with_name(label.name.replace("_gt", "")), folder / f"{name}.nii.gz")
        shutil.copy(label, folder / "label.nii.gz")
        case = {"image": [f"p{number}/t1.nii.gz", f"p{number}/t2.nii.gz"], "patient": f"p{number}"}
        part = ["labeled", "unlabeled", "test", "test"][number]
        named = {"label": f"p{number}/label.nii.gz", "case": f"case {number}"} if part != "unlabeled" else {}
        lists[part].append({**case, **named})
    write(tmp_path / "mine" / "datalist.json", lists)
    settings = {"datalist": str(tmp_path / "mine" / "datalist.json"), "in_channels": 2}
    run = trained(tmp_path / "run", settings)
    assert [shown.name for shown in predicted_slices(run, ["case 3:2", "case 2:1"])] == ["case 3:2", "case 2:1"]


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (["{case}x:3"], "no case `{case}x` was scored. Did you mean `{case}`?"),
        (["{case}:0"], "slices of {case} have numbers from 1 to {depth}, got 0."),
        (["{case}"], "a slice is named like `patient004_frame01:5`, by a case and a number, got `{case}`."),
        (3, "`slices` must be 1 to 2, the number of cases, got 3."),
    ],
    ids=str,
)
def test_what_there_is_not_is_said(run, data, cases, wanted, message):
    names = {"case": cases[0], "depth": nib.load(file_of(data, cases[0])).shape[2]}
    asked = [name.format(**names) for name in wanted] if isinstance(wanted, list) else wanted
    with pytest.raises(ValueError, match=re.escape(message.format(**names))):
        predicted_slices(run, asked)


def test_what_is_missing_or_of_another_kind_is_said(run, tmp_path):
    with pytest.raises(ValueError, match=r"there is no .*epoch_020\.pt; `kept_epochs` says"):
        predicted_slices(run, 1, weights="epoch_020.pt")
    with pytest.raises(ValueError, match=r"the data of `acdc` are not at .*nowhere: say where with `data`\."):
        predicted_slices(run, 1, data=tmp_path / "nowhere")
    network = {"_target_": "torch.nn.Conv2d", "in_channels": 1, "out_channels": 4, "kernel_size": 1}
    with pytest.raises(ValueError, match="`network` must predict probabilities"):
        predicted_slices(changed(run, network=network), 1)
    with pytest.raises(ValueError, match="has no `network`"):
        predicted_slices(replace(run, record={**run.record, "configuration": {}}), 1)


def test_predictions_of_a_run_are_drawn_beside_what_is_not_run(run, tmp_path):
    waiting = Run(tmp_path / "waiting", {**run.record, "method": "dan"})
    for figure, titles in (
        (Figure("comparison", slices=2), ["Ground truth", "DAN", "default"]),
        (Figure("entropy", slices={"acdc": 1}, epochs=(1,)), ["epoch 1", "Prediction", "Ground truth"]),
    ):
        picture, notes = draw(figure, [run, waiting])
        assert [axes.get_title() for axes in picture.axes if axes.get_title()] == titles
        assert notes == [f"No result yet of {waiting.folder.as_posix()}."]
        assert sum("not run" in [text.get_text() for text in axes.texts] for axes in picture.axes) == 2

    # runs that do not fit beside each other are no reason to report nothing else
    other = replace(run, folder=Path(shutil.copytree(run.folder, tmp_path / "other")), record=dict(run.record))
    model = other.folder / "models" / "model.json"
    write(model, {**json.loads(model.read_text()), "split_seed": 1})
    other.record["method"] = "dan"
    picture, notes = draw(figure, [run, other])
    assert picture is None
    assert "systems must show one slice" in notes[-1]
    picture, notes = draw(Figure("comparison", slices={"spleen": 1}), [run])
    assert (picture, notes) == (None, ["There is no slice to show."])
