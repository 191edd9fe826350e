"""Early stopping."""

from __future__ import annotations

import logging
from typing import Any

import ignite.distributed as idist
from ignite.engine import Engine, Events
from ignite.handlers import EarlyStopping

__all__ = ["StopEarly"]

logger = logging.getLogger(__name__)


class StopEarly:
    """Ignite handler for trainers that ends the training when validations do not get better any more.

    The rule is ignite's ``EarlyStopping`` on the evaluator's key metric, of which more is better. Its state belongs
    into checkpoints: a run that goes on counts on, and one that was stopped stays so.

    Args:
        validator: the evaluator that validates, one of MONAI's.
        patience: number of validations in a row without a better key metric after which the training ends.

    Raises:
        ValueError: when ``patience`` is below 1, as the trainer is made.

    Example:
        >>> from ignite.engine import Engine, Events
        >>> from monai_spct.handlers import StopEarly
        >>> scores = iter([0.5, 0.7, 0.6, 0.7, 0.8])
        >>> validator = Engine(lambda engine, batch: engine.state.metrics.update(mean_dsc=next(scores)))
        >>> validator.state.key_metric_name = "mean_dsc"  # as MONAI's evaluators have it
        >>> trainer = Engine(lambda engine, batch: None)
        >>> StopEarly(validator, patience=2).attach(trainer)
        >>> _ = trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: validator.run([0]))
        >>> trainer.run([0], max_epochs=5).epoch
        4
    """

    def __init__(self, validator: Engine, *, patience: int) -> None:
        self.validator = validator
        self.patience = patience
        self._rule: EarlyStopping | None = None

    def attach(self, engine: Engine) -> None:
        """Stop ``engine``, the trainer, after a validation."""
        self._rule = EarlyStopping(self.patience, self._score, engine)
        self._rule.logger = logger
        self.validator.add_event_handler(Events.COMPLETED, self)

    def __call__(self) -> None:
        """Look at the validation that has just ended."""
        rule: Any = self._rule
        rule(self.validator)
        if rule.counter >= self.patience and idist.get_rank() == 0:
            now: Any = rule.trainer.state
            logger.info(
                "stopping after epoch %d of %d: the last %d validations were not better than the best before, %.4f.",
                *(now.epoch, now.max_epochs, rule.counter, rule.best_score),
            )

    def state_dict(self) -> dict[str, Any]:
        """What ignite's rule remembers."""
        rule: Any = self._rule
        return dict(rule.state_dict())

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from ``state_dict``; a training that was stopped ends here."""
        rule: Any = self._rule
        rule.load_state_dict(state_dict)
        if rule.counter >= self.patience:
            rule.trainer.terminate()

    @staticmethod
    def _score(validator: Engine) -> float:
        state: Any = validator.state
        return float(state.metrics[state.key_metric_name])
