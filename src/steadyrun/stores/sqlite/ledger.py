"""Where do events go? To the end of their agent's record, one row for a run and transaction."""

from steadyrun.model.ids import AgentId, ProcessId, RunId
from steadyrun.model.packed import join_encoded
from steadyrun.store import Lane, StoredRow
from steadyrun.stores.sqlite import rows
from steadyrun.stores.sqlite.rows import Connection

_NEXT_CURSOR = """
    SELECT id + last_seq - first_seq + 1 FROM event_batches
    ORDER BY id DESC
    LIMIT 1
"""
_ADD_BATCH = """
    INSERT INTO event_batches VALUES (:cursor, :agent, :run, :process, :first_seq, :last_seq, :body)
"""
_COUNT_EVENTS = "UPDATE lanes SET event_seq = :seq WHERE agent_id = :agent"


class Ledger:
    """The end of one agent's record during one transaction. Nothing is written before `close`."""

    def __init__(
        self, connection: Connection, lane: Lane, process: ProcessId | None = None
    ) -> None:
        """`process` is the one whose events may be added."""
        self._connection = connection
        self._agent: AgentId = lane.agent
        self._process = process
        self._stored_seq = lane.event_seq
        self._run: RunId | None = None
        self._bodies: list[bytes] = []
        self._cursor: int | None = None
        self.seq = lane.event_seq
        self.rows: list[StoredRow] = []

    def add(self, run: RunId | None, count: int, body: bytes) -> None:
        """Put `count` encoded events at the end."""
        if run != self._run:
            self._write()
        self._run = run
        self._bodies.append(body)
        self.seq += count

    def close(self) -> int:
        """Write what was added; return the cursor of the last event of all agents."""
        self._write()
        return self._next_cursor() - 1

    def _write(self) -> None:
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
            "body": row.body,
        }
        self._connection.execute(_ADD_BATCH, values)
        self.rows.append(row)
        self._connection.execute(_COUNT_EVENTS, {"agent": self._agent, "seq": self.seq})
        self._cursor = cursor + self.seq - self._stored_seq
        self._stored_seq, self._bodies = self.seq, []

    def _next_cursor(self) -> int:
        if self._cursor is not None:
            return self._cursor
        row = rows.one(self._connection, _NEXT_CURSOR, {})
        return 1 if row is None else int(row[0])
