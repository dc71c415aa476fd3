CREATE TABLE model_artifact (
    model_name      text NOT NULL,
    artifact_id     text NOT NULL,
    manifest_uri    text NOT NULL,
    manifest_sha256 char(64) NOT NULL CHECK (manifest_sha256 ~ '^[0-9a-f]{64}$'),
    feature_schema  text NOT NULL,
    state           text NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'ready', 'rejected')),
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (model_name, artifact_id)
);

-- The row every publication and admission of a service locks first.
CREATE TABLE service_counter (
    model_name    text NOT NULL,
    environment   text NOT NULL,
    last_revision bigint NOT NULL DEFAULT 0 CHECK (last_revision >= 0),
    last_epoch    bigint NOT NULL DEFAULT 0 CHECK (last_epoch >= 0),
    PRIMARY KEY (model_name, environment)
);

-- Append-only: a revision names one artifact, for ever.
CREATE TABLE revision_assignment (
    model_name  text NOT NULL,
    environment text NOT NULL,
    revision    bigint NOT NULL CHECK (revision > 0),
    artifact_id text NOT NULL,
    PRIMARY KEY (model_name, environment, revision),
    UNIQUE (model_name, environment, revision, artifact_id),
    FOREIGN KEY (model_name, artifact_id) REFERENCES model_artifact
);

CREATE TABLE deployment_target (
    model_name     text NOT NULL,
    environment    text NOT NULL,
    cohort         text NOT NULL CHECK (cohort IN ('stable', 'canary')),
    revision       bigint NOT NULL CHECK (revision > 0),
    artifact_id    text NOT NULL,
    serve_floor    bigint NOT NULL DEFAULT 0 CHECK (serve_floor BETWEEN 0 AND revision),
    fence_epoch    bigint NOT NULL CHECK (fence_epoch >= 0),
    fence_sequence bigint NOT NULL CHECK (fence_sequence >= 0),
    updated_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (model_name, environment, cohort),
    FOREIGN KEY (model_name, artifact_id) REFERENCES model_artifact,
    FOREIGN KEY (model_name, environment, revision, artifact_id)
        REFERENCES revision_assignment (model_name, environment, revision, artifact_id)
);

CREATE TABLE release (
    release_id     text PRIMARY KEY,
    run_id         text NOT NULL,
    model_name     text NOT NULL,
    environment    text NOT NULL,
    artifact_id    text NOT NULL,
    operator       text NOT NULL,
    epoch          bigint NOT NULL CHECK (epoch > 0),
    request_key    text,
    request_digest char(64) NOT NULL,
    outcome        text,
    reason         text NOT NULL DEFAULT '',
    started_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    finished_at    timestamptz,
    UNIQUE (model_name, environment, epoch),
    CHECK ((outcome IS NULL) = (finished_at IS NULL)),
    FOREIGN KEY (model_name, artifact_id) REFERENCES model_artifact
);

CREATE UNIQUE INDEX release_active ON release (model_name, environment) WHERE outcome IS NULL;
CREATE UNIQUE INDEX release_request_key ON release (request_key) WHERE request_key IS NOT NULL;

CREATE TABLE instance_report (
    model_name  text NOT NULL,
    environment text NOT NULL,
    instance_id text NOT NULL,
    report      json NOT NULL,
    reported_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (model_name, environment, instance_id)
);

-- `data` is json, not jsonb: the hash covers the text exactly as it was written.
CREATE TABLE audit (
    environment   text NOT NULL,
    sequence      bigint NOT NULL CHECK (sequence > 0),
    model_name    text NOT NULL,
    operation_id  text NOT NULL,
    release_id    text,
    step          text NOT NULL,
    operator      text NOT NULL,
    summary       text NOT NULL,
    data          json NOT NULL,
    recorded_at   timestamptz NOT NULL,
    previous_hash char(64) NOT NULL,
    hash          char(64) NOT NULL,
    PRIMARY KEY (environment, sequence),
    UNIQUE (environment, operation_id)
);

CREATE INDEX audit_service ON audit (environment, model_name, sequence);

CREATE TABLE access_token (
    token_sha256 char(64) PRIMARY KEY,
    role         text NOT NULL CHECK (role IN ('runtime', 'operator')),
    subject      text NOT NULL,
    model        text NOT NULL,
    environment  text NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    revoked_at   timestamptz
);
