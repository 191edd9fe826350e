"""A grid's cells get their files and options, and whatever is mistyped is refused before anything runs."""

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml

from monai_spct.experiments import Grid, GridError, expand, parse_grid, parse_study, plan
from monai_spct.experiments.lines import refuse_tables
from monai_spct.experiments.planning import changes
from monai_spct.workflow import bundles_folder, copy
from tests.experiments.tiny_bundle import write

ACDC = Grid(("acdc",))


@pytest.fixture
def bundles(tmp_path) -> Path:
    """A copy of the package's bundles that a test may edit."""
    ignored = shutil.ignore_patterns("models", "eval", "phantom", "predictions", "docs")
    return Path(shutil.copytree(bundles_folder(), tmp_path / "bundles", ignore=ignored))


def names(phase) -> list[str]:
    return [path.stem for path in phase.files]


# Files


def test_overlays_are_for_both_commands_methods_for_training_networks_for_both():
    [job] = plan(Grid(("acdc",), ("dan",), ("segnet",), ("phantom", "small"))).jobs
    assert names(job.training) == ["train", "phantom", "small", "dan", "segnet"]
    assert names(job.evaluating) == ["evaluate", "phantom", "small", "segnet"]
    assert all(path.is_absolute() and path.is_file() for path in job.training.files)


def test_each_method_and_network_of_the_package_can_be_planned():
    methods, networks = (
        tuple(sorted(path.stem for path in (bundles_folder() / kind).glob("*.json")))
        for kind in ("methods", "networks")
    )
    grid = Grid(("acdc",), methods, networks, ("small",), {"seed": (0, 1)}, {"max_epochs": 2, "max_pictures": 0})
    jobs = plan(grid).jobs
    assert len(jobs) == len(methods) * len(networks) * 2 >= 60
    for job in jobs:
        assert job.training.content["max_epochs"] == 2
        assert job.training.content["backbone"] == job.evaluating.content["backbone"]


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        (Grid(("acdd",)), r"there is no bundle `acdd` in .*bundles, but \[.*'acdc'.*\]\. Did you mean `acdc`\?"),
        (Grid(("methods",)), "there is no bundle `methods`"),
        (Grid(("acdc",), ("labelled_only",)), r"no `labelled_only` in `methods`\. Did you mean `labeled_only`\?"),
        (Grid(("acdc",), ("defalt",)), r"no `defalt` in `methods`\. Did you mean `default`\?"),
        (Grid(("acdc",), ("enet",)), r"there is no `enet` in `methods`"),
        (Grid(("acdc",), networks=("ent",)), r"no `ent` in `networks`\. Did you mean `enet`\?"),
        (Grid(("acdc",), overlays=("smal",)), r"`acdc` has no overlay `smal`\. Did you mean `small`\?"),
        (Grid(("acdc",), overlays=("train",)), "`acdc` has no overlay `train`"),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_a_file_that_is_not_there_is_refused_with_the_nearest(grid, message):
    with pytest.raises(GridError, match=message):
        plan(grid)


def test_bundles_of_ones_own_are_found_and_the_methods_of_the_package_with_them(tiny):
    write(tiny / "tiny" / "methods" / "plain.json", {"seed": 7})
    [own, package] = plan(Grid(("tiny",), ("plain", "labeled_only")), bundles=tiny).jobs
    assert own.training.files[1] == tiny / "tiny" / "methods" / "plain.json"  # the nearer one
    assert package.training.files[1] == bundles_folder() / "methods" / "labeled_only.json"


def test_a_copied_bundle_is_one_to_run(tmp_path):
    copy("acdc", tmp_path / "mine" / "heart")
    write(tmp_path / "mine" / "heart" / "methods" / "own.json", {"num_views": 3})
    [job] = plan(Grid(("heart",), ("own",), ("unet",)), bundles=tmp_path / "mine").jobs
    assert job.name == "heart/own/unet"
    assert [path.parent.parent.name for path in job.training.files[:2]] == ["heart", "heart"]


def test_a_bundle_without_an_evaluation_is_refused(tiny):
    (tiny / "tiny" / "configs" / "evaluate.json").unlink()
    with pytest.raises(GridError, match="`tiny` has no evaluate"):
        plan(Grid(("tiny",)), bundles=tiny)


def test_an_overlay_that_is_no_json_is_named(tiny):
    (tiny / "methods" / "plain.json").write_text('{"seed": 1,}')
    with pytest.raises(GridError, match=r"methods/plain\.json cannot be read"):
        plan(Grid(("tiny",), ("plain",)), bundles=tiny)


# Keys


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("max_epoch", "max_epochs"),
        ("labelled_ratio", "labeled_ratio"),
        ("trian#trainer#max_epochs", "train"),
        ("train#trainr#max_epochs", "train#trainer"),
        ("train#handler", "train#handlers"),
        ("max_picture", "max_pictures"),  # of the evaluation
        ("on_originl_grid", "on_original_grid"),
        ("seed#x", "seed"),
        ("train#handlers#99", None),
        ("xyzzy", None),
        ("config_file", None),
    ],
)
@pytest.mark.parametrize("place", ["axes", "settings"])
def test_a_key_that_no_config_has_is_refused_with_the_nearest(place, key, near):
    value = [1, 2] if place == "axes" else 1
    with pytest.raises(GridError, match=rf"^`{key}` is no key of acdc/default/default\.") as error:
        plan(parse_grid({"datasets": ["acdc"], place: {key: value}}))
    if near is not None:
        assert str(error.value).endswith(f"Did you mean `{near}`?")


def test_all_mistyped_keys_are_named_at_once():
    with pytest.raises(GridError, match=r"`max_epoch` .*`max_epochs`\? `sed` .*`seed`\?"):
        plan(Grid(("acdc",), settings={"max_epoch": 1, "sed": 1}))


def test_a_key_that_one_of_the_methods_has_not_is_refused_for_this_one():
    grid = Grid(("acdc",), ("entropy_minimization", "labeled_only"), settings={"entropy_weight": 0.2})
    with pytest.raises(GridError, match="`entropy_weight` is no key of acdc/labeled_only/default"):
        plan(grid)


@pytest.mark.parametrize("key", ["output_dir", "bundle_root", "ckpt_path", "resume", "dataset_dir"])
def test_what_the_grid_sees_to_itself_cannot_be_set(key):
    with pytest.raises(GridError, match=f"`{key}` is not for a grid to set: "):
        plan(Grid(("acdc",), settings={key: "x"}))


@pytest.mark.parametrize(
    ("key", "training", "evaluating"),
    [
        ("seed", True, False),
        ("test_ratio", True, True),  # or it would be scored on what it was trained on
        ("split_seed", True, True),
        ("max_pictures", False, True),
        ("train#trainer#max_epochs", True, False),
        ("objective#co_training#_disabled_", True, False),
        ("ema_teacher#decay", True, False),
        ("optimizer#weight_decay", True, False),  # an argument that the config leaves at its default
        ("backbone#dropout", True, True),
        ("structures#4", False, False),
    ],
)
def test_a_key_goes_to_the_commands_that_know_it(key, training, evaluating):
    grid = Grid(("acdc",), settings={key: 0.2})
    if not training and not evaluating:
        with pytest.raises(GridError, match=key):
            plan(grid)
        return
    [job] = plan(grid).jobs
    assert (key in job.training.options, key in job.evaluating.options) == (training, evaluating)


def test_the_settings_end_up_in_the_configuration():
    [job] = plan(Grid(("acdc",), settings={"max_epochs": 3, "ema_teacher#decay": 0.5, "test_ratio": 0.2})).jobs
    assert job.training.content["max_epochs"] == 3
    assert job.training.content["ema_teacher"]["decay"] == 0.5
    assert job.evaluating.content["test_ratio"] == 0.2


# What makes a method


def test_full_supervision_is_run_once_for_all_ratios_and_has_all_labels():
    grid = Grid(("acdc",), ("full_supervision", "labeled_only"), axes={"labeled_ratio": (0.1, 0.05), "seed": (0, 1)})
    found = plan(grid)
    assert [job.name.removeprefix("acdc/") for job in found.jobs] == [
        "full_supervision/default/labeled_ratio=1.0/seed=0",
        "full_supervision/default/labeled_ratio=1.0/seed=1",
        "labeled_only/default/labeled_ratio=0.1/seed=0",
        "labeled_only/default/labeled_ratio=0.1/seed=1",
        "labeled_only/default/labeled_ratio=0.05/seed=0",
        "labeled_only/default/labeled_ratio=0.05/seed=1",
    ]
    assert found.jobs[0].training.options["labeled_ratio"] == 1.0
    assert found.notes == ["full_supervision keeps its own labeled_ratio, 1.0"]


def test_views_are_for_methods_with_several_networks():
    grid = Grid(("acdc",), ("labeled_only", "co_training"), axes={"num_views": (2, 3)})
    assert [job.name.removeprefix("acdc/") for job in plan(grid).jobs] == [
        "labeled_only/default/num_views=1",
        "co_training/default/num_views=2",
        "co_training/default/num_views=3",
    ]


def test_settings_do_not_change_a_method_either():
    found = plan(Grid(("acdc",), ("full_supervision",), settings={"labeled_ratio": 0.05}))
    assert found.jobs[0].training.options == {"labeled_ratio": 1.0}
    assert found.notes == ["full_supervision keeps its own labeled_ratio, 1.0"]


def test_what_a_method_brings_or_repeats_may_be_varied(tiny):
    """`all_labels` sets `ratio` to another value than the bundle, repeats `max_epochs` and brings `new`."""
    axes = {"max_epochs": (4, 8), "new": (1, 2), "ratio": (0.5, 0.25)}
    jobs = plan(Grid(("tiny",), ("all_labels",), axes=axes), bundles=tiny).jobs
    assert [tuple(job.cell.axes.values()) for job in jobs] == [(4, 1, 1.0), (4, 2, 1.0), (8, 1, 1.0), (8, 2, 1.0)]


def test_what_a_method_switches_off_stays_off(tiny):
    write(tiny / "methods" / "off.json", {"seed": None})
    [job] = plan(Grid(("tiny",), ("off",), axes={"seed": (0, 1)}), bundles=tiny).jobs
    assert job.name == "tiny/off/default/seed=null"


def test_a_rule_that_leaves_out_a_repetition_does_no_harm():
    axes = {"labeled_ratio": (0.1, 0.05)}
    rule = {"methods": "full_supervision", "labeled_ratio": 0.05}
    names = [job.name for job in plan(Grid(("acdc",), ("full_supervision",), axes=axes, exclude=(rule,))).jobs]
    assert names == ["acdc/full_supervision/default/labeled_ratio=1.0"]


def test_a_rule_that_matches_nothing_is_noted():
    grid = Grid(("acdc",), axes={"seed": (0, 1)}, exclude=({"seed": 2},))
    assert plan(grid).notes == ["no cell matches {'seed': 2} in exclude"]


def test_a_grid_of_nothing_is_refused():
    with pytest.raises(GridError, match="no cell is left"):
        plan(Grid(("acdc",), axes={"seed": (0, 1)}, exclude=({"seed": [0, 1]},)))


# Two alike


def test_two_cells_of_one_configuration_are_refused():
    grid = Grid(("acdc",), networks=("default", "enet"))
    with pytest.raises(GridError, match=r"two cells are alike: acdc/default/default and acdc/default/enet"):
        plan(grid)


def test_the_same_run_with_other_workers_is_not_two():
    with pytest.raises(GridError, match="two cells are alike"):
        plan(Grid(("acdc",), axes={"num_workers": (0, 4)}))


# Data


def test_a_folder_of_data_is_given_to_both_commands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    [job] = plan(ACDC, data={"acdc": "data/acdc"}).jobs
    assert job.data == str(tmp_path / "data" / "acdc")
    assert {phase.content["dataset_dir"] for phase in (job.training, job.evaluating)} == {job.data}


def test_where_the_data_are_does_not_make_another_configuration():
    [here], [there] = (plan(ACDC, data={"acdc": folder}).jobs for folder in ("a", "b"))
    assert here.digest == there.digest == plan(ACDC).jobs[0].digest


def test_how_data_are_made_does():
    made, larger = (
        plan(Grid(("acdc",), overlays=("phantom",), settings={"dataset_dir#patients": patients})).jobs[0]
        for patients in (5, 6)
    )
    assert changes(made.configuration, larger.configuration) == ["`dataset_dir#patients` was 5, is 6"]
    assert larger.evaluating.options == larger.training.options == {"dataset_dir#patients": 6}


def test_data_of_another_dataset_are_refused():
    with pytest.raises(GridError, match=r"`acd` in `data` is no dataset of this grid\. Did you mean `acdc`\?"):
        plan(ACDC, data={"acd": "x"})


def test_made_data_cannot_be_changed_and_replaced_at_once():
    grid = Grid(("acdc",), overlays=("phantom",), settings={"dataset_dir#patients": 5})
    with pytest.raises(GridError, match="`dataset_dir#patients` is no key of"):
        plan(grid, data={"acdc": "x"})


# Differences


def test_an_edited_file_is_another_configuration_and_the_difference_is_shown(bundles):
    grid = Grid(("acdc",), ("dan",), ("unet",), ("small",))
    [before] = plan(grid, bundles=bundles).jobs
    for path, edits in (
        ("acdc/configs/small.json", {"crop_size": 80}),
        ("methods/dan.json", {"adversarial_weight": 0.2, "more": [1]}),
    ):
        write(bundles / path, {**json.loads((bundles / path).read_text()), **edits})
    [after] = plan(grid, bundles=bundles).jobs
    assert after.name == before.name
    assert after.digest != before.digest
    assert sorted(changes(before.configuration, after.configuration)) == [
        "`adversarial_weight` was 0.01, is 0.2",
        "`crop_size` was 96, is 80",
        "`more#0` was not there, is 1",
    ]


def test_the_same_files_elsewhere_are_the_same_configuration(bundles):
    assert plan(ACDC, bundles=bundles).jobs[0].digest == plan(ACDC).jobs[0].digest


def test_a_file_that_a_config_reads_belongs_to_it(bundles):
    other = write(bundles / "other.json", {"rate": 0.5})
    config = bundles / "acdc" / "configs" / "small.json"
    write(config, {**json.loads(config.read_text()), "learning_rate": f"%{other}#rate"})
    grid = Grid(("acdc",), overlays=("small",))
    [before] = plan(grid, bundles=bundles).jobs
    assert before.training.content["learning_rate"] == 0.5
    write(other, {"rate": 0.25})
    [after] = plan(grid, bundles=bundles).jobs
    assert changes(before.configuration, after.configuration) == ["`learning_rate` was 0.5, is 0.25"]


@pytest.mark.parametrize("name", ["run_a_grid.md", "report.md"])
def test_the_guides_show_studies_that_can_be_planned_and_shown(name):
    page = Path(__file__).parents[2] / "docs" / "how-to" / name
    if not page.is_file():
        pytest.skip("pages come with a checkout")
    studies = re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    assert studies
    for text in studies:
        study = parse_study(yaml.safe_load(text))
        jobs = plan(study.grids).jobs
        assert 0 < len(jobs) <= sum(len(expand(grid)) for grid in study.grids)
        refuse_tables(study, [job.cell for job in jobs])
