"""Made-up T2-weighted MRI of the prostate, written as a PROMISE12 folder, to try everything without a download."""

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
    save_metaimage,
    texture,
    write_phantom,
)

__all__ = ["write_promise12_phantom"]

_MAKER = "monai_spct.data.prostate_phantom.write_promise12_phantom"
_VERSION = 1  # to be raised whenever the same settings give other voxels
_THICKNESS = 3.6  # mm from slice to slice, as in most of PROMISE12
_FIELD = 90.0  # mm, holds the largest prostate drawn here


def write_promise12_phantom(
    folder: str | Path,
    *,
    patients: int = 20,
    seed: int = 0,
    size: tuple[int, int] = (64, 80),
    spacing: tuple[float, float] = (1.45, 1.7),
    slices: tuple[int, int] = (9, 13),
) -> Path:
    r"""Write a made-up PROMISE12 folder, or reuse the one that the same call wrote before.

    Each patient has an image, with a prostate of a mottled central gland and a bright peripheral zone behind it, and
    their common truth (0 background, 1 prostate). Around are the bladder, the rectum, muscles, bone and fat, as in the
    pelvis. The apex and the base lie within the volume, where the prostate is hard to tell from what is beside it.

    The folder appears at once when it is complete. A folder that this function did not make is not touched, unless it
    is empty.

    Args:
        folder: to be written; ``promise12_cases`` reads it.
        patients: how many, 1 to 999. Patient n is the same however many follow.
        seed: of everything drawn; the same seed gives the same files.
        size: least and largest number of voxels along an in-plane axis; each patient and axis has its own.
        spacing: least and largest in-plane voxel size in mm. ``size[0] * spacing[0]`` must be at least 90 mm.
        slices: least and largest number of slices, 4 or more, 3.6 mm apart.

    Returns:
        ``folder``, absolute.

    Raises:
        ValueError: if a setting is out of its range.
        FileExistsError: if the folder holds something else, or a phantom of other settings.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from monai_spct.data import write_promise12_phantom
        >>> with TemporaryDirectory() as parent:
        ...     folder = write_promise12_phantom(f"{parent}/promise12", patients=1)
        ...     print(*sorted(path.name for path in folder.glob("*.mhd")), sep="\n")
        Case00.mhd
        Case00_segmentation.mhd
    """
    settings = phantom_settings(
        *(_MAKER, _VERSION), patients=patients, seed=seed, size=size, spacing=spacing, slices=slices, field=_FIELD,
        to_hold="a prostate",
    )  # fmt: skip

    def write(partial: Path) -> None:
        for number in range(patients):
            _write_patient(partial / f"Case{number:02d}.mhd", generator(seed, number), size, spacing, slices)

    return write_phantom(folder, settings, write)


def _write_patient(
    path: Path,
    rng: np.random.Generator,
    size: tuple[int, int],
    spacing: tuple[float, float],
    slices: tuple[int, int],
) -> None:
    u = rng.uniform
    pixel = round(float(u(*spacing)), 4)
    shape = tuple(int(rng.integers(low, high + 1)) for low, high in (size, size, slices))
    # mm from the middle of the prostate: to the patient's left, back and up
    x, y = (
        (pixel * (np.arange(n) - (n - 1) / 2) - u(-0.3, 0.3) * max(0.0, pixel * n - _FIELD)).astype(np.float32)
        for n in shape[:2]
    )
    z = (_THICKNESS * (np.arange(shape[2]) - (shape[2] - 1) / 2 - u(-0.7, 0.7))).astype(np.float32)
    x, y, z = x[:, None, None], y[None, :, None], z[None, None]

    fine, coarse, nodules = (texture(rng, shape, sigma / pixel) for sigma in (1.5, 8.0, 3.0))
    half_width, half_depth, half_height = u(19, 28), u(13, 20), _THICKNESS * shape[2] * u(0.33, 0.42)
    # the prostate leans on the rectum: flat at its back, and shifted from slice to slice
    lean_x, lean_y = u(-0.1, 0.1) * z, u(-0.15, 0.15) * z + rng.normal(0, 0.5, z.shape).astype(np.float32)
    px, py = x - lean_x, y - lean_y
    py = py + u(0.0, 0.006) * px**2 * (py > 0)
    height = z / half_height
    radius = np.sqrt((px / half_width) ** 2 + (py / half_depth) ** 2 + height**2 * (1 + 0.15 * np.sign(height)))
    radius = radius + 0.04 * coarse
    outside = (radius - 1) * half_depth  # about mm
    picture = _surroundings(rng, px, py, z, pixel, half_depth, half_height, fine, coarse)

    gland = u(0.38, 0.5)
    zone = gland * u(1.35, 1.8)
    blur = 1.2 * pixel
    picture = over(picture, inside(1.5 - outside, blur), u(0.2, 0.3))  # the capsule
    picture = over(picture, inside(-outside, blur), zone * (1 + 0.08 * coarse + 0.05 * fine))
    inner = np.hypot(px / half_width / u(0.6, 0.72), (py + u(3, 5)) / half_depth / u(0.68, 0.78))
    central = (inner - np.sqrt(np.clip(1 - height**2, 0, None))) * half_depth
    mottled = gland * (1 + 0.25 * nodules + 0.05 * fine)
    picture = over(picture, inside(-central, 2 * blur) * inside(-outside, blur), mottled)

    coil = sum(u(-0.25, 0.25) * field for field in (px / 60, py / 60, z / 25))
    image = np.clip(picture, 0, None) * np.exp(coil)
    image = gaussian_filter(image, (0.5, 0.5, 0))
    sigma = u(0.015, 0.035)
    real, imaginary = (rng.normal(0, sigma, shape) for _ in range(2))
    voxels = np.rint(u(300, 900) * np.hypot(image + real, imaginary)).astype(np.int16)
    label: NDArray[np.uint8] = (outside < 0).astype(np.uint8)
    lengths = (pixel, pixel, _THICKNESS)
    save_metaimage(path, voxels, lengths)
    save_metaimage(path.with_name(f"{path.stem}_segmentation.mhd"), label, lengths)


def _surroundings(
    rng: np.random.Generator,
    x: Array,
    y: Array,
    z: Array,
    pixel: float,
    half_depth: float,
    half_height: float,
    fine: Array,
    coarse: Array,
) -> Array:
    """The pelvis but the prostate; mm to the left, back and up of the middle of the prostate."""
    u = rng.uniform
    blur = 1.5 * pixel
    muscle, fat = u(0.15, 0.25), u(0.65, 0.85)
    picture: Array = fat * (1 + 0.12 * coarse + 0.08 * fine)

    # levator ani beside the prostate, obturator internus and bone farther out
    for side in (-1, 1):
        picture = over(picture, inside(2.5 - np.abs(side * x - u(30, 34) - 0.1 * y), blur), muscle * (1 + 0.1 * fine))
        sheet = np.abs(side * x - u(44, 50) + 0.2 * y) - u(5, 8)
        picture = over(picture, inside(-sheet, blur), muscle * (1 + 0.15 * fine))
        picture = over(picture, inside(side * x - u(58, 62), blur), u(0.3, 0.45) * (1 + 0.2 * coarse))
    # the symphysis in front, the sacrum's muscles far behind
    front = half_depth + u(8, 14)
    picture = over(picture, inside(u(10, 16) - np.hypot(0.8 * x, y + front + 14), blur), u(0.2, 0.35))
    picture = over(picture, inside(y - half_depth - u(34, 44), blur), muscle * (1 + 0.2 * fine))

    # the bladder, above and before; urine is the brightest of all
    bladder = np.sqrt(
        (x / u(26, 36)) ** 2 + ((y + u(4, 14)) / u(18, 24)) ** 2 + ((z - half_height - 12) / u(14, 20)) ** 2
    )
    picture = over(picture, inside((1.12 - bladder) * 20, blur), muscle)
    picture = over(picture, inside((1 - bladder) * 20, blur), u(1.0, 1.3))
    # seminal vesicles behind the base, bright and lobed
    lobes = np.sqrt((x / 26) ** 2 + ((y - half_depth + 4) / 6) ** 2 + ((z - half_height - 2) / 8) ** 2) - 0.25 * fine
    picture = over(picture, inside((1 - lobes) * 6, blur), u(0.7, 1.0))
    # the rectum against the back of the prostate: a dark wall around gas or stool
    center_y, across, deep = half_depth + u(12, 15), u(11, 16), u(9, 12)
    rectum = np.hypot((x - u(-4, 4)) / across, (y - center_y) / deep)
    picture = over(picture, inside((1.25 - rectum) * deep, blur), muscle * 1.4)
    return np.asarray(over(picture, inside((1 - rectum) * deep, blur), u(0.03, 0.5) * (1 + 0.2 * fine)), np.float32)
