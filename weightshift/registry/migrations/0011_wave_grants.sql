ALTER TABLE deployment_target ADD COLUMN requires_grant boolean NOT NULL DEFAULT false;

-- The newest command about waves; an older one comes too late, also after the grants themselves are gone.
ALTER TABLE service_counter
    ADD COLUMN wave_epoch bigint NOT NULL DEFAULT 0 CHECK (wave_epoch >= 0),
    ADD COLUMN wave_sequence bigint NOT NULL DEFAULT 0 CHECK (wave_sequence >= 0);

CREATE TABLE wave_grant (
    model_name     text NOT NULL,
    environment    text NOT NULL,
    fence_epoch    bigint NOT NULL CHECK (fence_epoch >= 0),
    fence_sequence bigint NOT NULL CHECK (fence_sequence >= 0),
    revision       bigint NOT NULL CHECK (revision > 0),
    instance_ids   text[] NOT NULL,
    expires_at     timestamptz NOT NULL,
    revoked_at     timestamptz,
    PRIMARY KEY (model_name, environment, fence_epoch, fence_sequence)
);
