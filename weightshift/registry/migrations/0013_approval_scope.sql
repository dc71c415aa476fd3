-- What an approval is for, and until when it counts. Rows from before name no artifact and count for none.
ALTER TABLE release_approval
    ADD COLUMN artifact_id text,
    ADD COLUMN expires_at timestamptz;
