-- Times are microseconds since 1970 in UTC. A `body` is the JSON of the whole row (events: MessagePack);
-- columns beside it are there to be searched or summed.

CREATE TABLE agents (
    agent_id TEXT PRIMARY KEY,
    name     TEXT NOT NULL UNIQUE,
    provider TEXT NOT NULL,
    body     BLOB NOT NULL
) STRICT;

CREATE TABLE sessions (
    agent_id TEXT NOT NULL,
    provider TEXT NOT NULL,
    token    TEXT NOT NULL,
    body     BLOB NOT NULL,
    PRIMARY KEY (agent_id, provider)
) STRICT, WITHOUT ROWID;

CREATE INDEX sessions_by_token ON sessions (provider, token);

CREATE TABLE lanes (
    agent_id  TEXT PRIMARY KEY,
    status    TEXT NOT NULL CHECK (status IN ('idle', 'ready', 'held')),
    is_paused INTEGER NOT NULL,
    ready_at  INTEGER,
    holder_id TEXT,
    fence     INTEGER NOT NULL,
    last_seq  INTEGER NOT NULL,
    queued    INTEGER NOT NULL CHECK (queued >= 0)
) STRICT;

CREATE INDEX lanes_ready ON lanes (ready_at, agent_id) WHERE status = 'ready';
CREATE INDEX lanes_held ON lanes (holder_id) WHERE status = 'held';

CREATE TABLE holders (
    holder_id TEXT PRIMARY KEY,
    kind      TEXT NOT NULL,
    machine   TEXT NOT NULL,
    version   TEXT NOT NULL,
    joined_at INTEGER NOT NULL
) STRICT;

CREATE TABLE items (
    item_id          TEXT PRIMARY KEY,
    agent_id         TEXT NOT NULL,
    seq              INTEGER NOT NULL,
    kind             TEXT NOT NULL,
    text             TEXT NOT NULL,
    on_lost          TEXT NOT NULL,
    created_at       INTEGER NOT NULL,
    status           TEXT NOT NULL
        CHECK (status IN ('queued', 'running', 'completed', 'failed', 'cancelled')),
    delivery         TEXT NOT NULL,
    attempt          INTEGER NOT NULL,
    cancel_requested INTEGER NOT NULL,
    run_id           TEXT,
    reply            TEXT,
    started_at       INTEGER,
    settled_at       INTEGER,
    UNIQUE (agent_id, seq)
) STRICT;

CREATE INDEX items_by_agent ON items (agent_id, item_id);
CREATE INDEX items_open ON items (item_id) WHERE status IN ('queued', 'running');
CREATE INDEX items_queued ON items (agent_id, seq) WHERE status = 'queued';
CREATE INDEX items_running ON items (agent_id, seq) WHERE status = 'running';

CREATE TABLE dedup (
    agent_id   TEXT NOT NULL,
    key        TEXT NOT NULL,
    item_id    TEXT NOT NULL,
    expires_at INTEGER NOT NULL,
    PRIMARY KEY (agent_id, key)
) STRICT, WITHOUT ROWID;

CREATE INDEX dedup_expiry ON dedup (expires_at);

CREATE TABLE processes (
    process_id   TEXT PRIMARY KEY,
    agent_id     TEXT NOT NULL,
    provider     TEXT NOT NULL,
    machine      TEXT NOT NULL,
    keeper       TEXT NOT NULL,
    opened_at    INTEGER NOT NULL,
    "offset"     INTEGER NOT NULL,
    mark_s       INTEGER NOT NULL,
    mark_x       INTEGER NOT NULL,
    mark_r       INTEGER NOT NULL,
    state        BLOB,
    state_sent   INTEGER,
    state_offset INTEGER,
    closed_at    INTEGER
) STRICT;

CREATE INDEX processes_open ON processes (agent_id) WHERE closed_at IS NULL;

CREATE TABLE runs (
    run_id             TEXT PRIMARY KEY,
    agent_id           TEXT NOT NULL,
    provider           TEXT NOT NULL,
    status             TEXT NOT NULL,
    created_at         INTEGER NOT NULL,
    input_tokens       INTEGER,
    output_tokens      INTEGER,
    cache_read_tokens  INTEGER,
    cache_write_tokens INTEGER,
    cost_usd           REAL,
    cost_kind          TEXT NOT NULL,
    body               BLOB NOT NULL
) STRICT;

CREATE INDEX runs_by_agent ON runs (agent_id, run_id);
CREATE INDEX runs_by_time ON runs (created_at);

-- One row for all events that one run got in one commit; a row for each event costs twice as much.
-- `id` is the cursor of the first event in `body`, so cursors have no gaps and need no column, and
-- an index on a column is an index on (column, cursor). `tools` counts the tools that were started:
-- a run that has not ended has as many events and tools as its rows here add up to.
CREATE TABLE event_batches (
    id         INTEGER PRIMARY KEY,
    agent_id   TEXT NOT NULL,
    run_id     TEXT,
    process_id TEXT,
    first_seq  INTEGER NOT NULL,
    last_seq   INTEGER NOT NULL,
    tools      INTEGER NOT NULL,
    body       BLOB NOT NULL
) STRICT;

CREATE INDEX event_batches_by_agent ON event_batches (agent_id);
CREATE INDEX event_batches_by_run ON event_batches (run_id);

CREATE TABLE gates (
    provider     TEXT NOT NULL,
    account      TEXT NOT NULL,
    closed_until INTEGER,
    reason       TEXT,
    PRIMARY KEY (provider, account)
) STRICT, WITHOUT ROWID;
