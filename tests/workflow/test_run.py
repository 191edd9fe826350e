"""Guards, record and root of a run, from the config that runs."""

import json
import shlex
from pathlib import Path

import pytest
import torch
from monai.bundle import ConfigParser, ConfigWorkflow, load

from monai_spct.data import write_acdc_phantom
from monai_spct.networks import Ensemble
from monai_spct.workflow import bundles_folder, cause_of, check_settings, copy, flag, in_words, weights
from monai_spct.workflow.comparison import PLACES

BUNDLES = bundles_folder()
CONFIGS = BUNDLES / "acdc" / "configs"
OVERLAYS = [*BUNDLES.glob("methods/*.json"), *BUNDLES.glob("networks/*.json")]


def checked(*overlays: Path | dict[str, object], name: str = "train", bundle: str = "acdc", **settings: object) -> None:
    configs = BUNDLES / bundle / "configs"
    parser = ConfigParser()
    parser.read_config([configs / f"{name}.json", *overlays] if overlays else configs / f"{name}.json")
    parser.update(settings)
    check_settings(parser, configs)


# Keys that nothing reads


@pytest.mark.parametrize("bundle", ["acdc", "prostate", "spleen"])
def test_the_bundles_and_their_overlays_have_no_such_keys(bundle):
    own = [path for path in (BUNDLES / bundle / "configs").glob("*.json") if path.stem not in ("train", "metadata")]
    overlays = [path for path in own if path.stem not in ("evaluate", "inference")]
    assert len(overlays) >= 3
    for overlay in [*overlays, *OVERLAYS]:
        checked(overlay, bundle=bundle)
    for name in ("evaluate", "inference"):
        for overlay in [path for path in overlays if path.stem in ("phantom", "small", "one_structure")]:
            checked(overlay, name=name, bundle=bundle)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_epoch": 7}, r"`max_epoch`: nothing reads it\. Did you mean `max_epochs`\?"),
        ({"labelled_ratio": 0.2}, r"`labelled_ratio`: .* Did you mean `labeled_ratio`\?"),
        ({"xyzzy": 7}, r"`xyzzy`: nothing reads it\.$"),
        ({"mine": 1, "max_epochs": "@mine", "myne": 2}, r"unknown key `myne`: nothing reads it"),
        ({"train#inferrer": 7}, r"`train#inferrer`: nothing reads it\. Did you mean `train#inferer`\?"),
        ({"train#trainer#max_epoch": 7}, r"`SemiSupervisedTrainer` takes no .*`train#trainer#max_epochs`\?"),
        ({"train#dataset#cach_dir": "x"}, r"`VolumeDataset` takes no such argument\. .*`train#dataset#cache_dir`\?"),
        ({"optimizer#weigth_decay": 0.1}, r"`optimizer#weigth_decay`: `RAdam` takes .*`optimizer#weight_decay`\?"),
        ({"train#handlers#0#pth": "x"}, r"unknown key `train#handlers#0#pth`: `\w+` takes no such argument"),
        ({"pace_start": 0.3}, r"`pace_start`: `pace_start` is now `gamma_start`"),
        ({"objective#co_training#term#pace": 1}, r"`pace` is now `gamma`"),
        ({"objective#co_training#_target_": "monai_spct.objectives.Weighted"}, r"`Weighted` .* is now `WeightedTerm`"),
        ({"max_epoch": 7, "sed": 1}, "`max_epoch`.*`max_epochs`.*`sed`.*`seed`"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_what_nothing_reads_or_takes_is_refused_with_the_nearest_right_name(settings, message):
    with pytest.raises(ValueError, match=message):
        checked(**settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"train#trainer#max_epochs": 1},
        {"load#0#a_reader_takes_this": 0.1},
        {"objective#another": {"_target_": "monai_spct.objectives.Supervised"}},
        {"validate#key_metric#another": {"_target_": "monai_spct.metrics.VolumeScores", "structures": "@structures"}},
        {"factor": 3, "max_epochs": "$@factor * 2"},
        {"factor": 3, "max_epochs": "%factor"},
        {"part": {"rate": 3}, "max_epochs": "@part#rate"},
        {"_why_": "a note"},
        {"finalize": []},
        {"scored": "validation"},  # what another run of the bundle reads
    ],
    ids=",".join,
)
def test_what_is_read_or_taken_is_let_through(settings):
    checked(**settings)


def test_a_config_without_a_bundle_is_judged_by_its_components_alone(tmp_path):
    check_settings(ConfigParser({"mine": 1}), tmp_path)
    with pytest.raises(ValueError, match="`Linear` takes no such argument"):
        check_settings(ConfigParser({"mine": {"_target_": "torch.nn.Linear", "in_feature": 1}}))


# Settings that would have no effect, or cannot work


@pytest.mark.parametrize(
    ("name", "settings", "idle"),
    [
        ("train", {"labeled_ratio": 0.2, "num_test": 3}, "`num_test`, `labeled_ratio`"),
        ("train", {"dataset_dir": "/data"}, "`dataset_dir`"),
        ("evaluate", {"split_seed": 3}, "`split_seed`"),
        ("inference", {"dataset_dir": "/data"}, "`dataset_dir`"),
    ],
)
def test_beside_a_datalist_what_it_replaces_is_refused(name, settings, idle):
    checked(name=name, **settings)
    with pytest.raises(ValueError, match=f"`datalist` says who is labeled.*: leave out {idle}"):
        checked(name=name, datalist="my.json", **settings)


def test_without_a_datalist_there_is_no_list_to_predict():
    checked(name="inference", predicted="unlabeled", datalist="my.json")
    with pytest.raises(ValueError, match=r"without a `datalist` .*: leave out `predicted`"):
        checked(name="inference", predicted="unlabeled")


@pytest.mark.parametrize("value", [2024, Path("runs")], ids=repr)
def test_a_folder_that_is_no_text_is_refused(value):
    with pytest.raises(ValueError, match="`output_dir` must be text, got "):
        checked(output_dir=value)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return write_acdc_phantom(tmp_path_factory.mktemp("data"), patients=4, size=(24, 32), spacing=(5.5, 6.0))


def begun(data: Path, *overlays: Path, **settings: object) -> ConfigWorkflow:
    files = [str(path) for path in (CONFIGS / "train.json", *overlays)]
    given = {"dataset_dir": str(data), "labeled_patients": 1, "crop_size": 16, "device": "cpu", **settings}
    workflow = ConfigWorkflow(files, workflow_type="train", logging_file=False, **given)
    workflow.initialize()
    return workflow


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"crop_size": 0}, "`crop_size` must be a whole number of at least 1, got 0"),
        ({"labeled_batch_size": 1, "unlabeled_batch_size": 1}, "`crop_size` 16 x 16 is too small for a batch of 1:"),
    ],
    ids=["none", "one image"],
)
def test_a_size_that_the_network_cannot_learn_from_is_refused_before_training(data, settings, message):
    with pytest.raises(RuntimeError) as error:
        begun(data, BUNDLES / "networks" / "unet.json", **settings)
    assert message in str(cause_of(error.value))


# The root


def test_loaded_weights_are_those_of_the_copied_bundle(tmp_path):
    copy("acdc", tmp_path / "mt")
    weights = torch.load(tmp_path / "mt" / "models" / "model.pt", weights_only=True)
    network = load("mt", bundle_dir=tmp_path, workflow_type="inference", device="cpu")
    assert isinstance(network, Ensemble)
    torch.testing.assert_close(network.state_dict(), weights, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["train", "evaluate", "inference"])
def test_without_a_workflow_the_root_is_the_working_directory(name):
    parser = ConfigParser(ConfigParser.load_config_file(CONFIGS / f"{name}.json"))
    assert parser.get_parsed_content("output_dir") == "./output"
    parser = ConfigParser(ConfigParser.load_config_file(CONFIGS / f"{name}.json"))
    parser["bundle_root"] = "/mine"
    assert parser.get_parsed_content("output_dir") == "/mine/output"


@pytest.mark.parametrize("place", [BUNDLES, CONFIGS.parent, CONFIGS, Path("/")], ids=str)
def test_with_one_it_is_the_folder_above_the_configs_from_whatever_directory(monkeypatch, place):
    monkeypatch.chdir(place)
    config = CONFIGS / "evaluate.json"
    given = config.relative_to(place) if config.is_relative_to(place) else config
    workflow = ConfigWorkflow(str(given), workflow_type="infer", logging_file=False)
    workflow.initialize()
    assert Path(workflow.parser.get_parsed_content("output_dir")) == CONFIGS.parent / "output"
    assert Path(workflow.bundle_root) == CONFIGS.parent


# The evaluation


OTHERWISE = {"backbone", "crop_size", "resampling"}  # in evaluation, which has those of the weights in the bundle
TESTED = {"split_seed", "patient_order", "test_ratio", "num_test", "num_validation"}  # always on record
KEPT = [
    ("methods/ua_mt.json", {}, set()),
    ("networks/unet.json", {}, {"backbone"}),
    ("acdc/configs/small.json", {"num_validation": 1}, {"on_original_grid", "resampling"}),
    ("acdc/configs/one_structure.json", {"structure": 2}, {"all_structures", "load", "structure", "structures"}),
    ("acdc/configs/phantom.json", {"num_views": 3}, set()),
]


@pytest.mark.parametrize(
    ("overlay", "settings", "kept"), KEPT, ids=lambda value: Path(value).stem if isinstance(value, str) else ""
)
def test_the_evaluation_has_what_it_must_of_the_training(capsys, data, tmp_path, overlay, settings, kept):
    output = tmp_path / "out put"
    steps = ["$workflow.record_model(@output_dir, @trainer, @trained_on)", "$@trainer.run([0])"]
    steps += ["$workflow.tell_results(@output_dir)"]
    trainer = {"_target_": "ignite.engine.Engine", "process_function": "$lambda engine, batch: None"}
    run = {"output_dir": str(output), "run": steps, "trainer": trainer}
    workflow = begun(data, BUNDLES / overlay, **run, **settings)
    capsys.readouterr()
    workflow.run()
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert lines["TensorBoard:"] == shlex.join(["tensorboard", "--logdir", f"{output}/eval"])
    words = shlex.split(lines["evaluate:"])
    assert words[6:] == [str(CONFIGS / "evaluate.json"), "--dataset_dir", str(data), "--output_dir", str(output)]
    model = json.loads((output / "models" / "model.json").read_text())
    kept = kept | OTHERWISE | TESTED | {"seen"}
    assert set(model) == kept

    torch.save({}, output / "models" / "model.pt")
    evaluation = evaluating(output)
    before = dict(evaluation.parser.get())
    evaluation.initialize()
    after = evaluation.parser.get()
    for key, value in model.items():
        assert after[key] == value, key
        assert key == "seen" or workflow.parser.get()[key] == value, key
    assert {key for key in after if after[key] != before.get(key)} - {"evaluating"} == kept - (TESTED - settings.keys())
    assert evaluation.parser.get_parsed_content("bundle_root") == str(CONFIGS.parent)


def test_the_command_names_a_folder_that_is_given_by_an_expression_and_the_record_does_not(capsys, data, tmp_path):
    trainer = {"_target_": "ignite.engine.Engine", "process_function": "$lambda engine, batch: None"}
    steps = [
        "$workflow.record_model(@output_dir, @trainer)",
        "$@trainer.run([0])",
        "$workflow.tell_results(@output_dir)",
    ]
    begun(data, output_dir=f"$'{tmp_path}' + '/run'", run=steps, trainer=trainer).run()
    [line] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("evaluate:")]
    assert shlex.split(line)[-2:] == ["--output_dir", f"{tmp_path}/run"]
    assert json.loads((tmp_path / "run" / "models" / "model.json").read_text()).keys() == OTHERWISE | TESTED


def evaluating(output: Path, **settings: object) -> ConfigWorkflow:
    where = {"workflow_type": "infer", "logging_file": False, "output_dir": str(output)}
    return ConfigWorkflow(str(CONFIGS / "evaluate.json"), **where, **settings)


@pytest.fixture
def model(tmp_path) -> Path:
    """A run with weights, and settings of its own."""
    content = {"num_test": 5, "structures": {"1": "LV"}, "num_validation": 2, "mine": 1}
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "model.json").write_text(json.dumps(content))
    torch.save({}, tmp_path / "models" / "model.pt")
    return tmp_path


def test_what_is_asked_for_takes_precedence_over_what_the_training_had(model, caplog):
    evaluation = evaluating(model, num_test=7)
    with caplog.at_level("INFO", logger="monai_spct"):
        evaluation.initialize()
    assert evaluation.parser["num_test"] == 7
    assert evaluation.parser.get_parsed_content("out_channels") == 2
    assert "mine" not in evaluation.parser.get()
    assert "model.json: structures, num_validation." in caplog.text
    assert "these settings differ from those of the training: num_test. Patients that it learned from" in caplog.text


def test_it_can_be_left_to_the_config_and_a_datalist_brings_its_own_split(model, tmp_path):
    evaluation = evaluating(model, as_trained=False)
    evaluation.initialize()
    assert (evaluation.parser["num_test"], evaluation.parser["num_validation"]) == (None, 0)
    evaluation = evaluating(model, datalist=str(tmp_path / "my.json"))
    evaluation.initialize()
    assert (evaluation.parser["num_test"], len(evaluation.parser["structures"])) == (None, 1)


def test_a_file_beside_weights_that_are_not_of_the_run_is_no_config_of_it(model, tmp_path, caplog):
    elsewhere = tmp_path / "stranger" / "models"
    elsewhere.mkdir(parents=True)
    for name in ("model.json", "model.pt"):
        (model / "models" / name).rename(elsewhere / name)
    evaluation = evaluating(tmp_path / "mine", ckpt_path=str(elsewhere / "model.pt"))
    evaluation.initialize()
    assert evaluation.parser["num_test"] is None
    assert "is not in the folder of a run" in caplog.text


@pytest.mark.parametrize("content", ["[1]", '{"a": '], ids=["list", "cut"])
def test_a_damaged_file_is_named(model, content):
    (model / "models" / "model.json").write_text(content)
    with pytest.raises(RuntimeError) as error:
        evaluating(model).initialize()
    assert "model.json must hold an object of settings" in in_words(error.value)


def test_weights_of_the_bundle_serve_where_there_was_no_training(tmp_path):
    bundle, output = tmp_path / "bundle", tmp_path / "output"
    assert weights(output, bundle) == str(output / "models" / "model.pt")
    (bundle / "models").mkdir(parents=True)
    (bundle / "models" / "model.pt").touch()
    assert weights(output, bundle) == str(bundle / "models" / "model.pt")
    (output / "models").mkdir(parents=True)  # of a training that was interrupted
    assert weights(output, bundle) == str(output / "models" / "model.pt")


# The record


def record(data: Path, *overlays: Path, **settings: object) -> dict[str, object]:
    parser: ConfigParser = begun(data, *overlays, **settings).parser
    return dict(parser.get_parsed_content("settings"))


def test_a_run_is_made_of_its_settings_and_cases(data):
    plain, other = record(data), record(data, seed=1, split_seed=3)
    assert set(plain["cases"].values()) == {"labeled", "unlabeled", "test"}
    assert {key for key in plain if plain[key] != other[key]} >= {"seed", "split_seed"}
    assert not {*PLACES, "dataset_dir", "_meta_"} & plain.keys()


def test_where_it_runs_and_is_tracked_does_not_matter(data, tmp_path):
    elsewhere = {"output_dir": f"$'{tmp_path}'", "num_workers": 3, "resume": True, "cache_dir": str(tmp_path)}
    assert record(data, **elsewhere, tracking="mlflow", experiment_name="a") == record(data)


def test_objects_of_a_program_are_known_by_their_class(data):
    assert record(data, unit=torch.nn.ReLU(), alpha=(1, 2), epoch_length="@unit")["unit"].endswith(".ReLU")


def test_a_switch_is_true_or_false_and_may_be_a_word():
    assert [flag(value) for value in (True, "true", "False", False)] == [True, True, False, False]
    for value in ("no", "", 2, None):
        with pytest.raises(ValueError, match="a switch must be true or false, got"):
            flag(value)
