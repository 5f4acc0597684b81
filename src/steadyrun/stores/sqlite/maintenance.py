"""Deletes what is old from the database, and gives free space back, in short writes."""

import time
from collections.abc import Callable
from functools import cached_property

from steadyrun.model.retention import PrunePosition, PruneStep, RetentionLimits
from steadyrun.stores.sqlite.base import SqliteBase, make_read
from steadyrun.stores.sqlite.db.transaction import Transaction
from steadyrun.stores.sqlite.sql import retention

# How long one write of this module may keep other writers waiting. A commit that also writes the
# log back to the file takes several times as long.
SLICE_SECONDS = 0.015
_DRY_ROWS = 5000


class SliceSize:
    """The number of rows or pages of the next write, from the time that the last one took."""

    def __init__(self, first: int, most: int) -> None:
        self.count = first
        self._least, self._most = first, most

    def record(self, seconds: float) -> None:
        factor = min(2.0, max(0.25, SLICE_SECONDS / max(seconds, 1e-6)))
        self.count = max(self._least, min(self._most, int(self.count * factor)))


class SqliteMaintenance(SqliteBase):
    """The verbs of `Maintenance`."""

    pruned_to = make_read(retention.pruned_to)

    @cached_property
    def _rows_at_once(self) -> SliceSize:
        return SliceSize(16, 4096)

    @cached_property
    def _pages_at_once(self) -> SliceSize:
        return SliceSize(4, 256)

    async def prune(
        self,
        limits: RetentionLimits,
        position: PrunePosition | None = None,
        *,
        is_dry: bool = False,
    ) -> PruneStep:
        at, size = position or PrunePosition(), self._rows_at_once
        limit = _DRY_ROWS if is_dry else size.count
        found = await self.read(lambda c: retention.select_old(c, limits, at, limit))
        if found.ids and not is_dry:
            await self._write_slice(lambda tx: retention.delete_selected(tx, at, found), size)
        return PruneStep(found.counts, found.next)

    async def release_space(self) -> int:
        size, left = self._pages_at_once, 0

        def release(tx: Transaction) -> None:
            nonlocal left
            left = retention.release_pages(tx, size.count)

        await self._write_slice(release, size)
        return left

    async def _write_slice(self, step: Callable[[Transaction], None], size: SliceSize) -> None:
        begin = 0.0

        def work(tx: Transaction) -> None:
            nonlocal begin
            begin = time.monotonic()
            step(tx)

        await self.write(work, is_durable=False)
        size.record(time.monotonic() - begin)
