"""Actions that lead a daemon to each named point."""

from collections.abc import Awaitable, Callable

from tests.chaos import prompts
from tests.chaos.scenario import HOMELESS, SCRIPTED, SHELL, Scenario

Action = Callable[[Scenario], Awaitable[None]]


async def say(scene: Scenario) -> None:
    await scene.send(prompts.says, way="store")


async def say_by_socket(scene: Scenario) -> None:
    await scene.send(prompts.says, way="socket")


async def work(scene: Scenario) -> None:
    await scene.send(prompts.works)


async def fill_up(scene: Scenario) -> None:
    """Give every agent work: there are more agents than processes that may wait."""
    for name in SCRIPTED:
        await scene.send(prompts.says, name)
        await scene.send(prompts.works, name, followup="queue")


async def steer(scene: Scenario) -> None:
    """Say something while a turn is going on."""
    name = scene.dice.choice(SCRIPTED)
    await scene.until_running(await scene.send(prompts.lasts, name))
    await scene.send(prompts.says, name)
    await scene.send(prompts.says, name)


async def steer_at_the_end(scene: Scenario) -> None:
    """Say something when the last step of a turn has begun: it becomes a turn of its own."""
    name = scene.dice.choice(SCRIPTED)
    await scene.until_running(await scene.send(prompts.wait_after_last_step, name))
    await scene.send(prompts.says, name)
    await scene.send(prompts.works, name)


async def steer_and_cancel(scene: Scenario) -> None:
    """A message that was sent during the turn is cancelled with it."""
    name = scene.dice.choice(SCRIPTED)
    hanging = await scene.send(prompts.hangs, name, on_lost="resume", is_endless=True)
    await scene.until_running(hanging)
    steered = await scene.send(prompts.says, name)
    await scene.until_offered(steered)
    await scene.cancel(hanging, by_socket=True)


async def cancel_deaf(scene: Scenario) -> None:
    deaf = await scene.send(prompts.ignore_interrupts, on_lost="resume", is_endless=True)
    await scene.until_running(deaf)
    await scene.cancel(deaf)


async def cancel_queued(scene: Scenario) -> None:
    name = scene.dice.choice(SCRIPTED)
    await scene.send(prompts.lasts, name)
    waiting = await scene.send(prompts.says, name, followup="queue")
    await scene.cancel(waiting, by_socket=True)


async def ask(scene: Scenario) -> None:
    await scene.send(prompts.asks)


async def crash(scene: Scenario) -> None:
    """Crash once without a retry, and once with retries until the item is cancelled."""
    await scene.send(prompts.crashes, on_lost="fail", may_fail=True)
    again = await scene.send(prompts.crashes, on_lost="resume", is_endless=True, may_fail=True)
    await scene.until_tried(again)
    await scene.cancel(again)


async def be_limited(scene: Scenario) -> None:
    limited = await scene.send(prompts.is_limited, on_lost="resume", is_endless=True)
    await scene.until_tried(limited)
    await scene.cancel(limited)


async def go_on(scene: Scenario) -> None:
    await scene.send(prompts.continue_unprompted)
    await steer_at_the_end(scene)


async def wake(scene: Scenario) -> None:
    await scene.send(prompts.wake_later)


async def murmur(scene: Scenario) -> None:
    await scene.send(prompts.print_deltas)


async def use_shell(scene: Scenario) -> None:
    await scene.send(prompts.says, SHELL)


async def relaunch(scene: Scenario) -> None:
    """Change the agent, so that its idle process has to be replaced."""
    name = scene.dice.choice(SCRIPTED)
    await scene.change_agent(name)
    await scene.send(prompts.says, name, way="store")


async def forget(scene: Scenario) -> None:
    """Continue a conversation that does not exist any more, in a new process."""
    name = scene.dice.choice(SCRIPTED)
    await scene.until_settled(await scene.send(prompts.says, name, way="store"))
    await scene.forget(name)
    await scene.change_agent(name)
    await scene.send(prompts.says, name)


async def lose_home(scene: Scenario) -> None:
    """A run that cannot be launched still ends."""
    await scene.change_agent(HOMELESS)
    folder, gone = scene.place / HOMELESS, scene.place / "gone"
    folder.rename(gone)
    await scene.until_settled(await scene.send(prompts.says, HOMELESS, may_fail=True))
    gone.rename(folder)


async def manage(scene: Scenario) -> None:
    await scene.add_and_remove_agent()
    await scene.change_agent(scene.dice.choice(SCRIPTED))
    await scene.pause_and_resume()


async def end(scene: Scenario) -> None:
    """Stop the daemon while a run is active."""
    await scene.send(prompts.lasts)
    await scene.stop_daemon()


async def leave_spooled_calls(scene: Scenario) -> None:
    """Do nothing: the calls were spooled before the daemon was started."""


ACTIONS: dict[str, Action] = {
    "accept": say_by_socket,
    "add_agent": manage,
    "set_agent": manage,
    "remove_agent": manage,
    "set_paused": manage,
    "cancel": cancel_queued,
    "start": say,
    "settle warm": say,
    "open_process": relaunch,
    "launch": relaunch,
    "start keeper": relaunch,
    "link claim": relaunch,
    "send open": relaunch,
    "release_lane": fill_up,
    "link eof": fill_up,
    "close_process": fill_up,
    "settle": use_shell,
    "offer_followups": steer,
    "close_offer absorbed": steer,
    "append absorbed": steer,
    "send offer": steer,
    "continue_with": go_on,
    "continue_with warm": wake,
    "append returned": steer_and_cancel,
    "close_offer returned": steer_and_cancel,
    "send recall": steer_and_cancel,
    "send interrupt": steer_and_cancel,
    "link stop": cancel_deaf,
    "append approval": ask,
    "answer": ask,
    "send decide": ask,
    "retry": crash,
    "change created": crash,
    "change finished": lose_home,
    "retire_token": forget,
    "update_gate": be_limited,
    "append offset": murmur,
    "leave": end,
    "letter": leave_spooled_calls,
}
# What to do where chance decides.
ANY: tuple[Action, ...] = (
    say, say_by_socket, work, work, fill_up, steer, steer_at_the_end, steer_and_cancel,
    cancel_queued, ask, crash, be_limited, go_on, wake, murmur, use_shell, relaunch, forget,
    lose_home,
    manage,
)  # fmt: skip
