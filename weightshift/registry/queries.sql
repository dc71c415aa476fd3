-- Every statement of the registry. A block starts with its name and ends where the next one starts.

-- name: select_applied_migrations
SELECT version FROM schema_migration ORDER BY version

-- name: insert_artifact
INSERT INTO model_artifact
    (model_name, artifact_id, manifest_uri, manifest_sha256, feature_schema, pushed_by, signature_sha256)
VALUES ($1, $2, $3, $4, $5, $6, $7)
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
UPDATE model_artifact SET state = $3, approvers = $4 WHERE model_name = $1 AND artifact_id = $2

-- name: set_artifact_signature
UPDATE model_artifact SET signature_sha256 = $3 WHERE model_name = $1 AND artifact_id = $2

-- name: select_targets_of_artifact
SELECT target.*, artifact.manifest_sha256, artifact.feature_schema
FROM deployment_target AS target
JOIN model_artifact AS artifact USING (model_name, artifact_id)
WHERE target.model_name = $1 AND target.artifact_id = $2

-- name: select_reports_of_artifact
SELECT report FROM instance_report
WHERE model_name = $1 AND report -> 'actual' ->> 'artifact_id' = $2
  AND reported_at > clock_timestamp() - $3::interval

-- name: select_artifacts
SELECT * FROM model_artifact WHERE model_name = $1 ORDER BY created_at DESC, artifact_id DESC

-- name: ensure_counter
INSERT INTO service_counter (model_name, environment) VALUES ($1, $2) ON CONFLICT DO NOTHING

-- name: lock_counter
SELECT last_revision, last_epoch, wave_epoch, wave_sequence FROM service_counter
WHERE model_name = $1 AND environment = $2
FOR UPDATE

-- name: set_last_revision
UPDATE service_counter SET last_revision = $3 WHERE model_name = $1 AND environment = $2

-- name: set_last_epoch
UPDATE service_counter SET last_epoch = $3 WHERE model_name = $1 AND environment = $2

-- name: set_wave_fence
UPDATE service_counter SET wave_epoch = $3, wave_sequence = $4 WHERE model_name = $1 AND environment = $2

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
     updated_at, requires_grant, authorisation)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
ON CONFLICT (model_name, environment, cohort) DO UPDATE SET
    revision = excluded.revision,
    artifact_id = excluded.artifact_id,
    serve_floor = excluded.serve_floor,
    fence_epoch = excluded.fence_epoch,
    fence_sequence = excluded.fence_sequence,
    updated_at = excluded.updated_at,
    requires_grant = excluded.requires_grant,
    authorisation = excluded.authorisation

-- name: now
SELECT clock_timestamp()

-- name: notify
SELECT pg_notify($1, $2)

-- name: select_release
SELECT * FROM release WHERE release_id = $1

-- name: lock_release
SELECT * FROM release WHERE release_id = $1 FOR UPDATE

-- name: lock_active_release
SELECT * FROM release WHERE model_name = $1 AND environment = $2 AND outcome IS NULL FOR UPDATE

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

-- Everything that shows how far a service's revisions and epochs had got.
-- name: select_highest_seen
SELECT model_name, coalesce(max(revision), 0) AS revision, coalesce(max(epoch), 0) AS epoch
FROM (
    SELECT model_name, last_revision AS revision, last_epoch AS epoch
    FROM service_counter WHERE environment = $1
    UNION ALL
    SELECT model_name, revision, NULL FROM revision_assignment WHERE environment = $1
    UNION ALL
    SELECT model_name, revision, fence_epoch FROM deployment_target WHERE environment = $1
    UNION ALL
    SELECT model_name, NULL, epoch FROM release WHERE environment = $1
    UNION ALL
    SELECT model_name, revision, fence_epoch FROM wave_grant WHERE environment = $1
    UNION ALL
    SELECT model_name,
        greatest(
            (report ->> 'desired_revision')::bigint,
            (report -> 'actual' ->> 'revision')::bigint,
            (report -> 'candidate' ->> 'revision')::bigint
        ),
        NULL
    FROM instance_report
    -- No registry has given higher ones: a report that says so must not use the counter up.
    WHERE environment = $1 AND (report ->> 'desired_revision')::bigint <= $2
      AND coalesce((report -> 'actual' ->> 'revision')::bigint, 0) <= $2
      AND coalesce((report -> 'candidate' ->> 'revision')::bigint, 0) <= $2
    UNION ALL
    SELECT model_name,
        (data -> 'target' ->> 'revision')::bigint,
        greatest(
            (data -> 'publication' -> 'fence' ->> 'epoch')::bigint,
            (data ->> 'epoch')::bigint
        )
    FROM audit WHERE environment = $1 AND step IN ('admit', 'publish')
) AS seen
GROUP BY model_name
ORDER BY model_name

-- name: insert_approval
INSERT INTO release_approval
    (approval_id, model_name, environment, release_id, operator, reason, created_at, artifact_id, expires_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)

-- name: select_approval
SELECT * FROM release_approval WHERE approval_id = $1

-- name: select_approvals_of_release
SELECT * FROM release_approval
WHERE model_name = $1 AND environment = $2 AND release_id = $3
ORDER BY created_at, approval_id

-- name: insert_grant
INSERT INTO wave_grant
    (model_name, environment, fence_epoch, fence_sequence, revision, instance_ids, expires_at)
VALUES ($1, $2, $3, $4, $5, $6, $7)

-- name: revoke_grants
UPDATE wave_grant SET revoked_at = clock_timestamp()
WHERE model_name = $1 AND environment = $2 AND revoked_at IS NULL

-- An admitted release outdates every grant of the releases before it.
-- name: select_grants
SELECT wave_grant.* FROM wave_grant
JOIN service_counter USING (model_name, environment)
WHERE model_name = $1 AND environment = $2 AND revoked_at IS NULL AND expires_at > clock_timestamp()
  AND fence_epoch >= last_epoch
ORDER BY fence_epoch, fence_sequence

-- name: count_incident
INSERT INTO incident_count (model_name, environment, incident, count) VALUES ($1, $2, $3, 1)
ON CONFLICT (model_name, environment, incident) DO UPDATE SET count = incident_count.count + 1

-- name: select_incidents
SELECT * FROM incident_count ORDER BY environment, model_name, incident

-- name: select_services
SELECT model_name, environment FROM service_counter
UNION SELECT model_name, environment FROM instance_report
UNION SELECT model_name, environment FROM incident_count
ORDER BY environment, model_name

-- name: select_standings
SELECT reported.model_name, reported.environment, reported.report ->> 'cohort' AS cohort,
    (reported.report ->> 'draining')::boolean AS draining,
    greatest(extract(epoch FROM clock_timestamp() - reported.reported_at), 0)::float8 AS age,
    coalesce((reported.report -> 'actual' ->> 'revision')::bigint, 0) AS actual_revision,
    target.revision AS desired_revision,
    extract(epoch FROM clock_timestamp() - target.updated_at)::float8 AS desired_for
FROM instance_report AS reported
LEFT JOIN deployment_target AS target
    ON target.model_name = reported.model_name
    AND target.environment = reported.environment
    AND target.cohort = reported.report ->> 'cohort'

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

-- A date that no client could read (somebody has changed the row) comes back as none.
-- name: select_audit_page
SELECT environment, sequence, model_name, operation_id, release_id, step, operator, summary, data,
    CASE WHEN recorded_at BETWEEN '0002-01-01' AND '9998-12-31' THEN recorded_at END AS recorded_at,
    previous_hash, hash
FROM audit
WHERE environment = $1 AND sequence > $2
  AND ($3::text IS NULL OR model_name = $3)
  AND ($4::text IS NULL OR release_id = $4)
  AND ($5::text IS NULL OR operator = $5)
  AND ($6::timestamptz IS NULL OR recorded_at >= $6)
  AND ($7::timestamptz IS NULL OR recorded_at < $7)
ORDER BY sequence
LIMIT $8

-- name: select_newest_audit
SELECT * FROM audit WHERE environment = $1 ORDER BY sequence DESC LIMIT 1

-- name: insert_token
INSERT INTO access_token (token_sha256, role, subject, model, environment) VALUES ($1, $2, $3, $4, $5)

-- name: revoke_token
UPDATE access_token SET revoked_at = clock_timestamp()
WHERE left(token_sha256, 16) = $1 AND revoked_at IS NULL
RETURNING subject

-- name: select_tokens
SELECT left(token_sha256, 16) AS token_id, role, subject, model, environment, created_at, revoked_at
FROM access_token
ORDER BY created_at, token_sha256

-- name: select_token
SELECT token_sha256, role, subject, model, environment FROM access_token
WHERE token_sha256 = $1 AND revoked_at IS NULL
