"""What can be typed for each operation? Made by scripts/commands.py from the registry.

A row: words, summary, operation, arguments. An argument: field, kind, how it is typed (empty: by
its place), metavar, help, what it may be, and whether it is needed.
"""

# fmt: off
# ruff: noqa: E501
TYPE_CHECKING = False
if TYPE_CHECKING:
    from steadyrun.cli.arguments import Row

TABLE: "tuple[Row, ...]" = (
    ("agent add", "add an agent", "agent.add", (
        ("name", "text", (), "NAME", "the agent's name", (), True),
        ("provider", "text", ("--provider",), "P", "who does its work: `steadyrun providers`", (), True),
        ("home", "path", ("--home",), "DIR", "the directory it works in", (), True),
        ("role", "text", ("--role",), "ROLE", "the file in roles/ that says its work", (), False),
        ("model", "text", ("--model",), "MODEL", "the provider's model", (), False),
        ("mode", "choice", ("--mode",), "MODE", "what it may do unasked: accept_edits, dangerously_skip_permissions, default, full_auto, plan", ("accept_edits", "dangerously_skip_permissions", "default", "full_auto", "plan"), False),
        ("tier", "choice", ("--tier",), "TIER", "the tools it may use; custom goes with --tools: custom, full, readonly, standard", ("custom", "full", "readonly", "standard"), False),
        ("tools", "words", ("--tools",), "A,B", "the only tools it may use; '' is none", (), False),
        ("deny", "words", ("--deny",), "A,B", "tools it may not use", (), False),
        ("fallback", "words", ("--fallback",), "P,…", "who takes over where its provider cannot", (), False),
        ("followup", "choice", ("--followup",), "queue|steer", "whether a message may enter a run that is going on (steer)", ("queue", "steer"), False),
        ("on_lost", "choice", ("--on-lost",), "fail|resume|retry", "what becomes of a message whose run was lost (resume)", ("fail", "resume", "retry"), False),
        ("on_limited", "choice", ("--on-limited",), "pause|wait", "whether it goes on by itself after a rate limit (wait)", ("pause", "wait"), False),
        ("budget", "words", ("--budget",), "day=5,…", "how much it may spend: run, agent, day, month in USD, run_tokens, …", (), False),
        ("approvers", "words", ("--approvers",), "WHO,…", "who may answer what it asks: cli:USER,… (whoever can)", (), False),
        ("timeout", "duration", ("--timeout",), "DURATION", "how long a run may take: 500ms, 6s, 10m, 2h", (), False),
        ("system", "text", ("--system",), "TEXT", "what it is always told", (), False),
    )),
    ("agent show", "show an agent", "agent.show", (
        ("name", "text", (), "NAME", "the agent's name", (), True),
    )),
    ("agent set", "change an agent", "agent.set", (
        ("name", "text", (), "NAME", "the agent's name", (), True),
        ("provider", "text", ("--provider",), "P", "who does its work: `steadyrun providers`", (), False),
        ("home", "path", ("--home",), "DIR", "the directory it works in", (), False),
        ("role", "text", ("--role",), "ROLE", "the file in roles/ that says its work", (), False),
        ("model", "text", ("--model",), "MODEL", "the provider's model", (), False),
        ("mode", "choice", ("--mode",), "MODE", "what it may do unasked: accept_edits, dangerously_skip_permissions, default, full_auto, plan", ("accept_edits", "dangerously_skip_permissions", "default", "full_auto", "plan"), False),
        ("tier", "choice", ("--tier",), "TIER", "the tools it may use; custom goes with --tools: custom, full, readonly, standard", ("custom", "full", "readonly", "standard"), False),
        ("tools", "words", ("--tools",), "A,B", "the only tools it may use; '' is none", (), False),
        ("deny", "words", ("--deny",), "A,B", "tools it may not use", (), False),
        ("fallback", "words", ("--fallback",), "P,…", "who takes over where its provider cannot", (), False),
        ("followup", "choice", ("--followup",), "queue|steer", "whether a message may enter a run that is going on", ("queue", "steer"), False),
        ("on_lost", "choice", ("--on-lost",), "fail|resume|retry", "what becomes of a message whose run was lost", ("fail", "resume", "retry"), False),
        ("on_limited", "choice", ("--on-limited",), "pause|wait", "whether it goes on by itself after a rate limit", ("pause", "wait"), False),
        ("budget", "words", ("--budget",), "day=5,…", "how much it may spend: run, agent, day, month in USD, run_tokens, …", (), False),
        ("approvers", "words", ("--approvers",), "WHO,…", "who may answer what it asks: cli:USER,… (whoever can)", (), False),
        ("timeout", "duration", ("--timeout",), "DURATION", "how long a run may take: 500ms, 6s, 10m, 2h", (), False),
        ("system", "text", ("--system",), "TEXT", "what it is always told", (), False),
        ("clear", "words", ("--clear",), "A,B", "what it shall have no more: role, model, fallback, timeout, system, budget, tier, tools, deny, approvers", (), False),
    )),
    ("agent rm", "remove an agent; its record stays", "agent.rm", (
        ("name", "text", (), "NAME", "the agent's name", (), True),
    )),
    ("agents", "list agents and what they do", "agent.list", ()),
    ("pause", "give an agent nothing new; what runs goes on", "agent.pause", (
        ("name", "text", (), "AGENT", "the agent's name", (), False),
        ("all", "flag", ("--all",), "ALL", "every agent", (), False),
        ("provider", "text", ("--provider",), "P", "every agent that works with it: its gate", (), False),
    )),
    ("agent pause", "give an agent nothing new; what runs goes on", "agent.pause", (
        ("name", "text", (), "AGENT", "the agent's name", (), False),
        ("all", "flag", ("--all",), "ALL", "every agent", (), False),
        ("provider", "text", ("--provider",), "P", "every agent that works with it: its gate", (), False),
    )),
    ("resume", "end a pause", "agent.resume", (
        ("name", "text", (), "AGENT", "the agent's name", (), False),
        ("all", "flag", ("--all",), "ALL", "every agent", (), False),
        ("provider", "text", ("--provider",), "P", "every agent that works with it: its gate", (), False),
    )),
    ("agent resume", "end a pause", "agent.resume", (
        ("name", "text", (), "AGENT", "the agent's name", (), False),
        ("all", "flag", ("--all",), "ALL", "every agent", (), False),
        ("provider", "text", ("--provider",), "P", "every agent that works with it: its gate", (), False),
    )),
    ("gate", "show which providers may be used now", "gate.list", ()),
    ("gate open", "let a provider be used again", "gate.open", (
        ("provider", "text", (), "P", "the provider's name: `steadyrun providers`", (), True),
    )),
    ("gate close", "give a provider nothing new", "gate.close", (
        ("provider", "text", (), "P", "the provider's name: `steadyrun providers`", (), True),
        ("duration", "duration", ("--for",), "DURATION", "for how long (until it is opened)", (), False),
        ("reason", "text", ("--reason",), "TEXT", "why, for whoever looks", (), False),
    )),
    ("send", "send an agent a message", "item.send", (
        ("agent", "text", (), "AGENT", "the agent's name", (), True),
        ("text", "text", (), "TEXT|-", "the message; - reads standard input", (), True),
        ("files", "paths", ("--file",), "F", "a file to come with it; may be repeated", (), False),
        ("followup", "constants", ("--queue", "--steer"), "queue|steer", "queue: wait for a run of its own; steer: enter the one that is going on", ("queue", "steer"), False),
        ("key", "text", ("--key",), "K", "the same key again is the same item", (), False),
    )),
    ("inbox", "list what agents were asked, newest first", "item.list", (
        ("agent", "text", (), "AGENT", "only of this agent", (), False),
        ("all", "flag", ("--all",), "ALL", "the settled ones, too", (), False),
        ("limit", "count", ("-n",), "N", "how many (50)", (), False),
    )),
    ("cancel", "end a run, or what it shall do", "item.cancel", (
        ("id", "text", (), "RUN|ITEM", "a run's or an item's id, or the beginning of one", (), True),
        ("reason", "text", ("--reason",), "TEXT", "why, for the record", (), False),
    )),
    ("retry", "ask the same once more", "item.retry", (
        ("item", "text", (), "ITEM", "an item's id, or the beginning of one", (), True),
    )),
    ("approvals", "list what agents ask, newest first", "approval.list", (
        ("agent", "text", (), "AGENT", "only of this agent", (), False),
        ("all", "flag", ("--all",), "ALL", "the settled ones, too", (), False),
        ("limit", "count", ("-n",), "N", "how many (50)", (), False),
    )),
    ("approve", "allow what an agent asks for", "approval.approve", (
        ("id", "text", (), "ID", "a question's id, or how it begins or ends: `steadyrun approvals`", (), True),
        ("always", "flag", ("--always",), "ALWAYS", "nor need it ask again for the same in this conversation", (), False),
        ("provider", "text", ("--provider",), "P", "of a budget: who is to go on instead", (), False),
    )),
    ("deny", "deny what an agent asks for", "approval.deny", (
        ("id", "text", (), "ID", "a question's id, or how it begins or ends: `steadyrun approvals`", (), True),
        ("reason", "text", ("--reason",), "TEXT", "why, for the agent and the record", (), True),
    )),
    ("cost", "show what was spent", "cost.show", (
        ("agent", "text", (), "AGENT", "only of this agent", (), False),
        ("by", "choice", ("--by",), "agent|day|model|provider", "what the rows are (agent)", ("agent", "day", "model", "provider"), False),
        ("since", "text", ("--since",), "WHEN", "today, month, a date such as 2026-01-31, or how long ago: 24h, 7d (all; by day: 30d)", (), False),
    )),
    ("status", "show the daemon, its agents and gates", "status", ()),
    ("down", "end the daemon", "daemon.stop", (
        ("drain", "wait", ("--drain",), "DURATION", "how long to wait for what runs (60s); 0s: not at all", (), False),
        ("keep", "flag", ("--keep",), "KEEP", "leave what runs to its keepers", (), False),
    )),
)
