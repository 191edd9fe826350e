"""Finding, copying and starting the bundles that come with the package: ``python -m monai_spct.bundles``."""

from monai_spct.bundles.causes import cause_of, in_words, put_the_cause_last
from monai_spct.bundles.folder import bundle_root, bundles_folder, copy
from monai_spct.bundles.overrides import refuse_idle_settings, refuse_unknown_overrides
from monai_spct.bundles.processes import join_processes, refuse_processes_apart, synchronize_batch_norms
from monai_spct.bundles.results import tell_results
from monai_spct.bundles.settings import settings_of_run
from monai_spct.command_line import flag

__all__ = [
    "bundle_root",
    "bundles_folder",
    "cause_of",
    "copy",
    "flag",
    "in_words",
    "join_processes",
    "put_the_cause_last",
    "refuse_idle_settings",
    "refuse_processes_apart",
    "refuse_unknown_overrides",
    "settings_of_run",
    "synchronize_batch_norms",
    "tell_results",
]
