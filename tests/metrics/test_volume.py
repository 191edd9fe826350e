"""Scores per volume agree with a brute-force reference, and no network gains by leaving a structure out."""

import json
import math
from itertools import product

import nibabel as nib
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from ignite.exceptions import NotComputableError
from monai.data import DataLoader, Dataset, MetaTensor
from monai.engines import SupervisedEvaluator
from monai.transforms import AsDiscreted, Compose, LoadImage

from monai_spct.data import VolumeReader
from monai_spct.metrics.volume import (
    StructureScore,
    VolumeScores,
    format_table,
    score_volume,
    summarize,
    write_scores,
)
from tests.forks import two_forked

CARDIAC = {1: "RV", 2: "Myo", 3: "LV"}


def surface_by_hand(mask):
    """Millimeter-less coordinates of the voxels with a face neighbor outside the mask, or outside the volume."""
    voxels = set(map(tuple, np.argwhere(mask)))
    steps = [
        tuple(sign * (axis == other) for other in range(mask.ndim)) for axis in range(mask.ndim) for sign in (-1, 1)
    ]
    return [
        v for v in voxels if any(tuple(a + b for a, b in zip(v, step, strict=True)) not in voxels for step in steps)
    ]


def hausdorff_by_hand(pred, truth, spacing):
    points = [np.array(surface_by_hand(mask), float) * spacing for mask in (pred, truth)]
    pairs = np.sqrt(((points[0][:, None] - points[1][None]) ** 2).sum(-1))
    there, back = pairs.min(1), pairs.min(0)
    return max(there.max(), back.max()), max(np.percentile(there, 95), np.percentile(back, 95))


def dice_by_hand(pred, truth):
    p, t = set(map(tuple, np.argwhere(pred))), set(map(tuple, np.argwhere(truth)))
    return 2 * len(p & t) / (len(p) + len(t))


def box(*slices, shape=(8, 8, 4)):
    mask = np.zeros(shape, np.uint8)
    mask[slices] = 1
    return mask


BLOCK = (slice(2, 6), slice(2, 6))


def test_masks_one_slice_apart_are_one_slice_thickness_apart():
    (score,) = score_volume(box(*BLOCK, 1), box(*BLOCK, 2), structures={1: "LV"}, spacing=(1, 1, 10), case="patient001")
    assert score == StructureScore("patient001", "LV", dsc=0.0, hd=10.0, hd95=10.0, missed=False)


@settings(deadline=None, max_examples=60)
@given(
    maps=hnp.array_shapes(min_dims=2, max_dims=3, min_side=2, max_side=7).flatmap(
        lambda shape: st.tuples(*[hnp.arrays(np.int64, shape, elements=st.integers(0, 3))] * 2)
    ),
    spacing=st.tuples(*[st.sampled_from([0.5, 1, 1.25, 1.3671875, 10])] * 3),
)
def test_scores_agree_with_brute_force_and_are_symmetric(maps, spacing):
    pred, truth = maps
    spacing = spacing[: pred.ndim]
    scores = score_volume(pred, truth, structures=CARDIAC, spacing=spacing)
    for (index, name), score in zip(CARDIAC.items(), scores, strict=True):
        assert score.structure == name
        p, t = pred == index, truth == index
        if p.any() and t.any():
            assert not score.missed
            assert score.dsc == dice_by_hand(p, t)
            assert (score.hd, score.hd95) == pytest.approx(hausdorff_by_hand(p, t, spacing), rel=1e-12)
            assert score.hd95 <= score.hd <= math.dist([0] * pred.ndim, np.multiply(pred.shape, spacing))
    assert score_volume(truth, pred, structures=CARDIAC, spacing=spacing) == scores


@settings(deadline=None, max_examples=40)
@given(
    maps=st.tuples(*[hnp.arrays(np.int64, (4, 5, 3), elements=st.integers(0, 3))] * 2),
    spacing=st.tuples(*[st.floats(0.1, 20)] * 3),
    order=st.permutations(range(3)),
    flipped=st.sets(st.integers(0, 2)),
    shift=st.integers(0, 3),
)
def test_scores_do_not_depend_on_how_the_axes_lie(maps, spacing, order, flipped, shift):
    pred, truth = maps
    expected = score_volume(pred, truth, structures=CARDIAC, spacing=spacing)

    def moved(volume):
        volume = np.flip(volume, tuple(flipped)).transpose(order)
        return np.pad(volume, shift)

    scores = score_volume(moved(pred), moved(truth), structures=CARDIAC, spacing=[spacing[axis] for axis in order])
    for one, other in zip(expected, scores, strict=True):
        assert (one.dsc, one.missed) == (other.dsc, other.missed)
        if not one.missed:  # a missed one counts by the size of the volume, which grew
            assert (other.hd, other.hd95) == pytest.approx((one.hd, one.hd95), rel=1e-9)


@pytest.mark.parametrize(
    ("predicted", "true", "dsc", "missed"),
    [(False, False, 1, False), (False, True, 0, True), (True, False, 0, True), (True, True, 1, False)],
    ids=["neither", "overlooked", "invented", "both"],
)
def test_the_rule_for_structures_that_one_side_lacks(predicted, true, dsc, missed):
    empty, full = box(shape=(3, 4, 12)) * 0, box(1, 1, 1, shape=(3, 4, 12))
    pred, truth = (full if here else empty for here in (predicted, true))
    (score,) = score_volume(pred, truth, structures=["LV"], spacing=(1, 1, 1))
    distance = 13.0 if missed else 0.0  # 3, 4, 12, 13 is a diagonal
    assert score == StructureScore("", "LV", dsc, distance, distance, missed)
    (stretched,) = score_volume(pred, truth, structures=["LV"], spacing=(2, 2, 2))
    assert stretched.hd == 2 * distance


@pytest.mark.parametrize("structures", [{"1": "LV"}, ["LV"]], ids=["json", "list"])
def test_arguments_may_be_of_many_kinds(structures):
    pred, truth = box(*BLOCK, 1), box(*BLOCK)
    expected = score_volume(pred, truth, structures={1: "LV"}, spacing=(1.0, 2.0, 3.0))
    for one, other, spacing in (
        (pred[None], truth, (1, 2.0, 3)),
        (torch.tensor(pred).float(), MetaTensor(truth[None]), torch.tensor([1.0, 2, 3])),
        (pred > 0, truth, np.array([1, 2, 3], np.float32)),
    ):
        assert score_volume(one, other, structures=structures, spacing=spacing) == expected


@pytest.mark.parametrize(
    ("pred", "truth", "changes", "message"),
    [
        (box(), box(shape=(8, 8, 5)), {}, r"'p7' differ in shape: \(8, 8, 4\) and \(8, 8, 5\)"),
        (np.zeros((4, 8, 8, 4)), box(), {}, r"`pred` of 'p7' must hold class indices of shape .* got \(4, 8, 8, 4\)"),
        (box() * 0.3, box(), {}, r"`pred` of 'p7' must hold class indices, got fractions"),
        (box() * np.nan, box(), {}, r"`pred` of 'p7' must hold class indices, got fractions"),
        (box(), box(), {"spacing": (1, 0, 1)}, r"`spacing` must be positive .* got \(1.0, 0.0, 1.0\)"),
        (box(), box(), {"spacing": (1, math.nan, 1)}, r"`spacing` must be positive"),
        (box(), box(), {"structures": {0: "background"}}, r"`structures` must name one or more classes above 0"),
        (box(), box(), {"structures": []}, r"`structures` must name one or more classes above 0"),
    ],
    ids=["shapes", "one-hot", "probabilities", "nan", "zero-spacing", "nan-spacing", "background", "nothing"],
)
def test_what_cannot_be_scored_is_said(pred, truth, changes, message):
    with pytest.raises(ValueError, match=message):
        score_volume(pred, truth, **{"structures": ["LV"], "spacing": (1, 1, 1), "case": "p7", **changes})


@pytest.mark.parametrize("qform_code", [1, 0])
def test_distances_are_those_of_pixdim_where_the_sform_says_one_millimeter(tmp_path, qform_code):
    voxels = np.zeros((16, 16, 3), np.uint8)
    voxels[4:12, 4:12, 1] = 1
    image = nib.Nifti1Image(voxels, np.diag([-1.25, -1.25, 10, 1]))
    image.set_sform(np.diag([-1, -1, 1, 1]), code=1)
    image.set_qform(np.diag([-1.25, -1.25, 10, 1]), code=qform_code)
    nib.save(image, tmp_path / "patient001.nii.gz")
    label = LoadImage(reader=VolumeReader(), ensure_channel_first=True)(tmp_path / "patient001.nii.gz")
    metric = VolumeScores(structures=["LV"])
    for shift, axis, distance in ((1, 3, 10.0), (2, 1, 2.5)):
        metric.reset()
        metric.update(([torch.roll(label, shift, axis)], [label]))
        metric.compute()
        assert metric.rows[0].hd == distance


# through MONAI's evaluator


class Shifted(torch.nn.Module):
    """A perfect network, up to a shift along the slices; or one that has seen nothing yet."""

    def __init__(self, shift, background=False):
        super().__init__()
        self.shift, self.background = shift, background

    def forward(self, image):
        classes = torch.roll(image, self.shift, -1).long() * (not self.background)
        return torch.nn.functional.one_hot(classes[:, 0], 4).movedim(-1, 1).float()


def cardiac(seed):
    truth = np.zeros((1, 12, 10, 6), np.int64)
    for index, start in product((1, 2, 3), (1 + seed % 2,)):
        truth[0, 3 * index - 2 : 3 * index, start : start + 4, 2:4] = index
    return truth


def evaluator(cases, network, metric, batch_size=1):
    affine = torch.diag(torch.tensor([-1.25, -1.25, 10, 1]))
    items = [
        {
            key: MetaTensor(cardiac(n), affine=affine, meta={"filename_or_obj": f"data/{case}{suffix}.nii.gz"})
            for key, suffix in (("image", ""), ("label", "_gt"))
        }
        for n, case in enumerate(cases)
    ]
    return SupervisedEvaluator(
        device=torch.device("cpu"),
        val_data_loader=DataLoader(Dataset(items), batch_size=batch_size),
        network=network,
        postprocessing=Compose([AsDiscreted("pred", argmax=True)]),
        key_val_metric={"mean_dsc": metric},
        decollate=True,
    )


@pytest.mark.parametrize("batch_size", [1, 2])
def test_an_evaluator_scores_every_volume_with_its_own_spacing(batch_size):
    metric = VolumeScores(structures=CARDIAC)
    run = evaluator(["patient001", "patient002", "patient003"], Shifted(1), metric, batch_size)
    run.run()
    assert run.state.metrics["mean_dsc"] == 0.5  # one of two slices each
    assert run.state.best_metric == 0.5
    assert [(row.case, row.structure) for row in metric.rows] == list(
        product(["patient001", "patient002", "patient003"], ["RV", "Myo", "LV"])
    )
    assert {(row.hd, row.missed) for row in metric.rows} == {(10.0, False)}


def test_an_untrained_network_survives_and_its_report_is_valid_json(tmp_path):
    metric = VolumeScores(structures=CARDIAC)
    run = evaluator(["patient001", "patient002"], Shifted(0, background=True), metric)
    run.run()
    assert run.state.metrics["mean_dsc"] == 0
    write_scores(metric.rows, tmp_path / "evaluation")

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    summary = json.loads((tmp_path / "evaluation" / "summary.json").read_text(), parse_constant=refuse)
    diagonal = math.hypot(12 * 1.25, 10 * 1.25, 6 * 10)
    assert list(summary) == ["RV", "Myo", "LV", "mean"]
    for name, row in summary.items():
        assert row["hd_mean"] == pytest.approx(diagonal)
        assert row["n_missed"] == (6 if name == "mean" else 2)
        assert row["n_volumes"] == 2
    assert "| LV | 0.000 ± 0.000 | 63.1 ± 0.0 | 63.1 ± 0.0 | 2 of 2 |" in format_table(summary)
    assert "6 of 6" in format_table(summary).splitlines()[-1]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["mine", None], ["mine", "image"]),
        (["mine", "mine"], ["p1/image", "p2/image"]),  # two volumes must not become one
        (None, ["p1/image", "p2/image"]),
    ],
    ids=["one", "one name for both", "none"],
)
def test_a_case_with_a_name_is_scored_under_it(given, expected):
    files = ["p1/image.nii.gz", "p2/image.nii.gz"]
    labels = [MetaTensor(torch.ones(1, 4, 4, 4), affine=torch.eye(4), meta={"filename_or_obj": file}) for file in files]
    metric = VolumeScores(structures=["LV"])
    metric.update((labels, labels), given)
    metric.compute()
    assert [row.case for row in metric.rows] == expected


PROCESS = """
import torch, torch.distributed as dist
from monai.data import MetaTensor
from monai_spct.metrics.volume import VolumeScores
dist.init_process_group("gloo")
metric = VolumeScores(structures=["LV"])
for case in [["a", "b"], ["c", "a"]][dist.get_rank()]:  # of three; a sampler repeats the first to fill the second
    label = MetaTensor(torch.ones(1, 4, 4, 4), affine=torch.eye(4), meta={"filename_or_obj": case + ".nii.gz"})
    metric.update(([label * (case != "c")], [label]))
print(metric.compute(), [row.case for row in metric.rows])
dist.destroy_process_group()
"""


def test_every_case_counts_once_over_two_processes():
    done = two_forked(["-W", "ignore", "-c", PROCESS])
    # before which Gloo tells of its connections, in torch 2.8
    outputs = [one.stdout.splitlines()[-1] for one in done]
    assert outputs == [f"{2 / 3} ['a', 'b', 'c']"] * 2


def test_nothing_seen_is_not_a_score_of_zero():
    with pytest.raises(NotComputableError, match="must have seen a volume"):
        VolumeScores(structures=CARDIAC).compute()


def test_labels_without_geometry_or_name_are_refused():
    plain, unnamed = torch.ones(1, 4, 4, 4), MetaTensor(torch.ones(1, 4, 4, 4))
    metric = VolumeScores(structures=["LV"])
    with pytest.raises(ValueError, match=r"must be `MetaTensor` .*, got Tensor"):
        metric.update(([plain], [plain]))
    with pytest.raises(ValueError, match="`filename_or_obj`"):
        metric.update(([unnamed], [unnamed]))


# reports

ROWS = [
    StructureScore("a", "RV", 0.9, 8.0, 4.0, False),
    StructureScore("a", "LV", 0.7, 6.0, 3.0, False),
    StructureScore("b", "RV", 0.0, 90.0, 90.0, True),
    StructureScore("b", "LV", 0.5, 2.0, 1.0, False),
]


def test_the_summary_is_the_mean_and_deviation_over_volumes():
    summary = summarize(ROWS)
    assert summary["RV"] == pytest.approx(
        {
            "dsc_mean": 0.45, "dsc_std": 0.45, "hd_mean": 49, "hd_std": 41, "hd95_mean": 47, "hd95_std": 43,
            "n_volumes": 2, "n_missed": 1,
        }
    )  # fmt: skip
    assert summary["mean"]["dsc_mean"] == pytest.approx((0.8 + 0.25) / 2)
    assert summary["mean"]["dsc_std"] == pytest.approx((0.8 - 0.25) / 2)  # of the volumes' means, not of all scores
    assert (summary["mean"]["n_volumes"], summary["mean"]["n_missed"]) == (2, 1)
    assert summary["mean"]["dsc_mean"] == pytest.approx(np.mean([row.dsc for row in ROWS]))


def test_numbers_that_are_no_json_are_never_written(tmp_path):
    with pytest.raises(ValueError, match=r"`rows` must hold finite scores, got .*case='a'.*inf"):
        write_scores([StructureScore("a", "LV", 0.5, math.inf, 1.0, False)], tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_summary_of_nothing_or_of_a_structure_called_mean_is_refused():
    with pytest.raises(ValueError, match="`rows` must hold at least one score"):
        summarize([])
    with pytest.raises(ValueError, match="must not be 'mean'"):
        summarize([StructureScore("a", "mean", 1.0, 0.0, 0.0, False)])
