-- The stored signature over an artifact's manifest; null for an artifact that was pushed unsigned.
ALTER TABLE model_artifact ADD COLUMN signature_sha256 char(64) CHECK (signature_sha256 ~ '^[0-9a-f]{64}$');

-- The release authorisation, as the runtimes get it; null where unsigned releases are allowed.
ALTER TABLE deployment_target ADD COLUMN authorisation text;
