"""Each system that the method is compared with trains what it should, predicts with whom it should, and resumes."""

import json
import math
import re
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from ignite.engine import Events
from monai.bundle import ConfigParser, ConfigWorkflow

from monai_spct.data import acdc_cases, split_cases, write_promise12_phantom, write_spleen_phantom
from monai_spct.handlers import scalars
from monai_spct.networks import Discriminator, Ensemble
from tests.bundles.little import BUNDLES, config, failure, overlay, part, training, typed
from tests.bundles.states import loaded_safely, same
from tests.forks import forked


class Method(NamedTuple):
    """What a system is made of."""

    terms: set[str]  # beside the supervised one
    students: int = 1
    teachers: bool = False
    augmented: bool = False
    notes: frozenset[str] = frozenset()
    teacher_passes: int = 1
    mixed: bool = False


SPACED = frozenset({"gamma", "selected_share", "disagreement"})
PLAIN = frozenset({"disagreement"})
CERTAIN = frozenset({"certain_share"})
TRUSTED = frozenset({"trusted_share"})
METHODS = {
    "full_supervision": Method(set()),
    "labeled_only": Method(set()),
    "entropy_minimization": Method({"entropy"}),
    "dan": Method({"adversarial"}),
    "mean_teacher": Method({"consistency"}, teachers=True, augmented=True),
    "ua_mt": Method({"consistency"}, teachers=True, augmented=True, notes=CERTAIN, teacher_passes=9),
    "best": Method({"pseudo_labels"}, teachers=True, augmented=True, notes=TRUSTED),
    "copy_paste": Method({"pseudo_labels"}, teachers=True, notes=TRUSTED, mixed=True),
    "cutmix": Method({"pseudo_labels"}, teachers=True, augmented=True, notes=TRUSTED),
    "cross_supervision": Method({"pseudo_labels"}, students=2, teachers=True, augmented=True, notes=TRUSTED),
    "co_training": Method({"co_training"}, students=2, notes=PLAIN),
    "self_paced": Method({"co_training"}, students=2, notes=SPACED),
    "self_consistent": Method({"co_training", "consistency"}, students=2, teachers=True, augmented=True, notes=PLAIN),
    "self_paced_self_consistent": Method(
        {"co_training", "consistency"}, students=2, teachers=True, augmented=True, notes=SPACED
    ),
}
EACH = pytest.mark.parametrize("name", METHODS)

# no unlabeled image counts in the first of the two epochs; an untrained teacher is nowhere certain
LABELED, UNLABELED = 2, 3
OWN = {
    "copy_paste": {"unlabeled_batch_size": LABELED},
    "cutmix": {"confidence": 0.0},
    "best": {"confidence": 0.0},
    "ua_mt": {"threshold_start": 1.0},
    "full_supervision": {"labeled_patients": None},
}


def initialized(name: str, data: Path, output: Path, **settings: object) -> ConfigWorkflow:
    """A system's training."""
    settings = {"epoch_length": 1, "unlabeled_batch_size": UNLABELED, **OWN.get(name, {}), **settings}
    return training(data, output, overlay(name), **settings)


class Trained:
    """A short training, and what was seen of it."""

    def __init__(self, name: str, data: Path, output: Path, **settings: Any) -> None:
        self.output = output
        self.workflow = initialized(name, data, output, **settings)
        self.outputs: list[dict[str, float]] = []
        self.passes: list[tuple[int, str, int]] = []  # iteration, who, of how many images
        self.deterministic: list[bool] = []
        self.trainer = self["train#trainer"]
        self.trainer.add_event_handler(
            Events.ITERATION_STARTED,
            lambda: self.deterministic.append(torch.are_deterministic_algorithms_enabled()),
        )
        self.trainer.add_event_handler(
            Events.ITERATION_COMPLETED,
            lambda engine: self.outputs.append({n: float(x) for n, x in scalars(engine.state.output).items()}),
        )
        for who, ensemble in (("student", self["network"]), ("teacher", self["teachers"])):
            for k, network in enumerate([] if ensemble is None else ensemble.networks):
                network.register_forward_hook(
                    lambda module, inputs, output, who=f"{who} {k}": self.passes.append(  # noqa: ARG005
                        (self.trainer.state.iteration, who, len(inputs[0]))
                    )
                )

    def __getitem__(self, key: str) -> Any:
        return part(self.workflow, key)

    def run(self) -> "Trained":
        torch.use_deterministic_algorithms(True)
        try:
            self.workflow.run()
        finally:
            torch.use_deterministic_algorithms(False)
        return self

    def file(self, name: str) -> dict[str, Any]:
        return torch.load(self.output / "models" / name, weights_only=True)


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    """Two iterations of a method, by its name; each method trains once."""
    base, runs = tmp_path_factory.mktemp("runs"), {}

    def train(name: str) -> Trained:
        if name not in runs:
            runs[name] = Trained(name, data, base / name).run()
        return runs[name]

    return train


# What each is made of


def test_every_overlay_is_in_the_table():
    assert {path.stem for path in (BUNDLES / "methods").glob("*.json")} == {*METHODS, "distill"}


@EACH
def test_losses_and_notes_are_those_of_the_method(trained, name):
    outputs, method = trained(name).outputs, METHODS[name]
    losses = {"loss", "supervised_loss", *(f"{term}_loss" for term in method.terms)}
    beside = {"discriminator_loss"} if name == "dan" else set()
    weights = {f"{term}_weight" for term in method.terms}
    assert [set(output) for output in outputs] == [losses | beside | weights | method.notes] * 2
    for output in outputs:
        assert output["loss"] == pytest.approx(sum(output[loss] for loss in losses - {"loss"}), rel=1e-5)
    for term in method.terms:
        assert outputs[0][f"{term}_loss"] == 0.0, term  # weights rise from 0
        assert outputs[1][f"{term}_loss"] > 0.0, term
        assert outputs[0][f"{term}_weight"] == 0.0 < outputs[1][f"{term}_weight"], term
    if "certain_share" in method.notes:
        assert outputs[1]["certain_share"] > 0.9


@EACH
def test_as_many_networks_learn_teach_and_predict_as_the_method_has(trained, name):
    run, method = trained(name), METHODS[name]
    assert len(run["network"].networks) == method.students
    assert (run["teachers"] is not None) == method.teachers
    assert (run.trainer.inferer.transform is not None) == method.augmented
    assert run.trainer.inferer.teachers is run["teachers"]
    assert run["predictor"] is run["teachers" if method.teachers else "network"]
    assert same(run.file("model.pt"), dict(run["predictor"].state_dict()))
    if method.teachers:
        assert isinstance(run["teachers"], Ensemble)
        assert len(run["teachers"].networks) == method.students
        assert not same(run.file("model.pt"), dict(run["network"].state_dict()))


@EACH
def test_optimizers_change_students_and_no_teacher(trained, name):
    run = trained(name)
    learning = [p for group in run["optimizer"].param_groups for p in group["params"]]
    assert {id(p) for p in learning} == {id(p) for p in run["network"].parameters()}
    if run["teachers"] is not None:
        everyone = [*learning, *(run["discriminator"].parameters() if name == "dan" else [])]
        assert {p.data_ptr() for p in run["teachers"].parameters()}.isdisjoint(p.data_ptr() for p in everyone)
        assert not any(parameter.requires_grad for parameter in run["teachers"].parameters())


@EACH
def test_students_learn_and_teachers_follow_them(trained, data, tmp_path, name):
    run, first = trained(name), initialized(name, data, tmp_path)
    for key in ("network", "teachers"):
        if part(first, key) is not None:
            pairs = zip(run[key].parameters(), part(first, key).parameters(), strict=True)
            assert any(not torch.equal(mine, untrained) for mine, untrained in pairs), key


@EACH
def test_each_network_runs_as_often_in_an_iteration_as_the_method_needs(trained, name):
    method = METHODS[name]
    images = LABELED + (UNLABELED if method.terms and not method.mixed else 0)
    expected = Counter({(iteration, f"student {k}", images): 1 for iteration in (1, 2) for k in range(method.students)})
    if method.teachers:
        for iteration in (1, 2):
            for k in range(method.students):
                taught = LABELED if method.mixed else UNLABELED
                expected[iteration, f"teacher {k}", taught] = method.teacher_passes
    assert Counter(trained(name).passes) == expected


@EACH
def test_the_last_state_holds_all_that_learns_and_loads_safely(trained, name):
    last, method = trained(name).file("last.pt"), METHODS[name]
    assert {path.name for path in loaded_safely(trained(name).output)} == {"last.pt", "last_1.pt", "model.pt"}
    assert {"network", "optimizer", "lr_scheduler", "run"} <= set(last)
    assert ({"teachers", "ema_teacher"} <= set(last)) == method.teachers
    assert ("discriminator_step" in last) == (name == "dan")
    assert last["run"]["epoch"] == 2


@pytest.mark.parametrize(("name", "backbone"), [("ua_mt", "UNet"), ("dan", "SegNet")])
def test_other_backbones_train_under_deterministic_algorithms_too(data, tmp_path, backbone, name):
    """As all runs here do: an operation without such an algorithm ends a run."""
    settings = {"backbone#_target_": f"monai_spct.networks.{backbone}", "backbone#features": 4, "max_epochs": 1}
    run = Trained(name, data, tmp_path, **settings).run()
    assert type(run["network"].networks[0]).__name__ == backbone
    assert run.deterministic == [True]


def test_the_number_of_passes_of_ua_mt_can_be_set(tmp_path, data):
    run = Trained("ua_mt", data, tmp_path, passes=4, max_epochs=1).run()
    assert Counter(who for _, who, _ in run.passes) == {"student 0": 1, "teacher 0": 5}


def test_the_threshold_of_ua_mt_rises_to_the_largest_entropy(data, tmp_path):
    run = initialized("ua_mt", data, tmp_path, threshold_start=0.75)
    threshold = part(run, "objective").terms["consistency"].term.threshold
    assert threshold(0.0) == pytest.approx(0.75, abs=2e-3)
    assert threshold(0.0) < threshold(0.5) < threshold(0.99)
    assert threshold(1.0) == 1.0


def test_the_whole_method_is_what_training_does_without_an_overlay():
    plain, overlaid = ConfigParser(), ConfigParser()
    plain.read_config(str(config("train")))
    overlaid.read_config([str(config("train")), str(overlay("self_paced_self_consistent"))])
    assert overlaid.get() == plain.get()


def test_a_third_student_may_be_asked_for(tmp_path, data):
    run = Trained("self_consistent", data, tmp_path, num_views=3, max_epochs=1).run()
    assert {who for _, who, _ in run.passes} == {f"{who} {k}" for who in ("student", "teacher") for k in range(3)}


@pytest.mark.parametrize("name", ["co_training", "cross_supervision", "self_paced", "self_consistent"])
def test_one_student_cannot_train_together(tmp_path, data, name):
    said = failure(lambda: Trained(name, data, tmp_path, num_views=1, max_epochs=1).run())
    assert re.search("`num_views` must be .*at least 2, got 1", said), said


# Other bundles

OTHERS = {  # 5 patients: 1 labeled, 3 unlabeled, 1 for testing
    "prostate": partial(write_promise12_phantom, patients=5, size=(40, 44), spacing=(2.3, 2.5), slices=(4, 5)),
    "spleen": partial(write_spleen_phantom, patients=5, size=(48, 52), spacing=(6.7, 7.0), slices=(4, 5)),
}
BESIDE = {"prostate": {}, "spleen": {"num_test": 1, "image_size": 48}}


@pytest.fixture(scope="module")
def other_data(tmp_path_factory) -> dict[str, Path]:
    return {bundle: write(tmp_path_factory.mktemp(bundle) / "data") for bundle, write in OTHERS.items()}


@pytest.mark.parametrize("name", ["dan", "ua_mt", "copy_paste"])
@pytest.mark.parametrize("bundle", OTHERS)
def test_methods_of_each_kind_train_in_the_other_bundles_too(other_data, tmp_path, bundle, name):
    if bundle == "prostate":
        pytest.importorskip("itk")
    settings = {**BESIDE[bundle], "cache_dir": str(tmp_path / "cache")}
    run = Trained(name, other_data[bundle], tmp_path, bundle=bundle, **settings).run()
    assert len(run.outputs) == 2
    for output in run.outputs:
        losses = {"loss", "supervised_loss", *(f"{term}_loss" for term in METHODS[name].terms)}
        assert losses | METHODS[name].notes <= set(output)
        assert all(math.isfinite(value) for value in output.values())
    assert len(run["network"].networks) == METHODS[name].students
    assert run["network"].networks[0](torch.zeros(1, 1, 32, 32)).shape == (1, 2, 32, 32)


# Labels


def test_full_supervision_labels_all_training_patients(trained, data):
    """Also where another overlay says how many patients are labeled."""
    parser = ConfigParser()
    parser.read_config([str(config("train")), str(config("phantom")), str(overlay("full_supervision"))])
    parser["dataset_dir"] = str(data)
    for split in (trained("full_supervision")["split"], parser.get_parsed_content("split")):
        assert split.unlabeled == []
        assert len({case["patient"] for case in split.labeled}) == 4


def test_labels_only_leave_the_others_unread(trained):
    run = trained("labeled_only")
    assert len({case["patient"] for case in run["split"].unlabeled}) == 3
    assert run["train#unlabeled_dataset"] is None


@pytest.mark.parametrize("name", ["dan", "ua_mt", "copy_paste", "self_paced_self_consistent"])
def test_where_all_patients_are_labeled_every_method_is_a_supervised_run(tmp_path, data, name):
    run = Trained(name, data, tmp_path, labeled_patients=None, labeled_ratio=1, max_epochs=1).run()
    assert [set(output) for output in run.outputs] == [{"loss", "supervised_loss"}]
    assert run["split"].unlabeled == []
    assert {who for _, who, _ in run.passes} == {f"student {k}" for k in range(METHODS[name].students)}
    assert "discriminator_step" not in run.file("last.pt")
    assert same(run.file("model.pt"), dict(run["predictor"].state_dict()))


# From many networks to one


def test_one_network_learns_from_the_vote_of_a_trained_ensemble_on_all_images(trained, data, tmp_path):
    ensemble = trained("self_paced_self_consistent").output / "models" / "model.pt"
    before = ensemble.read_bytes()
    run = Trained("distill", data, tmp_path, ensemble_path=ensemble, max_epochs=1).run()
    assert Counter(run.passes) == Counter(
        {(1, "student 0", LABELED + UNLABELED): 1, (1, "teacher 0", UNLABELED): 1, (1, "teacher 1", UNLABELED): 1}
    )
    assert len(run["train#unlabeled_dataset"].volumes) == 8  # those of the labeled patient, too
    assert run.outputs[0]["distillation_loss"] > 0
    assert len({name.split(".")[1] for name in run.file("model.pt")}) == 1
    assert same(run.file("model.pt"), dict(run["network"].state_dict()))
    assert same(dict(run["teachers"].state_dict()), torch.load(ensemble, weights_only=True))
    assert ensemble.read_bytes() == before
    assert not {"teachers", "ema_teacher"} & set(run.file("last.pt"))


def test_an_ensemble_of_another_grid_or_split_is_refused(trained, data, tmp_path):
    models = trained("self_paced_self_consistent").output / "models"
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "model.pt").write_bytes((models / "model.pt").read_bytes())
    settings = {**json.loads((models / "model.json").read_text()), "num_validation": 2, "resampling": ["other"]}
    (tmp_path / "models" / "model.json").write_text(json.dumps(settings))
    said = failure(lambda: initialized("distill", data, tmp_path, ensemble_path=tmp_path / "models" / "model.pt"))
    assert "were trained with other settings: give the same `num_validation`, `resampling`." in said


# The discriminator of DAN


def test_the_discriminator_judges_learns_and_is_saved_as_one(trained, data, tmp_path):
    run = trained("dan")
    assert isinstance(run["discriminator"], Discriminator)
    assert run.trainer.inferer.discriminator is run["discriminator"]
    saved = run.file("last.pt")["discriminator_step"]
    assert same(saved["discriminator"], dict(run["discriminator"].state_dict()))
    first = initialized("dan", data, tmp_path, discriminator_learning_rate=0.5)
    for name, value in part(first, "discriminator").state_dict().items():
        assert not torch.equal(value, saved["discriminator"][name]), name
    assert {int(state["step"]) for state in saved["optimizer"]["state"].values()} == {2}
    assert saved["optimizer"]["param_groups"][0]["lr"] == 1e-4
    assert part(first, "discriminator_optimizer").param_groups[0]["lr"] == 0.5


@pytest.mark.parametrize(
    ("name", "settings", "value"),
    [
        ("dan", {"adversarial_weight": 7.0}, 7.0),
        ("entropy_minimization", {"entropy_weight": 3.0}, 3.0),
        ("mean_teacher", {"consistency_weight": 2.0}, 2.0),
        ("ua_mt", {"consistency_weight": 2.0}, 2.0),
        ("copy_paste", {"pseudo_label_weight": 2.0}, 2.0),
        ("co_training", {"co_training_weight": 0.25}, 0.25),
    ],
)
def test_the_weight_of_a_term_can_be_set(tmp_path, data, name, settings, value):
    (term,) = METHODS[name].terms
    weight = part(initialized(name, data, tmp_path, **settings), "objective").terms[term].weight
    assert [weight(0.0), weight(0.5), weight(0.9)] == [0.0, value, value]
    assert 0 < weight(0.3) < value


def test_a_crop_that_is_too_small_to_judge_is_refused(tmp_path, data):
    said = failure(lambda: Trained("dan", data, tmp_path, crop_size=24).run())
    assert "`Discriminator` needs images of at least 32 voxels" in said


# Going on


def crash() -> None:
    raise OSError("the machine is gone")


@pytest.mark.parametrize("name", ["dan", "ua_mt", "co_training", "copy_paste", "cutmix"])
def test_a_run_that_broke_off_ends_where_it_would_have_ended(trained, data, tmp_path, name):
    """Dropout and noise of the teachers' passes and the discriminator included."""
    broken = Trained(name, data, tmp_path)
    broken.trainer.add_event_handler(Events.EPOCH_STARTED(once=2), crash)
    assert "the machine is gone" in failure(broken.run)
    assert broken.file("last.pt")["run"]["epoch"] == 1
    resumed = Trained(name, data, tmp_path, resume=True).run()
    assert resumed.outputs == trained(name).outputs[1:]
    for file in ("last.pt", "model.pt"):
        whole, parts = trained(name).file(file), resumed.file(file)
        differing = {key for key in whole.keys() | parts.keys() if not same(whole.get(key), parts.get(key))}
        assert differing <= {"history"}, file  # which has seconds in it


def test_the_state_of_another_method_is_refused(trained, data, tmp_path):
    (tmp_path / "models").mkdir()
    torch.save(trained("mean_teacher").file("last.pt"), tmp_path / "models" / "last.pt")
    said = failure(lambda: Trained("dan", data, tmp_path, resume=True, max_epochs=3).run())
    assert "another kind of run: it holds" in said


# As a user types it


def test_dan_is_trained_and_evaluated_on_the_phantom_from_the_command_line(tmp_path):
    size = {"dataset_dir#patients": 12, "dataset_dir#size": [40, 44], "dataset_dir#spacing": [3.2, 3.5]}
    little = {"max_epochs": 1, "epoch_length": 2, "crop_size": 32}
    for verb, name, more, overlays in (
        ("training", "train", little, ["methods/dan"]),
        ("evaluating", "evaluate", {}, []),
    ):
        names = [f"{BUNDLES.name}/{file}.json" for file in (f"acdc/configs/{name}", "acdc/configs/phantom", *overlays)]
        done = forked(typed(verb, *names, output_dir=tmp_path, **size, **more), BUNDLES.parent)
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
    last = torch.load(tmp_path / "models" / "last.pt", weights_only=True)
    assert {int(state["step"]) for state in last["discriminator_step"]["optimizer"]["state"].values()} == {2}
    assert len({name.split(".")[1] for name in last["network"]}) == 1
    tested = split_cases(acdc_cases(tmp_path / "data"), labeled_patients=3).test
    rows = (tmp_path / "eval" / "scores.csv").read_text().splitlines()[1:]
    assert {row.split(",")[0] for row in rows} == {case["case"] for case in tested}
