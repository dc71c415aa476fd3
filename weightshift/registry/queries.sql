-- Every statement of the registry. A block starts with its name and ends where the next one starts.

-- name: select_applied_migrations
SELECT version FROM schema_migration ORDER BY version

-- name: insert_artifact
INSERT INTO model_artifact (model_name, artifact_id, manifest_uri, manifest_sha256, feature_schema)
VALUES ($1, $2, $3, $4, $5)
ON CONFLICT DO NOTHING
RETURNING *

-- name: select_artifact
SELECT * FROM model_artifact WHERE model_name = $1 AND artifact_id = $2

-- name: lock_artifact
SELECT * FROM model_artifact WHERE model_name = $1 AND artifact_id = $2 FOR UPDATE

-- A publication holds this until it commits, so that nobody rejects the artifact meanwhile.
-- name: share_artifact
SELECT * FROM model_artifact WHERE model_name = $1 AND artifact_id = $2 FOR SHARE

-- name: set_artifact_state
UPDATE model_artifact SET state = $3 WHERE model_name = $1 AND artifact_id = $2 RETURNING *

-- name: select_artifacts
SELECT * FROM model_artifact WHERE model_name = $1 ORDER BY created_at DESC, artifact_id DESC

-- name: ensure_counter
INSERT INTO service_counter (model_name, environment) VALUES ($1, $2) ON CONFLICT DO NOTHING

-- name: lock_counter
SELECT last_revision, last_epoch FROM service_counter
WHERE model_name = $1 AND environment = $2
FOR UPDATE

-- name: set_last_revision
UPDATE service_counter SET last_revision = $3 WHERE model_name = $1 AND environment = $2

-- name: set_last_epoch
UPDATE service_counter SET last_epoch = $3 WHERE model_name = $1 AND environment = $2

-- name: insert_revision
INSERT INTO revision_assignment (model_name, environment, revision, artifact_id) VALUES ($1, $2, $3, $4)

-- name: select_targets
SELECT target.*, artifact.manifest_sha256, artifact.feature_schema
FROM deployment_target AS target
JOIN model_artifact AS artifact USING (model_name, artifact_id)
WHERE target.model_name = $1 AND target.environment = $2

-- name: upsert_target
INSERT INTO deployment_target
    (model_name, environment, cohort, revision, artifact_id, serve_floor, fence_epoch, fence_sequence,
     updated_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
ON CONFLICT (model_name, environment, cohort) DO UPDATE SET
    revision = excluded.revision,
    artifact_id = excluded.artifact_id,
    serve_floor = excluded.serve_floor,
    fence_epoch = excluded.fence_epoch,
    fence_sequence = excluded.fence_sequence,
    updated_at = excluded.updated_at

-- name: now
SELECT clock_timestamp()

-- name: notify
SELECT pg_notify($1, $2)

-- name: select_release
SELECT * FROM release WHERE release_id = $1

-- name: lock_release
SELECT * FROM release WHERE release_id = $1 FOR UPDATE

-- name: select_active_release
SELECT * FROM release WHERE model_name = $1 AND environment = $2 AND outcome IS NULL

-- name: select_release_by_key
SELECT * FROM release WHERE request_key = $1

-- name: insert_release
INSERT INTO release
    (release_id, run_id, model_name, environment, artifact_id, operator, epoch, request_key, request_digest)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)

-- name: finish_release
UPDATE release SET outcome = $2, reason = $3, finished_at = clock_timestamp() WHERE release_id = $1

-- name: select_releases
SELECT * FROM release WHERE model_name = $1 AND environment = $2 ORDER BY epoch DESC

-- An instance silent for a day will not come back under its name; it would only clutter the list.
-- name: upsert_report
WITH forgotten AS (
    DELETE FROM instance_report
    WHERE model_name = $1 AND environment = $2 AND instance_id <> $3
      AND reported_at < clock_timestamp() - $5::interval
)
INSERT INTO instance_report (model_name, environment, instance_id, report, reported_at)
VALUES ($1, $2, $3, $4, clock_timestamp())
ON CONFLICT (model_name, environment, instance_id) DO UPDATE SET
    report = excluded.report,
    reported_at = excluded.reported_at

-- name: select_reports
SELECT report, greatest(extract(epoch FROM clock_timestamp() - reported_at), 0)::float8 AS age_seconds
FROM instance_report
WHERE model_name = $1 AND environment = $2
ORDER BY instance_id

-- Two keys: the first keeps this lock apart from any other advisory lock in the database.
-- name: lock_audit_chain
SELECT pg_advisory_xact_lock(hashtext('weightshift audit'), hashtext($1))

-- name: select_audit_head
SELECT clock_timestamp() AS recorded_at, head.sequence, head.hash
FROM (SELECT 1) AS always
LEFT JOIN LATERAL (
    SELECT sequence, hash FROM audit WHERE environment = $1 ORDER BY sequence DESC LIMIT 1
) AS head ON true

-- name: insert_audit
INSERT INTO audit
    (environment, sequence, model_name, operation_id, release_id, step, operator, summary, data,
     recorded_at, previous_hash, hash)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)

-- name: select_audit_operation
SELECT * FROM audit WHERE environment = $1 AND operation_id = $2

-- name: select_audit
SELECT * FROM audit
WHERE environment = $1 AND model_name = $2 AND ($3::text IS NULL OR release_id = $3)
ORDER BY sequence

-- name: insert_token
INSERT INTO access_token (token_sha256, role, subject, model, environment) VALUES ($1, $2, $3, $4, $5)

-- name: revoke_token
UPDATE access_token SET revoked_at = clock_timestamp() WHERE token_sha256 = $1 AND revoked_at IS NULL

-- name: select_token
SELECT token_sha256, role, subject, model, environment FROM access_token
WHERE token_sha256 = $1 AND revoked_at IS NULL
