"""An evaluation or inference that ends half-way leaves whole files, no scores of some cases, and can be run again."""

import os
import shutil
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from ignite.engine import Events

from tests.faults.runs import failure, part, parts_of_files, predicting


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def interrupt(_: Path) -> None:
    raise KeyboardInterrupt


FAULTS = {
    "an image is cut short": lambda path: os.truncate(path, 500),
    "an image is deleted": Path.unlink,
    "the user interrupts": interrupt,
}
each_fault = pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, id=name, marks=[pytest.mark.every_fault] if "deleted" in name else [])
        for name, fault in FAULTS.items()
    ],
)


def broken_off(run, image: str, fault) -> str:
    """What is said of a fault that comes before the second case is read."""
    part(run, "evaluator").add_event_handler(Events.ITERATION_COMPLETED(once=1), lambda: fault(Path(image)))
    try:
        return failure(run.run)
    except KeyboardInterrupt:
        return image


@pytest.fixture(scope="module")
def whole(data, weights, tmp_path_factory) -> Path:
    """What an evaluation writes that does not end half-way."""
    output = tmp_path_factory.mktemp("whole")
    predicting("evaluate", data, output, ckpt_path=weights).run()
    return output


@each_fault
def test_an_evaluation_has_all_scores_or_none(data, own_data, whole, tmp_path, weights, fault):
    settings = {"ckpt_path": str(weights)}
    output = tmp_path / "output"
    run = predicting("evaluate", own_data, output, **settings)
    image = part(run, "split").test[1]["image"]
    assert image in broken_off(run, image, fault)
    assert files(output) == []

    shutil.rmtree(own_data)
    shutil.copytree(data, own_data)
    predicting("evaluate", own_data, output, **settings).run()
    tables = ("inference_time.json", "ranking.csv", "scores.csv", "summary.json")
    assert files(output) == ["eval/evaluated.json", *(f"eval/{name}" for name in tables), "index.html"]
    for name in ("scores.csv", "summary.json"):
        assert (output / "eval" / name).read_text() == (whole / "eval" / name).read_text()


@each_fault
def test_an_inference_leaves_whole_predictions_of_the_first_cases(data, own_data, tmp_path, weights, fault):
    images, output = own_data / "training" / "patient001", tmp_path / "output"
    run = predicting("inference", images, output, ckpt_path=str(weights), uncertainty=True)
    first, second = (case["image"] for case in part(run, "cases"))
    assert second in broken_off(run, second, fault)
    name = Path(first).name.removesuffix(".nii.gz")
    predictions = [f"predictions/{name}.nii.gz", f"predictions/{name}_uncertainty.nii.gz"]
    assert files(output) == predictions
    before = [np.asarray(nib.load(output / path).dataobj) for path in predictions]
    assert parts_of_files(output) == []

    shutil.rmtree(own_data)
    shutil.copytree(data, own_data)
    predicting("inference", images, output, ckpt_path=str(weights), uncertainty=True).run()
    assert len([path for path in files(output) if path.endswith(".nii.gz")]) == 4
    for path, array in zip(predictions, before, strict=True):
        np.testing.assert_array_equal(np.asarray(nib.load(output / path).dataobj), array)
