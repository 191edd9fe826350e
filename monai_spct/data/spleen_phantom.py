"""Made-up abdominal CT, written as the Decathlon's spleen task, to try everything without a download."""

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from monai_spct.data.phantom_parts import (
    Array,
    generator,
    inside,
    over,
    phantom_settings,
    save_nifti,
    texture,
    write_phantom,
)

__all__ = ["write_spleen_phantom"]

_MAKER = "monai_spct.data.spleen_phantom.write_spleen_phantom"
_VERSION = 1  # to be raised whenever the same settings give other voxels
_THICKNESS = 10.0  # mm from slice to slice; real ones are thinner, and many more
_FIELD = 320.0  # mm, holds the largest body drawn here


def write_spleen_phantom(
    folder: str | Path,
    *,
    patients: int = 16,
    seed: int = 0,
    size: tuple[int, int] = (72, 78),
    spacing: tuple[float, float] = (4.45, 4.6),
    slices: tuple[int, int] = (10, 14),
) -> Path:
    r"""Write a made-up ``Task09_Spleen``, or reuse the one that the same call wrote before.

    Each patient has a CT in Hounsfield units and its truth (0 background, 1 spleen): a body with lungs, liver, stomach,
    kidneys, aorta, spine and ribs, and in the back on the left the spleen, which differs from liver and muscle by a few
    Hounsfield units alone.

    The folder appears at once when it is complete. A folder that this function did not make is not touched, unless it
    is empty.

    Args:
        folder: to be written; ``decathlon_cases`` reads it.
        patients: how many, 1 to 999. Patient n is the same however many follow.
        seed: of everything drawn; the same seed gives the same files.
        size: least and largest number of voxels along an in-plane axis; slices are square, as those of CT.
        spacing: least and largest in-plane voxel size in mm. ``size[0] * spacing[0]`` must be at least 320 mm.
        slices: least and largest number of slices, 4 or more, 10 mm apart.

    Returns:
        ``folder``, absolute.

    Raises:
        ValueError: if a setting is out of its range.
        FileExistsError: if the folder holds something else, or a phantom of other settings.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from monai_spct.data import write_spleen_phantom
        >>> with TemporaryDirectory() as parent:
        ...     folder = write_spleen_phantom(f"{parent}/Task09_Spleen", patients=1)
        ...     print(*sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.nii.gz")), sep="\n")
        imagesTr/spleen_1.nii.gz
        labelsTr/spleen_1.nii.gz
    """
    settings = phantom_settings(
        *(_MAKER, _VERSION), patients=patients, seed=seed, size=size, spacing=spacing, slices=slices, field=_FIELD,
        to_hold="a body",
    )  # fmt: skip

    def write(partial: Path) -> None:
        for kind in ("imagesTr", "labelsTr"):
            (partial / kind).mkdir()
        names = [f"spleen_{number}.nii.gz" for number in range(1, patients + 1)]
        for number, name in enumerate(names, 1):
            _write_patient(partial, name, generator(seed, number), size, spacing, slices)
        listing = {
            "name": "Spleen, made up",
            "tensorImageSize": "3D",
            "modality": {"0": "CT"},
            "labels": {"0": "background", "1": "spleen"},
            "numTraining": len(names),
            "numTest": 0,
            "training": [{"image": f"./imagesTr/{name}", "label": f"./labelsTr/{name}"} for name in names],
            "test": [],
        }
        (partial / "dataset.json").write_text(json.dumps(listing, indent=1) + "\n", encoding="utf-8")

    return write_phantom(folder, settings, write)


def _write_patient(
    folder: Path,
    name: str,
    rng: np.random.Generator,
    size: tuple[int, int],
    spacing: tuple[float, float],
    slices: tuple[int, int],
) -> None:
    u = rng.uniform
    pixel = float(u(*spacing))
    across, depth = (int(rng.integers(low, high + 1)) for low, high in (size, slices))
    shape = (across, across, depth)
    # mm from the middle of the body: to the patient's left, to the back, and up from the middle of the volume
    axis = (pixel * (np.arange(across) - (across - 1) / 2)).astype(np.float32)
    x, y = axis[:, None, None] - np.float32(u(-8, 8)), axis[None, :, None] - np.float32(u(-8, 8))
    z = (_THICKNESS * (np.arange(depth) - (depth - 1) / 2)).astype(np.float32)[None, None]
    fine, coarse, lobes = (texture(rng, shape, sigma / pixel) for sigma in (4.0, 20.0, 12.0))
    blur = 1.2 * pixel

    def ellipsoid(center: tuple[float, float, float], half: tuple[float, float, float], wobble: float = 0.0) -> Array:
        """mm, about, inside its surface."""
        parts = zip((x, y, z), center, half, strict=True)
        radius = np.sqrt(sum(((axis - middle) / length) ** 2 for axis, middle, length in parts)) + wobble * coarse
        return np.asarray((1 - radius) * min(half), np.float32)

    half_x, half_y = u(132, 148), u(95, 112)
    body = (1 - np.hypot(x / half_x, y / half_y)) * half_y
    skin = u(8, 22)  # mm of fat below it
    picture = over(np.full(shape, -1000, np.float32), inside(body, blur), u(-115, -95) + 8 * fine)
    picture = over(picture, inside(body - skin, blur), u(45, 60) + 10 * fine)  # muscle
    picture = over(picture, inside(body - skin - u(9, 14), blur), u(-105, -85) + 15 * lobes)  # fat between the organs
    ribs = inside(5 - np.abs(body - skin - 6), blur) * (np.sin(np.arctan2(y, x) * 14 + 0.15 * z) > 0.45)
    picture = over(picture, ribs, u(250, 450))

    top = u(25, 45)  # of the lungs' bases, which reach down behind
    for side in (-1, 1):
        lung = ellipsoid((side * 70, u(25, 40), top + 45), (u(52, 62), u(55, 65), u(48, 62)))
        picture = over(picture, inside(lung, blur), u(-880, -820) + 40 * fine)
    contrast = u(0.7, 1.2)  # how much of it there is in the blood
    liver = ellipsoid((-62, -8, u(5, 20)), (u(66, 76), u(62, 72), u(65, 80)), 0.08)
    picture = over(picture, inside(liver, blur), 50 + 60 * contrast + 4 * lobes)
    stomach = ellipsoid((u(35, 50), u(-48, -38), u(5, 25)), (u(30, 42), u(22, 32), u(35, 50)), 0.1)
    level = u(-70, -45)  # of the air in the stomach of somebody who lies on the back
    picture = over(picture, inside(stomach, blur), np.where(y < level, -900, u(5, 60)) + 6 * fine)
    for side in (-1, 1):
        kidney = ellipsoid((side * u(58, 66), u(40, 50), u(-55, -38)), (u(24, 29), u(26, 31), u(42, 52)))
        picture = over(picture, inside(kidney, blur), 30 + 150 * contrast + 15 * lobes)
    aorta = u(10, 13) - np.hypot(x - u(12, 18), y - u(28, 34))
    picture = over(picture, inside(aorta, blur), 40 + 140 * contrast)
    spine = (1 - np.hypot(x / u(20, 25), (y - u(58, 64)) / u(17, 21))) * 18
    picture = over(picture, inside(spine, blur), u(180, 260) + 40 * fine)
    picture = over(picture, inside(4 - np.abs(spine - 3), blur) * inside(spine, blur), u(400, 600))

    # the spleen: a thick shell on the left, in the back, hollow where it faces the stomach
    middle = (half_x - skin - u(46, 54), u(16, 30), u(-12, 12))
    half = (u(32, 42), u(46, 60), u(42, 60))
    spleen = ellipsoid(middle, half, 0.06)
    hollow = ellipsoid((middle[0] - u(32, 40), middle[1] - u(24, 32), middle[2]), (u(20, 28), u(26, 34), 80.0))
    spleen = np.minimum(np.minimum(spleen, -hollow), body - skin - 10)
    picture = over(picture, inside(spleen, blur), 45 + 75 * contrast + 4 * lobes)

    table = np.abs(y - half_y - u(12, 20)) < 5
    picture = np.where(table & (np.abs(x) < 150) & (body < 0), -100, picture)
    picture = gaussian_filter(picture, (0.4, 0.4, 0)) + rng.normal(0, u(8, 18), shape)
    voxels = np.clip(np.rint(picture), -1024, 3071).astype(np.int16)
    label: NDArray[np.uint8] = (spleen > 0).astype(np.uint8)
    # in the files the first axis goes to the right and the second one to the front
    affine = np.diag([pixel, pixel, _THICKNESS, 1.0])
    for kind, array in (("imagesTr", voxels), ("labelsTr", label)):
        save_nifti(folder / kind / name, np.ascontiguousarray(array[::-1, ::-1]), affine)
