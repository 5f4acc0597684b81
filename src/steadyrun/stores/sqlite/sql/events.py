"""Appends events to the record of their agent: one row for each run and transaction."""

from steadyrun.model.batch import StoredRow
from steadyrun.model.event_codec import join_encoded
from steadyrun.model.ids import AgentId, ProcessId, RunId
from steadyrun.stores.sqlite.sql.rows import Connection

NEXT_CURSOR = """
    coalesce((
        SELECT event_batches.id + event_batches.last_seq - event_batches.first_seq + 1
        FROM event_batches
        ORDER BY event_batches.id DESC
        LIMIT 1
    ), 1)
"""
ADD_BATCH = """
    INSERT INTO event_batches
    VALUES (:cursor, :agent, :run, :process, :first_seq, :last_seq, :tools, :body)
"""


class EventLog:
    """The end of one agent's record during one transaction. Events are written by `write` and
    `close` only."""

    def __init__(
        self,
        connection: Connection,
        agent: AgentId,
        seq: int,
        *,
        process: ProcessId | None = None,
        next_cursor: int | None = None,
    ) -> None:
        """`process` has printed the events; `seq` is the number of the agent's last event."""
        self._connection = connection
        self._agent = agent
        self._process = process
        self._first_seq = self._stored_seq = seq
        self._run: RunId | None = None
        self._bodies: list[bytes] = []
        self._tools = 0
        self._cursor = next_cursor
        self.seq = seq
        self.rows: list[StoredRow] = []

    def add(self, run: RunId | None, count: int, body: bytes, tools: int = 0) -> None:
        """Put `count` encoded events at the end; `tools` of them start a tool."""
        if run != self._run:
            self.write()
        self._run = run
        self._bodies.append(body)
        self._tools += tools
        self.seq += count

    @property
    def added(self) -> int:
        return self.seq - self._first_seq

    def close(self) -> int:
        """Write what was added; return the cursor of the last event of all agents."""
        self.write()
        return self._next_cursor() - 1

    def write(self) -> None:
        """Write what was added so far."""
        if not self._bodies:
            return
        cursor = self._next_cursor()
        row = StoredRow(cursor, self._stored_seq + 1, self._run, join_encoded(self._bodies))
        values = {
            "cursor": row.cursor,
            "agent": self._agent,
            "run": row.run,
            "process": self._process,
            "first_seq": row.seq,
            "last_seq": self.seq,
            "tools": self._tools,
            "body": row.body,
        }
        self._connection.execute(ADD_BATCH, values)
        self.rows.append(row)
        self._cursor = cursor + self.seq - self._stored_seq
        self._stored_seq, self._bodies, self._tools = self.seq, [], 0

    def forget_cursor(self) -> None:
        """Read the next cursor again: a gate has added an event in the same transaction."""
        self._cursor = None

    def _next_cursor(self) -> int:
        if self._cursor is not None:
            return self._cursor
        [cursor] = self._connection.execute(f"SELECT {NEXT_CURSOR}").fetchone()
        return int(cursor)
