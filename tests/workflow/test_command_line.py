from pathlib import Path

import fire
import pytest

from monai_spct.workflow.command_line import config_files, options


def understood_by_fire(words: list[str]) -> dict[str, object]:
    def run(**override: object) -> dict[str, object]:
        return override

    return fire.Fire(run, command=words, serialize=lambda _: "")


@pytest.mark.parametrize(
    "words",
    [
        ["--max_epochs", "7", "--learning_rate", "3e-4"],
        ["--max_epochs=7", "--output_dir=a=b"],
        ["-seed", "7", "--co-training-weight", "0.5"],
        ["--alpha", "-0.5", "--resume", "true", "--resume", "false"],
        ["--kept_epochs", "[10,20]", "--structures", "{'1': 'LV'}"],
        ["--amp", "--seed", "3", "--compile"],
        ["--dataset_dir", "/data/my hearts", "--device", "cuda:1"],
        ["--learning_rate", "$@max_epochs * 0.1", "--datalist", "None"],
        ["--optimizer#lr", "0.1", "--train#handlers#0#decay", "0.5"],
    ],
)
def test_values_are_what_fire_makes_of_them(words):
    assert options(words) == understood_by_fire(words)


def test_two_colons_lead_into_a_component_too():
    assert options(["--optimizer::lr", "0.1"]) == {"optimizer#lr": 0.1}


def test_what_stands_before_the_options_is_none():
    assert options(["python", "-5", "training", "--seed", "1"]) == {"seed": 1}


@pytest.mark.parametrize("given", ["train.json", "['train.json']", "('train.json',)", '["train.json"]'])
@pytest.mark.parametrize("option", ["--config_file", "--config-file"])
def test_config_files_are_one_path_or_a_list(monkeypatch, tmp_path, option, given):
    monkeypatch.chdir(tmp_path)
    assert config_files(["run", option, given, "--seed", "1"]) == [tmp_path / "train.json"]
    assert config_files(["run", f"{option}={given}"]) == [tmp_path / "train.json"]


@pytest.mark.parametrize("argv", [[], ["run", "training"], ["--config_file"]])
def test_there_may_be_none(argv):
    assert config_files(argv) == []


def test_absolute_paths_stay():
    path = Path("/bundles/acdc/configs/train.json").absolute()
    assert config_files(["--config_file", str(path)]) == [path]
