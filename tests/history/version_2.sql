-- Version 2 of the store, as SQLite keeps it: version 1, the paths of runs, quiet runs. Never edit; write a migration.
CREATE TABLE meta (
    name VARCHAR(40) NOT NULL,
    value BIGINT NOT NULL,
    PRIMARY KEY (name)
);
CREATE TABLE runs (
    cluster VARCHAR(64) NOT NULL,
    raw_id BIGINT NOT NULL,
    run INTEGER NOT NULL,
    id VARCHAR(64) NOT NULL,
    user VARCHAR(255),
    uid BIGINT,
    name TEXT(16777215),
    partition VARCHAR(255),
    state VARCHAR(40),
    exit VARCHAR(40),
    derived_exit VARCHAR(40),
    nodes TEXT(16777215) NOT NULL,
    submit DOUBLE,
    start DOUBLE,
    "end" DOUBLE,
    gpus INTEGER,
    failed_node VARCHAR(255),
    cancelled_by VARCHAR(40),
    steps TEXT(16777215) NOT NULL,
    status VARCHAR(20) NOT NULL,
    disposition VARCHAR(20),
    stdout TEXT(16777215),
    stderr TEXT(16777215),
    workdir TEXT(16777215),
    log_paths TEXT(16777215) NOT NULL,
    comment TEXT(16777215),
    live_reason VARCHAR(255),
    PRIMARY KEY (cluster, raw_id, run)
);
CREATE INDEX runs_start ON runs (start);
CREATE INDEX runs_user ON runs (user);
CREATE INDEX runs_id ON runs (id);
CREATE INDEX runs_status ON runs (status);
CREATE TABLE run_nodes (
    cluster VARCHAR(64) NOT NULL,
    raw_id BIGINT NOT NULL,
    run INTEGER NOT NULL,
    node VARCHAR(255) NOT NULL,
    PRIMARY KEY (cluster, raw_id, run, node)
);
CREATE INDEX run_nodes_node ON run_nodes (node);
CREATE TABLE node_records (
    cluster VARCHAR(64) NOT NULL,
    raw_id BIGINT NOT NULL,
    run INTEGER NOT NULL,
    node VARCHAR(255) NOT NULL,
    sha256 VARCHAR(64) NOT NULL,
    received DOUBLE NOT NULL,
    written DOUBLE NOT NULL,
    late BOOLEAN NOT NULL,
    record BLOB NOT NULL,
    PRIMARY KEY (cluster, raw_id, run, node, sha256)
);
CREATE TABLE node_events (
    number INTEGER NOT NULL,
    digest VARCHAR(64) NOT NULL,
    node VARCHAR(255) NOT NULL,
    time DOUBLE NOT NULL,
    state VARCHAR(255) NOT NULL,
    reason TEXT(16777215),
    reason_by VARCHAR(255),
    source VARCHAR(40) NOT NULL,
    identity VARCHAR(255),
    PRIMARY KEY (number),
    CONSTRAINT node_events_digest UNIQUE (digest)
);
CREATE INDEX node_events_node_time ON node_events (node, time);
CREATE TABLE reports (
    cluster VARCHAR(64) NOT NULL,
    raw_id BIGINT NOT NULL,
    run INTEGER NOT NULL,
    revision INTEGER NOT NULL,
    at DOUBLE NOT NULL,
    report BLOB NOT NULL,
    PRIMARY KEY (cluster, raw_id, run, revision)
);
CREATE TABLE outputs (
    cluster VARCHAR(64) NOT NULL,
    raw_id BIGINT NOT NULL,
    run INTEGER NOT NULL,
    output BLOB NOT NULL,
    PRIMARY KEY (cluster, raw_id, run)
);
CREATE TABLE comments (
    cluster VARCHAR(64) NOT NULL,
    raw_id BIGINT NOT NULL,
    run INTEGER NOT NULL,
    text TEXT(16777215) NOT NULL,
    field VARCHAR(20) NOT NULL,
    state VARCHAR(20) NOT NULL,
    tries INTEGER NOT NULL,
    next_try DOUBLE NOT NULL,
    why TEXT(16777215) NOT NULL,
    PRIMARY KEY (cluster, raw_id, run)
);
CREATE INDEX comments_state_next_try ON comments (state, next_try);
CREATE TABLE notes (
    number INTEGER NOT NULL,
    kind VARCHAR(40) NOT NULL,
    text VARCHAR(500) NOT NULL,
    at DOUBLE NOT NULL,
    count INTEGER NOT NULL,
    PRIMARY KEY (number)
);
CREATE INDEX notes_kind_at ON notes (kind, at);
CREATE TABLE paths (
    cluster VARCHAR(64) NOT NULL,
    raw_id BIGINT NOT NULL,
    run INTEGER NOT NULL,
    machines VARCHAR(64) NOT NULL,
    paths BLOB NOT NULL,
    PRIMARY KEY (cluster, raw_id, run)
);
CREATE INDEX paths_machines ON paths (machines);
CREATE TABLE quiet (
    cluster VARCHAR(64) NOT NULL,
    raw_id BIGINT NOT NULL,
    run INTEGER NOT NULL,
    PRIMARY KEY (cluster, raw_id, run)
);
