"""A disk that is full while something is written: the old file stays whole, alone, and the error names it."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from ignite.engine import Events

from monai_spct.data import VolumeDataset
from monai_spct.metrics import StructureScore, write_scores
from tests.bundles.little import LITTLE, config, environment, handler, typed
from tests.faults.runs import (
    failure,
    fill_disk,
    full_disk,
    last_epoch,
    part,
    parts_of_files,
    predicting,
    training,
)

FULL = r"\[Errno \d+\] (File too large|No space left on device): "


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("name", "size", "settings"),
    [
        pytest.param("eval/history.csv", 10, {}, id="history"),
        pytest.param("models/model.pt", 20_000, {}, id="weights", marks=pytest.mark.every_fault),
        pytest.param("models/last.pt", 4_000_000, {}, id="checkpoint"),
        pytest.param(
            "models/epoch_002.pt", 20_000, {"kept_epochs": [2]}, id="kept weights", marks=pytest.mark.every_fault
        ),
    ],
)
def test_a_training_ends_with_the_name_of_the_file_and_can_go_on(data, tmp_path, name, size, settings):
    """It does not go on: who trains for days without checkpoints wants to know."""
    run = training(data, tmp_path, **settings)
    before = {}

    def fill() -> None:
        before.update(contents(tmp_path))
        fill_disk(size)

    part(run, "train#trainer").add_event_handler(Events.EPOCH_STARTED(once=2), fill)
    with full_disk(2**40):
        said = failure(run.run)
    assert re.fullmatch(FULL + re.escape(f"'{tmp_path / name}'"), said)
    after = contents(tmp_path)
    unchanged = {"models/last.pt", name} & before.keys()  # weights of the next epoch may be there
    assert {file: after[file] for file in unchanged} == {file: before[file] for file in unchanged}
    assert parts_of_files(tmp_path) == []
    assert last_epoch(tmp_path) == 1

    again = training(data, tmp_path, **settings, resume=True)
    again.run()
    assert last_epoch(tmp_path) == 3
    assert (tmp_path / name).is_file()


def test_the_best_weights_stay_those_of_before(data, tmp_path):
    run = training(data, tmp_path, num_validation=1, val_interval=1)
    before = {}

    def fill(engine) -> None:
        before.update(contents(tmp_path / "models"))
        engine.state.best_metric = -1.0  # whatever is found is better
        fill_disk(100_000)

    part(run, "validate#evaluator").add_event_handler(Events.STARTED(once=2), fill)
    with full_disk(2**40):
        said = failure(run.run)
    assert re.fullmatch(FULL + re.escape(f"'{tmp_path / 'models' / 'best.pt'}'"), said)
    assert {"best.pt", "last.pt", "model.pt"} <= before.keys()
    assert contents(tmp_path / "models") == before


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # of TensorBoard's own thread
def test_events_that_do_not_fit_end_the_training_too(data, tmp_path):
    run = training(data, tmp_path, draws=True, num_validation=1, val_interval=1)
    part(run, "validate#evaluator").add_event_handler(Events.ITERATION_STARTED, lambda: fill_disk(10_000))
    with full_disk(2**40):
        said = failure(run.run)
    assert re.fullmatch(FULL.removesuffix(": "), said)
    assert parts_of_files(tmp_path) == []


MOUNTED = """
mount -t tmpfs -o size=24m tmpfs {output} || exit 99
{training}
status=$?
cp -a {output}/. {kept}
exit $status
"""


@pytest.mark.skipif(shutil.which("unshare") is None, reason="has no file systems of one's own")
def test_on_a_file_system_without_space_the_last_words_are_what_went_wrong(data, tmp_path):
    """A real one, which weights that are kept from each epoch fill."""
    output, kept = tmp_path / "output", tmp_path / "kept"
    output.mkdir()
    kept.mkdir()
    settings = {**LITTLE, "max_epochs": 20, "kept_epochs": list(range(1, 21)), "epoch_length": 1}
    drawing = {f"{handler('SaveCurves')}#_disabled_": True}
    words = typed("training", config("train"), **settings, **drawing, dataset_dir=data, output_dir=output)
    script = MOUNTED.format(
        output=shlex.quote(str(output)), training=shlex.join([sys.executable, *words]), kept=shlex.quote(str(kept))
    )
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=400,
        check=False,
    )
    if done.returncode in (1, 99) and "Traceback" not in done.stderr:
        pytest.skip(f"may not mount: {done.stderr}")
    assert done.returncode == 1
    last = done.stderr.rstrip().splitlines()[-1]
    assert re.fullmatch(rf"What went wrong: \[Errno 28\] No space left on device: '{output}/models/\w+\.pt'", last)
    assert parts_of_files(kept) == []
    epoch = last_epoch(kept)
    assert 1 <= epoch < 20
    for path in sorted((kept / "models").glob("epoch_*.pt")):
        torch.load(path, weights_only=True)


def test_a_prediction_that_does_not_fit_is_not_there_and_those_before_are(data, tmp_path, weights):
    run = predicting("inference", data / "training" / "patient001", tmp_path, ckpt_path=str(weights))
    part(run, "evaluator").add_event_handler(Events.ITERATION_STARTED(once=2), lambda: fill_disk(50))
    with full_disk(2**40):
        said = failure(run.run)
    first, second = (tmp_path / "predictions" / f"patient001_frame{n}.nii.gz" for n in frames(data))
    assert re.fullmatch(FULL + re.escape(f"'{second}'"), said)
    assert first.is_file()
    assert not second.exists()
    assert parts_of_files(tmp_path) == []


def frames(data: Path) -> list[str]:
    found = sorted((data / "training" / "patient001").glob("*_frame??.nii.gz"))
    return [path.name.removesuffix(".nii.gz")[-2:] for path in found]


def test_scores_that_do_not_fit_leave_those_of_before(tmp_path):
    rows = [StructureScore(f"patient{n:03d}", "LV", 0.5, 8.0, 4.0, False) for n in range(40)]
    write_scores(rows[:1], tmp_path)
    before = contents(tmp_path)
    with full_disk(1000), pytest.raises(OSError, match=FULL + re.escape(f"'{tmp_path / 'scores.csv'}'")):
        write_scores(rows, tmp_path)
    assert contents(tmp_path) == before
    write_scores(rows, tmp_path)
    assert len((tmp_path / "scores.csv").read_text().splitlines()) == 41


def test_an_evaluation_that_cannot_write_leaves_the_results_of_before(data, tmp_path, weights):
    predicting("evaluate", data, tmp_path, ckpt_path=str(weights)).run()
    before = contents(tmp_path)
    assert {"eval/scores.csv", "eval/summary.json", "eval/inference_time.json"} <= before.keys()
    run = predicting("evaluate", data, tmp_path, ckpt_path=str(weights))
    with full_disk(20):
        said = failure(run.run)
    assert re.fullmatch(rf"{FULL}'{tmp_path}/eval/\w+\.\w+'", said)
    assert contents(tmp_path) == before


def volume(case):  # noqa: ARG001 - which case is all one
    return {"image": torch.arange(3 * 20 * 20.0).reshape(1, 20, 20, 3)}


def test_slices_that_do_not_fit_are_prepared_by_the_next_run(tmp_path):
    cases = [{"case": name} for name in "ab"]
    with full_disk(2000), pytest.raises(OSError, match=FULL + rf"'{tmp_path}/\w+\.npy'"):
        VolumeDataset(cases, volume, keys=["image"], cache_dir=tmp_path)
    assert contents(tmp_path) == {}
    slices = VolumeDataset(cases, volume, keys=["image"], cache_dir=tmp_path)
    assert torch.equal(slices[5]["image"], volume(None)["image"][..., 2])
    assert len(contents(tmp_path)) == 2
