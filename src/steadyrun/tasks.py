"""How do errors leave a task group? Alone, if there is only one: callers name what they catch."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from anyio.abc import TaskGroup

from steadyrun.errors import LeaseLost


@asynccontextmanager
async def task_group() -> AsyncIterator[TaskGroup]:
    """A task group whose only error is raised as it is, not as a group of one."""
    try:
        async with anyio.create_task_group() as tasks:
            yield tasks
    except BaseExceptionGroup as group:
        error = _only(group)
        if error is group:
            raise
        raise error from error.__cause__


def _only(error: BaseException) -> BaseException:
    """The only one; of several that say the same, that somebody else has the lane, the first."""
    while isinstance(error, BaseExceptionGroup):
        found = [_only(each) for each in error.exceptions]
        if len(found) > 1 and not all(isinstance(each, LeaseLost) for each in found):
            return error
        error = found[0]
    return error
