"""Made-up runs on disk, as a training and an evaluation leave them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from monai_spct.report import Run, find_runs

CASES = ("p1_a", "p1_b", "p2_a", "p2_b", "p3_a", "p3_b")
HISTORY = "epoch,seconds,loss\n1,9.0,1.0\n2,0.5,0.75\n3,0.25,0.5\n4,0.3,0.25\n"


def write(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def make_run(
    folder: Path,
    scores: Mapping[str, Sequence[float]] | None = None,
    *,
    method: str = "dan",
    dataset: str = "acdc",
    cases: Sequence[str] = CASES,
    history: str = HISTORY,
    **axes: object,
) -> Run:
    """A run with these DSC by structure, and distances of 100 (1 - DSC) mm; it is not done where there are none."""
    cell = {"dataset": dataset, "method": method, "network": "enet", "overlays": ["small"], "axes": axes}
    write(folder / "cell.json", cell)
    if scores is not None:
        versions = {"monai_spct": "0.1.0", "torch": "2.8.0", "monai": "1.6.0"}
        write(folder / "trained.json", {"versions": versions, "commit": "0123abc"})
        write(folder / "eval" / "summary.json", {})
        write(folder / "eval" / "inference_time.json", {"seconds_per_slice": 0.0125, "device": "CPU, 1 threads"})
        (folder / "eval" / "history.csv").write_text(history)
        rows = [
            {"case": case, "structure": name, "dsc": value, "hd": 100 * (1 - value), "hd95": 50 * (1 - value)}
            for name, values in scores.items()
            for case, value in zip(cases, values, strict=True)
        ]
        pd.DataFrame(rows).to_csv(folder / "eval" / "scores.csv", index=False)
    [run] = find_runs(folder)
    return run


def make_runs(folder: Path, scores: Mapping[str, Sequence[Sequence[float] | None]], **more: object) -> list[Run]:
    """By method, for each seed the DSC of the left ventricle by case; none for a seed that is not done."""
    return [
        make_run(folder / f"{method}_{seed}", None if dsc is None else {"LV": dsc}, method=method, seed=seed, **more)
        for method, seeds in scores.items()
        for seed, dsc in enumerate(seeds)
    ]
