"""What the engine expects of farms, so that it runs without the library that carries them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from collage_engine.records.errors import FarmError
from collage_engine.records.farm import FarmStatus
from collage_engine.records.jobs import Answer, Job
from collage_engine.records.settings import RunSettings
from collage_engine.service.run_client import Ticket


class RunsJobs(Protocol):
    """Runs jobs of ``run.child``: in a child process here (``PipelineClient``), or on a farm."""

    def job(
        self,
        job: Job[Answer],
        *,
        ticket: Ticket | None = None,
        on_event: Callable[[object], None] | None = None,
    ) -> Answer:
        """Have a job done and return its answer; see ``PipelineClient.job``."""
        ...

    def cancel(self, ticket: Ticket | None = None) -> bool:
        """Stop a job, or all of them; False if there was none to stop."""
        ...

    def keep(self, ticket: Ticket | None = None) -> bool:
        """Have a running job end soon and keep the best that it has."""
        ...


class Farms(Protocol):
    """The farms that an engine is connected to."""

    def jobs(self, settings: RunSettings) -> RunsJobs:
        """Return what runs jobs on the farm and the pool that the settings name.

        Raises:
            FarmError: The farm cannot be reached.
        """
        ...

    def use(self, client: Any) -> str:
        """Use the cluster of a Dask client; the address that ``RunSettings.farm`` then names."""
        ...

    def status(self, address: str) -> FarmStatus:
        """Return the machines, pools and placements of a farm; FarmError: it cannot be reached."""
        ...

    def close(self) -> None:
        """Leave all farms; what was measured is in the store."""
        ...


class NoFarms:
    """The farms of an engine that was started without any."""

    def jobs(self, settings: RunSettings) -> RunsJobs:
        """Refuse: there is none."""
        raise FarmError(f"this engine cannot use farms, and {settings.farm} was asked for")

    def use(self, client: Any) -> str:
        """Refuse: there is none."""
        raise FarmError("this engine cannot use farms, and a cluster was given")

    def status(self, address: str) -> FarmStatus:
        """Refuse: there is none."""
        raise FarmError(f"this engine cannot use farms, and {address} was asked for")

    def close(self) -> None:
        """Do nothing."""
