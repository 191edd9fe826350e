"""Pure functions of tensors and numbers."""

from monai_spct.functional.averaging import StatePairs, average_over_processes, ema_decay, ema_update
from monai_spct.functional.divergence import entropy, generalized_jsd, kl_divergence, log_softmax, mixture
from monai_spct.functional.schedules import geometric_growth, linear_rampup, sigmoid_rampup
from monai_spct.functional.self_paced import gamma_upper_bound, initial_gamma, self_paced_jsd, self_paced_weights

__all__ = [
    "StatePairs",
    "average_over_processes",
    "ema_decay",
    "ema_update",
    "entropy",
    "gamma_upper_bound",
    "generalized_jsd",
    "geometric_growth",
    "initial_gamma",
    "kl_divergence",
    "linear_rampup",
    "log_softmax",
    "mixture",
    "self_paced_jsd",
    "self_paced_weights",
    "sigmoid_rampup",
]
