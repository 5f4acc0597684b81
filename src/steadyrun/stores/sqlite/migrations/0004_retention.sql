-- The last event that was pruned, for each agent; the empty name stands for the events of gates. The
-- numbers of an agent whose events are all pruned go on from here.
CREATE TABLE pruned_events (
    agent_id TEXT PRIMARY KEY,
    last_seq INTEGER NOT NULL,
    cursor   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
