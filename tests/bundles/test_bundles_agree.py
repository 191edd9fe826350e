"""The bundles differ in what their data sets need, which is listed here, and in nothing else."""

import json
from pathlib import Path

import pytest

from monai_spct.workflow import bundles_folder

BUNDLES = bundles_folder()
OTHERS = ("prostate", "spleen", "atrium")

# the places where a bundle may differ from that for ACDC
RUN = {"dataset_dir", "structures", "intensity"}
SPLIT = {"cases", "test_ratio"}
SHIPPED = {"backbone", "crop_size", "resampling"}  # of the weights that come with the bundle for ACDC
VOLUMES = {"dataset_dir", "structures", "cases", "num_test", "label_values", "spatial_dims", "crop_size"}
DIFFERING = {
    ("atrium", "train"): {
        *(VOLUMES | {"backbone", "supervised_loss", "learning_rate", "labeled_batch_size", "unlabeled_batch_size"}),
    },
    ("atrium", "evaluate"): VOLUMES | {"resampling"},
    ("atrium", "inference"): (VOLUMES | {"resampling"}) - {"num_test"},
    ("prostate", "train"): RUN | SPLIT | {"co_training_weight", "gamma_start"},
    ("prostate", "evaluate"): RUN | SPLIT | SHIPPED,
    ("prostate", "inference"): RUN | SHIPPED,
    ("spleen", "train"): {
        *(RUN | {"image_size", "resampling", "cases", "num_test"}),
        *("cache_dir", "crop_size", "learning_rate", "consistency_weight", "gamma_start"),
    },
    ("spleen", "evaluate"): RUN | SHIPPED | {"image_size", "cases", "num_test"},
    ("spleen", "inference"): RUN | SHIPPED | {"image_size"},
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

    special = {"atrium": ({"small", "hour_ssl4mis", "one_structure"}, {"published_split"})}
    without, more = special.get(bundle, ({"hour", "hour_ssl4mis", "one_structure"}, set()))
    named = [{f"configs/{name}.json" for name in names} for names in (without, more)]
    assert files(bundle) == files("acdc") - named[0] | named[1]


@pytest.mark.parametrize("bundle", OTHERS)
def test_the_metadata_have_the_same_entries(bundle):
    mine, acdc = (json.loads(Path(BUNDLES / b / "configs" / "metadata.json").read_text()) for b in (bundle, "acdc"))
    assert mine.keys() == acdc.keys() - {"eval_metrics"}  # of the weights that come with it
    for key in ("schema", "version", "monai_version", "pytorch_version", "numpy_version", "authors", "copyright"):
        assert mine[key] == acdc[key], key
    assert mine["required_packages_version"].items() >= acdc["required_packages_version"].items()
