"""The table of cases tells what networks said, and leaves what they say as it is."""

import csv
import logging
import math

import pytest
import torch
from monai.data import DataLoader, Dataset, MetaTensor
from monai.engines import SupervisedEvaluator
from monai.transforms import AsDiscreted

from monai_spct.handlers import SaveRanking
from monai_spct.inferers import VolumeInferer
from monai_spct.metrics import VolumeScores, expected_dice
from monai_spct.networks import ENet, build_ensemble


def cases(count: int = 4) -> list[dict]:
    volumes = torch.rand(count, 1, 24, 20, 3, generator=torch.Generator().manual_seed(0))
    return [
        {
            "case": f"p{index}",
            "image": MetaTensor(volume * index, affine=torch.eye(4), meta={"filename_or_obj": f"/data/{index}.nii"}),
            "label": MetaTensor((volume * (index + 1)).floor(), affine=torch.eye(4)),
        }
        for index, volume in enumerate(volumes)
    ]


def evaluated(path, *, num_views: int, scored: bool = False, ranked: bool = True, **inferer):
    scores = VolumeScores(structures=["RV", "Myo", "LV"])
    evaluator = SupervisedEvaluator(
        device=torch.device("cpu"),
        val_data_loader=DataLoader(Dataset(cases()), batch_size=1),
        network=build_ensemble(ENet, num_views=num_views, seed=1),
        inferer=VolumeInferer(**inferer),
        postprocessing=AsDiscreted("pred", argmax=True),
        key_val_metric={"mean_dsc": scores} if scored else None,
        val_handlers=[SaveRanking(path, metric=scores if scored else None)] if ranked else [],
    )
    masks = []
    evaluator.add_event_handler("ITERATION_COMPLETED", lambda engine: masks.append(engine.state.output[0]["pred"]))
    for _ in range(2):  # a second run is like the first
        masks.clear()
        evaluator.run()
    return masks


def read(path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    "inferer", [{}, {"augment": True}, {"patch_size": (16, 16)}], ids=["slices", "views", "windows"]
)
def test_what_networks_say_is_summed_up_by_case_and_passed_on_as_it_was(tmp_path, inferer):
    masks = evaluated(tmp_path / "eval" / "ranking.csv", num_views=2, **inferer)
    plain = evaluated(tmp_path, num_views=2, ranked=False, **inferer)
    for mask, other in zip(masks, plain, strict=True):
        torch.testing.assert_close(mask, other)
        assert mask.meta["filename_or_obj"] == other.meta["filename_or_obj"]
    table = read(tmp_path / "eval" / "ranking.csv")
    assert list(table[0]) == ["case", "image", "expected_dsc", "entropy", "disagreement"]
    assert {(row["case"], row["image"]) for row in table} == {(f"p{i}", f"/data/{i}.nii") for i in range(4)}
    assert sorted(table, key=lambda row: float(row["expected_dsc"])) == table
    assert all(0 < float(row["disagreement"]) < float(row["entropy"]) for row in table)


def test_the_numbers_are_those_of_their_definitions(tmp_path):
    evaluated(tmp_path / "ranking.csv", num_views=3)
    networks = build_ensemble(ENet, num_views=3, seed=1).eval().networks
    rows = {row["case"]: row for row in read(tmp_path / "ranking.csv")}
    for case in cases():
        slices = case["image"].as_tensor().movedim(-1, 0)
        with torch.no_grad():
            each = [torch.softmax(network(slices), 1) for network in networks]
        mean = sum(each) / 3
        whole = -(mean * mean.log()).sum()
        spread = whole + sum((probs * probs.log()).sum() for probs in each) / 3
        found = [float(rows[case["case"]][name]) for name in ("expected_dsc", "entropy", "disagreement")]
        voxels = mean[:, 1:].sum()
        expected = expected_dice(mean.movedim(0, -1)[None]).mean(), whole / voxels, spread / voxels
        assert found == pytest.approx([float(number) for number in expected], abs=2e-4)


def test_one_network_does_not_disagree(tmp_path):
    evaluated(tmp_path / "ranking.csv", num_views=1)
    assert {row["disagreement"] for row in read(tmp_path / "ranking.csv")} == {""}


def test_with_labels_the_true_dsc_stands_beside_what_was_expected(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    evaluated(tmp_path / "ranking.csv", num_views=1, scored=True)
    table = read(tmp_path / "ranking.csv")
    assert all(0 <= float(row["dsc"]) <= 1 for row in table)
    assert len({row["dsc"] for row in table}) > 1
    rank = {name: sorted(range(4), key=lambda i: float(table[i][name])) for name in ("expected_dsc", "dsc")}
    places = [[order.index(i) for i in range(4)] for order in rank.values()]
    rho = 1 - 6 * sum((a - b) ** 2 for a, b in zip(*places, strict=True)) / (4 * 15)
    said = [record.getMessage() for record in caplog.records if "Spearman" in record.getMessage()]
    assert math.isclose(float(said[-1].rsplit(" ", 1)[-1]), rho, abs_tol=6e-3)
