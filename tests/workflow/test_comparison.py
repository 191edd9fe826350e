import json

import pytest

from monai_spct.data import Split
from monai_spct.workflow import bundles_folder, settings_of_run
from monai_spct.workflow.comparison import PLACES, differences, with_options, without_places

TRAIN = bundles_folder() / "acdc" / "configs" / "train.json"


def test_places_are_keys_of_a_bundle():
    """Or of its evaluation, which looks for weights at one."""
    known = json.loads(TRAIN.read_text()).keys() | {"ckpt_path"}
    assert set(PLACES) <= known


@pytest.mark.parametrize(
    ("before", "after", "lines"),
    [
        ({}, {}, []),
        ({"a": 1}, {"a": 1.0}, []),
        ({"a": [1, 2]}, {"a": [1, 3, 4]}, ["`a#1` was 2, is 3", "`a#2` was not there, is 4"]),
        ({"a": {"b": None}}, {"a": {}}, ["`a#b` was null, is not there", "`a` was not there, is {}"]),
        ({"a": "x"}, {"a": {"b": "x"}}, ['`a` was "x", is not there', '`a#b` was not there, is "x"']),
    ],
)
def test_differences_in_words(before, after, lines):
    assert differences(before, after) == lines


def test_options_go_into_components_and_files_that_are_read_are_part_of_it(tmp_path):
    other = tmp_path / "other.json"
    other.write_text('{"rate": 0.5}')
    content = {"optimizer": {"lr": 0.1}, "rate": f"%{other}#rate"}
    assert with_options(content, {"optimizer#lr": 0.2}) == {"optimizer": {"lr": 0.2}, "rate": 0.5}
    assert content["optimizer"] == {"lr": 0.1}


def test_data_that_a_component_makes_are_no_place():
    made = {"dataset_dir": {"_target_": "write"}}
    assert without_places({**made, "output_dir": "runs/a"}) == made


def settings(*words: str, split: Split | None = None) -> dict[str, object]:
    return settings_of_run(split, ["python", "-m", "monai.bundle", "run", "--config_file", str(TRAIN), *words])


def test_a_run_is_made_of_its_files_and_options():
    before, after = settings("--seed", "0"), settings("--seed", "1", "--optimizer#foreach", "false")
    assert differences(before, after) == ["`seed` was 0, is 1", '`optimizer#foreach` was true, is "false"']


def test_an_overlay_is_part_of_it():
    overlay = bundles_folder() / "methods" / "labeled_only.json"
    files = str([str(TRAIN), str(overlay)])
    lines = differences(settings(), settings_of_run(argv=["--config_file", files]))
    assert "`num_views` was 2, is 1" in lines


def test_where_it_runs_is_not(tmp_path):
    elsewhere = ["--output_dir", str(tmp_path), "--device", "cpu", "--num_workers", "3", "--dataset_dir", str(tmp_path)]
    runner = ["--meta_file", "metadata.json", "--tracking", "mlflow"]
    assert differences(settings(), settings(*elsewhere, *runner, "--resume", "true")) == []


def test_cases_are():
    a, b, c = ({"case": name, "patient": name, "image": f"/data/{name}.nii"} for name in "abc")
    before, after = Split([a], [b], [], [c]), Split([a, b], [], [], [])
    lines = differences(settings(split=before), settings(split=after))
    assert lines == ['`cases#b` was "unlabeled", is "labeled"', '`cases#c` was "test", is not there']


def test_without_a_command_line_nothing_is_known():
    assert settings_of_run(argv=["pytest"]) == {}
