"""Data of one's own: the guide's commands are run as they stand there, and what cannot be used is refused by name."""

import csv
import json
import os
import re
import shlex
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import NamedTuple

import nibabel as nib
import numpy as np
import pytest
import torch
from monai.bundle import ConfigParser, ConfigWorkflow
from monai.data import MetaTensor
from monai.transforms import Compose

import monai_spct
from monai_spct.data import read_datalist, split_cases
from monai_spct.networks import ENet, build_ensemble
from monai_spct.workflow import bundles_folder
from tests.bundles.states import same

pytestmark = [
    pytest.mark.filterwarnings("ignore:parsing config_file:UserWarning"),  # what MONAI says of every config
    pytest.mark.filterwarnings("ignore:parsing meta_file:UserWarning"),
]

ROOT = Path(monai_spct.__file__).parents[1]
PAGE = ROOT / "docs" / "how-to" / "train_on_your_own_data.md"
SHAPE, SPACING = (48, 40, 4), (1.0, 1.2, 5.0)
LITTLE = {
    "crop_size": 32,
    "labeled_batch_size": 2,
    "unlabeled_batch_size": 2,
    "epoch_length": 1,
    "max_epochs": 1,
    "num_workers": 0,
}


def write(path: Path, voxels: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    nib.save(nib.Nifti1Image(voxels, np.diag([-SPACING[0], -SPACING[1], SPACING[2], 1])), path)
    return path


def made_up(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Two channels, in which a liver and a tumor are bright, and their label."""
    random = np.random.default_rng(seed)
    label = np.zeros(SHAPE, np.uint8)
    label[10:34, 8:30, 1:] = 1
    label[16:24, 12:20, 2] = 2
    noise = random.normal(0, 20, (2, *SHAPE))
    return (noise + 100 * np.stack([label > 0, label > 1]) + 200).astype(np.int16), label


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def command(line: str, cwd: Path, **more: object) -> subprocess.CompletedProcess[str]:
    words = [*shlex.split(line), *(str(word) for name, value in more.items() for word in (f"--{name}", value))]
    paths = os.pathsep.join(path for path in (str(ROOT), os.environ.get("PYTHONPATH")) if path)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    return subprocess.run(
        [sys.executable, *words[1:]], capture_output=True, text=True, cwd=cwd, env=environment, timeout=540
    )


# The guide


class Guide(NamedTuple):
    """Where its reader stood, and what was said."""

    place: Path
    done: list[subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def guide(tmp_path_factory) -> Guide:
    if not PAGE.is_file():
        pytest.skip("pages come with a checkout")
    place = tmp_path_factory.mktemp("guide")
    for n in range(6):
        image, label = made_up(n)
        for channel in range(2):
            write(place / "data" / "imagesTr" / f"scan{n}_{channel:04d}.nii.gz", image[channel])
        if n < 5:
            write(place / "data" / "labelsTr" / f"scan{n}.nii.gz", label)
    (place / "bundles").symlink_to(bundles_folder())
    overlay = next(block for block in blocks("json") if "datalist" in block)
    (place / "my_data.json").write_text(overlay, encoding="utf-8")
    make, *rest = [line for block in blocks("bash") for line in block.splitlines()]
    done = [command(make.replace("/data/liver", "data"), place)]
    for line in rest[:3]:
        done.append(command(line, place, **(LITTLE if " training " in line else {"max_pictures": 1})))
    return Guide(place, done)


def test_each_command_of_the_guide_runs_to_its_end(guide):
    for done in guide.done:
        assert done.returncode == 0, done.stderr
    assert "--in_channels 2" in guide.done[0].stdout
    assert "labeled: 2 patients, 2 cases\nunlabeled: 3 patients, 3 cases\n" in guide.done[1].stdout


def test_both_channels_reach_the_networks(guide):
    state = torch.load(guide.place / "runs" / "mine" / "models" / "model.pt", weights_only=True)
    first = next(value for name, value in state.items() if name.startswith("networks.0.") and value.ndim == 4)
    assert first.shape[1] == 2


def test_scores_and_pictures_are_called_like_the_case_and_not_like_a_channel(guide):
    split = read_datalist(guide.place / "my.json")
    [tested] = [case["case"] for case in split.test]
    assert re.fullmatch(r"scan\d", tested)
    with (guide.place / "runs" / "mine" / "eval" / "scores.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["case"], row["structure"]) for row in rows] == [(tested, "liver"), (tested, "tumor")]
    for folder in ("eval", "predictions"):
        pictures = guide.place / "runs" / "mine" / folder / "pictures"
        assert [path.name for path in pictures.iterdir()] == [f"{tested}.png"]


def test_predictions_are_on_the_grid_that_was_before_the_resampling(guide):
    [case] = read_datalist(guide.place / "my.json").test
    [path] = (guide.place / "runs" / "mine" / "predictions").glob("*.nii.gz")
    assert path.name == f"{case['case']}.nii.gz"
    mask, image = nib.load(path), nib.load(case["image"][0])
    assert mask.shape == image.shape == SHAPE
    np.testing.assert_allclose(mask.affine, image.affine, atol=1e-5)
    assert set(np.unique(mask.dataobj)) <= {0, 1, 2}


# In this process


def config(name: str, bundle: str = "acdc") -> str:
    return str(bundles_folder() / bundle / "configs" / f"{name}.json")


def run(name: str, folder: Path, *, bundle: str = "acdc", **settings: object) -> ConfigWorkflow:
    kind = "train" if name == "train" else "infer"
    where = {"datalist": str(folder / "my.json"), "output_dir": str(folder / "output"), "structures": {"1": "liver"}}
    result = ConfigWorkflow([config(name, bundle)], workflow_type=kind, logging_file=False, **{**where, **settings})
    result.initialize()
    result.run()
    return result


def listed(folder: Path, **lists: list[str]) -> Path:
    """Cases of one channel, and the datalist."""
    for n, name in enumerate(name for names in lists.values() for name in names):
        image, label = made_up(n)
        write(folder / f"{name}.nii.gz", image[0])
        write(folder / f"{name}_gt.nii.gz", np.minimum(label, 1))
    entries = {
        which: [{"image": f"{name}.nii.gz", "label": f"{name}_gt.nii.gz"} for name in names]
        for which, names in lists.items()
    }
    (folder / "my.json").write_text(json.dumps(entries))
    return folder


@pytest.fixture
def folder(tmp_path) -> Path:
    return listed(tmp_path, labeled=["a"], unlabeled=["b"], validation=["c"], test=["d"])


def causes(error: BaseException | None) -> list[str]:
    return [] if error is None else [str(error), *causes(error.__cause__)]


@pytest.mark.parametrize("bundle", ["acdc", "prostate", "spleen"])
def test_every_bundle_takes_a_datalist(folder, bundle):
    more = {"image_size": 40} if bundle == "spleen" else {}
    done = run("train", folder, bundle=bundle, **LITTLE, **more)
    split = done.parser.get_parsed_content("split")
    assert [[case["case"] for case in getattr(split, name)] for name in ("labeled", "unlabeled", "test")] == [
        ["a"],
        ["b"],
        ["d"],
    ]
    run("evaluate", folder, bundle=bundle, scored="validation", max_pictures=0, **more)
    with (folder / "output" / "eval" / "scores.csv").open() as file:
        assert {row["case"] for row in csv.DictReader(file)} == {"c"}
    for which, name in (("unlabeled", "b"), ("test", "d")):
        run("inference", folder, bundle=bundle, predicted=which, max_pictures=0, **more)
        assert nib.load(folder / "output" / "predictions" / f"{name}.nii.gz").shape == SHAPE


def test_images_alone_can_be_predicted(folder):
    run("train", folder, **LITTLE)
    for path in folder.glob("*_gt.nii.gz"):
        path.unlink()
    (folder / "my.json").write_text(json.dumps({"test": [{"image": "d.nii.gz", "case": "new"}]}))
    run("inference", folder, max_pictures=0)
    assert nib.load(folder / "output" / "predictions" / "new.nii.gz").shape == SHAPE


def test_a_folder_of_several_channels_can_be_predicted_again_and_again(folder):
    network = build_ensemble(partial(ENet, in_channels=2, out_channels=2), num_views=2, seed=0)
    torch.save(network.state_dict(), folder / "model.pt")
    for channel, name in zip(made_up(0)[0], ("t1", "flair"), strict=True):
        write(folder / "new" / f"scan_{name}.nii.gz", channel)
    more = {
        "datalist": None,
        "dataset_dir": str(folder / "new"),
        "channels": ["_t1", "_flair"],
        "in_channels": 2,
        "ckpt_path": str(folder / "model.pt"),
    }
    for study in ("one", "two"):
        output = folder / "new" / study
        run("inference", folder, output_dir=str(output), **more)
        assert [path.name for path in (output / "predictions").glob("*.nii.gz")] == ["scan.nii.gz"]


def test_the_same_cases_make_the_same_network_listed_or_split(folder):
    cases = [
        {"patient": n, "case": n, "image": str(folder / f"{n}.nii.gz"), "label": str(folder / f"{n}_gt.nii.gz")}
        for n in "abcd"
    ]
    split = split_cases(cases, labeled_patients=1, num_validation=0)
    lists = {name: getattr(split, name) for name in ("labeled", "unlabeled", "test")}
    (folder / "my.json").write_text(json.dumps(lists))
    states = []
    for settings in ({}, {"datalist": None, "cases": cases, "labeled_patients": 1}):
        run("train", folder, **LITTLE, **settings)
        states.append(torch.load(folder / "output" / "models" / "model.pt", weights_only=True))
    assert same(*states)


@pytest.mark.parametrize("bundle", ["acdc", "prostate", "spleen"])
def test_each_channel_is_scaled_by_its_own_range(bundle):
    parser = ConfigParser()
    parser.read_config(config("train", bundle))
    scaling = Compose(parser.get_parsed_content("intensity"))
    image = MetaTensor(torch.rand(2, 6, 5, 3) * torch.tensor([1.0, 1000.0])[:, None, None, None])
    scaled = scaling({"image": image})["image"]
    for one, alone in zip(scaled, image, strict=True):
        assert (one.min(), one.max()) == (0, 1)
        assert torch.equal(one, scaling({"image": alone[None]})["image"][0])  # as an image of one channel is


@pytest.mark.parametrize(("bundle", "middle"), [("acdc", 0.5), ("prostate", 0.5), ("spleen", 0.05)])
def test_a_few_bright_voxels_do_not_darken_an_image_of_mri(bundle, middle):
    parser = ConfigParser()
    parser.read_config(config("train", bundle))
    scaling = Compose(parser.get_parsed_content("intensity"))
    image = torch.linspace(0, 100, 9000).reshape(1, 30, 30, 10)
    image[..., -1][0, 0, :5] = 1000
    assert scaling({"image": image})["image"].median() == pytest.approx(middle, abs=0.01)


# Bad input


def missing_file(folder):
    for name in ("a_gt", "b", "d"):
        (folder / f"{name}.nii.gz").unlink()


def no_labeled(folder):
    listed(folder, unlabeled=["b"], test=["d"])


def other_shape(folder):
    write(folder / "a_gt.nii.gz", np.zeros((48, 41, 4), np.uint8))


def cut_short(folder):
    path = folder / "b.nii.gz"
    path.write_bytes(path.read_bytes()[:3000])


def two_channels(folder):
    write(folder / "a2.nii.gz", made_up(0)[0][1])
    content = {"labeled": [{"image": ["a.nii.gz", "a2.nii.gz"], "label": "a_gt.nii.gz", "case": "both"}]}
    (folder / "my.json").write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            missing_file,
            r"a_gt\.nii\.gz \(`label` in `labeled`\)\n.*/b\.nii\.gz .*\n.*/d\.nii\.gz \(`image` in `test`\)",
        ),
        (no_labeled, r"at least one labeled patient, got 0: the list `labeled` of .*my\.json decides"),
        (other_shape, r"image and label of a must have the same shape, got \(48, 40, 4\) and \(48, 41, 4\)"),
        (cut_short, r"/b\.nii\.gz is truncated or damaged"),
        (two_channels, r"the image of both must have `in_channels` = 1 channels, got 2"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_cannot_be_trained_on_is_named_before_anything_is_written(folder, spoil, message):
    spoil(folder)
    with pytest.raises(Exception, match=r"\w") as error:
        run("train", folder, **LITTLE)
    assert any(re.search(message, text) for text in causes(error.value)), causes(error.value)
    assert not (folder / "output").exists()


def test_an_empty_list_is_named_when_it_is_asked_for(folder):
    run("train", folder, **LITTLE)
    (folder / "my.json").write_text(json.dumps({"labeled": [{"image": "a.nii.gz", "label": "a_gt.nii.gz"}]}))
    for name in ("evaluate", "inference"):
        with pytest.raises(Exception, match=r"\w") as error:
            run(name, folder)
        assert any("the list `test` of" in text for text in causes(error.value))


def test_the_command_line_ends_with_what_is_wrong(folder):
    entry = {"image": "a.nii.gz", "label": "a_gt.nii.gz"}
    scan = {"image": "c.nii.gz", "label": "c_gt.nii.gz", "patient": "p"}
    other = {"image": "d.nii.gz", "label": "d_gt.nii.gz", "patient": "p"}
    (folder / "my.json").write_text(json.dumps({"labeled": [entry, scan], "validation": [entry], "test": [other]}))
    line = f"python -m monai.bundle run training --config_file {shlex.quote(config('train'))} --datalist my.json"
    done = command(line, folder, output_dir="output")
    said = done.stderr.split("What went wrong: ")[-1]
    assert done.returncode != 0
    assert "a.nii.gz is there 2 times, in `labeled` and `validation`." in said
    assert "patient p must be on one side, got `labeled` and `test`." in said
    assert not (folder / "output").exists()
