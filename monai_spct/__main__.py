"""``python -m monai_spct``, which is ``monai-spct``."""

from monai_spct.cli import app

__all__: list[str] = []

if __name__ == "__main__":
    app(prog_name="monai-spct")
