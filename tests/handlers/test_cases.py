"""A case has one name, whoever writes about it."""

import pytest
import torch
from ignite.engine import Engine
from monai.data import MetaTensor

from monai_spct.handlers import SavePictures, SavePredictions
from monai_spct.handlers.cases import CaseNames


def image(file):
    return MetaTensor(torch.ones(1, 8, 8, 2), meta={"filename_or_obj": file})


def test_the_next_run_begins_anew():
    names = CaseNames()
    names({}, image("a/one.nii.gz"))
    names.forget()
    assert names({}, image("b/one.nii.gz")) == "one"


@pytest.mark.parametrize("name", ["../one", "/tmp/one", "a/../../one", "..", "a\\..\\one"])
def test_a_case_cannot_lead_its_files_out_of_their_folder(tmp_path, name):
    with pytest.raises(ValueError, match="`case` must be the name of a file, got "):
        CaseNames()({"case": name}, image("a/one.nii.gz"))
    engine = Engine(lambda _, batch: batch)
    SavePredictions(tmp_path / "predictions").attach(engine)
    with pytest.raises(ValueError, match="`case` must be the name of a file, got "):
        engine.run([[{"case": name, "image": image("a/one.nii.gz"), "pred": image("")}]])
    assert not list(tmp_path.rglob("*"))


@pytest.mark.parametrize("handler", [SavePictures, SavePredictions])
def test_two_images_of_one_name_are_refused_by_all_alike(tmp_path, handler, monkeypatch):
    monkeypatch.setattr("monai_spct.handlers.predictions.save_like", lambda *_, **__: None)
    settings = {"structures": {1: "LV"}} if handler is SavePictures else {}
    engine = Engine(lambda _, batch: batch)
    handler(tmp_path, **settings).attach(engine)
    items = [{"image": image(f"{folder}/one.nii.gz"), "pred": image("")} for folder in "ab"]
    with pytest.raises(ValueError, match=r"two images are called 'one': a/one\.nii\.gz and b/one\.nii\.gz\. Cases may"):
        engine.run([items])
