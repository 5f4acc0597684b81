-- A lane may be warm: nothing runs in it, and its holder keeps it for the process that waits there.
-- Only a lane that can be claimed has a `ready_at`: a ready lane, and a warm lane with something
-- queued, which only its own holder may claim.

ALTER TABLE lanes RENAME TO lanes_before;

CREATE TABLE lanes (
    agent_id  TEXT PRIMARY KEY,
    status    TEXT NOT NULL CHECK (status IN ('idle', 'ready', 'held', 'warm')),
    is_paused INTEGER NOT NULL,
    ready_at  INTEGER,
    holder_id TEXT,
    fence     INTEGER NOT NULL,
    last_seq  INTEGER NOT NULL,
    queued    INTEGER NOT NULL CHECK (queued >= 0)
) STRICT;

INSERT INTO lanes
SELECT agent_id, status, is_paused, ready_at, holder_id, fence, last_seq, queued
FROM lanes_before;

DROP TABLE lanes_before;

CREATE INDEX lanes_ready ON lanes (ready_at, agent_id) WHERE ready_at IS NOT NULL;
CREATE INDEX lanes_held ON lanes (holder_id) WHERE holder_id IS NOT NULL;

-- How a message may reach a run that is going on; the item's run before the present one; how often
-- it was tried again at its own cost; why it failed (JSON); and what came with it (JSON).
ALTER TABLE items ADD COLUMN followup TEXT NOT NULL DEFAULT 'steer';
ALTER TABLE items ADD COLUMN before_run TEXT;
ALTER TABLE items ADD COLUMN tries INTEGER NOT NULL DEFAULT 0;
ALTER TABLE items ADD COLUMN error BLOB;
ALTER TABLE items ADD COLUMN payload BLOB;

-- What a process was launched with, sealed.
ALTER TABLE processes ADD COLUMN seal TEXT NOT NULL DEFAULT '';

-- An agent that a user added differs from one that a single run made for itself; until now all
-- agents were of the second kind. A removed agent stays in the record, and its name is free again.
ALTER TABLE agents RENAME TO agents_before;

CREATE TABLE agents (
    agent_id   TEXT PRIMARY KEY,
    name       TEXT NOT NULL,
    provider   TEXT NOT NULL,
    is_direct  INTEGER NOT NULL,
    removed_at INTEGER,
    body       BLOB NOT NULL
) STRICT;

INSERT INTO agents
SELECT agent_id, name, provider, 1, NULL,
       CAST(json_set(CAST(body AS TEXT), '$.is_direct', json('true')) AS BLOB)
FROM agents_before;

DROP TABLE agents_before;

CREATE UNIQUE INDEX agents_by_name ON agents (name) WHERE removed_at IS NULL;
CREATE INDEX agents_lasting ON agents (name) WHERE is_direct = 0 AND removed_at IS NULL;

-- A session whose token was retired has none.
ALTER TABLE sessions RENAME TO sessions_before;

CREATE TABLE sessions (
    agent_id TEXT NOT NULL,
    provider TEXT NOT NULL,
    token    TEXT,
    body     BLOB NOT NULL,
    PRIMARY KEY (agent_id, provider)
) STRICT, WITHOUT ROWID;

INSERT INTO sessions
SELECT agent_id, provider, token, body
FROM sessions_before;

DROP TABLE sessions_before;

CREATE INDEX sessions_by_token ON sessions (provider, token);

-- What happens to a gate belongs to no agent: such rows count from 0, for the cursor alone.
ALTER TABLE event_batches RENAME TO event_batches_before;

CREATE TABLE event_batches (
    id         INTEGER PRIMARY KEY,
    agent_id   TEXT,
    run_id     TEXT,
    process_id TEXT,
    first_seq  INTEGER NOT NULL,
    last_seq   INTEGER NOT NULL,
    tools      INTEGER NOT NULL,
    body       BLOB NOT NULL
) STRICT;

INSERT INTO event_batches
SELECT id, agent_id, run_id, process_id, first_seq, last_seq, tools, body
FROM event_batches_before;

DROP TABLE event_batches_before;

CREATE INDEX event_batches_by_agent ON event_batches (agent_id);
CREATE INDEX event_batches_by_run ON event_batches (run_id);

CREATE TABLE kv (
    key   TEXT PRIMARY KEY,
    value BLOB NOT NULL
) STRICT, WITHOUT ROWID;
