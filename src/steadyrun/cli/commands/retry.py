"""The command `retry`: sends one settled message again, or all that have failed."""

from argparse import Namespace

from steadyrun.cli import invoke
from steadyrun.cli.output.format import to_json
from steadyrun.cli.output.tables import format_retried_items
from steadyrun.config import load
from steadyrun.errors import InvalidUsage
from steadyrun.operations.items import RetryFailedRequest
from steadyrun.operations.registry import BY_NAME

_RETRY, _RETRY_FAILED = BY_NAME["item.retry"], BY_NAME["items.retry"]


async def retry(args: Namespace) -> int:
    if args.since is not None and not args.failed:
        raise InvalidUsage("--since requires --failed", hint="Add --failed, or leave it out.")
    if args.failed:
        return await _retry_failed(args)
    request = invoke.parse_request(args, _RETRY)
    item, _ = await invoke.call_operation(load(), _RETRY, request)
    invoke.print_answer(_RETRY, request, item, as_json=args.json)
    return 0


async def _retry_failed(args: Namespace) -> int:
    request = RetryFailedRequest(args.item, args.since)
    found, _ = await invoke.call_operation(load(), _RETRY_FAILED, request)
    for line in [to_json(found)] if args.json else format_retried_items(found):
        print(line)
    return 0
