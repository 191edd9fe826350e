"""A training that is resumed with another configuration, by the command line."""

import runpy
import sys

import pytest
import torch

from monai_spct.data import write_spleen_phantom
from monai_spct.workflow import bundles_folder, cause_of
from tests.bundles.in_two_processes import LITTLE

pytestmark = [
    pytest.mark.filterwarnings("ignore:parsing config_file:UserWarning"),  # what MONAI says of every config
    pytest.mark.filterwarnings("ignore:parsing meta_file:UserWarning"),
]

TRAIN = bundles_folder() / "spleen" / "configs" / "train.json"


@pytest.fixture
def train(tmp_path, monkeypatch):
    write_spleen_phantom(tmp_path / "data", patients=6, size=(48, 52), spacing=(6.7, 7.0), slices=(4, 5))

    def run(**settings: object) -> int:
        """The last epoch that is saved."""
        places = {"dataset_dir": tmp_path / "data", "output_dir": tmp_path}
        given = {**LITTLE, **places, "epoch_length": 1, **settings}
        words = [word for name, value in given.items() for word in (f"--{name}", str(value))]
        monkeypatch.setattr(sys, "argv", ["monai.bundle", "run", "training", "--config_file", str(TRAIN), *words])
        runpy.run_module("monai.bundle", run_name="__main__")
        return int(torch.load(tmp_path / "models" / "last.pt", weights_only=True)["run"]["epoch"])

    return run


def refusal(train, **settings: object) -> str:
    with pytest.raises(RuntimeError) as error:
        train(resume=True, **settings)
    cause = cause_of(error.value)
    assert isinstance(cause, ValueError)
    return str(cause)


def test_other_settings_are_refused_unless_told_so(train):
    assert train(max_epochs=1) == 1
    refused = refusal(train, max_epochs=2, seed=3)
    assert "is of a run with other settings:\n  `seed` was 0, is 3\n  `max_epochs` was 1, is 2\nResume with" in refused
    assert train(resume=True, accept_changes=True, max_epochs=2, seed=3) == 2


def test_so_are_other_cases_under_the_same_settings(train, tmp_path):
    train(max_epochs=2)
    last = tmp_path / "models" / "last.pt"
    state = torch.load(last, weights_only=True)
    torch.save({**state, "run": {**state["run"], "epoch": 1}}, last)
    for folder in ("imagesTr", "labelsTr"):
        (tmp_path / "data" / folder / "spleen_1.nii.gz").rename(tmp_path / "data" / folder / "spleen_99.nii.gz")
    content = tmp_path / "data" / "dataset.json"
    content.write_text(content.read_text().replace("spleen_1.nii.gz", "spleen_99.nii.gz"))
    refused = refusal(train, max_epochs=2)
    assert "`cases#spleen_1` was " in refused
    assert "`cases#spleen_99` was not there, is " in refused
