"""Predictions end up as files on the very grid of their images."""

import gzip
import logging

import nibabel as nib
import numpy as np
import pytest
import torch
from ignite.engine import Engine
from monai.data import DataLoader, Dataset, MetaTensor
from monai.engines import SupervisedEvaluator
from monai.transforms import AsDiscreted, Compose, LoadImaged, ScaleIntensityd

from monai_spct.data import VolumeReader, image_cases
from monai_spct.data.synthetic import save_metaimage
from monai_spct.handlers import SavePredictions
from monai_spct.inferers import VolumeInferer
from monai_spct.transforms import VoteEntropyd

RNG = np.random.default_rng(0)
LPS = np.diag([-1.25, -1.25, 10, 1])
OBLIQUE = np.array([[-1.2, 0.3, 0, 11], [0.3, 1.2, 0, -7], [0, 0, 10, 3], [0, 0, 0, 1]])


def write(path, voxels, affine=LPS, *, sform_code=1, qform_code=1):
    path.parent.mkdir(parents=True, exist_ok=True)
    image = nib.Nifti1Image(voxels, affine)
    image.set_sform(affine, code=sform_code)
    image.set_qform(affine, code=qform_code)
    nib.save(image, path)
    return path


def save(folder, *items):
    evaluator = Engine(lambda engine, batch: batch)  # noqa: ARG005
    SavePredictions(folder).attach(evaluator)
    evaluator.run([list(items)])


def item(path, **entries):
    shape = nib.load(path).shape
    return {"image": MetaTensor(torch.zeros(1, *shape), meta={"filename_or_obj": str(path)}), **entries}


def written(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


class Reads(torch.nn.Module):
    """A network that finds each voxel's class in its intensity, 0 to 1 for classes 0 to 3."""

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        classes = (image[:, 0] * 3).round().long()
        return torch.nn.functional.one_hot(classes, 4).movedim(-1, 1).float()


def predict(source, folder):
    """By a network that reads the classes from the image."""
    transform = Compose(
        [LoadImaged("image", reader=VolumeReader(), ensure_channel_first=True), ScaleIntensityd("image", 0.0, 1.0)]
    )
    evaluator = SupervisedEvaluator(
        device=torch.device("cpu"),
        val_data_loader=DataLoader(Dataset([{"image": str(source)}], transform), batch_size=1),
        network=Reads(),
        inferer=VolumeInferer(),
        postprocessing=Compose([VoteEntropyd("pred"), AsDiscreted("pred", argmax=True)]),
        val_handlers=[SavePredictions(folder)],
    )
    evaluator.run()


def test_the_next_inference_takes_no_prediction_for_an_image(tmp_path):
    source = write(tmp_path / "p1.nii.gz", np.arange(48, dtype=np.int16).reshape(4, 4, 3) % 4)
    for run in ("run1", "run2"):
        assert [case["image"] for case in image_cases(tmp_path)] == [str(source)]
        predict(source, tmp_path / "study" / run)
    assert written(tmp_path / "study") == [
        f"{run}/p1{end}.nii.gz" for run in ("run1", "run2") for end in ("", "_uncertainty")
    ]


@pytest.mark.parametrize(
    ("affine", "sform_code", "qform_code"),
    [(LPS, 1, 1), (LPS, 0, 1), (OBLIQUE, 2, 0), (np.diag([1.5, 1.5, 8, 1]), 1, 0)],
    ids=["ACDC", "qform alone", "oblique", "RAS"],
)
@pytest.mark.parametrize("suffix", [".nii.gz", ".nii"])
def test_what_an_evaluator_predicts_lies_voxel_on_voxel_on_the_image(tmp_path, affine, sform_code, qform_code, suffix):
    truth = RNG.integers(0, 4, (37, 29, 5))
    truth.flat[:2] = 0, 3  # so that intensities are scaled by 3
    source = write(
        tmp_path / f"case7{suffix}",
        (100 * truth).astype(np.int16),
        affine,
        sform_code=sform_code,
        qform_code=qform_code,
    )
    predict(source, tmp_path / "out")

    assert written(tmp_path / "out") == ["case7.nii.gz", "case7_uncertainty.nii.gz"]
    image, mask = nib.load(source), nib.load(tmp_path / "out" / "case7.nii.gz")
    assert mask.get_data_dtype() == np.uint8
    np.testing.assert_array_equal(np.asarray(mask.dataobj), truth)
    uncertainty = nib.load(tmp_path / "out" / "case7_uncertainty.nii.gz")
    assert uncertainty.get_data_dtype() == np.float32
    np.testing.assert_array_equal(np.asarray(uncertainty.dataobj), 0)  # a one-hot vote is certain
    for result in (mask, uncertainty):
        np.testing.assert_allclose(result.affine, image.affine, atol=1e-6)
        for code in ("sform_code", "qform_code"):
            assert result.header[code] == image.header[code]
        assert result.header.get_zooms() == pytest.approx(image.header.get_zooms())


def in_single_bytes(path, truth):
    write(path, truth.astype(np.uint8))


def in_double_precision(path, truth):
    write(path, truth / 7)


def scaled(path, truth):
    content = bytearray(nib.Nifti1Image(truth.astype(np.int16), LPS).to_bytes())
    content[112:120] = np.array([0.5, 100], "<f4").tobytes()  # `scl_slope` and `scl_inter`
    path.write_bytes(gzip.compress(bytes(content)))
    np.testing.assert_array_equal(nib.load(path).get_fdata(), truth * 0.5 + 100)


def big_endian(path, truth):
    nib.save(nib.Nifti1Image(truth.astype(">i2"), LPS, nib.Nifti1Header(endianness=">")), path)


def nifti2(path, truth):
    nib.save(nib.Nifti2Image(truth.astype(np.int16), LPS), path)


def in_one_frame_of_a_series(path, truth):
    write(path, truth.astype(np.int16)[..., None])


@pytest.mark.parametrize(
    "save_as",
    [in_single_bytes, in_double_precision, scaled, big_endian, nifti2, in_one_frame_of_a_series],
    ids=lambda save_as: save_as.__name__,
)
def test_the_mask_does_not_depend_on_how_the_image_is_stored(tmp_path, save_as):
    truth = RNG.integers(0, 4, (37, 29, 5))
    truth.flat[:2] = 0, 3
    save_as(tmp_path / "case7.nii.gz", truth)
    predict(tmp_path / "case7.nii.gz", tmp_path / "out")
    mask = nib.load(tmp_path / "out" / "case7.nii.gz")
    assert (mask.shape, mask.get_data_dtype()) == ((37, 29, 5), np.uint8)
    assert (mask.dataobj.slope, mask.dataobj.inter) == (1, 0)
    np.testing.assert_array_equal(np.asarray(mask.dataobj), truth)
    np.testing.assert_allclose(mask.affine, LPS, atol=1e-6)


def test_the_mask_of_a_metaimage_lies_on_its_grid(tmp_path):
    pytest.importorskip("itk")
    truth = RNG.integers(0, 4, (37, 29, 5)).astype(np.int16)
    truth.flat[:2] = 0, 3
    save_metaimage(tmp_path / "case7.mhd", 100 * truth, (1.25, 1.25, 10.0))
    predict(tmp_path / "case7.mhd", tmp_path / "out")
    mask = nib.load(tmp_path / "out" / "case7.nii.gz")
    np.testing.assert_array_equal(np.asarray(mask.dataobj), truth)
    np.testing.assert_allclose(mask.affine, LPS, atol=1e-6)
    assert mask.header.get_zooms() == (1.25, 1.25, 10)


def test_each_volume_of_a_batch_has_its_file_and_a_map_only_where_there_is_one(tmp_path, caplog):
    sources = [write(tmp_path / f"{name}.nii.gz", np.zeros((3, 4, 2), np.int16)) for name in "ab"]
    pred = torch.ones(1, 3, 4, 2)
    with caplog.at_level(logging.INFO, "monai_spct"):
        save(tmp_path / "new" / "out", item(sources[0], pred=pred), item(sources[1], pred=pred, uncertainty=pred / 2))
    assert written(tmp_path / "new" / "out") == ["a.nii.gz", "b.nii.gz", "b_uncertainty.nii.gz"]
    assert [str(tmp_path / "new" / "out" / f"{name}.nii.gz") in caplog.text for name in "ab"] == [True, True]


@pytest.mark.parametrize("image", [torch.zeros(1, 3, 4, 2), MetaTensor(torch.zeros(1, 3, 4, 2))], ids=["plain", "meta"])
def test_an_image_without_a_file_is_refused(tmp_path, image):
    with pytest.raises(ValueError, match="needs images that name their file: load them with `LoadImaged`"):
        save(tmp_path / "out", {"image": image, "pred": torch.ones(1, 3, 4, 2)})
