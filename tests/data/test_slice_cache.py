"""Slices from the disk are those from memory, and are made again whenever they might not be."""

import importlib
import logging
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import torch
from monai.bundle import ConfigParser
from monai.transforms import Compose, LoadImaged, RandFlipd, RandRotated, Resized, ScaleIntensityd, Transform
from monai.utils import set_determinism

from monai_spct.data import PairedLoader, VolumeDataset, VolumeReader
from monai_spct.data.fingerprint import file_stamps, fingerprint
from monai_spct.workflow import bundles_folder

KEYS = ("image", "label")
DEPTHS = {"a": 3, "b": 2}
AUGMENT = [RandRotated(KEYS, range_x=1.0, prob=0.7, mode=["bilinear", "nearest"]), RandFlipd(KEYS, prob=0.5)]


def preparation(size: int = 9, high: float = 1.0) -> Compose:
    load = LoadImaged(KEYS, reader=VolumeReader(), ensure_channel_first=True, allow_missing_keys=True)
    resize = Resized(KEYS, (size, size, -1), mode=("trilinear", "nearest-exact"), allow_missing_keys=True)
    return Compose([load, ScaleIntensityd("image", maxv=high), resize])


class Counted(Transform):
    """How often a volume was prepared."""

    calls = 0

    def __init__(self, inner: Transform) -> None:
        self.inner = inner

    def __call__(self, data):
        Counted.calls += 1
        return self.inner(data)


@pytest.fixture(autouse=True)
def count_from_zero():
    Counted.calls = 0
    yield
    set_determinism(None)


@pytest.fixture
def cases(tmp_path) -> list[dict[str, str]]:
    rng = np.random.default_rng(0)
    for case, depth in DEPTHS.items():
        voxels = rng.integers(-1000, 1000, (12, 14, depth)).astype(np.int16)
        nib.save(nib.Nifti1Image(voxels, np.eye(4)), tmp_path / f"{case}.nii.gz")
        nib.save(nib.Nifti1Image((voxels > 0).astype(np.uint8), np.eye(4)), tmp_path / f"{case}_label.nii.gz")
    return [
        {"case": case, "image": str(tmp_path / f"{case}.nii.gz"), "label": str(tmp_path / f"{case}_label.nii.gz")}
        for case in DEPTHS
    ]


@pytest.fixture
def folder(tmp_path) -> Path:
    return tmp_path / "new" / "cache"


def made(cases, folder, transform=None, **settings) -> VolumeDataset:
    return VolumeDataset(cases, Counted(transform or preparation()), AUGMENT, cache_dir=folder, **settings)


def same(one: VolumeDataset, other: VolumeDataset) -> bool:
    draws = [draw for index in range(len(one)) for draw in (index, (index, 7), (index, 8))]
    assert len(one) == len(other) == sum(DEPTHS.values())
    pairs = [(one[draw], other[draw]) for draw in draws]
    assert all(a.keys() == b.keys() and all(a[key].dtype == b[key].dtype for key in a) for a, b in pairs)
    return all(torch.equal(a[key], b[key]) for a, b in pairs for key in a)


# The same slices


def test_slices_from_the_disk_are_those_from_memory_to_the_bit(cases, folder):
    memory = VolumeDataset(cases, preparation(), AUGMENT)
    assert same(made(cases, folder), memory)  # just written
    assert same(made(cases, folder), memory)  # found
    assert Counted.calls == 2


def test_a_second_dataset_loads_no_volume_and_says_so(cases, folder, caplog):
    caplog.set_level(logging.INFO)
    for found in (0, 2):
        made(cases, folder, progress="labeled")
        assert Counted.calls == 2
        assert f"cache: {found} of 2 labeled volumes from {folder}, which now holds 0.00 GB" in caplog.text
    assert len(list(folder.iterdir())) == 4  # image and label of two cases


def test_what_was_written_for_two_keys_serves_one(cases, folder):
    made(cases, folder)
    assert list(made(cases, folder, keys=["image"])[0]) == ["image"]
    assert Counted.calls == 2


def test_the_slices_of_a_dataset_are_not_in_its_memory(cases, folder):
    """Nor in what is sent to workers that are not forked."""
    small, large = (len(pickle.dumps(made(cases, folder, preparation(size)).volumes)) for size in (9, 200))
    assert small == large < 1000


def test_batches_are_the_same_whichever_process_reads_them(cases, folder):
    def batches(num_workers):
        slices = made(cases, folder)
        sizes = {"labeled_batch_size": 2, "unlabeled_batch_size": 3, "epoch_length": 3}
        return list(PairedLoader(slices, slices, **sizes, num_workers=num_workers))

    for one, other in zip(batches(0), batches(2), strict=True):
        assert all(torch.equal(one[key], other[key]) for key in ("image", "label", "unlabeled"))


# Made again


@pytest.mark.parametrize("change", [{"high": 2.0}, {"size": 10}], ids=["intensities", "resampling"])
def test_another_setting_makes_other_entries(cases, folder, change):
    first = made(cases, folder)
    second = made(cases, folder, preparation(**change))
    assert Counted.calls == 4
    assert same(second, VolumeDataset(cases, preparation(**change), AUGMENT))
    assert same(made(cases, folder), first)  # which are still there
    assert Counted.calls == 4


def test_a_changed_image_is_loaded_again(cases, folder):
    made(cases, folder)
    voxels = np.asarray(nib.load(cases[0]["image"]).dataobj)
    nib.save(nib.Nifti1Image(voxels[::-1], np.eye(4)), cases[0]["image"])
    assert same(made(cases, folder), VolumeDataset(cases, preparation(), AUGMENT))
    assert Counted.calls == 3


DAMAGE = {
    "truncated": lambda content: content[: len(content) // 2],
    "empty": lambda _: b"",
    "garbage": lambda content: b"garbage " * (len(content) // 8),
    "one bit off": lambda content: content[:200] + bytes([content[200] ^ 1]) + content[201:],
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_entry_is_made_again_with_a_warning(cases, folder, damage):
    made(cases, folder)
    victim = sorted(folder.iterdir())[1]
    content = victim.read_bytes()
    victim.write_bytes(damage(content))
    with pytest.warns(UserWarning, match=f"{victim.name} is damaged"):
        again = made(cases, folder)
    assert Counted.calls == 3
    assert victim.read_bytes() == content
    assert same(again, VolumeDataset(cases, preparation(), AUGMENT))
    made(cases, folder)  # and without a warning


# Several processes

RUN = """
import sys, time
from pathlib import Path
from monai.utils import set_determinism
from monai_spct.data import VolumeDataset
from tests.data.test_slice_cache import preparation
folder, seed, data = Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
set_determinism(seed)
cases = [{"case": c, "image": str(data / f"{c}.nii.gz"), "label": str(data / f"{c}_label.nii.gz")} for c in "ab"]
transform = preparation()
(data / f"ready_{seed}").touch()
while len(list(data.glob("ready_*"))) < 2:
    time.sleep(0.001)
for turn in range(3):
    print(sum(float(item["image"].sum()) for item in VolumeDataset(cases, transform, cache_dir=folder / str(turn))))
"""


def test_runs_side_by_side_share_a_folder_whatever_their_seeds(cases, folder, tmp_path):
    """Also those of Python's hashes: what one process has written, each other one finds."""
    root = Path(__file__).parents[2]
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "error::UserWarning:monai_spct", "-c", RUN, folder, str(seed), tmp_path],
            cwd=root,
            env={**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": str(root)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for seed in (1, 2)
    ]
    outputs = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    expected = sum(float(item["image"].sum()) for item in VolumeDataset(cases, preparation()))
    assert {float(line) for output, _ in outputs for line in output.split()} == {expected}
    assert {len(list(turn.iterdir())) for turn in folder.iterdir()} == {4}  # and no parts of files
    VolumeDataset(cases, preparation(), cache_dir=folder / "0")
    assert len(list((folder / "0").iterdir())) == 4


# Settings


def test_a_setting_is_the_same_before_and_after_loading(cases):
    """The labeled and the unlabeled dataset have one transform, and the first may have loaded something or not."""
    for transform in (preparation(), Compose(LoadImaged("image"))):
        before = fingerprint(transform)
        transform(cases[0])
        assert fingerprint(transform) == before


@pytest.mark.parametrize("bundle", ["acdc", "prostate", "spleen"])
@pytest.mark.parametrize("overlays", [[], ["small"]], ids=["plain", "small"])
def test_the_preparation_of_a_bundle_depends_on_no_seed_and_on_its_settings(bundle, overlays):
    def of(seed: int, **settings: object) -> str:
        parser = ConfigParser()
        parser.read_config(
            [str(bundles_folder() / bundle / "configs" / f"{name}.json") for name in ("train", *overlays)]
        )
        parser.update(settings)
        set_determinism(seed)
        return fingerprint(parser.get_parsed_content("preprocessing"))

    assert of(0) == of(1)
    assert len({of(0), of(0, **{"intensity#0#channel_wise": False}), of(0, **{"load#3#num_classes": 9})}) == 3


def test_a_lambda_is_refused_before_anything_is_loaded(cases, folder):
    with pytest.raises(ValueError, match=r"`cache_dir` needs .*lambda.* or give no `cache_dir`"):
        made(cases, folder, lambda case: case)
    assert Counted.calls == 0


def test_the_code_of_a_module_counts(tmp_path, monkeypatch):
    path = tmp_path / "my_preparation.py"
    path.write_text("def halve(case):\n    return case\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    module = importlib.import_module("my_preparation")
    try:
        before = fingerprint(module.halve)
        assert fingerprint(module.halve) == before
        time.sleep(0.01)
        path.write_text("def halve(case):\n    return dict(case)\n")
        importlib.reload(module)
        assert fingerprint(module.halve) != before
    finally:
        del sys.modules["my_preparation"]


# Files


def test_the_voxels_beside_a_header_count(tmp_path):
    lines = ["NDims = 3", "DimSize = 2 2 2", "ElementType = MET_CHAR", "ElementDataFile = other.raw"]
    for name, content in (("a.mhd", "\n".join(lines)), ("other.raw", "12345678"), ("b.hdr", "1"), ("b.img", "2")):
        (tmp_path / name).write_text(content)
    for header, voxels in (("a.mhd", "other.raw"), ("b.hdr", "b.img")):
        case = {"image": str(tmp_path / header)}
        assert [Path(name).name for name, _, _ in file_stamps(case)] == sorted([header, voxels])


def test_files_in_lists_and_folders_count_and_names_do_not(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "series").mkdir()
    for name in ("one.nii", "two.nii", "series/1.dcm"):
        (tmp_path / name).write_text(name)
    case = {
        "case": "a",
        "image": ["one.nii", Path("two.nii")],
        "label": "series",
        "age": 3,
        "note": "x" * 5000,
        "no": "",
    }
    assert [Path(name).name for name, _, _ in file_stamps(case)] == ["one.nii", "1.dcm", "two.nii"]
