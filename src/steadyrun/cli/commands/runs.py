"""The commands `runs` and `show`. They read the store and need no daemon."""

from argparse import Namespace

from steadyrun.app.abandoned_runs import open_record
from steadyrun.cli.output.format import format_run_page, format_run_table, to_json
from steadyrun.config import load
from steadyrun.operations.lookup import find_run
from steadyrun.operations.views import build_run_document


async def list_runs(args: Namespace) -> int:
    async with open_record(load()) as store:
        agent = None if args.agent is None else await store.agent(args.agent)
        runs = await store.runs(agent.id if agent else None, limit=args.n)
        named = [(run, (await store.agent(run.agent)).name) for run in runs]
    if args.json:
        print(to_json({"runs": [build_run_document(*pair) for pair in named]}))
    elif named:
        print("\n".join(format_run_table(named)))
    else:
        print("No runs yet.")
    return 0


async def show(args: Namespace) -> int:
    async with open_record(load()) as store:
        run = await find_run(store, args.run)
        agent_name = (await store.agent(run.agent)).name
    if args.json:
        print(to_json(build_run_document(run, agent_name)))
    else:
        print("\n".join(format_run_page(run, agent_name)))
    return 0
