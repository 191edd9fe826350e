"""Synthetic patients in the formats of ACDC, PROMISE12, the Decathlon's spleen task and the left atrium data."""

import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, NamedTuple

import nibabel as nib
import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from monai_spct.data.hdf5 import save_hdf5
from monai_spct.functional.checks import at_least

__all__ = [
    "save_metaimage",
    "write_acdc_phantom",
    "write_atrium_phantom",
    "write_promise12_phantom",
    "write_spleen_phantom",
]

Array = NDArray[np.floating[Any]]
_Ranges = tuple[tuple[int, int], tuple[float, float], tuple[int, int]]  # of size, spacing and slices
_Voxels = NDArray[np.int16] | NDArray[np.uint8]

_VERSION = 1  # to be raised whenever the same settings give other voxels
_SETTINGS = "phantom.json"


def write_acdc_phantom(
    folder: str | Path,
    *,
    patients: int = 20,
    seed: int = 0,
    size: tuple[int, int] = (96, 128),
    spacing: tuple[float, float] = (1.37, 1.8),
    slices: tuple[int, int] = (6, 10),
) -> Path:
    r"""Write synthetic short-axis cardiac cine MRI as an ACDC folder, or reuse what the same call wrote before.

    Each patient has ``Info.cfg``, a ``_4d`` cine and the end-diastolic and end-systolic frames with their labels
    (0 background, 1 right ventricle, 2 myocardium, 3 left ventricle). The five diagnoses of ACDC take turns.

    The folder appears only when complete, also if the call is interrupted or several run at once. Any other folder
    that is not empty is left alone.

    Args:
        folder: to be written; ``acdc_cases`` reads it.
        patients: number of patients, 1 to 999; patient n is the same however many follow.
        seed: the same seed gives the same files.
        size: smallest and largest number of voxels along an in-plane axis.
        spacing: smallest and largest in-plane voxel size in mm. ``size[0] * spacing[0]`` must be at least 125 mm.
        slices: smallest and largest number of slices, 4 or more, 10 mm apart, from base to apex.

    Returns:
        ``folder``, absolute.

    Raises:
        ValueError: if a setting is out of its range.
        FileExistsError: if the folder holds something else, or a phantom with other settings.

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
    return _written(folder, _ACDC, patients, seed, (size, spacing, slices))


def write_promise12_phantom(
    folder: str | Path,
    *,
    patients: int = 20,
    seed: int = 0,
    size: tuple[int, int] = (64, 80),
    spacing: tuple[float, float] = (1.45, 1.7),
    slices: tuple[int, int] = (9, 13),
) -> Path:
    r"""Write synthetic T2-weighted pelvic MRI as a PROMISE12 folder, or reuse what the same call wrote before.

    Each patient has an image and its label (0 background, 1 prostate).

    Args:
        folder: as for :func:`write_acdc_phantom`; ``promise12_cases`` reads it.
        patients: number of patients, 1 to 999.
        seed: the same seed gives the same files.
        size: smallest and largest number of voxels along an in-plane axis.
        spacing: smallest and largest in-plane voxel size in mm. ``size[0] * spacing[0]`` must be at least 90 mm.
        slices: smallest and largest number of slices, 4 or more, 3.6 mm apart.

    Returns:
        ``folder``, absolute.

    Raises:
        ValueError, FileExistsError: as :func:`write_acdc_phantom`.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as parent:
        ...     folder = write_promise12_phantom(f"{parent}/promise12", patients=1)
        ...     print(*sorted(path.name for path in folder.glob("*.mhd")), sep="\n")
        Case00.mhd
        Case00_segmentation.mhd
    """
    return _written(folder, _PROMISE12, patients, seed, (size, spacing, slices))


def write_spleen_phantom(
    folder: str | Path,
    *,
    patients: int = 16,
    seed: int = 0,
    size: tuple[int, int] = (72, 78),
    spacing: tuple[float, float] = (4.45, 4.6),
    slices: tuple[int, int] = (10, 14),
) -> Path:
    r"""Write synthetic abdominal CT as ``Task09_Spleen``, or reuse what the same call wrote before.

    Each patient has a CT in Hounsfield units and its label (0 background, 1 spleen).

    Args:
        folder: as for :func:`write_acdc_phantom`; ``decathlon_cases`` reads it.
        patients: number of patients, 1 to 999.
        seed: the same seed gives the same files.
        size: smallest and largest number of voxels along an in-plane axis; slices are square.
        spacing: smallest and largest in-plane voxel size in mm. ``size[0] * spacing[0]`` must be at least 320 mm.
        slices: smallest and largest number of slices, 4 or more, 10 mm apart.

    Returns:
        ``folder``, absolute.

    Raises:
        ValueError, FileExistsError: as :func:`write_acdc_phantom`.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as parent:
        ...     folder = write_spleen_phantom(f"{parent}/Task09_Spleen", patients=1)
        ...     print(*sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.nii.gz")), sep="\n")
        imagesTr/spleen_1.nii.gz
        labelsTr/spleen_1.nii.gz
    """
    return _written(folder, _SPLEEN, patients, seed, (size, spacing, slices))


def write_atrium_phantom(
    folder: str | Path,
    *,
    patients: int = 20,
    seed: int = 0,
    size: tuple[int, int] = (64, 72),
    spacing: tuple[float, float] = (1.35, 1.45),
    slices: tuple[int, int] = (36, 40),
) -> Path:
    r"""Write synthetic late gadolinium MRI of the left atrium as the copy that the field uses of the 2018 challenge.

    Each patient has an image, of mean 0 and standard deviation 1, and its label (0 background, 1 left atrium).
    It needs h5py.

    Args:
        folder: as for :func:`write_acdc_phantom`; ``atrium_cases`` reads it.
        patients: number of patients, 1 to 999.
        seed: the same seed gives the same files.
        size: smallest and largest number of voxels from right to left; there are three quarters of it from front to
            back.
        spacing: smallest and largest width of a voxel in mm, along all axes; the files do not tell it.
            ``size[0] * spacing[0]`` must be at least 86 mm.
        slices: smallest and largest number of slices, 4 or more; the atrium fills two thirds of them.

    Returns:
        ``folder``, absolute.

    Raises:
        ImportError: if h5py is not installed.
        ValueError, FileExistsError: as :func:`write_acdc_phantom`.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as parent:
        ...     folder = write_atrium_phantom(f"{parent}/atrium", patients=1, slices=(8, 8))
        ...     print(*sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.h5")), sep="\n")
        ATRIUM001/mri_norm2.h5
    """
    return _written(folder, _ATRIUM, patients, seed, (size, spacing, slices))


# --- the folder


class _Kind(NamedTuple):
    maker: str
    first: int  # number of the first patient
    write: Callable[[Path, int, np.random.Generator, _Ranges], None]  # one patient into the folder
    field: float  # mm that a slice must show
    to_hold: str


def _written(folder: str | Path, kind: _Kind, patients: int, seed: int, ranges: _Ranges) -> Path:
    """The phantom, or the one that was written before with the same settings."""
    size, spacing, slices = ranges
    _check(patients, seed, ranges, kind)
    settings = {"patients": patients, "seed": seed, "size": size, "spacing": spacing, "slices": slices}
    made = json.loads(json.dumps({"made_by": kind.maker, "version": _VERSION, **settings}, default=float))
    folder = Path(folder).expanduser().absolute()
    target = folder.resolve()  # so that a link stays a link
    if _is_there(target, made):
        return folder
    target.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as beside:
        partial = Path(beside, target.name)
        partial.mkdir()
        for number in range(kind.first, kind.first + patients):
            # a generator of its own: who follows, and how much was drawn before, changes nothing
            kind.write(partial, number, np.random.default_rng([seed, number]), ranges)
        (partial / _SETTINGS).write_text(json.dumps(made, indent=2) + "\n", encoding="utf-8")
        try:
            if target.is_dir():
                target.rmdir()  # fails unless it is still empty
            partial.rename(target)
        except OSError:
            # another process may have been faster, for example another rank of the same training
            if not _is_there(target, made):
                raise
    return folder


def _check(patients: int, seed: int, ranges: _Ranges, kind: _Kind) -> None:
    size, spacing, slices = ranges
    at_least("seed", seed, 0)
    if at_least("patients", patients, 1) > 999:
        raise ValueError(f"`patients` must be at most 999, got {patients!r}.")
    if not 8 <= size[0] <= size[1]:
        raise ValueError(f"`size` must be two numbers of voxels, at least 8 and rising, got {size!r}.")
    if not 0 < spacing[0] <= spacing[1] < np.inf:
        raise ValueError(f"`spacing` must be two positive lengths in mm, rising, got {spacing!r}.")
    if not (width := size[0] * spacing[0]) >= kind.field:
        wanted = f"{kind.field:g} mm to hold {kind.to_hold}"
        raise ValueError(f"`size[0] * spacing[0]` must be at least {wanted}, got {width:g} mm.")
    if not 4 <= slices[0] <= slices[1]:
        raise ValueError(f"`slices` must be two numbers, at least 4 and rising, got {slices!r}.")


def _is_there(folder: Path, made: dict[str, Any]) -> bool:
    """Whether this very phantom exists; raises if the folder holds anything else."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return False
    try:
        found = json.loads((folder / _SETTINGS).read_text(encoding="utf-8"))
        found["made_by"] = found["made_by"].rpartition(".")[2]  # earlier versions wrote the module, too
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        found = {}
    if found.get("made_by") != made["made_by"]:
        raise FileExistsError(f"{folder} exists and is no phantom: it is left alone, choose another folder.")
    if others := [
        f"{name} is {found.get(name)!r}, not {made[name]!r}" for name in made if found.get(name) != made[name]
    ]:
        raise FileExistsError(
            f"{folder} holds a phantom with other settings ({', '.join(others)}): choose another folder, or delete "
            "this one."
        )
    return True


def _save_nifti(path: Path, voxels: _Voxels, affine: NDArray[np.float64]) -> None:
    image: Any = nib.Nifti1Image(voxels, affine)  # type: ignore[no-untyped-call]
    image.set_sform(affine, code="scanner")
    image.set_qform(affine, code="scanner")
    image.header.set_xyzt_units("mm", "sec")
    nib.save(image, path)


def save_metaimage(path: Path, voxels: _Voxels, spacing: tuple[float, float, float]) -> None:
    """Write an ``.mhd`` file and the ``.raw`` beside it; axes go to the left, back and up.

    Args:
        path: the new file.
        voxels: ``(*S)``, int16 or uint8.
        spacing: in mm.
    """
    kind = {"int16": "MET_SHORT", "uint8": "MET_UCHAR"}[voxels.dtype.name]
    header = (
        "ObjectType = Image\nNDims = 3\nBinaryData = True\nBinaryDataByteOrderMSB = False\nCompressedData = False\n"
        "TransformMatrix = 1 0 0 0 1 0 0 0 1\nOffset = 0 0 0\nCenterOfRotation = 0 0 0\nAnatomicalOrientation = RAI\n"
        f"ElementSpacing = {' '.join(map(repr, spacing))}\nDimSize = {' '.join(map(str, voxels.shape))}\n"
        f"ElementType = {kind}\nElementDataFile = {path.with_suffix('.raw').name}\n"
    )
    path.with_suffix(".raw").write_bytes(voxels.astype(voxels.dtype.newbyteorder("<")).tobytes(order="F"))
    path.write_text(header, encoding="ascii")


# --- the palette


def _texture(rng: np.random.Generator, shape: tuple[int, ...], sigma: float) -> Array:
    """Smooth noise with mean 0 and standard deviation 1; ``sigma`` in voxels."""
    noise = gaussian_filter(rng.standard_normal(shape, np.float32), (sigma, sigma, 0.6), mode="wrap", truncate=3)
    return np.asarray((noise - noise.mean()) / noise.std(), np.float32)


def _inside(distance: Array, blur: float | Array) -> Array:
    """Partial volume of a voxel ``distance`` mm inside an outline that is ``blur`` mm wide."""
    share: Array = np.clip(0.5 + distance / blur, 0, 1)
    return share


def _over(picture: Array, share: Array, value: float | Array) -> Array:
    """``value`` laid over the picture where ``share`` is 1."""
    return picture + share * (value - picture)


def _noisy(rng: np.random.Generator, picture: Array, sigma: float) -> Array:
    """A picture with Rician noise, as the magnitude of a complex signal has."""
    real, imaginary = (rng.normal(0, sigma, picture.shape) for _ in range(2))
    return np.asarray(np.hypot(picture + real, imaginary))


# --- the heart: lengths in mm, angles in radians

_HEART_FIELD = 125.0  # holds the largest heart drawn here
_HEART_THICKNESS = 10.0  # from slice to slice, as in most of ACDC


def _heart(group: str, rng: np.random.Generator, slices: int) -> SimpleNamespace:
    """What is drawn once for each patient."""
    u = rng.uniform
    radius, wall, contraction, right = {
        "NOR": (u(20, 26), u(6.5, 9), u(0.58, 0.7), u(22, 30)),
        "DCM": (u(27, 32), u(5.5, 7), u(0.8, 0.92), u(22, 32)),
        "HCM": (u(18, 23), u(10, 13), u(0.42, 0.58), u(18, 26)),
        "MINF": (u(23, 29), u(6.5, 8.5), u(0.72, 0.84), u(20, 28)),
        "RV": (u(18, 23), u(6, 8.5), u(0.58, 0.72), u(32, 38)),
    }[group]
    return SimpleNamespace(
        radius=radius,  # of the left ventricle's cavity at the base, end-diastole
        wall=wall,  # thickness there
        contraction=contraction,  # end-systolic radius of the cavity, as a share of the end-diastolic one
        right_width=right,  # of the right ventricle at the base, from the septum to its free wall
        right_contraction=u(0.75, 0.9) if group == "RV" else u(0.5, 0.75),
        right_angles=(np.deg2rad(u(65, 90)), np.deg2rad(u(75, 105))),  # how far it reaches around the left one
        right_bluntness=u(0.6, 1.1),
        right_end=u(0.7, 0.9),  # where along the axis it ends: 0 base, 1 apex
        base=u(-9, -1),  # along the axis from the first slice, end-diastole
        apex=_HEART_THICKNESS * (slices - 1 + u(-1.3, 0.4)),
        shortening=u(0.04, 0.1) if group in ("DCM", "MINF") else u(0.1, 0.18),  # as a share of the axis
        taper=u(2.0, 3.2),
        # amplitude and angle of an oval and of a triangular shape
        harmonics=np.array([[u(0, 0.07), u(-np.pi, np.pi)], [u(0, 0.03), u(-np.pi, np.pi)]], np.float32),
        septum=u(0.12, 0.25) if group == "RV" else u(0, 0.06),  # its flattening
        # amplitude and angle of a regional thickening (positive) or thinning
        bulge=np.array(
            {"HCM": (u(0.25, 0.6), u(-0.4, 0.4)), "MINF": (u(-0.35, -0.15), u(-np.pi, np.pi))}.get(
                group, (u(-0.1, 0.15), u(-np.pi, np.pi))
            ),
            np.float32,
        ),
        akinesia=u(0.5, 0.9) if group == "MINF" else 0.0,  # share of the contraction that is missing there
        direction=np.deg2rad(180 + u(-35, 35)),  # from the left to the right ventricle, in the image
        # angle, distance as a share of the radius, size
        papillaries=np.array([[side * u(1.6, 2.4), u(0.5, 0.72), u(0.11, 0.2)] for side in (-1, 1)], np.float32),
    )


def _outlines(heart: SimpleNamespace, angle: Array, squeeze: float) -> tuple[Array, Array, Array, Array]:
    """Outlines when the heart has done ``squeeze`` of its contraction; ``angle`` is 0 towards the right ventricle.

    The first three are distances from the axis of the left ventricle in each voxel's direction, ``(X, Y, Z)``: of its
    cavity, of the epicardium, and of the right ventricle, which is the epicardium where there is none. The last is the
    height, ``(1, 1, Z)``, from 0 at the base to 1 at the apex.
    """
    base = heart.base + squeeze * heart.shortening * (heart.apex - heart.base)
    position = np.arange(angle.shape[2], dtype=np.float32) * np.float32(_HEART_THICKNESS)
    height = ((position - base) / (heart.apex - base))[None, None]
    below = np.clip(height, 0, 1)

    (oval, oval_angle), (triangle, triangle_angle) = heart.harmonics
    shape = 1 + oval * np.cos(2 * (angle - oval_angle)) + triangle * np.cos(3 * (angle - triangle_angle))
    shape = shape - heart.septum * np.exp(-((angle / 0.7) ** 2))
    region = np.exp(2.5 * (np.cos(angle - heart.bulge[1]) - 1))

    relaxed = heart.radius * shape * np.sqrt(np.clip(1 - (below / 0.92) ** heart.taper, 0, None))
    outside = heart.radius * shape + heart.wall * (1 + heart.bulge[0] * region)
    outside = np.maximum(outside * np.sqrt(1 - below**heart.taper), relaxed)
    cavity = relaxed * (1 - squeeze * (1 - heart.contraction) * (1 - heart.akinesia * region))
    # muscle keeps its volume: what it loses along the axis and inside, it gains in thickness
    muscle = (outside**2 - relaxed**2) / (1 - squeeze * heart.shortening)
    epicardium = np.sqrt(cavity**2 + muscle)

    reach = np.abs(angle) / np.where(angle < 0, *heart.right_angles)
    width = heart.right_width * (1 - squeeze * (1 - heart.right_contraction))
    width = width * np.sqrt(np.clip(1 - (below / heart.right_end) ** 2, 0, None))
    right = epicardium + width * np.cos(np.pi / 2 * np.clip(reach, 0, 1)) ** heart.right_bluntness
    return tuple(part.astype(np.float32) for part in (cavity, epicardium, right, height))


def _thorax(
    rng: np.random.Generator, x: Array, y: Array, pixel: float, direction: float, tissue: SimpleNamespace
) -> Array:
    """Everything but the heart; ``x`` to the right and ``y`` down from the middle of the heart."""
    u = rng.uniform
    shape = np.broadcast_shapes(x.shape, y.shape)
    z = np.linspace(-1, 1, shape[2], dtype=np.float32)[None, None]
    fine, coarse, streaks = (_texture(rng, shape, sigma / pixel) for sigma in (2.5, 9.0, 5.0))
    blur = 1.5 * pixel

    picture = u(0.04, 0.1) * (1 + 0.3 * coarse)  # lung
    vessels = _inside(2.0 * (fine - u(1.9, 2.6)), 1.0)
    picture = _over(picture, vessels, u(0.5, 0.9))

    # liver and spleen under a dome, often right below the heart and as dark as its muscle
    dome = u(26, 46) + 0.5 * u(-1, 1) * x + 10 * u(-1, 1) * z - 8 * np.cos((x - u(-30, 30)) / 35)
    picture = _over(picture, _inside(y - dome, blur), tissue.muscle * u(0.75, 1.35) * (1 + 0.12 * coarse + 0.05 * fine))
    below = _inside(y - dome - 3, blur)
    picture = _over(picture, below * _inside(1.5 * (streaks - u(1.2, 1.6)), 1.0), tissue.blood * u(0.7, 1.0))

    # a stomach: bright, with a dark wall, much like a left ventricle; and the aorta, bright and round
    for center, size, rim in (
        ((u(10, 55), u(50, 75)), u(14, 26), u(3, 6)),
        ((u(35, 60), u(20, 45)), u(8, 12), 1.5),
    ):
        stretch, tilt = u(0.7, 1.3), u(-0.5, 0.5)
        dx, dy = x - center[0] - 8 * u(-1, 1) * z, y - center[1] - 8 * u(-1, 1) * z
        distance = size - np.hypot(dx * stretch + tilt * dy, dy / stretch)
        picture = _over(picture, _inside(distance + rim, blur), tissue.muscle * u(0.7, 1.1))
        picture = _over(picture, _inside(distance, blur), tissue.blood * u(0.6, 1.05) * (1 + 0.12 * coarse))

    # the chest wall before the right ventricle: fat, muscle, fat, then the air outside
    direction = direction + u(0.1, 0.8)
    depth = x * np.cos(direction) + y * np.sin(direction) + 2.5 * coarse + 0.5 * streaks + 6 * u(-1, 1) * z
    depth = depth - 0.004 * (x * np.sin(direction) - y * np.cos(direction)) ** 2 - u(48, 60)
    picture = _over(picture, _inside(depth, blur), tissue.muscle * u(0.7, 1.2) * (1 + 0.2 * fine))
    rib = np.abs((depth - u(5, 8)) / u(3, 5))
    picture = _over(picture, _inside(2 * (1 - rib), blur), tissue.fat * u(0.8, 1.1) * (1 + 0.15 * fine))
    picture = _over(picture, _inside(depth - u(14, 18), blur), tissue.fat * (1 + 0.1 * fine))
    return np.asarray(_over(picture, _inside(depth - u(24, 34), blur), 0.02), np.float32)


def _write_heart(root: Path, number: int, rng: np.random.Generator, ranges: _Ranges) -> None:
    u = rng.uniform
    folder = root / "training" / f"patient{number:03d}"
    folder.mkdir(parents=True)
    size, spacing, slices = ranges
    group = ("DCM", "HCM", "MINF", "NOR", "RV")[number % 5]
    shape = tuple(int(rng.integers(low, high + 1)) for low, high in (size, size, slices))
    pixel = float(u(*spacing))
    frames = int(rng.integers(5, 10))
    systole = int(rng.integers(2, frames))  # counted from end-diastole
    first = 0 if u() < 0.9 else int(rng.integers(1, frames))  # a few cines do not start at end-diastole
    heart = _heart(group, rng, shape[2])
    blood = u(0.85, 1.0)
    tissue = SimpleNamespace(
        blood=blood, right_blood=blood * u(0.8, 1.02), muscle=blood * u(0.28, 0.55), fat=blood * u(0.6, 1.15)
    )

    # from the middle of the heart, which lies near the middle of the image
    spare = [max(0.0, pixel * n - _HEART_FIELD) / 2 for n in shape[:2]]
    middle = [pixel * (n - 1) / 2 + room * u(-1, 1) for n, room in zip(shape[:2], spare, strict=True)]
    x = (pixel * np.arange(shape[0], dtype=np.float32) - np.float32(middle[0]))[:, None, None]
    y = (pixel * np.arange(shape[1], dtype=np.float32) - np.float32(middle[1]))[None, :, None]
    surroundings = _thorax(rng, x, y, pixel, heart.direction, tissue)

    # the left ventricle's axis is oblique, and no two slices are taken in quite the same breath
    along = np.linspace(-1, 1, shape[2], dtype=np.float32)[None, None]
    dx, dy = (
        position
        - (-heart.right_width / 2 * share + u(-7, 7) * along + rng.normal(0, 0.9, along.shape).astype(np.float32))
        for position, share in ((x, np.cos(heart.direction)), (y, np.sin(heart.direction)))
    )
    radius = np.hypot(dx, dy).astype(np.float32)
    angle = np.arctan2(dy, dx) - heart.direction
    angle = ((angle + np.pi) % (2 * np.pi) - np.pi).astype(np.float32)

    flow, trabeculae = _texture(rng, shape, 7.0 / pixel), _texture(rng, shape, 2.2 / pixel)
    fat_width = np.clip(u(0, 3.5) + 3.5 * _texture(rng, shape, 14.0 / pixel), 0, None)  # in patches
    coil = sum(u(-0.35, 0.35) * field for field in (x / 70, y / 70, x * y / 4900, along)) - (x * x + y * y) / 36000
    gamma, gain, sigma, sharpness = u(0.85, 1.2), u(220, 900), u(0.015, 0.045), u(0.35, 0.6)
    blur = 1.3 * pixel

    def take(squeeze: float) -> tuple[NDArray[np.int16], NDArray[np.uint8]]:
        """Image and label of one moment of the heart beat."""
        cavity, epicardium, right, height = _outlines(heart, angle, squeeze)
        label = np.select([radius < cavity, radius < epicardium, radius < right], [3, 2, 1], 0)
        # above the base there are atria and valves, which ACDC leaves unlabeled
        label = np.where((height >= 0) & (height <= 1), label, 0).astype(np.uint8)

        # towards the apex a slice cuts the wall ever more obliquely
        edge = blur * (1 + 2 * np.clip(height, 0, 1) ** 3)
        gone = np.clip(4 * (1 - height) + 0.5, 0, 1)  # below the apex
        atrium = height < 0
        wall = np.where(atrium, 2.0, epicardium - cavity)
        cavity = np.where(atrium, epicardium - wall, cavity)
        surface = right + np.where(right > epicardium + 1, 3.0, 0.0)  # with a free wall

        picture = _over(surroundings, gone * _inside(surface + fat_width - radius, blur), tissue.fat)
        picture = _over(picture, gone * _inside(surface - radius, blur), tissue.muscle * (1 + 0.07 * trabeculae))
        chamber = _inside(right - radius, edge) * _inside(radius - epicardium, edge)
        bands = 0.7 * _inside(trabeculae - 1.1, 0.6)
        blood_there = tissue.right_blood * (1 + 0.08 * flow) * (1 - bands) + tissue.muscle * bands
        picture = _over(picture, gone * chamber, blood_there)

        # papillary muscles and trabeculae belong to the cavity in ACDC, though they are dark
        dark = _inside(trabeculae - 0.7, 0.6) * _inside(radius - 0.75 * cavity, 2 * blur)
        for turn, distance, width in heart.papillaries:
            px, py = (distance * cavity * t(turn) for t in (np.cos, np.sin))
            apart = np.hypot(radius * np.cos(angle) - px, radius * np.sin(angle) - py)
            size_there = (0.4 + 0.6 * np.sin(np.pi * np.clip(height, 0, 1))) * width * heart.radius
            dark = np.maximum(dark, _inside(size_there - apart, blur))
        dark = np.where(atrium, 0, 0.85 * dark)
        blood_there = tissue.blood * (1 + 0.08 * flow) * (1 - dark) + tissue.muscle * dark
        picture = _over(picture, gone * _inside(cavity - radius, edge), blood_there)
        picture = np.clip(picture, 0, None) ** gamma * np.exp(coil)
        picture = _noisy(rng, gaussian_filter(picture, (sharpness, sharpness, 0)), sigma)
        return np.rint(gain * picture).astype(np.int16), label

    numbers, images = {}, []
    affine = np.diag([-pixel, -pixel, _HEART_THICKNESS, 1.0])
    for frame in range(frames):
        beat = (frame - first) % frames
        progress = beat / systole if beat <= systole else (frames - beat) / (frames - systole)
        image, label = take(float(np.sin(np.pi / 2 * progress) ** 2))
        images.append(image)
        if beat in (0, systole):
            numbers[beat] = frame + 1
            name = f"{folder.name}_frame{frame + 1:02d}"
            _save_nifti(folder / f"{name}.nii.gz", image, affine)
            _save_nifti(folder / f"{name}_gt.nii.gz", label, affine)
    _save_nifti(folder / f"{folder.name}_4d.nii.gz", np.stack(images, axis=3), affine)
    (folder / "Info.cfg").write_text(
        f"ED: {numbers[0]}\nES: {numbers[systole]}\nGroup: {group}\nHeight: {u(155, 190):.1f}\nNbFrame: {frames}\n"
        f"Weight: {u(50, 105):.1f}",
        encoding="utf-8",
    )


# --- the pelvis

_PELVIS_FIELD = 90.0  # mm, holds the largest prostate drawn here
_PELVIS_THICKNESS = 3.6  # mm from slice to slice, as in most of PROMISE12


def _write_pelvis(folder: Path, number: int, rng: np.random.Generator, ranges: _Ranges) -> None:
    u = rng.uniform
    size, spacing, slices = ranges
    pixel = round(float(u(*spacing)), 4)
    shape = tuple(int(rng.integers(low, high + 1)) for low, high in (size, size, slices))
    # mm from the middle of the prostate: to the patient's left, back and up
    x, y = (
        (pixel * (np.arange(n) - (n - 1) / 2) - u(-0.3, 0.3) * max(0.0, pixel * n - _PELVIS_FIELD)).astype(np.float32)
        for n in shape[:2]
    )
    z = (_PELVIS_THICKNESS * (np.arange(shape[2]) - (shape[2] - 1) / 2 - u(-0.7, 0.7))).astype(np.float32)
    x, y, z = x[:, None, None], y[None, :, None], z[None, None]

    fine, coarse, nodules = (_texture(rng, shape, sigma / pixel) for sigma in (1.5, 8.0, 3.0))
    half_width, half_depth, half_height = u(19, 28), u(13, 20), _PELVIS_THICKNESS * shape[2] * u(0.33, 0.42)
    # the prostate leans on the rectum: flat at its back, and shifted from slice to slice
    lean_x, lean_y = u(-0.1, 0.1) * z, u(-0.15, 0.15) * z + rng.normal(0, 0.5, z.shape).astype(np.float32)
    x, y = x - lean_x, y - lean_y
    flat = y + u(0.0, 0.006) * x**2 * (y > 0)
    height = z / half_height
    radius = np.sqrt((x / half_width) ** 2 + (flat / half_depth) ** 2 + height**2 * (1 + 0.15 * np.sign(height)))
    radius = radius + 0.04 * coarse
    outside = (radius - 1) * half_depth  # about mm
    y = flat

    blur = 1.5 * pixel
    muscle, fat = u(0.15, 0.25), u(0.65, 0.85)
    picture: Array = fat * (1 + 0.12 * coarse + 0.08 * fine)
    # levator ani beside the prostate, obturator internus and bone farther out
    for side in (-1, 1):
        picture = _over(picture, _inside(2.5 - np.abs(side * x - u(30, 34) - 0.1 * y), blur), muscle * (1 + 0.1 * fine))
        sheet = np.abs(side * x - u(44, 50) + 0.2 * y) - u(5, 8)
        picture = _over(picture, _inside(-sheet, blur), muscle * (1 + 0.15 * fine))
        picture = _over(picture, _inside(side * x - u(58, 62), blur), u(0.3, 0.45) * (1 + 0.2 * coarse))
    # the symphysis in front, the sacrum's muscles far behind
    front = half_depth + u(8, 14)
    picture = _over(picture, _inside(u(10, 16) - np.hypot(0.8 * x, y + front + 14), blur), u(0.2, 0.35))
    picture = _over(picture, _inside(y - half_depth - u(34, 44), blur), muscle * (1 + 0.2 * fine))
    # the bladder, above and before; urine is the brightest of all
    bladder = np.sqrt(
        (x / u(26, 36)) ** 2 + ((y + u(4, 14)) / u(18, 24)) ** 2 + ((z - half_height - 12) / u(14, 20)) ** 2
    )
    picture = _over(picture, _inside((1.12 - bladder) * 20, blur), muscle)
    picture = _over(picture, _inside((1 - bladder) * 20, blur), u(1.0, 1.3))
    # seminal vesicles behind the base, bright and lobed
    lobes = np.sqrt((x / 26) ** 2 + ((y - half_depth + 4) / 6) ** 2 + ((z - half_height - 2) / 8) ** 2) - 0.25 * fine
    picture = _over(picture, _inside((1 - lobes) * 6, blur), u(0.7, 1.0))
    # the rectum against the back of the prostate: a dark wall around gas or stool
    center_y, across, deep = half_depth + u(12, 15), u(11, 16), u(9, 12)
    rectum = np.hypot((x - u(-4, 4)) / across, (y - center_y) / deep)
    picture = _over(picture, _inside((1.25 - rectum) * deep, blur), muscle * 1.4)
    picture = _over(picture, _inside((1 - rectum) * deep, blur), u(0.03, 0.5) * (1 + 0.2 * fine)).astype(np.float32)

    gland = u(0.38, 0.5)
    zone = gland * u(1.35, 1.8)
    blur = 1.2 * pixel
    picture = _over(picture, _inside(1.5 - outside, blur), u(0.2, 0.3))  # the capsule
    picture = _over(picture, _inside(-outside, blur), zone * (1 + 0.08 * coarse + 0.05 * fine))
    inner = np.hypot(x / half_width / u(0.6, 0.72), (y + u(3, 5)) / half_depth / u(0.68, 0.78))
    central = (inner - np.sqrt(np.clip(1 - height**2, 0, None))) * half_depth
    mottled = gland * (1 + 0.25 * nodules + 0.05 * fine)
    picture = _over(picture, _inside(-central, 2 * blur) * _inside(-outside, blur), mottled)

    coil = sum(u(-0.25, 0.25) * field for field in (x / 60, y / 60, z / 25))
    picture = gaussian_filter(np.clip(picture, 0, None) * np.exp(coil), (0.5, 0.5, 0))
    picture = _noisy(rng, picture, u(0.015, 0.035))
    image = np.rint(u(300, 900) * picture).astype(np.int16)
    lengths = (pixel, pixel, _PELVIS_THICKNESS)
    save_metaimage(folder / f"Case{number:02d}.mhd", image, lengths)
    save_metaimage(folder / f"Case{number:02d}_segmentation.mhd", (outside < 0).astype(np.uint8), lengths)


# --- the abdomen

_ABDOMEN_FIELD = 320.0  # mm, holds the largest body drawn here
_ABDOMEN_THICKNESS = 10.0  # mm from slice to slice; real ones are thinner, and many more


def _write_abdomen(folder: Path, number: int, rng: np.random.Generator, ranges: _Ranges) -> None:
    u = rng.uniform
    size, spacing, slices = ranges
    pixel = float(u(*spacing))
    across, depth = (int(rng.integers(low, high + 1)) for low, high in (size, slices))
    shape = (across, across, depth)
    # mm from the middle of the body: to the patient's left, to the back, and up from the middle of the volume
    axis = (pixel * (np.arange(across) - (across - 1) / 2)).astype(np.float32)
    x, y = axis[:, None, None] - np.float32(u(-8, 8)), axis[None, :, None] - np.float32(u(-8, 8))
    z = (_ABDOMEN_THICKNESS * (np.arange(depth) - (depth - 1) / 2)).astype(np.float32)[None, None]
    fine, coarse, lobes = (_texture(rng, shape, sigma / pixel) for sigma in (4.0, 20.0, 12.0))
    blur = 1.2 * pixel

    def ellipsoid(center: tuple[float, float, float], half: tuple[float, float, float], wobble: float = 0.0) -> Array:
        """mm, about, inside its surface."""
        parts = zip((x, y, z), center, half, strict=True)
        radius = np.sqrt(sum(((axis - middle) / length) ** 2 for axis, middle, length in parts)) + wobble * coarse
        return np.asarray((1 - radius) * min(half), np.float32)

    half_x, half_y = u(132, 148), u(95, 112)
    body = (1 - np.hypot(x / half_x, y / half_y)) * half_y
    skin = u(8, 22)  # mm of fat below it
    picture = _over(np.full(shape, -1000, np.float32), _inside(body, blur), u(-115, -95) + 8 * fine)
    picture = _over(picture, _inside(body - skin, blur), u(45, 60) + 10 * fine)  # muscle
    picture = _over(picture, _inside(body - skin - u(9, 14), blur), u(-105, -85) + 15 * lobes)  # fat between the organs
    ribs = _inside(5 - np.abs(body - skin - 6), blur) * (np.sin(np.arctan2(y, x) * 14 + 0.15 * z) > 0.45)
    picture = _over(picture, ribs, u(250, 450))

    top = u(25, 45)  # of the lungs' bases, which reach down behind
    for side in (-1, 1):
        lung = ellipsoid((side * 70, u(25, 40), top + 45), (u(52, 62), u(55, 65), u(48, 62)))
        picture = _over(picture, _inside(lung, blur), u(-880, -820) + 40 * fine)
    contrast = u(0.7, 1.2)  # how much of it there is in the blood
    liver = ellipsoid((-62, -8, u(5, 20)), (u(66, 76), u(62, 72), u(65, 80)), 0.08)
    picture = _over(picture, _inside(liver, blur), 50 + 60 * contrast + 4 * lobes)
    stomach = ellipsoid((u(35, 50), u(-48, -38), u(5, 25)), (u(30, 42), u(22, 32), u(35, 50)), 0.1)
    level = u(-70, -45)  # of the air in the stomach of somebody who lies on the back
    picture = _over(picture, _inside(stomach, blur), np.where(y < level, -900, u(5, 60)) + 6 * fine)
    for side in (-1, 1):
        kidney = ellipsoid((side * u(58, 66), u(40, 50), u(-55, -38)), (u(24, 29), u(26, 31), u(42, 52)))
        picture = _over(picture, _inside(kidney, blur), 30 + 150 * contrast + 15 * lobes)
    aorta = u(10, 13) - np.hypot(x - u(12, 18), y - u(28, 34))
    picture = _over(picture, _inside(aorta, blur), 40 + 140 * contrast)
    spine = (1 - np.hypot(x / u(20, 25), (y - u(58, 64)) / u(17, 21))) * 18
    picture = _over(picture, _inside(spine, blur), u(180, 260) + 40 * fine)
    picture = _over(picture, _inside(4 - np.abs(spine - 3), blur) * _inside(spine, blur), u(400, 600))

    # the spleen: a thick shell on the left, in the back, hollow where it faces the stomach
    middle = (half_x - skin - u(46, 54), u(16, 30), u(-12, 12))
    half = (u(32, 42), u(46, 60), u(42, 60))
    spleen = ellipsoid(middle, half, 0.06)
    hollow = ellipsoid((middle[0] - u(32, 40), middle[1] - u(24, 32), middle[2]), (u(20, 28), u(26, 34), 80.0))
    spleen = np.minimum(np.minimum(spleen, -hollow), body - skin - 10)
    picture = _over(picture, _inside(spleen, blur), 45 + 75 * contrast + 4 * lobes)

    table = np.abs(y - half_y - u(12, 20)) < 5
    picture = np.where(table & (np.abs(x) < 150) & (body < 0), -100, picture)
    picture = gaussian_filter(picture, (0.4, 0.4, 0)) + rng.normal(0, u(8, 18), shape)
    image = np.clip(np.rint(picture), -1024, 3071).astype(np.int16)
    names = [f"spleen_{n}.nii.gz" for n in range(1, number + 1)]
    for kind, part in (("imagesTr", image), ("labelsTr", (spleen > 0).astype(np.uint8))):
        (folder / kind).mkdir(exist_ok=True)
        # in the files the first axis goes to the right and the second one to the front
        turned = np.ascontiguousarray(part[::-1, ::-1])
        _save_nifti(folder / kind / names[-1], turned, np.diag([pixel, pixel, _ABDOMEN_THICKNESS, 1.0]))
    listing = {
        "name": "Spleen, made up",
        "tensorImageSize": "3D",
        "modality": {"0": "CT"},
        "labels": {"0": "background", "1": "spleen"},
        "numTraining": number,
        "numTest": 0,
        "training": [{"image": f"./imagesTr/{name}", "label": f"./labelsTr/{name}"} for name in names],
        "test": [],
    }
    (folder / "dataset.json").write_text(json.dumps(listing, indent=1) + "\n", encoding="utf-8")


# --- the left atrium

_ATRIUM_FIELD = 86.0  # mm, holds the largest atrium drawn here


def _write_atrium(folder: Path, number: int, rng: np.random.Generator, ranges: _Ranges) -> None:
    u = rng.uniform
    size, spacing, slices = ranges
    pixel = float(u(*spacing))
    across, depth = (int(rng.integers(low, high + 1)) for low, high in (size, slices))
    shape = (across, round(0.75 * across), depth)
    # mm from the middle of the atrium: to the patient's left, to the back, and up
    x, y, z = (
        (pixel * (np.arange(n) - (n - 1) / 2 + u(-0.02, 0.02) * n)).astype(np.float32).reshape(place)
        for n, place in zip(shape, ((-1, 1, 1), (1, -1, 1), (1, 1, -1)), strict=True)
    )
    fine, coarse, patches = (_texture(rng, shape, sigma / pixel) for sigma in (2.0, 9.0, 5.0))
    blur = 1.3 * pixel

    def ellipsoid(center: tuple[float, float, float], half: tuple[float, float, float], wobble: float = 0.05) -> Array:
        """mm, about, inside its surface."""
        parts = zip((x, y, z), center, half, strict=True)
        radius = np.sqrt(sum(((axis - middle) / length) ** 2 for axis, middle, length in parts)) + wobble * coarse
        return np.asarray((1 - radius) * min(half), np.float32)

    blood, muscle, fat = u(0.8, 1.0), u(0.3, 0.45), u(0.25, 0.5)
    half = (u(22, 27), u(13, 17), pixel * depth * u(0.3, 0.36))
    picture: Array = fat * (1 + 0.25 * coarse + 0.15 * fine)
    for side in (-1, 1):  # lungs, with vessels
        lung = ellipsoid((side * u(50, 56), u(10, 20), u(-5, 5)), (u(20, 26), u(24, 34), 60.0), 0.1)
        picture = _over(picture, _inside(lung, blur), 0.08 + 0.5 * _inside(fine - 1.6, 0.6))
    spine = ellipsoid((u(-12, -4), half[1] + u(26, 30), 0.0), (u(13, 16), u(11, 13), 90.0))
    picture = _over(picture, _inside(spine, blur), u(0.2, 0.35) * (1 + 0.3 * patches))
    # what is as bright as the atrium: the right atrium and both ventricles before it, and the aorta behind
    for center, radii in (
        ((-u(27, 33), -u(18, 22), u(-6, 6)), (u(11, 14), u(14, 18), u(18, 26))),
        ((u(18, 26), -half[1] - u(17, 20), -u(12, 20)), (u(18, 22), u(15, 18), u(18, 24))),
        ((-u(4, 12), -half[1] - u(22, 26), u(4, 20)), (u(10, 13), u(10, 13), u(26, 34))),
        ((u(10, 18), half[1] + u(11, 13), 0.0), (u(8, 10), u(8, 10), 200.0)),
    ):
        chamber = ellipsoid(center, radii)
        picture = _over(picture, _inside(chamber + u(2, 5), blur), muscle * (1 + 0.15 * fine))
        picture = _over(picture, _inside(chamber, blur), blood * u(0.85, 1.1) * (1 + 0.08 * patches))

    # the atrium and its four veins, which belong to it as far as their first centimeter
    atrium = ellipsoid((0.0, 0.0, 0.0), half)
    vessels = atrium
    for side in (-1, 1):
        for up in (-1, 1):
            way = np.array((side, u(0.1, 0.45), up * u(0.1, 0.4)))
            way /= np.linalg.norm(way)
            start = (side * 0.55 * half[0], u(0, 3), up * 0.35 * half[2])
            offsets = [axis - begin for axis, begin in zip((x, y, z), start, strict=True)]
            along = sum(offset * part for offset, part in zip(offsets, way, strict=True))
            off = np.sqrt(sum((offset - along * part) ** 2 for offset, part in zip(offsets, way, strict=True)))
            tube = np.minimum(u(3.5, 5.5) - off - 0.03 * along, along + 12).astype(np.float32)
            vessels = np.maximum(vessels, tube)
            atrium = np.maximum(atrium, np.minimum(tube, u(10, 15) - along))
    scars = 0.5 * blood * _inside(patches - 1.0, 0.5)
    picture = _over(picture, _inside(vessels + 2, blur), muscle * (1 + 0.1 * fine) + scars)
    picture = _over(picture, _inside(vessels, blur), blood * (1 + 0.08 * patches))

    coil = sum(u(-0.3, 0.3) * field for field in (x / 45, y / 35, z / 30))
    picture = gaussian_filter(np.clip(picture, 0, None) * np.exp(coil), 0.5)
    picture = _noisy(rng, picture, u(0.06, 0.12))
    image = ((picture - picture.mean()) / picture.std()).astype(np.float32)
    patient = folder / f"ATRIUM{number:03d}"
    patient.mkdir()
    save_hdf5(patient / "mri_norm2.h5", image=image, label=(atrium > 0).astype(np.uint8))


_ACDC = _Kind("write_acdc_phantom", 1, _write_heart, _HEART_FIELD, "a heart")
_PROMISE12 = _Kind("write_promise12_phantom", 0, _write_pelvis, _PELVIS_FIELD, "a prostate")
_SPLEEN = _Kind("write_spleen_phantom", 1, _write_abdomen, _ABDOMEN_FIELD, "a body")
_ATRIUM = _Kind("write_atrium_phantom", 1, _write_atrium, _ATRIUM_FIELD, "an atrium")
