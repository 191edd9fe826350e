"""For each format: valid files, damaged ones, and what must come of reading them."""

from __future__ import annotations

import gzip
import io
import random
import struct
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import nibabel as nib
import numpy as np
import torch
from ignite.engine import Engine
from monai.transforms import Compose, EnsureChannelFirstd, LoadImaged
from torch import nn

from monai_spct.data import (
    Split,
    VolumeReader,
    acdc_cases,
    check_split,
    decathlon_cases,
    nifti,
    open_volume,
    read_datalist,
    refuse_bad_headers,
    save_like,
)
from monai_spct.data.synthetic import save_metaimage
from monai_spct.handlers import SaveCheckpoints
from monai_spct.networks import Ensemble, count_networks, load_weights
from monai_spct.transforms import CheckCased
from tests.fuzz import references
from tests.fuzz.mutations import damage, damage_json, damage_lines

CLASSES = 4
SHAPE = (5, 4, 3)


class FaultError(Exception):
    """Something came of an input that must not come of any."""


@dataclass(frozen=True)
class Format:
    """What is damaged and how it is read.

    Args:
        make: writes a damaged file into a folder, and says where it is.
        read: reads it, and looks at what comes; errors that name the file, with whatever suffix, are fine.
    """

    make: Callable[[random.Random, Path], Path]
    read: Callable[[Path], None]


def must(holds: bool, what: str) -> None:
    """A rule that no input may break."""
    if not holds:
        raise FaultError(what)


# Images


def labels(rng: random.Random, dtype: str) -> np.ndarray[Any, Any]:
    """A volume of classes."""
    return np.random.default_rng(rng.randrange(99)).integers(0, CLASSES, SHAPE).astype(dtype)


def a_nifti(rng: random.Random) -> bytes:
    """A valid file: of either version and byte order, scaled or not, with or without extensions."""
    kind = rng.choice((nib.Nifti1Image, nib.Nifti1Image, nib.Nifti2Image))
    header = kind.header_class(endianness=rng.choice("<<<>"))
    voxels = labels(rng, rng.choice(("u1", "i2", "i2", "f4", "f8")))
    affine = np.diag(rng.choice(((-1.25, -1.25, 10, 1), (-1, -1, 1, 1), (1, 1, 1, 1))))
    header.set_data_dtype(voxels.dtype)
    image = kind(voxels, affine, header)
    image.header.set_zooms((1.25, 1.25, 10))
    if rng.random() < 0.3:
        image.header.extensions.append(nib.nifti1.Nifti1Extension("comment", b"text" * rng.randint(1, 9)))
    if rng.random() < 0.3:
        image.header.set_slope_inter(*rng.choice(((2.0, 0.0), (1.0, -1.0), (0.5, 1.0), (1.0, 0.0))))
    return bytes(image.to_bytes())


EXTREMES = {
    "i": (0, 1, -1, 2, 3, 7, 8, 127, 255, 32767, -32768, 65536, 2**31 - 1, -(2**31), 2**40, 2**62, -(2**63)),
    "f": (0, 1, -1, 0.5, 64, 348, 352, 544, 1e9, 1e38, -1e38, 1e-38, float("nan"), float("inf"), float("-inf")),
}


def extreme_fields(rng: random.Random, content: bytes) -> bytes:
    """Fields of the header with values that they rarely have."""
    data = bytearray(content)
    order = "<" if struct.unpack("<i", data[:4])[0] in (348, 540) else ">"
    kind = nib.Nifti1Header if struct.unpack(order + "i", data[:4])[0] == 348 else nib.Nifti2Header
    fields = kind.template_dtype.newbyteorder(order).fields
    for _ in range(rng.randint(1, 3)):
        name = rng.choice(
            (*fields, *["dim", "datatype", "vox_offset", "scl_slope", "scl_inter", "pixdim", "bitpix"] * 3)
        )
        dtype, start = fields[name][:2]
        item = dtype.base
        start += item.itemsize * rng.randrange(dtype.itemsize // item.itemsize)
        if item.kind not in EXTREMES:
            value = rng.randbytes(item.itemsize)
        else:
            wanted = rng.choice(
                EXTREMES[item.kind] if name != "datatype" else (*references.NIFTI_TYPES, 0, 1, 32, 128, 2304)
            )
            value = np.array(wanted).astype(item, casting="unsafe").tobytes()
        data[start : start + item.itemsize] = value
    return bytes(data)


def extensions(rng: random.Random, content: bytes) -> bytes:
    """Extensions that are announced, and of sizes that cannot be."""
    start = 348 if content[:4] == struct.pack("<i", 348) else 540
    size = struct.pack(
        rng.choice("<>") + "ii", rng.choice((0, 1, 8, 15, 16, 32, -16, 2**31 - 1)), rng.choice((0, 6, -1))
    )
    extra = size + rng.randbytes(rng.choice((0, 8, 24)))
    return content[:start] + bytes([rng.choice((1, 1, 255)), 0, 0, 0]) + extra + content[start + 4 :]


def write_nifti(rng: random.Random, path: Path) -> Path:
    """A damaged NIfTI file."""
    content = a_nifti(rng)
    how = rng.randrange(6)
    if how <= 2:
        content = extreme_fields(rng, content)
    elif how == 3:
        content = damage(rng, content)
    elif how == 4:
        content = extensions(rng, content)
    if path.suffix == ".gz":
        content = gzip.compress(content, rng.choice((0, 1, 9)))
        if how >= 4 or rng.random() < 0.3:
            content = damage(rng, content)
        elif rng.random() < 0.1:
            content = rng.choice((content * 2, content + b"x", content + bytes(9), content[:-8] + bytes(8)))
    path.write_bytes(content)
    return path


def write_metaimage(rng: random.Random, path: Path) -> Path:
    """A damaged MetaImage, or the file of its voxels is damaged."""
    save_metaimage(path, labels(rng, rng.choice(("u1", "i2"))).astype(rng.choice(("uint8", "int16"))), (0.5, 0.6, 3.0))
    header, data = path.read_text(), path.with_suffix(".raw").read_bytes()
    how = rng.randrange(4)
    if rng.random() < 0.4:
        data = zlib.compress(data, rng.choice((0, 1, 9)))
        size = f"CompressedDataSize = {len(data)}\n" if rng.random() < 0.7 else ""
        header = header.replace("CompressedData = False\n", f"CompressedData = True\n{size}")
    if how == 0:
        data = damage(rng, data)
    if how in (1, 2):
        header = damage_lines(rng, header)
    content = header.encode("utf-8", "surrogateescape")
    if how == 3:
        content = damage(rng, content)
    if rng.random() < 0.1:
        data = rng.choice((b"", data[:-1], data + b"x", data * 2, rng.randbytes(len(data))))
    if path.suffix == ".mha":
        path.with_suffix(".raw").unlink()
        content = content.replace(b"case.raw", b"LOCAL") + data
    else:
        path.with_suffix(".raw").write_bytes(data)
    path.write_bytes(content)
    return path


def write_nrrd(rng: random.Random, path: Path) -> Path:
    """A damaged NRRD file."""
    kind, dtype = rng.choice((("unsigned char", "u1"), ("short", "<i2"), ("float", "<f4"), ("ushort", ">u2")))
    data = labels(rng, "u1").astype(dtype).tobytes(order="F")
    packed = rng.random() < 0.6
    header = (
        f"# made up\ntype: {kind}\ndimension: 3\nspace: left-posterior-superior\n"
        f"sizes: {' '.join(map(str, SHAPE))}\nspace directions: (0.5,0,0) (0,0.6,0) (0,0,3)\n"
        f"endian: {'big' if dtype[0] == '>' else 'little'}\nencoding: {'gzip' if packed else 'raw'}\n"
        "space origin: (1,2,3)\n"
    )
    how = rng.randrange(6)
    if how in (1, 2):
        header = damage_lines(rng, header, separator=": ")
    data = gzip.compress(data, rng.choice((0, 1, 9)), mtime=0) if packed else data
    content = (
        f"NRRD000{rng.randint(1, 5)}\n{header}".encode("utf-8", "surrogateescape")
        + b"\n"
        + (damage(rng, data) if how == 0 else data)
    )
    path.write_bytes(damage(rng, content) if how == 3 else content)
    return path


def write_hdf5(rng: random.Random, path: Path) -> Path:
    """A damaged HDF5 file."""
    how = rng.choice(({}, {"chunks": (2, 4, 3)}, {"compression": "gzip"}, {"compression": "gzip", "shuffle": True}))
    with h5py.File(path, "w", libver=rng.choice(("earliest", "latest"))) as file:
        for name in ("image", "label"):
            file.create_dataset(name, data=labels(rng, rng.choice(("u1", "i2", "f4"))), **how)
    if rng.random() < 0.9:
        path.write_bytes(damage(rng, path.read_bytes()))
    return path


LOAD = Compose(
    [
        LoadImaged(["image", "label"], reader=VolumeReader()),
        EnsureChannelFirstd(["image", "label"]),
        CheckCased(num_classes=CLASSES, in_channels=1),
    ]
)


def loaded(path: Path) -> dict[str, Any]:
    """The file as image and label of a case."""
    try:
        return LOAD({"image": str(path), "label": str(path)})
    except RuntimeError as error:
        reason: BaseException = error
        while str(reason).startswith("applying transform") and reason.__cause__ is not None:
            reason = reason.__cause__  # MONAI's words around it
        raise reason from None


def read_volume(path: Path) -> None:
    """As training and inference read it, beside what is said before."""
    found = check_split(
        Split([{"case": "case", "image": str(path), "label": str(path)}], [], [], []), num_classes=CLASSES
    )
    for finding in found.errors:
        must("case" in finding.message, f"the preflight does not name the file: {finding}")
    try:
        case = loaded(path)
    except (ValueError, OSError):
        must(bool(found.errors), "the preflight finds nothing, and loading fails")
        raise
    must(not found.errors, f"the preflight finds an error, and loading does not: {[*map(str, found.errors)]}")
    refuse_bad_headers([{"image": str(path)}], in_channels=1)
    expected = references.voxels(path)
    must(not isinstance(expected, references.Refused), f"it is read, and is no such file: {expected}")
    volume = open_volume(path)
    voxels = volume.load()
    must(voxels.shape == expected.shape, f"the shape is {voxels.shape}, not {expected.shape}")
    must(bool(np.allclose(voxels, expected, rtol=1e-6, atol=0, equal_nan=True)), "these are other voxels")
    affine = volume.affine
    must(volume.shape == voxels.shape, f"the header says {volume.shape}, the voxels are {voxels.shape}")
    must(bool(np.isfinite(affine).all()) and abs(np.linalg.det(affine[:3, :3])) > 0, f"the affine is {affine.tolist()}")
    must(bool((np.asarray(case["image"].affine) == affine).all()), "image and header have other affines")
    image, label = np.asarray(case["image"]), np.asarray(case["label"])
    must(image.shape == label.shape == (1, *expected.shape), f"the shapes are {image.shape} and {label.shape}")
    must(bool(np.isfinite(image).all()), "the image is not finite")
    must(bool(np.isin(label, range(CLASSES)).all()), "the label holds other values than classes")
    must(bool((label[0] == np.asarray(expected, np.float32)).all()), "the label holds other classes")
    target = path.parent / "prediction.nii.gz"
    save_like(label[0], path, target)
    saved = nib.load(target)
    must(bool((np.asarray(saved.dataobj) == label[0]).all()), "the prediction holds other classes")
    close = np.allclose(nifti.true_affine(saved), affine, rtol=1e-3, atol=1e-3 * np.abs(affine).max())
    must(close, f"the prediction has another affine: {saved.affine.tolist()} for {affine.tolist()}")


# Lists


DATALIST = {
    "labeled": [{"image": "a.nii", "label": "a_gt.nii", "patient": "p1", "case": "one"}],
    "unlabeled": [{"image": "b.nii"}, {"image": "x/a.nii", "patient": 3}],
    "validation": [],
    "test": [{"image": ["c.nii"], "label": "c_gt.nii"}],
}
DATASET = {
    "name": "Spleen",
    "labels": {"0": "background", "1": "spleen"},
    "training": [{"image": "./x/a.nii", "label": "./a_gt.nii"}, {"image": "./b.nii", "label": "./c_gt.nii"}],
    "test": ["./c.nii", {"image": "d.nii"}],
}


def write_listing(rng: random.Random, path: Path, content: Any) -> Path:
    """A damaged list beside the files that it names."""
    (path.parent / "x").mkdir()
    for name in ("a.nii", "a_gt.nii", "b.nii", "c.nii", "c_gt.nii", "d.nii", "x/a.nii"):
        (path.parent / name).touch()
    path.write_bytes(damage_json(rng, content))
    return path


def must_lie_below(folder: Path, files: Any) -> None:
    """Files that there are, whose paths do not lead out of the folder."""
    for file in [files] if isinstance(files, str) else files:
        must(Path(file).is_file(), f"there is no {file!r}")
        must(folder in Path(file).parents and ".." not in Path(file).parts, f"{file!r} is outside of the folder")


def read_list(path: Path) -> None:
    """With labels and without."""
    outcomes: list[Exception | Split] = []
    for with_labels in (True, False):
        try:
            outcomes.append(read_datalist(path, with_labels=with_labels))
        except (ValueError, OSError) as error:
            outcomes.append(error)
            continue
        split = outcomes[-1]
        names = []
        for name in ("labeled", "unlabeled", "validation", "test"):
            for case in getattr(split, name):
                must_lie_below(path.parent, [file for file in _each(case["image"]) if file != "/etc/hostname"])
                must(("label" in case) == (with_labels and name != "unlabeled"), f"{name} has {sorted(case)}")
                must_lie_below(path.parent, [file for file in _each(case.get("label", [])) if file != "/etc/hostname"])
                names.append(case["case"])
        must(len(set(names)) == len(names), f"two cases have one name: {names}")
        for name in names:
            target = path.parent / "predictions" / f"{name}.nii.gz"
            must((path.parent / "predictions") in Path(str(target.resolve())).parents, f"{target} is outside")
    refused = next((outcome for outcome in outcomes if isinstance(outcome, Exception)), None)
    if refused is not None:
        raise refused


def _each(files: Any) -> list[str]:
    return [files] if isinstance(files, str) else list(files)


def read_dataset(path: Path) -> None:
    """With the images for testing and without."""
    for with_test_images in (True, False):
        for case in decathlon_cases(path.parent, with_test_images=with_test_images):
            must_lie_below(path.parent, [case["image"], *_each(case.get("label", []))])


def write_info(rng: random.Random, folder: Path) -> Path:
    """A patient of ACDC whose ``Info.cfg`` is damaged."""
    patient = folder / "patient001"
    patient.mkdir()
    for name in ("frame01", "frame01_gt", "frame12", "frame12_gt"):
        (patient / f"patient001_{name}.nii.gz").touch()
    text = "ED: 1\nES: 12\nGroup: DCM\nHeight: 184.0\nNbFrame: 30\nWeight: 95.0\n"
    text = damage_lines(rng, text, separator=": ") if rng.random() < 0.7 else text
    content = text.encode("utf-8", "replace") if rng.random() < 0.8 else text.encode("utf-16")
    (patient / "Info.cfg").write_bytes(damage(rng, content) if rng.random() < 0.5 else content)
    return patient / "Info.cfg"


def read_info(path: Path) -> None:
    """The frames are there whatever it says; a phase is what it says or nothing."""
    text = path.read_bytes().decode("utf-8", "replace")
    cases = acdc_cases(path.parent.parent)
    must([case["frame"] for case in cases] == ["01", "12"], f"the frames are {cases}")
    for case in cases:
        if phase := case.get("phase"):
            said = [line.split(":") for line in text.splitlines() if line.strip().startswith(phase)]
            must(any(len(pair) == 2 and pair[1].strip().lstrip("0") == str(int(case["frame"])) for pair in said),
                 f"{case['case']} is {phase}, and the file says {text!r}")  # fmt: skip


# Checkpoints


def network(seed: int) -> Ensemble:
    """Two small networks."""
    torch.manual_seed(seed)
    return Ensemble([nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)) for _ in range(2)])


def trainer(folder: Path, module: nn.Module, *, resume: bool, epochs: int = 2) -> Engine:
    """A run that saves, or goes on."""
    engine = Engine(lambda *_: None)
    SaveCheckpoints(folder, module, {"network": module}, resume=resume).attach(engine)
    engine.run([0], max_epochs=epochs)
    return engine


def repacked(rng: random.Random, content: bytes) -> bytes:
    """Another structure, with right checksums."""
    new = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as archive, zipfile.ZipFile(new, "w") as target:
        parts = archive.namelist()
        damaged = rng.choice((next(name for name in parts if name.endswith("data.pkl")), rng.choice(parts)))
        for name in parts:
            its = archive.read(name)
            target.writestr(name, damage(rng, its, most=2) if name == damaged else its)
    return new.getvalue()


def write_checkpoint(rng: random.Random, path: Path) -> Path:
    """Weights with a bit turned, cut, or put together anew."""
    torch.save(network(0).state_dict(), path)
    content = path.read_bytes()
    forged = rng.random() < 0.4
    path.write_bytes(repacked(rng, content) if forged else damage(rng, content))
    path.with_suffix(".forged" if forged else ".damaged").touch()
    return path


def read_weights(path: Path) -> None:
    """Those that were saved, unless someone put in others."""
    module = load_weights(network(1), path)
    must(count_networks(path) == 2, "there is another number of networks")
    if path.with_suffix(".damaged").exists():
        must_be_the_saved(module)


def must_be_the_saved(module: nn.Module) -> None:
    """Bit for bit."""
    for name, value in network(0).state_dict().items():
        must(torch.equal(module.state_dict()[name], value), f"{name} has other values")


def write_run(rng: random.Random, path: Path) -> Path:
    """The newest state of a run, damaged, and perhaps the one before it too."""
    trainer(path.parent, network(0), resume=False)
    for damaged in (path, path.with_name("last_1.pt"))[: rng.choice((1, 1, 2))]:
        damaged.write_bytes(damage(rng, damaged.read_bytes()))
    return path


def read_run(path: Path) -> None:
    """The run goes on from where it was, or not at all."""
    module = network(1)
    engine = trainer(path.parent, module, resume=True, epochs=3)
    must(engine.state.epoch == 3, f"it goes on to epoch {engine.state.epoch}")
    must(engine.state.iteration == 3, f"it goes on to iteration {engine.state.iteration}")
    must_be_the_saved(module)


FORMATS = {
    "nii": Format(lambda rng, folder: write_nifti(rng, folder / "case.nii"), read_volume),
    "nii.gz": Format(lambda rng, folder: write_nifti(rng, folder / "case.nii.gz"), read_volume),
    "mhd": Format(lambda rng, folder: write_metaimage(rng, folder / "case.mhd"), read_volume),
    "mha": Format(lambda rng, folder: write_metaimage(rng, folder / "case.mha"), read_volume),
    "nrrd": Format(lambda rng, folder: write_nrrd(rng, folder / "case.nrrd"), read_volume),
    "h5": Format(
        lambda rng, folder: write_hdf5(rng, folder / "case.h5"), lambda path: read_volume(Path(f"{path}::image"))
    ),
    "datalist": Format(lambda rng, folder: write_listing(rng, folder / "listed.json", DATALIST), read_list),
    "dataset": Format(lambda rng, folder: write_listing(rng, folder / "dataset.json", DATASET), read_dataset),
    "info": Format(write_info, read_info),
    "weights": Format(lambda rng, folder: write_checkpoint(rng, folder / "model.pt"), read_weights),
    "resume": Format(lambda rng, folder: write_run(rng, folder / "last.pt"), read_run),
}
