-- Who pushed an artifact and who approved it: the pusher alone does not make it ready.
ALTER TABLE model_artifact
    ADD COLUMN pushed_by text NOT NULL DEFAULT '',
    ADD COLUMN approvers text[] NOT NULL DEFAULT '{}';

-- What an authenticated person allowed a release to do; releases name it by its id.
CREATE TABLE release_approval (
    approval_id text PRIMARY KEY,
    model_name  text NOT NULL,
    environment text NOT NULL,
    release_id  text NOT NULL,
    operator    text NOT NULL,
    reason      text NOT NULL,
    created_at  timestamptz NOT NULL
);

CREATE INDEX release_approval_release ON release_approval (model_name, environment, release_id);
