"""Made-up cells that are done, on disk, as a run leaves them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from monai_spct.experiments import Cell
from monai_spct.metrics.volume import StructureScore, write_scores
from tests.experiments.tiny_bundle import write

DSC = {"RV": 0.8, "Myo": 0.7, "LV": 0.9}
CASES = [f"patient{patient:03d}_frame{frame:02d}" for patient in (4, 7, 9) for frame in (1, 15)]


def finish(
    root: Path,
    cell: Cell,
    *,
    better: float = 0.0,
    structures: Mapping[str, float] = DSC,
    cases: Sequence[str] = CASES,
    history: str | None = "epoch,seconds,loss\n1,9.0,1.0\n2,0.5,0.75\n3,0.25,0.5\n4,0.3,0.25\n",
    seconds_per_slice: float | None = 0.0125,
) -> Path:
    """The folder of a cell with scores that are ``better`` by so much, and that differ among cases and structures."""
    folder = root / cell.name
    names = {"dataset": cell.dataset, "method": cell.method, "network": cell.network}
    write(folder / "cell.json", {**names, "axes": dict(cell.axes), "settings": dict(cell.settings)})
    versions = {"monai_spct": "0.1.0", "torch": "2.8.0", "monai": "1.6.0", "commit": "0123abc"}
    write(folder / "done.json", {"training_seconds": 60.0, "evaluating_seconds": 9.0, "dataset_dir": None, **versions})
    rows = []
    for structure, dsc in structures.items():
        for number, case in enumerate(cases):
            value = dsc + better + 0.01 * (number % 3)
            rows.append(StructureScore(case, structure, value, 100 * (1 - value), 50 * (1 - value), False))
    write_scores(rows, folder / "eval")
    if history is not None:
        (folder / "eval" / "history.csv").write_text(history)
    if seconds_per_slice is not None:
        record = {"seconds_per_slice": seconds_per_slice, "volumes": len(cases), "device": "CPU, 1 threads"}
        write(folder / "eval" / "inference_time.json", record)
    return folder
