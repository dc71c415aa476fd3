-- How often something happened that an operator should hear of. In the database and not in a process,
-- because the worker meets them and the HTTP service tells Prometheus.
CREATE TABLE incident_count (
    model_name  text NOT NULL,
    environment text NOT NULL,
    incident    text NOT NULL,
    count       bigint NOT NULL CHECK (count > 0),
    PRIMARY KEY (model_name, environment, incident)
);

ALTER TABLE access_token DROP CONSTRAINT access_token_role_check;
ALTER TABLE access_token
    ADD CONSTRAINT access_token_role_check CHECK (role IN ('runtime', 'operator', 'metrics'));
