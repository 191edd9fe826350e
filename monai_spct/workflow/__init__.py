"""Finding, copying and starting the bundles that come with the package."""

from monai_spct.workflow.causes import cause_of, in_words, put_the_cause_last
from monai_spct.workflow.command_line import flag
from monai_spct.workflow.folder import bundle_root, bundles_folder, copy
from monai_spct.workflow.output_dir import lock_output_dir, record_training
from monai_spct.workflow.overrides import refuse_idle_settings, refuse_unknown_overrides
from monai_spct.workflow.processes import join_processes, refuse_processes_apart, synchronize_batch_norms
from monai_spct.workflow.results import tell_results
from monai_spct.workflow.run_settings import settings_of_run

__all__ = [
    "bundle_root",
    "bundles_folder",
    "cause_of",
    "copy",
    "flag",
    "in_words",
    "join_processes",
    "lock_output_dir",
    "put_the_cause_last",
    "record_training",
    "refuse_idle_settings",
    "refuse_processes_apart",
    "refuse_unknown_overrides",
    "settings_of_run",
    "synchronize_batch_norms",
    "tell_results",
]
