"""Data of one's own: the guide's commands are run as they stand there, and what cannot be used is refused by name."""

import csv
import json
import re
import shlex
import subprocess
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

from monai_spct.data import read_datalist, split_cases
from monai_spct.networks import UNet, build_ensemble
from tests.bundles.little import BUNDLES, LITTLE, ROOT, config, failure, part, predicting, training, written
from tests.bundles.states import same
from tests.forks import forked

PAGE = ROOT / "docs" / "how-to" / "train_on_your_own_data.md"
SHAPE, SPACING = (48, 40, 4), (1.0, 1.2, 5.0)
SHORT = {"epoch_length": 1, "max_epochs": 1}


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


def scored(output: Path) -> list[tuple[str, str]]:
    with (output / "eval" / "scores.csv").open() as file:
        return [(row["case"], row["structure"]) for row in csv.DictReader(file)]


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
    (place / "bundles").symlink_to(BUNDLES)
    overlay = next(block for block in blocks("json") if "datalist" in block)
    (place / "my_data.json").write_text(overlay, encoding="utf-8")
    make, *rest = [line for block in blocks("bash") for line in block.splitlines()]
    little = {key: value for key, value in {**LITTLE, **SHORT}.items() if key != "labeled_patients"}
    done = []
    for line in (make.replace("/data/liver", "data"), *rest[:3]):
        more = little if " training " in line else {"max_pictures": 1} if "monai.bundle" in line else {}
        words = [str(word) for name, value in more.items() for word in (f"--{name}", value)]
        done.append(forked([*shlex.split(line)[1:], *words], place))
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
    assert scored(guide.place / "runs" / "mine") == [(tested, "liver"), (tested, "tumor")]
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


def trained(folder: Path, bundle: str = "acdc", **settings: object) -> ConfigWorkflow:
    """After a training on `my.json` of a folder."""
    own = {"datalist": folder / "my.json", "dataset_dir": None, "labeled_patients": None, "structures": {"1": "liver"}}
    run = training(folder, folder / "output", bundle=bundle, **{**SHORT, **own, **settings})
    run.run()
    return run


def predict(name: str, folder: Path, **settings: object) -> None:
    own = {"datalist": folder / "my.json", "dataset_dir": None, "structures": {"1": "liver"}}
    predicting(name, folder, folder / "output", **{**own, **settings}).run()


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


@pytest.mark.parametrize("bundle", ["prostate", "spleen"])
def test_the_other_bundles_take_a_datalist_too(folder, bundle):
    more = {"image_size": 40} if bundle == "spleen" else {}
    run = trained(folder, bundle, **more)
    for which, name in (("labeled", "a"), ("unlabeled", "b"), ("test", "d")):
        assert [case["case"] for case in getattr(part(run, "split"), which)] == [name]
    predict("evaluate", folder, bundle=bundle, scored="validation", **more)
    assert {case for case, _ in scored(folder / "output")} == {"c"}
    predict("inference", folder, bundle=bundle, predicted="unlabeled", **more)
    assert nib.load(folder / "output" / "predictions" / "b.nii.gz").shape == SHAPE


def test_images_alone_can_be_predicted_and_an_empty_list_is_named_when_it_is_asked_for(folder):
    trained(folder)
    for path in folder.glob("*_gt.nii.gz"):
        path.unlink()
    (folder / "my.json").write_text(json.dumps({"test": [{"image": "d.nii.gz", "case": "new"}]}))
    predict("inference", folder)
    assert nib.load(folder / "output" / "predictions" / "new.nii.gz").shape == SHAPE
    (folder / "my.json").write_text(json.dumps({"unlabeled": [{"image": "a.nii.gz"}]}))
    for name in ("evaluate", "inference"):
        assert "the list `test` of" in failure(lambda name=name: predict(name, folder))


def test_a_folder_of_several_channels_can_be_predicted_again_and_again(folder):
    network = build_ensemble(partial(UNet, in_channels=2, out_channels=2, features=4), num_views=2, seed=0)
    torch.save(network.state_dict(), folder / "model.pt")
    for channel, name in zip(made_up(0)[0], ("t1", "flair"), strict=True):
        write(folder / "new" / f"scan_{name}.nii.gz", channel)
    more = {"datalist": None, "channels": ["_t1", "_flair"], "in_channels": 2, "ckpt_path": folder / "model.pt"}
    for study in ("one", "two"):
        output = folder / "new" / study
        predict("inference", folder, dataset_dir=folder / "new", output_dir=output, **more)
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
        trained(folder, **settings)
        states.append(torch.load(folder / "output" / "models" / "model.pt", weights_only=True))
    assert same(*states)


@pytest.mark.parametrize("bundle", ["acdc", "prostate", "spleen"])
def test_each_channel_is_scaled_by_its_own_range(bundle):
    parser = ConfigParser()
    parser.read_config(str(config("train", bundle)))
    scaling = Compose(parser.get_parsed_content("intensity"))
    image = MetaTensor(torch.rand(2, 6, 5, 3) * torch.tensor([1.0, 1000.0])[:, None, None, None])
    scaled = scaling({"image": image})["image"]
    for one, alone in zip(scaled, image, strict=True):
        assert (one.min(), one.max()) == (0, 1)
        assert torch.equal(one, scaling({"image": alone[None]})["image"][0])  # as an image of one channel is


@pytest.mark.parametrize(("bundle", "middle"), [("acdc", 0.5), ("prostate", 0.5), ("spleen", 0.05)])
def test_a_few_bright_voxels_do_not_darken_an_image_of_mri(bundle, middle):
    parser = ConfigParser()
    parser.read_config(str(config("train", bundle)))
    scaling = Compose(parser.get_parsed_content("intensity"))
    image = torch.linspace(0, 100, 9000).reshape(1, 30, 30, 10)
    image[..., -1][0, 0, :5] = 1000
    assert scaling({"image": image})["image"].median() == pytest.approx(middle, abs=0.01)


# Bad input


def two_channels(folder):
    write(folder / "a2.nii.gz", made_up(0)[0][1])
    content = {"labeled": [{"image": ["a.nii.gz", "a2.nii.gz"], "label": "a_gt.nii.gz", "case": "both"}]}
    (folder / "my.json").write_text(json.dumps(content))


def two_sides(folder):
    entry = {"image": "a.nii.gz", "label": "a_gt.nii.gz"}
    scans = [{"image": f"{n}.nii.gz", "label": f"{n}_gt.nii.gz", "patient": "p"} for n in "cd"]
    content = {"labeled": [entry, scans[0]], "validation": [entry], "test": [scans[1]]}
    (folder / "my.json").write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: (folder / "b.nii.gz").unlink(), r"/b\.nii\.gz \(`image` in `unlabeled`\)"),
        (
            lambda folder: listed(folder, unlabeled=["b"]),
            r"at least one labeled patient, got 0: the list `labeled` of .*my\.json decides",
        ),
        (two_channels, r"the image of both must have `in_channels` = 1 channels, got 2"),
        (
            two_sides,
            r"a\.nii\.gz is there 2 times, in `labeled` and `validation`\."
            r".*patient p must be on one side, got `labeled` and `test`\.",
        ),
    ],
    ids=["missing file", "no labeled", "channels", "two sides"],
)
def test_what_cannot_be_trained_on_is_named_before_anything_is_written(folder, spoil, message):
    spoil(folder)
    said = failure(lambda: trained(folder))
    assert re.search(message, said, re.DOTALL), said
    assert written(folder / "output") == set()
