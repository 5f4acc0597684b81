"""Provides a task group that raises a single error without a group around it."""

from types import TracebackType

import anyio
from anyio.abc import TaskGroup

from steadyrun.errors import LeaseLost


class task_group:  # noqa: N801 (it is used as the function of anyio is)
    """A task group whose only error is raised as it is, not as a group of one."""

    __slots__ = ("_group",)

    async def __aenter__(self) -> TaskGroup:
        self._group = anyio.create_task_group()
        return await self._group.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        try:
            return await self._group.__aexit__(kind, error, trace)
        except BaseExceptionGroup as group:
            only = _unwrap(group)
            if only is group:
                raise
            raise only from only.__cause__


def _unwrap(error: BaseException) -> BaseException:
    """The only error of a group; the first one if all are `LeaseLost`."""
    while isinstance(error, BaseExceptionGroup):
        found = [_unwrap(each) for each in error.exceptions]
        if len(found) > 1 and not all(isinstance(each, LeaseLost) for each in found):
            return error
        error = found[0]
    return error


def is_out_of_threads(error: RuntimeError) -> bool:
    """Whether a thread could not be started, for lack of processes or of memory. Python has no
    error type of its own for that."""
    return str(error) == "can't start new thread"
