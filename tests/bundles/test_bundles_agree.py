"""The bundles differ in what their data sets need, which is listed here, and in nothing else."""

import json
from pathlib import Path

import pytest

from monai_spct.workflow import bundles_folder

BUNDLES = bundles_folder()
OTHERS = ("prostate", "spleen")

# the places where a bundle may differ from that for ACDC
RUN = {"dataset_dir", "structures", "intensity"}
SPLIT = {"cases", "test_ratio"}
DIFFERING = {
    ("prostate", "train"): RUN | SPLIT | {"co_training_weight", "gamma_start"},
    ("prostate", "evaluate"): RUN | SPLIT,
    ("prostate", "inference"): RUN,
    ("spleen", "train"): {
        *(RUN | {"image_size", "resampling", "cases", "num_test"}),
        *("cache_dir", "crop_size", "learning_rate", "consistency_weight", "gamma_start"),
    },
    ("spleen", "evaluate"): RUN | {"image_size", "resampling", "cases", "num_test"},
    ("spleen", "inference"): RUN | {"image_size", "resampling"},
}


def config(bundle: str, name: str) -> dict[str, object]:
    return json.loads((BUNDLES / bundle / "configs" / f"{name}.json").read_text())


@pytest.mark.parametrize(("bundle", "name"), DIFFERING, ids="-".join)
def test_a_config_differs_in_the_listed_keys_and_no_others(bundle, name):
    mine, acdc = config(bundle, name), config("acdc", name)
    assert {key for key in mine.keys() | acdc.keys() if mine.get(key) != acdc.get(key)} == DIFFERING[bundle, name]
    shared = mine.keys() & acdc.keys()
    assert [key for key in mine if key in shared] == [key for key in acdc if key in shared]
    if name != "inference":  # where a part of a key may differ, the rest of it may not
        assert {**mine["cases"], "_target_": ""} == {**acdc["cases"], "_target_": ""}


@pytest.mark.parametrize("bundle", OTHERS)
@pytest.mark.parametrize("file", ["LICENSE", "configs/logging.conf", "configs/multi_gpu_train.json"])
def test_these_files_are_the_same_in_all(bundle, file):
    assert (BUNDLES / bundle / file).read_bytes() == (BUNDLES / "acdc" / file).read_bytes()


@pytest.mark.parametrize("bundle", OTHERS)
def test_the_bundles_have_the_same_files(bundle):
    def files(name: str) -> set[str]:
        folder = BUNDLES / name
        kept = [path for part in ("configs", "docs") for path in (folder / part).rglob("*")]
        kept += [folder / "LICENSE", folder / "models" / "README.md"]
        return {path.relative_to(folder).as_posix() for path in kept if path.is_file()}

    assert files(bundle) == files("acdc") - {
        f"configs/{name}.json" for name in ("hour", "hour_ssl4mis", "one_structure")
    }


@pytest.mark.parametrize("bundle", OTHERS)
def test_the_metadata_have_the_same_entries(bundle):
    mine, acdc = (json.loads(Path(BUNDLES / b / "configs" / "metadata.json").read_text()) for b in (bundle, "acdc"))
    assert mine.keys() == acdc.keys()
    for key in ("schema", "version", "monai_version", "pytorch_version", "numpy_version", "authors", "copyright"):
        assert mine[key] == acdc[key], key
    assert mine["required_packages_version"].items() >= acdc["required_packages_version"].items()
