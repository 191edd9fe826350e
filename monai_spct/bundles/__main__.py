"""``python -m monai_spct.bundles copy acdc my_acdc``, and ``folder``."""

from monai_spct.bundles import bundles_folder, copy

__all__: list[str] = []

if __name__ == "__main__":
    import fire

    fire.Fire({"copy": copy, "folder": lambda: str(bundles_folder())})
