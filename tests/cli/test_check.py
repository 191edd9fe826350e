"""The check from the command line: what it prints, and its exit status."""

import json
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from typer.testing import CliRunner

from monai_spct.cli import app
from monai_spct.data import write_acdc_phantom
from monai_spct.workflow import bundles_folder
from tests.forks import forked

CONFIG = str(bundles_folder() / "acdc" / "configs" / "train.json")


@pytest.fixture
def data(tmp_path) -> Path:
    return write_acdc_phantom(tmp_path / "acdc", patients=4, size=(24, 32), spacing=(5.5, 6.0))


def checked(*words: str, config_file: str = CONFIG, **settings: object) -> tuple[int, str, str]:
    options = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    done = CliRunner().invoke(app, ["check", *words, "--config_file", config_file, *options])
    return done.exit_code, done.stdout, done.stderr


def rewritten(path: Path, voxels: np.ndarray) -> None:
    image = nib.load(path)
    nib.save(nib.Nifti1Image(voxels, image.affine, image.header), path)


def test_sound_data_end_with_status_0(data):
    status, out, _ = checked(dataset_dir=str(data))
    assert status == 0, out
    assert out.lstrip().startswith("patients  cases  slices  shape")
    assert out.endswith("nothing found: headers and voxels were looked at\n")


def test_warnings_alone_end_with_status_0(data):
    path = next(data.rglob("*_frame01.nii.gz"))
    rewritten(path, np.ones(nib.load(path).shape, np.int16))
    status, out, _ = checked(dataset_dir=str(data))
    assert status == 0
    assert "is constant" in out
    assert "1 warning: headers and voxels were looked at\n" in out


def test_the_command_takes_lists_of_files_and_options_as_a_training_does(tmp_path, data):
    [label] = (data / "training" / "patient001").glob("*_frame01_gt.nii.gz")
    rewritten(label, np.full(nib.load(label).shape, 3, np.uint8))
    (tmp_path / "one.json").write_text(json.dumps({"structures": {"1": "RV"}}))
    command = ["-m", "monai_spct", "check", "--config_file", f"['{CONFIG}','one.json']"]
    done = forked([*command, "--dataset_dir", data, "--labeled_ratio", "1"], tmp_path)
    assert done.returncode == 1, done.stderr
    wrong = "error: the label of patient001_frame01 must hold whole numbers from 0 to 1 (`num_classes` is 2)"
    assert wrong in done.stdout
    assert str(label) in done.stdout
    assert "headers:" in done.stderr  # the bar


def test_labels_are_checked_as_the_training_loads_them(tmp_path, data):
    for path in data.rglob("*_gt.nii.gz"):
        rewritten(path, 10 * np.asarray(nib.load(path).dataobj))
    assert checked(dataset_dir=str(data))[0] == 1
    load = json.loads(Path(CONFIG).read_text())["load"]
    values = {"orig_labels": [10, 20, 30], "target_labels": [1, 2, 3]}
    load.insert(2, {"_target_": "MapLabelValued", "keys": "label", "allow_missing_keys": True, **values})
    (tmp_path / "mapped.json").write_text(json.dumps({"load": load}))
    status, out, _ = checked(config_file=f"['{CONFIG}','{tmp_path}/mapped.json']", dataset_dir=str(data))
    assert status == 0, out


def test_a_datalist_that_cannot_be_used_is_an_error_with_all_its_reasons(tmp_path):
    (tmp_path / "my.json").write_text('{"labeled": [{"image": "a.nii", "label": "a_gt.nii"}]}')
    status, out, _ = checked(datalist=str(tmp_path / "my.json"))
    assert status == 1
    assert "a.nii (`image` in `labeled`)" in out
    assert "a_gt.nii (`label` in `labeled`)" in out


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"label_ratio": 1}, "unknown key `label_ratio`: nothing reads it. Did you mean `labeled_ratio`?"),
        ({"datalist": "my.json", "num_test": 3}, "leave out `num_test`"),
        ({"config_file": CONFIG.replace("train", "metadata")}, "must be that of a training, which has split"),
        ({"config_file": "['train.json'"}, "'[' was never closed"),
    ],
)
def test_a_command_that_cannot_be_carried_out_ends_with_status_2(settings, message):
    status, out, err = checked(**settings)
    assert (status, out) == (2, "")
    assert message in err


def test_made_up_data_are_written_beside_the_configs(tmp_path):
    assert CliRunner().invoke(app, ["copy", "acdc", str(tmp_path / "mine")]).exit_code == 0
    configs = [str(tmp_path / "mine" / "configs" / f"{name}.json") for name in ("train", "phantom")]
    status, out, _ = checked("--no-voxels", config_file=str(configs), **{"dataset_dir#patients": 8})
    assert status == 0, out
    assert "headers alone were looked at" in out
    assert len(list((tmp_path / "mine" / "phantom" / "data" / "training").glob("patient*"))) == 8
