-- A gate is one document: its whole state decides whether it lets a run through. A closed gate stays
-- closed until the recorded time.

ALTER TABLE gates RENAME TO gates_before;

CREATE TABLE gates (
    provider TEXT NOT NULL,
    account  TEXT NOT NULL,
    body     BLOB NOT NULL,
    PRIMARY KEY (provider, account)
) STRICT, WITHOUT ROWID;

INSERT INTO gates
SELECT provider, account,
       CAST(json_object(
           'provider', provider,
           'account', account,
           'is_closed', json('true'),
           'until', strftime('%Y-%m-%dT%H:%M:%SZ', closed_until / 1000000, 'unixepoch'),
           'is_stated', json('true'),
           'reason', reason
       ) AS BLOB)
FROM gates_before
WHERE closed_until IS NOT NULL;

DROP TABLE gates_before;

-- The limits of which account hold for what a process does; empty: of the machine's own login, and of
-- all runs and processes from before accounts were distinguished.

ALTER TABLE processes ADD COLUMN account TEXT NOT NULL DEFAULT '';

-- The questions to users. A question is open until a user answers it, and answered until the process
-- that asked has the answer. A run that ends withdraws its questions about tools.
CREATE TABLE approvals (
    approval_id TEXT PRIMARY KEY,
    agent_id    TEXT NOT NULL,
    run_id      TEXT NOT NULL,
    about       TEXT NOT NULL CHECK (about IN ('tool', 'budget')),
    status      TEXT NOT NULL CHECK (status IN ('open', 'answered', 'resolved', 'withdrawn')),
    asked_at    INTEGER NOT NULL,
    body        BLOB NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX approvals_unsettled ON approvals (run_id) WHERE status IN ('open', 'answered');
CREATE INDEX approvals_answered ON approvals (agent_id) WHERE status = 'answered';

-- The providers of an agent in their order: the first whose gate is not closed does the work.

ALTER TABLE agents ADD COLUMN chain TEXT NOT NULL DEFAULT '[]';

UPDATE agents SET chain = json_extract(CAST(body AS TEXT), '$.providers');
