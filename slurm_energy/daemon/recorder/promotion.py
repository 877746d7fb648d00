"""The live policy's row and what moves it: read every few seconds, and moved on evidence every minute.

A candidate that is worse is taken back within a minute of the evidence, and the answering process follows within
seconds. What is read is always the row: after a restart at any point it says who decides.
"""

import logging
import time
from collections.abc import Callable

from slurm_energy.config import Config
from slurm_energy.daemon.ipc.frames import LivePolicies
from slurm_energy.daemon.recorder.recorder import QUERY_WAIT_SECONDS, Condition, Every
from slurm_energy.domain.ids import ClusterName
from slurm_energy.domain.promotion import LivePolicy
from slurm_energy.errors import DaemonUnavailable, PolicyError, StoreError
from slurm_energy.learning.nightly.stages import next_step, take_step
from slurm_energy.store.promotion import live_policy
from slurm_energy.store.session import Engine, run_in_transaction, store_session

logger = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
ADVANCE_SECONDS = 60.0


class PromotionLoop:
    """Beside the recording, in a thread of its own."""

    def __init__(self, config: Config, send_frame: Callable[[object], None]) -> None:
        self._config = config
        self._cluster = ClusterName(config.cluster.name)
        self._send_frame = send_frame
        self._sent: LivePolicy | None = None
        self._advance_due = Every(min(ADVANCE_SECONDS, 0.01 * 86_400.0 * config.nightly.max_stage_days))

    def run(self, engine: Engine, condition: Condition) -> None:
        """Follow the row until the process ends; a database that is away is tried again."""
        while True:
            try:
                condition.wait(QUERY_WAIT_SECONDS)
                self.step(engine)
            except (StoreError, DaemonUnavailable, PolicyError) as error:
                logger.info("live policy not read error=%s", error)
            except Exception:
                # The last resort of a thread: without it no candidate would be taken back, and no log would say so.
                logger.exception("live policy not read")
            time.sleep(LOOK_SECONDS)

    def step(self, engine: Engine) -> None:
        """Move the challenger where it is time to look at its evidence, and say who decides if that has changed.

        Raises:
            StoreError: the database failed; the next step tries again.
        """
        with store_session(engine, read_only=True) as session:
            live = live_policy(session, self._cluster)
        if self._advance_due.due(time.monotonic()):
            before, live = live, self._advanced(engine, live)
            if live.generation != before.generation:
                logger.info(
                    "candidate moved id=%s from=%s champion=%s challenger=%s",
                    before.challenger_id or live.challenger_id,
                    None if before.stage is None else before.stage.value,
                    live.champion_id or "configured",
                    live.challenger_id or "none",
                )
        if live != self._sent:
            self._send_frame(LivePolicies(live=live))
            self._sent = live

    def _advanced(self, engine: Engine, live: LivePolicy) -> LivePolicy:
        """Return who decides after a look at the evidence; other writers wait only where something is moved."""
        now = time.time()
        with store_session(engine, read_only=True) as session:
            step = next_step(session, self._cluster, self._config, now)
        if not step.moves:
            return live
        return run_in_transaction(engine, lambda session: take_step(session, self._cluster, self._config, step, now))
