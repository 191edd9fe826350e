"""Made-up short-axis cardiac cine-MRI, written as an ACDC folder, to try everything without a download."""

from dataclasses import dataclass
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

__all__ = ["write_acdc_phantom"]

_MAKER = "monai_spct.data.phantom.write_acdc_phantom"
_VERSION = 1  # to be raised whenever the same settings give other voxels
_THICKNESS = 10.0  # mm from slice to slice, as in most of ACDC
_FIELD = 125.0  # mm, holds the largest heart drawn here


def write_acdc_phantom(
    folder: str | Path,
    *,
    patients: int = 20,
    seed: int = 0,
    size: tuple[int, int] = (96, 128),
    spacing: tuple[float, float] = (1.37, 1.8),
    slices: tuple[int, int] = (6, 10),
) -> Path:
    r"""Write a made-up ACDC folder, or reuse the one that the same call wrote before.

    Each patient has ``Info.cfg``, a short ``_4d`` cine and the end-diastolic and end-systolic frames with their truth
    (0 background, 1 right ventricle, 2 myocardium, 3 left ventricle), in the places and formats of ACDC. The five
    diagnoses of ACDC take turns and shape the hearts: dilated, hypertrophic, infarcted, with a large right ventricle,
    and normal. The ventricles contract, the walls thicken, the base moves into view; organs around have the intensities
    of blood and muscle.

    The folder appears at once when it is complete, so neither a run that was killed (it may leave a hidden folder
    beside) nor another process that writes the same makes half a data set. A folder that this function did not make
    is not touched, unless it is empty.

    Args:
        folder: to be written; ``acdc_cases`` reads it.
        patients: how many, 1 to 999. Patient n is the same however many follow.
        seed: of everything drawn; the same seed gives the same files.
        size: least and largest number of voxels along an in-plane axis; each patient and axis has its own.
        spacing: least and largest in-plane voxel size in mm. ``size[0] * spacing[0]`` must be at least 125 mm.
        slices: least and largest number of slices, 4 or more, 10 mm apart, from base to apex.

    Returns:
        ``folder``, absolute.

    Raises:
        ValueError: if a setting is out of its range.
        FileExistsError: if the folder holds something else, or a phantom of other settings.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as parent:
        ...     folder = write_acdc_phantom(f"{parent}/acdc", patients=1, size=(40, 44), spacing=(3.2, 3.4))
        ...     patient = folder / "training" / "patient001"
        ...     print(*sorted(path.name for path in patient.glob("*_frame*")), sep="\n")
        patient001_frame01.nii.gz
        patient001_frame01_gt.nii.gz
        patient001_frame04.nii.gz
        patient001_frame04_gt.nii.gz
    """
    settings = phantom_settings(
        _MAKER,
        _VERSION,
        patients=patients,
        seed=seed,
        size=size,
        spacing=spacing,
        slices=slices,
        field=_FIELD,
        to_hold="a heart",
    )

    def write(partial: Path) -> None:
        for number in range(1, patients + 1):
            name = f"patient{number:03d}"
            patient = partial / "training" / name
            patient.mkdir(parents=True)
            _write_patient(patient, number, generator(seed, number), size, spacing, slices)

    return write_phantom(folder, settings, write)


# --- the heart -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Heart:
    """What is drawn once for each patient. Lengths in mm, angles in radians."""

    group: str
    radius: float  # of the left ventricle's cavity at the base, end-diastole
    wall: float  # thickness at the base, end-diastole
    contraction: float  # end-systolic radius of the cavity, as a share of the end-diastolic one
    right_width: float  # of the right ventricle at the base, from the septum to its free wall
    right_contraction: float
    right_angles: tuple[float, float]  # how far the right ventricle reaches around the left one, on either side
    right_bluntness: float
    right_end: float  # where along the axis it ends: 0 base, 1 apex
    base: float  # mm along the axis from the first slice, end-diastole
    apex: float
    shortening: float  # of the axis, as a share of its length
    taper: float
    harmonics: Array  # (2, 2) amplitude and angle of an oval and of a triangular shape
    septum: float  # flattening of the septum
    bulge: Array  # (2,) amplitude and angle of a regional thickening (positive) or thinning
    akinesia: float  # share of the contraction that is missing in that region
    direction: float  # from the left to the right ventricle, in the image
    papillaries: Array  # (2, 3) angle, distance as a share of the radius, size


def _draw_heart(group: str, rng: np.random.Generator, slices: int) -> _Heart:
    u = rng.uniform
    radius, wall, contraction, right = {
        "NOR": (u(20, 26), u(6.5, 9), u(0.58, 0.7), u(22, 30)),
        "DCM": (u(27, 32), u(5.5, 7), u(0.8, 0.92), u(22, 32)),
        "HCM": (u(18, 23), u(10, 13), u(0.42, 0.58), u(18, 26)),
        "MINF": (u(23, 29), u(6.5, 8.5), u(0.72, 0.84), u(20, 28)),
        "RV": (u(18, 23), u(6, 8.5), u(0.58, 0.72), u(32, 38)),
    }[group]
    return _Heart(
        group=group,
        radius=radius,
        wall=wall,
        contraction=contraction,
        right_width=right,
        right_contraction=u(0.75, 0.9) if group == "RV" else u(0.5, 0.75),
        right_angles=(np.deg2rad(u(65, 90)), np.deg2rad(u(75, 105))),
        right_bluntness=u(0.6, 1.1),
        right_end=u(0.7, 0.9),
        base=u(-9, -1),
        apex=_THICKNESS * (slices - 1 + u(-1.3, 0.4)),
        shortening=u(0.04, 0.1) if group in ("DCM", "MINF") else u(0.1, 0.18),
        taper=u(2.0, 3.2),
        harmonics=np.array([[u(0, 0.07), u(-np.pi, np.pi)], [u(0, 0.03), u(-np.pi, np.pi)]], np.float32),
        septum=u(0.12, 0.25) if group == "RV" else u(0, 0.06),
        bulge=np.array(
            {"HCM": (u(0.25, 0.6), u(-0.4, 0.4)), "MINF": (u(-0.35, -0.15), u(-np.pi, np.pi))}.get(
                group, (u(-0.1, 0.15), u(-np.pi, np.pi))
            ),
            np.float32,
        ),
        akinesia=u(0.5, 0.9) if group == "MINF" else 0.0,
        direction=np.deg2rad(180 + u(-35, 35)),
        papillaries=np.array(
            [[side * u(1.6, 2.4), u(0.5, 0.72), u(0.11, 0.2)] for side in (-1, 1)],
            np.float32,
        ),
    )


@dataclass(frozen=True)
class _Outlines:
    """Distances from the axis of the left ventricle in mm, for each voxel's own direction, ``(X, Y, Z)``."""

    cavity: Array
    epicardium: Array
    right: Array  # the right ventricle's cavity; the epicardium where there is none
    height: Array  # (1, 1, Z) 0 at the base, 1 at the apex


def _outlines(heart: _Heart, angle: Array, squeeze: float) -> _Outlines:
    """The heart when it has done ``squeeze`` of its contraction; ``angle`` is 0 towards the right ventricle."""
    base = heart.base + squeeze * heart.shortening * (heart.apex - heart.base)
    position = np.arange(angle.shape[2], dtype=np.float32) * np.float32(_THICKNESS)
    height = ((position - base) / (heart.apex - base))[None, None]
    below = np.clip(height, 0, 1)

    (oval, oval_angle), (triangle, triangle_angle) = heart.harmonics
    shape = 1 + oval * np.cos(2 * (angle - oval_angle)) + triangle * np.cos(3 * (angle - triangle_angle))
    shape = shape - heart.septum * np.exp(-((angle / 0.7) ** 2))
    region = np.exp(2.5 * (np.cos(angle - heart.bulge[1]) - 1))

    relaxed = heart.radius * shape * np.sqrt(np.clip(1 - (below / 0.92) ** heart.taper, 0, None))
    outside = heart.radius * shape + heart.wall * (1 + heart.bulge[0] * region)
    outside = np.maximum(outside * np.sqrt(1 - below**heart.taper), relaxed)
    shrink = 1 - squeeze * (1 - heart.contraction) * (1 - heart.akinesia * region)
    cavity = relaxed * shrink
    # muscle keeps its volume: what it loses along the axis and inside, it gains in thickness
    muscle = (outside**2 - relaxed**2) / (1 - squeeze * heart.shortening)
    epicardium = np.sqrt(cavity**2 + muscle)

    reach = np.abs(angle) / np.where(angle < 0, *heart.right_angles)
    width = heart.right_width * (1 - squeeze * (1 - heart.right_contraction))
    width = width * np.sqrt(np.clip(1 - (below / heart.right_end) ** 2, 0, None))
    right = epicardium + width * np.cos(np.pi / 2 * np.clip(reach, 0, 1)) ** heart.right_bluntness
    return _Outlines(*(part.astype(np.float32) for part in (cavity, epicardium, right, height)))


def _label(outlines: _Outlines, radius: Array) -> NDArray[np.uint8]:
    label = np.zeros(radius.shape, np.uint8)
    label[radius < outlines.right] = 1
    label[radius < outlines.epicardium] = 2
    label[radius < outlines.cavity] = 3
    # above the base there are atria and valves, which ACDC leaves unlabeled
    return np.where((outlines.height >= 0) & (outlines.height <= 1), label, np.uint8(0))


# --- the picture -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Tissue:
    """Brightness of what the heart consists of, blood about 1."""

    blood: float
    right_blood: float
    muscle: float
    fat: float


def _surroundings(rng: np.random.Generator, x: Array, y: Array, pixel: float, heart: _Heart, tissue: _Tissue) -> Array:
    """Everything but the heart; ``x`` to the right and ``y`` down in mm from the middle of the heart."""
    u = rng.uniform
    shape = np.broadcast_shapes(x.shape, y.shape)
    z = np.linspace(-1, 1, shape[2], dtype=np.float32)[None, None]
    fine, coarse, streaks = (texture(rng, shape, sigma / pixel) for sigma in (2.5, 9.0, 5.0))
    blur = 1.5 * pixel

    picture = u(0.04, 0.1) * (1 + 0.3 * coarse)  # lung
    vessels = inside(2.0 * (fine - u(1.9, 2.6)), 1.0)
    picture = over(picture, vessels, u(0.5, 0.9))

    # liver and spleen under a dome, often right below the heart and as dark as its muscle
    dome = u(26, 46) + 0.5 * u(-1, 1) * x + 10 * u(-1, 1) * z - 8 * np.cos((x - u(-30, 30)) / 35)
    picture = over(picture, inside(y - dome, blur), tissue.muscle * u(0.75, 1.35) * (1 + 0.12 * coarse + 0.05 * fine))
    below = inside(y - dome - 3, blur)
    picture = over(picture, below * inside(1.5 * (streaks - u(1.2, 1.6)), 1.0), tissue.blood * u(0.7, 1.0))

    # a stomach: bright, with a dark wall, much like a left ventricle; and the aorta, bright and round
    for center, size, rim in (
        ((u(10, 55), u(50, 75)), u(14, 26), u(3, 6)),
        ((u(35, 60), u(20, 45)), u(8, 12), 1.5),
    ):
        stretch, tilt = u(0.7, 1.3), u(-0.5, 0.5)
        dx, dy = x - center[0] - 8 * u(-1, 1) * z, y - center[1] - 8 * u(-1, 1) * z
        distance = size - np.hypot(dx * stretch + tilt * dy, dy / stretch)
        picture = over(picture, inside(distance + rim, blur), tissue.muscle * u(0.7, 1.1))
        picture = over(picture, inside(distance, blur), tissue.blood * u(0.6, 1.05) * (1 + 0.12 * coarse))

    # the chest wall before the right ventricle: fat, muscle, fat, then the air outside
    direction = heart.direction + u(0.1, 0.8)
    depth = x * np.cos(direction) + y * np.sin(direction) + 2.5 * coarse + 0.5 * streaks + 6 * u(-1, 1) * z
    depth = depth - 0.004 * (x * np.sin(direction) - y * np.cos(direction)) ** 2 - u(48, 60)
    picture = over(picture, inside(depth, blur), tissue.muscle * u(0.7, 1.2) * (1 + 0.2 * fine))
    rib = np.abs((depth - u(5, 8)) / u(3, 5))
    picture = over(picture, inside(2 * (1 - rib), blur), tissue.fat * u(0.8, 1.1) * (1 + 0.15 * fine))
    picture = over(picture, inside(depth - u(14, 18), blur), tissue.fat * (1 + 0.1 * fine))
    return np.asarray(over(picture, inside(depth - u(24, 34), blur), 0.02), np.float32)


def _write_patient(
    folder: Path,
    number: int,
    rng: np.random.Generator,
    size: tuple[int, int],
    spacing: tuple[float, float],
    slices: tuple[int, int],
) -> None:
    u = rng.uniform
    group = ("DCM", "HCM", "MINF", "NOR", "RV")[number % 5]
    shape = (
        int(rng.integers(size[0], size[1] + 1)),
        int(rng.integers(size[0], size[1] + 1)),
        int(rng.integers(slices[0], slices[1] + 1)),
    )
    pixel = float(u(*spacing))
    frames = int(rng.integers(5, 10))
    systole = int(rng.integers(2, frames))  # counted from end-diastole
    first = 0 if u() < 0.9 else int(rng.integers(1, frames))  # a few cines do not start at end-diastole
    heart = _draw_heart(group, rng, shape[2])
    blood = u(0.85, 1.0)
    tissue = _Tissue(
        blood=blood, right_blood=blood * u(0.8, 1.02), muscle=blood * u(0.28, 0.55), fat=blood * u(0.6, 1.15)
    )

    # mm from the middle of the heart, which lies near the middle of the image
    spare = [max(0.0, pixel * n - _FIELD) / 2 for n in shape[:2]]
    middle = [pixel * (n - 1) / 2 + room * u(-1, 1) for n, room in zip(shape[:2], spare, strict=True)]
    x = (pixel * np.arange(shape[0], dtype=np.float32) - np.float32(middle[0]))[:, None, None]
    y = (pixel * np.arange(shape[1], dtype=np.float32) - np.float32(middle[1]))[None, :, None]
    surroundings = _surroundings(rng, x, y, pixel, heart, tissue)

    # the left ventricle's axis is oblique, and no two slices are taken in quite the same breath
    along = np.linspace(-1, 1, shape[2], dtype=np.float32)[None, None]
    shift = heart.right_width / 2
    axis_x, axis_y = (
        -shift * trigonometric(heart.direction) + u(-7, 7) * along + rng.normal(0, 0.9, along.shape).astype(np.float32)
        for trigonometric in (np.cos, np.sin)
    )
    dx, dy = x - axis_x, y - axis_y
    radius = np.hypot(dx, dy).astype(np.float32)
    angle = np.arctan2(dy, dx) - heart.direction
    angle = ((angle + np.pi) % (2 * np.pi) - np.pi).astype(np.float32)

    flow, trabeculae = texture(rng, shape, 7.0 / pixel), texture(rng, shape, 2.2 / pixel)
    fat_width = np.clip(u(0, 3.5) + 3.5 * texture(rng, shape, 14.0 / pixel), 0, None)  # in patches
    coil = sum(u(-0.35, 0.35) * field for field in (x / 70, y / 70, x * y / 4900, along)) - (x * x + y * y) / 36000
    gamma, gain, sigma, sharpness = u(0.85, 1.2), u(220, 900), u(0.015, 0.045), u(0.35, 0.6)
    blur = 1.3 * pixel

    def take(squeeze: float) -> tuple[NDArray[np.int16], NDArray[np.uint8]]:
        """Image and truth of one moment of the heart beat."""
        outlines = _outlines(heart, angle, squeeze)
        # towards the apex a slice cuts the wall ever more obliquely
        edge = blur * (1 + 2 * np.clip(outlines.height, 0, 1) ** 3)
        gone = np.clip(4 * (1 - outlines.height) + 0.5, 0, 1)  # below the apex
        atrium = outlines.height < 0
        wall = np.where(atrium, 2.0, outlines.epicardium - outlines.cavity)
        cavity = np.where(atrium, outlines.epicardium - wall, outlines.cavity)
        free_wall = np.where(outlines.right > outlines.epicardium + 1, 3.0, 0.0)
        surface = outlines.right + free_wall

        picture = over(surroundings, gone * inside(surface + fat_width - radius, blur), tissue.fat)
        picture = over(picture, gone * inside(surface - radius, blur), tissue.muscle * (1 + 0.07 * trabeculae))
        chamber = inside(outlines.right - radius, edge) * inside(radius - outlines.epicardium, edge)
        bands = 0.7 * inside(trabeculae - 1.1, 0.6)
        blood_there = tissue.right_blood * (1 + 0.08 * flow) * (1 - bands) + tissue.muscle * bands
        picture = over(picture, gone * chamber, blood_there)

        # papillary muscles and trabeculae belong to the cavity in ACDC, though they are dark
        dark = inside(trabeculae - 0.7, 0.6) * inside(radius - 0.75 * cavity, 2 * blur)
        for turn, distance, width in heart.papillaries:
            px, py = (distance * cavity * t(turn) for t in (np.cos, np.sin))
            apart = np.hypot(radius * np.cos(angle) - px, radius * np.sin(angle) - py)
            size_there = (0.4 + 0.6 * np.sin(np.pi * np.clip(outlines.height, 0, 1))) * width * heart.radius
            dark = np.maximum(dark, inside(size_there - apart, blur))
        dark = np.where(atrium, 0, 0.85 * dark)
        blood_there = tissue.blood * (1 + 0.08 * flow) * (1 - dark) + tissue.muscle * dark
        picture = over(picture, gone * inside(cavity - radius, edge), blood_there)

        picture = np.clip(picture, 0, None) ** gamma * np.exp(coil)
        picture = gaussian_filter(picture, (sharpness, sharpness, 0))
        real, imaginary = (rng.normal(0, sigma, shape) for _ in range(2))
        image = np.hypot(picture + real, imaginary)  # Rician, as the magnitude of a complex signal is
        return np.rint(gain * image).astype(np.int16), _label(outlines, radius)

    numbers, images = [], []
    affine = np.diag([-pixel, -pixel, _THICKNESS, 1.0])
    for frame in range(frames):
        beat = (frame - first) % frames
        progress = beat / systole if beat <= systole else (frames - beat) / (frames - systole)
        image, label = take(float(np.sin(np.pi / 2 * progress) ** 2))
        images.append(image)
        if beat in (0, systole):
            numbers.append((beat, frame + 1))
            name = f"{folder.name}_frame{frame + 1:02d}"
            save_nifti(folder / f"{name}.nii.gz", image, affine)
            save_nifti(folder / f"{name}_gt.nii.gz", label, affine)
    save_nifti(folder / f"{folder.name}_4d.nii.gz", np.stack(images, axis=3), affine)
    phases = dict(numbers)
    (folder / "Info.cfg").write_text(
        f"ED: {phases[0]}\nES: {phases[systole]}\nGroup: {group}\nHeight: {u(155, 190):.1f}\nNbFrame: {frames}\n"
        f"Weight: {u(50, 105):.1f}",
        encoding="utf-8",
    )
