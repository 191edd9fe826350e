"""Bundles are found from anywhere, copied whole, and refuse what was mistyped."""

import ast
import json
import shlex
import subprocess
import sys
from pathlib import Path

import ignite.distributed as idist
import pytest
import torch

from monai_spct.workflow import (
    bundle_root,
    bundles_folder,
    copy,
    flag,
    join_processes,
    put_the_cause_last,
    refuse_idle_settings,
    refuse_processes_apart,
    refuse_unknown_overrides,
    tell_results,
)

PACKAGE_PARENT = Path(sys.modules["monai_spct"].__file__).parents[1]
TRAIN = bundles_folder() / "acdc" / "configs" / "train.json"


def python(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    code = f"import sys; sys.path.insert(0, {str(PACKAGE_PARENT)!r}); "
    first, *others = arguments
    return subprocess.run(
        [sys.executable, "-c", code + first, *others], capture_output=True, text=True, cwd=cwd, timeout=120
    )


def written(path: Path, content: dict[str, object]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


# Copies


def test_a_copy_has_all_of_the_bundle_and_the_overlays(tmp_path):
    target = tmp_path / "mine"
    copy("acdc", target)
    for source, there in (
        (bundles_folder() / "acdc" / "configs", "configs"),
        (bundles_folder() / "methods", "methods"),
        (bundles_folder() / "networks", "networks"),
    ):
        names = sorted(path.name for path in source.iterdir())
        assert {"labeled_only.json", "train.json", "unet.json"} & set(names)
        assert sorted(path.name for path in (target / there).iterdir()) == names
        for name in names:
            assert (target / there / name).read_bytes() == (source / name).read_bytes()


def test_a_copy_leaves_out_what_runs_have_written(tmp_path, monkeypatch):
    folder = tmp_path / "bundles"
    written(folder / "heart" / "configs" / "train.json", {"seed": 0})
    written(folder / "methods" / "labeled_only.json", {})
    written(folder / "networks" / "unet.json", {})
    for made in (
        *("models/README.md", "models/model.pt", "models/model.ts", "models/model.onnx", "models/.model.pt.tmp"),
        *("cache/a.npy", "mlruns.db", "mlruns/1/config.json", "config_20260101_120000.json", "eval/scores.csv"),
        *("phantom/data/a.nii", "scripts/__pycache__/a.pyc"),
    ):
        (folder / "heart" / made).parent.mkdir(parents=True, exist_ok=True)
        (folder / "heart" / made).touch()
    monkeypatch.setattr("monai_spct.workflow.folder.bundles_folder", lambda: folder)
    copy("heart", tmp_path / "mine")
    files = sorted(path.relative_to(tmp_path / "mine").as_posix() for path in (tmp_path / "mine").rglob("*.*"))
    assert files == ["configs/train.json", "methods/labeled_only.json", "models/README.md", "networks/unet.json"]


def test_what_to_run_next_names_the_copy(tmp_path):
    line = copy("acdc", str(tmp_path / "mine"))
    assert line.startswith("python -m monai.bundle run training ")
    assert str(tmp_path / "mine" / "configs" / "train.json") in line
    assert "--dataset_dir" in line


@pytest.mark.parametrize("name", ["acd", "methods", "ACDC", "acdc/configs"])
def test_an_unknown_bundle_is_named_beside_those_that_there_are(tmp_path, name):
    with pytest.raises(ValueError, match=r"`name` must be one of \[.*'acdc'.*\], got ") as error:
        copy(name, tmp_path / "mine")
    assert repr(name) in str(error.value)
    assert not (tmp_path / "mine").exists()


def test_a_place_that_is_taken_stays_as_it_is(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=str(tmp_path)):
        copy("acdc", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_the_command_line_copies_too_and_says_where_bundles_are(tmp_path):
    code = f"""
import runpy
for arguments in (["copy", "acdc", {str(tmp_path / "mine")!r}], ["folder"]):
    sys.argv = ["bundles", *arguments]
    runpy.run_module("monai_spct.workflow", run_name="__main__", alter_sys=True)
"""
    done = python(f"exec({code!r})", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    line, folder = done.stdout.strip().splitlines()
    assert f"--config_file {tmp_path / 'mine' / 'configs' / 'train.json'}" in line
    assert (tmp_path / "mine" / "configs" / "train.json").is_file()
    assert Path(folder) == bundles_folder()


# Where a bundle is


@pytest.mark.parametrize(
    "argv",
    [
        ["--config_file", "/data/mine/configs/train.json"],
        ["--config_file=/data/mine/configs/train.json"],
        ["--config-file", "/data/mine/configs/train.json"],
        ["--config_file", "['/data/mine/configs/train.json','/data/mine/configs/small.json']"],
        ["--config_file=('/data/mine/configs/train.json', '/data/methods/labeled_only.json')"],
        ["--config_file", "['/data/methods/labeled_only.json', '/data/mine/configs/train.json']"],
        ["--config_file", "/elsewhere/configs/a.json", "--config_file", "/data/mine/configs/train.json"],
    ],
    ids=["two words", "one word", "dashes", "list", "tuple", "overlay first", "the last counts"],
)
@pytest.mark.parametrize("before", [[], ["run", "training", "--dataset_dir", "/data/configs/x"]], ids=["", "after"])
def test_the_root_is_above_the_configs_folder_of_the_command_line(before, argv):
    assert bundle_root("acdc", [*before, *argv, "--max_epochs", "3"]) == "/data/mine"


def test_a_relative_path_counts_from_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert bundle_root("acdc", ["--config_file", "bundles/acdc/configs/train.json"]) == str(tmp_path / "bundles/acdc")
    assert bundle_root("acdc", ["--config_file", "configs/train.json"]) == str(tmp_path)


def test_without_a_config_file_the_root_is_the_bundle_one_stands_in_or_the_one_that_came_along(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert bundle_root("acdc", []) == str(bundles_folder() / "acdc")
    written(tmp_path / "configs" / "metadata.json", {})
    assert bundle_root("acdc", []) == "."


@pytest.mark.parametrize("argv", [["--config_file"], ["--config_file", "train.json"]], ids=["no value", "other folder"])
def test_a_config_file_that_says_nothing_about_a_root_is_passed_over(tmp_path, monkeypatch, argv):
    monkeypatch.chdir(tmp_path)
    assert bundle_root("acdc", argv) == str(bundles_folder() / "acdc")


def test_by_default_the_command_line_is_that_of_the_process(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["monai.bundle", "run", "--config_file", "/data/mine/configs/train.json"])
    assert bundle_root("acdc") == "/data/mine"


# Mistyped overrides


@pytest.mark.parametrize(
    "arguments",
    [
        ["--max_epochs", "7"],
        ["--max_epochs=7"],
        ["--max-epochs", "7"],
        ["--train#trainer#max_epochs", "1"],
        ["--train::trainer::max_epochs=1"],
        ["--structures#4", "Aorta"],
        ["--dataset_dir", "--"],
        ["--alpha", "-1", "--run_id", "training", "--meta_file=x.json", "--logging_file", "False"],
        ["--workflow_type", "train", "--init_id", "initialize", "--args_file", "a.json", "--tracking", "mlflow"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_what_a_config_or_the_runner_knows_is_let_through(arguments):
    refuse_unknown_overrides(["run", "training", "--config_file", str(TRAIN), *arguments])


@pytest.mark.parametrize(
    ("argument", "shown", "near"),
    [
        ("--max_epoch=7", "--max_epoch", "--max_epochs"),
        ("--max_epoch", "--max_epoch", "--max_epochs"),
        ("--max-epoch", "--max_epoch", "--max_epochs"),
        ("--labelled_ratio", "--labelled_ratio", "--labeled_ratio"),
        ("--trian#trainer#max_epochs", "--trian", "--train"),
        ("--trian::trainer", "--trian", "--train"),
        ("--data_dir", "--data_dir", "--dataset_dir"),
        ("--learning_rat=0.1", "--learning_rat", "--learning_rate"),
    ],
)
def test_p30_what_nobody_knows_is_refused_with_the_nearest_right_name(argument, shown, near):
    with pytest.raises(ValueError, match=rf"^unknown override `{shown}`: .*Did you mean `{near}`\?$"):
        refuse_unknown_overrides(["--config_file", str(TRAIN), argument, "7"])


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--train#inferrer", r"`--train#inferrer`: `train` has no such key\. Did you mean `--train#inferer`\?"),
        (
            "--train::trainer::max_epoch=7",
            r"`--train#trainer#max_epoch`: .* Did you mean `--train#trainer#max_epochs`\?",
        ),
        ("--train#trainer#max-epoch", r"`--train#trainer#max_epoch`: .* Did you mean `--train#trainer#max_epochs`\?"),
        ("-train#trainer#max_epoch", r"`--train#trainer#max_epoch`: .* Did you mean `--train#trainer#max_epochs`\?"),
        ("--train#trainr#max_epochs", r"`--train#trainr`: `train` has no such key\. Did you mean `--train#trainer`\?"),
        ("--objective#co_trainin#weight", r"`--objective#co_trainin`: .* Did you mean `--objective#co_training`\?"),
        ("--validate#key_metric#mean_dcs", r"`--validate#key_metric#mean_dcs`: .*`--validate#key_metric#mean_dsc`\?"),
        ("--train#handlers#99#decay", r"`--train#handlers#99`: `train#handlers` has \d+ items, counted from 0\."),
        ("--train#handlers#decay", r"`--train#handlers#decay`: `train#handlers` has \d+ items, .*"),
        ("--train#dataset#cach_dir", r"`--train#dataset#cach_dir`: .*`--train#dataset#cache_dir`\?"),
    ],
)
def test_p30_a_key_within_another_is_refused_too(argument, message):
    with pytest.raises(ValueError, match=f"^unknown override {message}$"):
        refuse_unknown_overrides(["--config_file", str(TRAIN), argument, "7"])


@pytest.mark.parametrize(
    "argument",
    [
        "--optimizer#weight_decay",  # an argument that the config does not set
        "--train#trainer#accumulation_steps",
        "--train#handlers#0#_disabled_",
        "--objective#co_training#_disabled_",
        "--structures#4",
        "--augmentation#2#prob",
        "--train#trainer#compile_kwargs#mode",
    ],
)
def test_p30_a_key_that_may_be_new_is_let_through(argument):
    refuse_unknown_overrides(["--config_file", str(TRAIN), argument, "7"])


@pytest.mark.parametrize(
    ("overlay", "message"),
    [
        ({"max_epoch": 7}, r"`max_epoch` in mine\.json: nothing reads it\. Did you mean `max_epochs`\?"),
        ({"+initialise": []}, r"`initialise` in mine\.json: nothing reads it\. Did you mean `initialize`\?"),
        ({"train#inferrer": None}, r"`train#inferrer` in mine\.json: `train` has no such key\. .*`train#inferer`\?"),
        ({"train#trainer#max_epoch": 7}, r"`train#trainer#max_epoch` in mine\.json: .*`train#trainer#max_epochs`\?"),
        ({"mine": 1, "max_epochs": "@mine", "myne": 2}, r"`myne` in mine\.json: nothing reads it\. .*`mine`\?"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_p30_a_mistyped_key_of_an_overlay_is_refused(tmp_path, overlay, message):
    files = str([str(TRAIN), str(written(tmp_path / "mine.json", overlay))])
    with pytest.raises(ValueError, match=f"^unknown key {message}$"):
        refuse_unknown_overrides(["run", "training", "--config_file", files])


@pytest.mark.parametrize(
    ("argument", "overlay"),
    [
        ("training", {"factor": 3, "max_epochs": "$@factor * 2"}),
        ("training", {"factor": 3, "max_epochs": "%factor"}),
        ("training", {"_why_": "a note", "seed": 3}),
        ("training", {"+initialize": ["$torch.use_deterministic_algorithms(True)"], "finalize": []}),
        ("counting", {"counting": ["$print(len(@split.labeled))"]}),
        ("training", {"image": 1, "evaluating": "%run", "predicted": "test", "seed": "@image"}),
    ],
    ids=["referred to", "copied", "a note", "lists of a run", "a run of its own", "of other runs"],
)
def test_p30_an_overlay_may_have_keys_of_its_own(tmp_path, argument, overlay):
    files = str([str(TRAIN), str(written(tmp_path / "mine.json", overlay))])
    refuse_unknown_overrides(["run", argument, "--config_file", files, "--seed", "3"])


def test_where_nothing_is_near_no_name_is_offered():
    with pytest.raises(ValueError, match=r"^unknown override `--xyzzy`: no config file has such a key\.$"):
        refuse_unknown_overrides(["--config_file", str(TRAIN), "--xyzzy", "7"])


def test_all_mistakes_are_named_at_once():
    with pytest.raises(ValueError, match=r"`--max_epoch`.*`--max_epochs`.*`--sed`.*`--seed`"):
        refuse_unknown_overrides(["--config_file", str(TRAIN), "--max_epoch", "7", "--sed", "1"])


def test_a_runner_option_is_never_offered_as_the_right_name():
    with pytest.raises(ValueError, match="run_nam") as error:
        refuse_unknown_overrides(["--config_file", str(TRAIN), "--run_nam", "7"])
    assert "--run_name" not in str(error.value)


@pytest.mark.parametrize("key", ["resume", "+resume"])
def test_keys_of_all_config_files_count(tmp_path, key):
    one = written(tmp_path / "a.json", {"seed": 0, "training": "@resume"})
    two = written(tmp_path / "b.json", {key: False})
    files = f"['{one}','{two}']"
    refuse_unknown_overrides(["--config_file", files, "--resume", "True", "--seed", "1"])
    with pytest.raises(ValueError, match="resume"):
        refuse_unknown_overrides(["--config_file", str(one), "--resume", "True"])


def test_configs_in_yaml_are_read_too(tmp_path):
    path = tmp_path / "train.yaml"
    path.write_text("max_epochs: 3\ntrain:\n  trainer: null\n")
    refuse_unknown_overrides(["--config_file", str(path), "--max_epochs", "7", "--train#trainer", "x"])
    with pytest.raises(ValueError, match="`--max_epochs`"):
        refuse_unknown_overrides(["--config_file", str(path), "--max_epoch", "7"])


def test_other_programs_keep_their_options(monkeypatch):
    refuse_unknown_overrides(["pytest", "--max_epoch", "7"])
    monkeypatch.setattr(sys, "argv", ["pytest", "--max_epoch=7"])
    refuse_unknown_overrides()
    monkeypatch.setattr(sys, "argv", ["monai.bundle", "--config_file", str(TRAIN), "--max_epoch=7"])
    with pytest.raises(ValueError, match="max_epoch"):
        refuse_unknown_overrides()


# Settings that would have no effect

FULL = bundles_folder() / "methods" / "full_supervision.json"


@pytest.mark.parametrize(
    ("files", "more", "found"),
    [
        (
            [TRAIN],
            ["--labeled_ratio", "0.2", "--num_test=3"],
            "`num_test` (command line), `labeled_ratio` (command line)",
        ),
        ([TRAIN, FULL], [], "`labeled_ratio` (full_supervision.json)"),
        ([TRAIN], ["--dataset_dir", "/data"], "`dataset_dir` (command line)"),
    ],
    ids=["command line", "overlay", "folder"],
)
def test_beside_a_datalist_what_it_replaces_is_refused(files, more, found):
    initialize = json.loads(TRAIN.read_text())["initialize"]
    [settings] = [item for item in initialize if "idle" in str(item)]
    argv = ["--config_file", str([str(file) for file in files]), "--datalist", "my.json", *more]
    with pytest.raises(ValueError, match="`datalist` says who is labeled") as error:
        refuse_idle_settings("my.json", without=settings["without"], argv=argv)
    assert str(error.value).endswith(f"leave out {found}.")
    refuse_idle_settings(None, without=settings["without"], argv=argv)


def test_what_a_split_needs_is_what_a_datalist_replaces():
    for bundle in ("acdc", "prostate", "spleen"):
        for name in ("train", "evaluate"):
            config = json.loads((bundles_folder() / bundle / "configs" / f"{name}.json").read_text())
            [settings] = [item for item in config["initialize"] if "idle" in str(item)]
            used = {
                str(value)[1:] for key, value in config["split"].items() if key not in ("_target_", "cases", "datalist")
            }
            assert set(settings["without"]) == used | {"dataset_dir"}


def test_without_a_datalist_there_is_no_list_to_predict():
    argv = ["--config_file", str(TRAIN.with_name("inference.json")), "--predicted", "unlabeled"]
    with pytest.raises(ValueError, match=r"without a `datalist` .*: leave out `predicted` \(command line\)"):
        refuse_idle_settings(None, without=["dataset_dir"], only_with=["predicted"], argv=argv)
    refuse_idle_settings("my.json", without=["dataset_dir"], only_with=["predicted"], argv=argv)


# The last line


# a config that names a component which fails, twice wrapped by MONAI: as a component and as an expression
WRAPPED = """
from monai.bundle import ConfigParser
from monai_spct.workflow import put_the_cause_last
put_the_cause_last()
def fails():
    try:
        raise RuntimeError("Missing key(s) in state_dict: a, b, c")
    except RuntimeError as error:
        raise ValueError("model.pt holds the weights of another network") from error
import builtins
builtins.fails = fails
ConfigParser({"part": {"_target_": "builtins.fails"}, "run": "$@part.go()"}).get_parsed_content("run")
"""


def test_an_error_that_monai_wraps_ends_with_what_the_package_said(tmp_path):
    done = python(f"exec({WRAPPED!r})", cwd=tmp_path)
    assert done.returncode == 1
    lines = done.stderr.strip().splitlines()
    assert lines[-1] == "What went wrong: model.pt holds the weights of another network"
    # the traceback is there all the same
    assert any(line.startswith("RuntimeError: Failed to instantiate component 'builtins.fails'") for line in lines)
    assert "RuntimeError: Missing key(s) in state_dict: a, b, c" in lines


def alone() -> None:
    raise ValueError("plain")


def after_another() -> None:
    try:
        {}["a"]
    except KeyError:
        alone()


def with_a_cause_of_its_own() -> None:
    try:
        {}["a"]
    except KeyError as error:
        raise ValueError("plain") from error


@pytest.mark.parametrize("fails", [alone, after_another, with_a_cause_of_its_own], ids=lambda fails: fails.__name__)
def test_an_error_that_monai_does_not_wrap_ends_as_ever(monkeypatch, capsys, fails):
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    put_the_cause_last()
    with pytest.raises(ValueError, match="plain") as error:
        fails()
    sys.excepthook(error.type, error.value, error.tb)
    lines = capsys.readouterr().err.strip().splitlines()
    assert lines[-1] == "ValueError: plain"


def test_it_changes_the_hook_alone(monkeypatch):
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    put_the_cause_last()
    assert sys.excepthook is not sys.__excepthook__
    put_the_cause_last()  # a second time does no harm
    assert callable(sys.excepthook)


def test_a_key_error_says_that_it_is_one(tmp_path):
    last = 'raise ValueError("model.pt holds the weights of another network") from error'
    code = WRAPPED.replace(last, '{}["aorta"]')
    done = python(f"exec({code!r})", cwd=tmp_path)
    assert "KeyError" in done.stderr.strip().splitlines()[-1]


def test_an_override_with_one_dash_is_looked_at_too():
    """fire takes `-max_epoch 7` like `--max_epoch 7`."""
    with pytest.raises(ValueError, match="max_epochs"):
        refuse_unknown_overrides(["--config_file", str(TRAIN), "-max_epoch", "7"])


@pytest.mark.parametrize(("value", "expected"), [(True, True), ("true", True), ("False", False), (False, False)])
def test_a_switch_may_be_a_word(value, expected):
    assert flag(value) is expected


@pytest.mark.parametrize("value", ["no", "", 2, None], ids=repr)
def test_a_switch_that_is_neither_is_refused(value):
    with pytest.raises(ValueError, match="a switch must be true or false, got"):
        flag(value)


@pytest.mark.parametrize("name", ["acdc", "prostate", "spleen"])
def test_each_bundle_can_be_copied(tmp_path, name):
    copy(name, tmp_path / name)
    assert (tmp_path / name / "configs" / "metadata.json").is_file()
    assert bundle_root(name, ["--config_file", str(tmp_path / name / "configs" / "train.json")]) == str(tmp_path / name)
    assert bundle_root(name, []) == str(bundles_folder() / name)


PROCESS = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}


def test_several_processes_need_torchrun(monkeypatch):
    for name, value in PROCESS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("LOCAL_RANK")
    with pytest.raises(
        ValueError, match=r"started by `torchrun`, .*; missing here: LOCAL_RANK\. .*leave `multi_gpu_tr"
    ):
        join_processes("cpu")


@pytest.mark.parametrize("device", ["cuda", "cuda:99"])
def test_each_process_needs_a_gpu_of_its_own(monkeypatch, device):
    for name, value in PROCESS.items():
        monkeypatch.setenv(name, value)
    message = rf"`device` must be a GPU of its own .* the {torch.cuda.device_count()} .*, got {device} in process 1:"
    with pytest.raises(ValueError, match=message):
        join_processes(device)


def test_a_wait_for_nothing_is_refused(monkeypatch):
    for name, value in PROCESS.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=r"`timeout_minutes` must be positive, got 0"):
        join_processes("cpu", timeout_minutes=0)


@pytest.mark.parametrize(
    ("overlay", "remedy"), [("a.json", "add `a.json` as the last config, or start one"), (None, "start one")]
)
def test_one_of_several_processes_that_has_not_joined_the_others_is_refused(monkeypatch, overlay, remedy):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match=f"`WORLD_SIZE` is 2, .* of the others: {remedy} without `torchrun`"):
        refuse_processes_apart(overlay)


@pytest.mark.parametrize("count", ["1", "", None])
def test_a_process_alone_is_not(monkeypatch, count):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    if count is not None:
        monkeypatch.setenv("WORLD_SIZE", count)
    refuse_processes_apart("a.json")


@pytest.mark.parametrize("bundle", ["acdc", "prostate", "spleen"])
@pytest.mark.parametrize("name", ["train", "evaluate", "inference"])
def test_each_config_refuses_to_be_run_by_several_processes_apart(bundle, name):
    config = json.loads((bundles_folder() / bundle / "configs" / f"{name}.json").read_text())
    # a training joins the others in the end of `initialize`
    steps = config["run" if name == "train" else "initialize"]
    target = "monai_spct.workflow.refuse_processes_apart"
    [step] = [step for step in steps if isinstance(step, dict) and step["_target_"] == target]
    assert step.get("overlay") == ("multi_gpu_train.json" if name == "train" else None)
    if name == "train":
        assert steps.index(step) == 0


# What a training leaves


def told(capsys, *words: object) -> dict[str, str]:
    tell_results("out put", ["run", "training", *map(str, words)])
    return dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())


def evaluation(lines: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    """Names of the config files, and options."""
    words = shlex.split(lines["evaluate:"])
    assert words[:6] == ["python", "-m", "monai.bundle", "run", "evaluating", "--config_file"]
    files = ast.literal_eval(words[6]) if words[6].startswith("[") else [words[6]]
    assert all(Path(file).is_file() for file in files)
    refuse_unknown_overrides(["--config_file", words[6], *words[7:]])
    return [Path(file).name for file in files], dict(zip(words[7::2], words[8::2], strict=True))


def test_results_are_named_as_a_shell_takes_them(capsys):
    lines = told(capsys)
    assert list(lines) == ["weights:", "curves:", "TensorBoard:"]  # no config file, no command
    assert lines["curves:"] == "out put/eval/curves.png"
    assert lines["TensorBoard:"] == "tensorboard --logdir 'out put/eval'"


def test_the_evaluation_has_the_options_that_it_knows_as_they_were_given(capsys):
    given = ["--dataset_dir", "/my data", "--split_seed=3", "--seed", 1, "--num_views", 3, "--output_dir", "out put"]
    lines = told(capsys, "--config_file", TRAIN, *given, "--train#trainer#max_epochs", 3)
    words = shlex.split(lines["evaluate:"])
    assert words[6:] == [
        *(str(TRAIN.with_name("evaluate.json")), "--dataset_dir", "/my data"),
        *("--split_seed=3", "--output_dir", "out put"),
    ]


@pytest.mark.parametrize(
    ("overlays", "kept"),
    [
        (["acdc/configs/phantom.json"], True),
        (["acdc/configs/small.json"], True),
        (["networks/unet.json"], True),
        (["methods/self_paced.json"], False),
        (["methods/ua_mt.json"], False),
        (["acdc/configs/multi_gpu_train.json"], False),
    ],
    ids=lambda value: Path(value[0]).stem if isinstance(value, list) else "",
)
def test_the_evaluation_has_the_overlays_that_change_it(capsys, overlays, kept):
    files = [str(TRAIN), *(str(bundles_folder() / name) for name in overlays)]
    lines = told(capsys, "--config_file", files, "--max_epochs", 3)
    assert "\"'" not in lines["evaluate:"]  # no quotes that a shell needs to be told of
    names, _ = evaluation(lines)
    assert names == ["evaluate.json", *(Path(name).name for name in overlays if kept)]


def test_a_setting_of_an_overlay_goes_with_it(capsys):
    files = [str(TRAIN), str(TRAIN.with_name("one_structure.json"))]
    _, options = evaluation(told(capsys, "--config_file", files, "--structure", 2, "--learning_rate", 0.1))
    assert options == {"--structure": "2"}


def test_a_bundle_without_an_evaluation_has_no_command_for_it(capsys, tmp_path):
    assert "evaluate:" not in told(capsys, "--config_file", written(tmp_path / "train.json", {}))


def test_of_several_processes_one_tells(capsys, monkeypatch):
    monkeypatch.setattr(idist, "get_rank", lambda: 1)
    assert told(capsys) == {}
