SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET transaction_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;
CREATE SCHEMA astromesh;
CREATE SCHEMA astromesh_dbos;
CREATE EXTENSION IF NOT EXISTS vector WITH SCHEMA public;
CREATE FUNCTION astromesh_dbos.enqueue_workflow(workflow_name text, queue_name text, positional_args json[] DEFAULT ARRAY[]::json[], named_args json DEFAULT '{}'::json, class_name text DEFAULT NULL::text, config_name text DEFAULT NULL::text, workflow_id text DEFAULT NULL::text, app_version text DEFAULT NULL::text, timeout_ms bigint DEFAULT NULL::bigint, deadline_epoch_ms bigint DEFAULT NULL::bigint, deduplication_id text DEFAULT NULL::text, priority integer DEFAULT NULL::integer, queue_partition_key text DEFAULT NULL::text, authenticated_user text DEFAULT NULL::text, authenticated_roles text DEFAULT NULL::text, delay_until_epoch_ms bigint DEFAULT NULL::bigint, application_name text DEFAULT NULL::text) RETURNS text
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
    v_workflow_id TEXT;
    v_serialized_inputs TEXT;
    v_owner_xid TEXT;
    v_now BIGINT;
    v_recovery_attempts INT4 := 0;
    v_priority INT4;
    v_status TEXT;
BEGIN
    -- Validate required parameters
    IF workflow_name IS NULL OR workflow_name = '' THEN
        RAISE EXCEPTION 'Workflow name cannot be null or empty';
    END IF;
    IF queue_name IS NULL OR queue_name = '' THEN
        RAISE EXCEPTION 'Queue name cannot be null or empty';
    END IF;
    IF named_args IS NOT NULL AND jsonb_typeof(named_args::jsonb) != 'object' THEN
        RAISE EXCEPTION 'Named args must be a JSON object';
    END IF;
    IF workflow_id IS NOT NULL AND workflow_id = '' THEN
        RAISE EXCEPTION 'Workflow ID cannot be an empty string if provided.';
    END IF;
    IF delay_until_epoch_ms IS NOT NULL AND delay_until_epoch_ms < 0 THEN
        RAISE EXCEPTION 'delay_until_epoch_ms must be >= 0';
    END IF;
    v_workflow_id := COALESCE(workflow_id, gen_random_uuid()::TEXT);
    v_owner_xid := gen_random_uuid()::TEXT;
    v_priority := COALESCE(priority, 0);
    v_serialized_inputs := json_build_object(
        'positionalArgs', positional_args,
        'namedArgs', named_args
    )::TEXT;
    v_now := EXTRACT(epoch FROM now()) * 1000;
    v_status := CASE WHEN delay_until_epoch_ms IS NULL THEN 'ENQUEUED' ELSE 'DELAYED' END;
    INSERT INTO "astromesh_dbos".workflow_status (
        workflow_uuid, status,
        name, class_name, config_name,
        queue_name, deduplication_id, priority, queue_partition_key,
        application_version,
        created_at, updated_at, recovery_attempts,
        workflow_timeout_ms, workflow_deadline_epoch_ms,
        parent_workflow_id, owner_xid, serialization,
        authenticated_user, authenticated_roles,
        delay_until_epoch_ms, application_name
    ) VALUES (
        v_workflow_id, v_status,
        workflow_name, class_name, config_name,
        queue_name, deduplication_id, v_priority, queue_partition_key,
        app_version,
        v_now, v_now, v_recovery_attempts,
        timeout_ms, deadline_epoch_ms,
        NULL, v_owner_xid, 'portable_json',
        authenticated_user, authenticated_roles,
        delay_until_epoch_ms, application_name
    )
    ON CONFLICT (workflow_uuid)
    DO UPDATE SET
        updated_at = EXCLUDED.updated_at;
    INSERT INTO "astromesh_dbos".workflow_input (
        workflow_uuid, inputs, retention_timestamp
    ) VALUES (
        v_workflow_id, v_serialized_inputs, v_now
    )
    ON CONFLICT (workflow_uuid) DO NOTHING;
    RETURN v_workflow_id;
EXCEPTION
    WHEN unique_violation THEN
        RAISE EXCEPTION 'DBOS queue duplicated'
            USING DETAIL = format('Workflow %s with queue %s and deduplication ID %s already exists', v_workflow_id, queue_name, deduplication_id),
                ERRCODE = 'unique_violation';
END;
$$;
CREATE FUNCTION astromesh_dbos.send_message(destination_id text, message json, topic text DEFAULT NULL::text, message_id text DEFAULT NULL::text) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
    v_topic TEXT := COALESCE(topic, '__null__topic__');
    v_message_id TEXT := COALESCE(message_id, gen_random_uuid()::TEXT);
BEGIN
    INSERT INTO "astromesh_dbos".notifications (
        destination_uuid, topic, message, message_uuid, serialization
    ) VALUES (
        destination_id, v_topic, message, v_message_id, 'portable_json'
    )
    ON CONFLICT (message_uuid) DO NOTHING;
EXCEPTION
    WHEN foreign_key_violation THEN
        RAISE EXCEPTION 'DBOS non-existent workflow'
            USING DETAIL = format('Destination workflow %s does not exist', destination_id),
                ERRCODE = 'foreign_key_violation';
END;
$$;
CREATE TEXT SEARCH DICTIONARY astromesh.stems (
    TEMPLATE = pg_catalog.snowball,
    language = 'english' );
CREATE TEXT SEARCH CONFIGURATION astromesh.words (
    PARSER = pg_catalog."default" );
ALTER TEXT SEARCH CONFIGURATION astromesh.words
    ADD MAPPING FOR asciiword WITH astromesh.stems;
ALTER TEXT SEARCH CONFIGURATION astromesh.words
    ADD MAPPING FOR word WITH astromesh.stems;
ALTER TEXT SEARCH CONFIGURATION astromesh.words
    ADD MAPPING FOR numword WITH simple;
ALTER TEXT SEARCH CONFIGURATION astromesh.words
    ADD MAPPING FOR email WITH simple;
ALTER TEXT SEARCH CONFIGURATION astromesh.words
    ADD MAPPING FOR url WITH simple;
ALTER TEXT SEARCH CONFIGURATION astromesh.words
    ADD MAPPING FOR host WITH simple;
ALTER TEXT SEARCH CONFIGURATION astromesh.words
    ADD MAPPING FOR sfloat WITH simple;
ALTER TEXT SEARCH CONFIGURATION astromesh.words
    ADD MAPPING FOR version WITH simple;
ALTER TEXT SEARCH CONFIGURATION astromesh.words
    ADD MAPPING FOR hword_numpart WITH simple;
ALTER TEXT SEARCH CONFIGURATION astromesh.words
    ADD MAPPING FOR hword_part WITH astromesh.stems;
ALTER TEXT SEARCH CONFIGURATION astromesh.words
    ADD MAPPING FOR hword_asciipart WITH astromesh.stems;
ALTER TEXT SEARCH CONFIGURATION astromesh.words
    ADD MAPPING FOR numhword WITH simple;
ALTER TEXT SEARCH CONFIGURATION astromesh.words
    ADD MAPPING FOR asciihword WITH astromesh.stems;
ALTER TEXT SEARCH CONFIGURATION astromesh.words
    ADD MAPPING FOR hword WITH astromesh.stems;
ALTER TEXT SEARCH CONFIGURATION astromesh.words
    ADD MAPPING FOR url_path WITH simple;
ALTER TEXT SEARCH CONFIGURATION astromesh.words
    ADD MAPPING FOR file WITH simple;
ALTER TEXT SEARCH CONFIGURATION astromesh.words
    ADD MAPPING FOR "float" WITH simple;
ALTER TEXT SEARCH CONFIGURATION astromesh.words
    ADD MAPPING FOR "int" WITH simple;
ALTER TEXT SEARCH CONFIGURATION astromesh.words
    ADD MAPPING FOR uint WITH simple;
SET default_tablespace = '';
SET default_table_access_method = heap;
CREATE TABLE astromesh.budget_accounts (
    kind text NOT NULL,
    tenant text NOT NULL,
    agent text NOT NULL,
    name text NOT NULL,
    owner text NOT NULL,
    expires_at double precision NOT NULL,
    tokens double precision NOT NULL,
    cost_usd double precision NOT NULL,
    tool_calls double precision NOT NULL,
    wall_seconds double precision NOT NULL
);
CREATE TABLE astromesh.budget_holds (
    id text NOT NULL,
    kind text NOT NULL,
    tenant text NOT NULL,
    agent text NOT NULL,
    name text NOT NULL,
    run_id text NOT NULL,
    holder text NOT NULL,
    expires_at double precision NOT NULL,
    tokens double precision NOT NULL,
    cost_usd double precision NOT NULL,
    tool_calls double precision NOT NULL,
    wall_seconds double precision NOT NULL
);
CREATE TABLE astromesh.events (
    id bigint NOT NULL,
    tenant text NOT NULL COLLATE pg_catalog."C",
    agent text NOT NULL COLLATE pg_catalog."C",
    session_id text NOT NULL COLLATE pg_catalog."C",
    owner text NOT NULL COLLATE pg_catalog."C",
    expires_at double precision NOT NULL,
    event text NOT NULL
);
ALTER TABLE astromesh.events ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME astromesh.events_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE astromesh.idempotency_keys (
    tenant text NOT NULL,
    owner text NOT NULL,
    route text NOT NULL,
    key text NOT NULL,
    body_hash text NOT NULL,
    run_id text NOT NULL,
    expires_at double precision NOT NULL
);
CREATE TABLE astromesh.passages (
    id bigint NOT NULL,
    tenant text NOT NULL COLLATE pg_catalog."C",
    agent text NOT NULL COLLATE pg_catalog."C",
    owner text NOT NULL COLLATE pg_catalog."C",
    session_id text NOT NULL COLLATE pg_catalog."C",
    hash bytea NOT NULL,
    content text NOT NULL,
    metadata text NOT NULL,
    created_at double precision NOT NULL,
    expires_at double precision NOT NULL,
    space integer,
    embedding public.vector,
    words tsvector GENERATED ALWAYS AS (to_tsvector('english'::regconfig, "left"(content, 100000))) STORED NOT NULL
);
ALTER TABLE ONLY astromesh.passages ALTER COLUMN embedding SET STORAGE MAIN;
ALTER TABLE astromesh.passages ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME astromesh.passages_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE SEQUENCE astromesh.rag_chunk_ids
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
CREATE TABLE astromesh.rag_chunks (
    pipeline integer NOT NULL,
    id bigint DEFAULT nextval('astromesh.rag_chunk_ids'::regclass) NOT NULL,
    document text NOT NULL COLLATE pg_catalog."C",
    start integer NOT NULL,
    "end" integer NOT NULL,
    heading text NOT NULL,
    body text NOT NULL,
    words tsvector NOT NULL,
    space integer,
    embedding public.vector
)
PARTITION BY LIST (pipeline);
CREATE TABLE astromesh.rag_chunks_1 (
    pipeline integer CONSTRAINT rag_chunks_pipeline_not_null NOT NULL,
    id bigint DEFAULT nextval('astromesh.rag_chunk_ids'::regclass) CONSTRAINT rag_chunks_id_not_null NOT NULL,
    document text CONSTRAINT rag_chunks_document_not_null NOT NULL COLLATE pg_catalog."C",
    start integer CONSTRAINT rag_chunks_start_not_null NOT NULL,
    "end" integer CONSTRAINT rag_chunks_end_not_null NOT NULL,
    heading text CONSTRAINT rag_chunks_heading_not_null NOT NULL,
    body text CONSTRAINT rag_chunks_body_not_null NOT NULL,
    words tsvector CONSTRAINT rag_chunks_words_not_null NOT NULL,
    space integer,
    embedding public.vector
);
CREATE TABLE astromesh.rag_documents (
    pipeline integer NOT NULL,
    id text NOT NULL COLLATE pg_catalog."C",
    hash text NOT NULL,
    stamp text NOT NULL,
    metadata jsonb NOT NULL
);
CREATE TABLE astromesh.rag_pipelines (
    id integer NOT NULL,
    name text NOT NULL COLLATE pg_catalog."C"
);
ALTER TABLE astromesh.rag_pipelines ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME astromesh.rag_pipelines_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE astromesh.rag_spaces (
    id integer NOT NULL,
    name text NOT NULL COLLATE pg_catalog."C"
);
ALTER TABLE astromesh.rag_spaces ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME astromesh.rag_spaces_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE astromesh.run_ends (
    run_id text NOT NULL,
    tenant text NOT NULL,
    owner text,
    asked_at double precision NOT NULL,
    answer text
);
CREATE TABLE astromesh.run_events (
    run_id text NOT NULL,
    seq integer NOT NULL,
    ts double precision NOT NULL,
    type text NOT NULL,
    data text NOT NULL
);
CREATE TABLE astromesh.run_steps (
    run_id text NOT NULL,
    path text NOT NULL,
    n integer NOT NULL,
    kind text NOT NULL,
    request_hash text NOT NULL,
    state text NOT NULL,
    output text
);
CREATE TABLE astromesh.run_traces (
    run_id text NOT NULL,
    events text NOT NULL
);
CREATE TABLE astromesh.runs (
    id bigint NOT NULL,
    run_id text NOT NULL,
    tenant text NOT NULL,
    owner text NOT NULL,
    agent text NOT NULL,
    session_id text NOT NULL,
    trace_id text NOT NULL,
    parent text NOT NULL,
    status text NOT NULL,
    durable boolean NOT NULL,
    segment integer NOT NULL,
    worker text NOT NULL,
    priority integer NOT NULL,
    cancelling boolean DEFAULT false NOT NULL,
    created_at double precision NOT NULL,
    queued_at double precision NOT NULL,
    finished_at double precision NOT NULL,
    deadline_at double precision NOT NULL,
    wake_at double precision NOT NULL,
    input_tokens bigint NOT NULL,
    output_tokens bigint NOT NULL,
    cached_tokens bigint NOT NULL,
    cost_usd double precision NOT NULL,
    estimated boolean NOT NULL,
    request text NOT NULL,
    manifest text,
    caller text NOT NULL,
    result text,
    error text,
    attempts text NOT NULL,
    waiting_for text,
    ordered boolean DEFAULT false NOT NULL
);
ALTER TABLE astromesh.runs ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME astromesh.runs_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE astromesh.schemas (
    name text NOT NULL,
    version integer NOT NULL
);
CREATE TABLE astromesh.session_leases (
    tenant text NOT NULL,
    agent text NOT NULL,
    session_id text NOT NULL,
    token bigint NOT NULL,
    holder text NOT NULL,
    expires_at double precision NOT NULL,
    interrupted boolean DEFAULT false NOT NULL
);
ALTER TABLE astromesh.session_leases ALTER COLUMN token ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME astromesh.session_leases_token_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE astromesh.sessions (
    id bigint NOT NULL,
    tenant text NOT NULL COLLATE pg_catalog."C",
    agent text NOT NULL COLLATE pg_catalog."C",
    session_id text NOT NULL COLLATE pg_catalog."C",
    owner text NOT NULL COLLATE pg_catalog."C",
    last_seq integer NOT NULL,
    created_at double precision NOT NULL,
    updated_at double precision NOT NULL,
    expires_at double precision NOT NULL,
    summary text,
    upto integer DEFAULT 0 NOT NULL
)
WITH (fillfactor='80');
ALTER TABLE astromesh.sessions ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME astromesh.sessions_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE astromesh.spaces (
    id integer NOT NULL,
    name text NOT NULL COLLATE pg_catalog."C"
);
ALTER TABLE astromesh.spaces ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME astromesh.spaces_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE astromesh.task_artifacts (
    task_id text NOT NULL,
    n integer NOT NULL,
    type text NOT NULL,
    path text NOT NULL,
    node text NOT NULL,
    stage text NOT NULL,
    created_at double precision NOT NULL,
    fingerprint text NOT NULL,
    content text NOT NULL
);
CREATE TABLE astromesh.task_records (
    task_id text NOT NULL,
    n integer NOT NULL,
    record text NOT NULL
);
CREATE TABLE astromesh.tasks (
    task_id text NOT NULL,
    tenant text NOT NULL,
    owner text NOT NULL,
    workflow text NOT NULL,
    start_node text NOT NULL,
    status text NOT NULL,
    created_at double precision NOT NULL,
    fingerprint text NOT NULL,
    trace_id text NOT NULL,
    durable integer NOT NULL,
    caller text NOT NULL,
    metadata text NOT NULL,
    worker text NOT NULL,
    lease_until double precision NOT NULL,
    cancelling integer NOT NULL,
    finished_at double precision NOT NULL,
    result text
);
CREATE TABLE astromesh.turns (
    session bigint NOT NULL,
    seq integer NOT NULL,
    role text NOT NULL,
    content text NOT NULL,
    created_at double precision NOT NULL,
    run_id text NOT NULL,
    status text NOT NULL,
    tokens integer NOT NULL
);
CREATE TABLE astromesh.workers (
    worker text NOT NULL,
    seen_at double precision NOT NULL
);
CREATE TABLE astromesh_dbos.application_versions (
    version_id text NOT NULL,
    version_name text NOT NULL,
    version_timestamp bigint DEFAULT ((EXTRACT(epoch FROM now()) * 1000.0))::bigint NOT NULL,
    created_at bigint DEFAULT ((EXTRACT(epoch FROM now()) * 1000.0))::bigint NOT NULL,
    application_name text
);
CREATE TABLE astromesh_dbos.dbos_migrations (
    version bigint NOT NULL
);
CREATE TABLE astromesh_dbos.event_dispatch_kv (
    service_name text NOT NULL,
    workflow_fn_name text NOT NULL,
    key text NOT NULL,
    value text,
    update_seq numeric(38,0),
    update_time numeric(38,15)
);
CREATE TABLE astromesh_dbos.notifications (
    message_uuid text DEFAULT gen_random_uuid() NOT NULL,
    destination_uuid text NOT NULL,
    topic text,
    message text NOT NULL,
    created_at_epoch_ms bigint DEFAULT ((EXTRACT(epoch FROM now()) * 1000.0))::bigint NOT NULL,
    serialization text,
    consumed boolean DEFAULT false NOT NULL,
    consumed_by_function_id integer
);
CREATE TABLE astromesh_dbos.operation_outputs (
    workflow_uuid text NOT NULL,
    function_id integer NOT NULL,
    function_name text DEFAULT ''::text NOT NULL,
    output text,
    error text,
    child_workflow_id text,
    started_at_epoch_ms bigint,
    completed_at_epoch_ms bigint,
    serialization text,
    application_name text,
    retention_timestamp bigint DEFAULT ((EXTRACT(epoch FROM now()) * 1000.0))::bigint NOT NULL
);
CREATE TABLE astromesh_dbos.queues (
    queue_id text DEFAULT (gen_random_uuid())::text NOT NULL,
    name text NOT NULL,
    concurrency integer,
    worker_concurrency integer,
    rate_limit_max integer,
    rate_limit_period_sec double precision,
    priority_enabled boolean DEFAULT false NOT NULL,
    partition_queue boolean DEFAULT false NOT NULL,
    polling_interval_sec double precision DEFAULT 1.0 NOT NULL,
    created_at bigint DEFAULT ((EXTRACT(epoch FROM now()) * 1000.0))::bigint NOT NULL,
    updated_at bigint DEFAULT ((EXTRACT(epoch FROM now()) * 1000.0))::bigint NOT NULL,
    application_name text,
    partition_concurrency integer,
    partition_worker_concurrency integer,
    partition_rate_limit_max integer,
    partition_rate_limit_period_sec double precision
);
CREATE TABLE astromesh_dbos.streams (
    workflow_uuid text NOT NULL,
    key text NOT NULL,
    value text NOT NULL,
    "offset" integer NOT NULL,
    function_id integer DEFAULT 0 NOT NULL,
    serialization text
);
CREATE TABLE astromesh_dbos.workflow_events (
    workflow_uuid text NOT NULL,
    key text NOT NULL,
    value text NOT NULL,
    serialization text
);
CREATE TABLE astromesh_dbos.workflow_events_history (
    workflow_uuid text NOT NULL,
    function_id integer NOT NULL,
    key text NOT NULL,
    value text NOT NULL,
    serialization text
);
CREATE TABLE astromesh_dbos.workflow_input (
    workflow_uuid text NOT NULL,
    inputs text,
    retention_timestamp bigint DEFAULT ((EXTRACT(epoch FROM now()) * 1000.0))::bigint NOT NULL
);
CREATE TABLE astromesh_dbos.workflow_output (
    workflow_uuid text NOT NULL,
    output text,
    error text,
    retention_timestamp bigint DEFAULT ((EXTRACT(epoch FROM now()) * 1000.0))::bigint NOT NULL
);
CREATE TABLE astromesh_dbos.workflow_schedules (
    schedule_id text NOT NULL,
    schedule_name text NOT NULL,
    workflow_name text NOT NULL,
    workflow_class_name text,
    schedule text NOT NULL,
    status text DEFAULT 'ACTIVE'::text NOT NULL,
    context text NOT NULL,
    last_fired_at text,
    automatic_backfill boolean DEFAULT false NOT NULL,
    cron_timezone text,
    queue_name text,
    application_name text
);
CREATE TABLE astromesh_dbos.workflow_status (
    workflow_uuid text NOT NULL,
    status text,
    name text,
    authenticated_user text,
    assumed_role text,
    authenticated_roles text,
    request text,
    output text,
    error text,
    executor_id text,
    created_at bigint DEFAULT ((EXTRACT(epoch FROM now()) * 1000.0))::bigint NOT NULL,
    updated_at bigint DEFAULT ((EXTRACT(epoch FROM now()) * 1000.0))::bigint NOT NULL,
    application_version text,
    application_id text,
    class_name character varying(255) DEFAULT NULL::character varying,
    config_name character varying(255) DEFAULT NULL::character varying,
    recovery_attempts bigint DEFAULT 0,
    queue_name text,
    workflow_timeout_ms bigint,
    workflow_deadline_epoch_ms bigint,
    inputs text,
    started_at_epoch_ms bigint,
    deduplication_id text,
    priority integer DEFAULT 0 NOT NULL,
    queue_partition_key text,
    forked_from text,
    owner_xid text,
    parent_workflow_id text,
    serialization text,
    delay_until_epoch_ms bigint,
    was_forked_from boolean DEFAULT false NOT NULL,
    rate_limited boolean DEFAULT false NOT NULL,
    completed_at bigint,
    attributes jsonb,
    schedule_name text,
    debounce_deadline_epoch_ms bigint,
    is_debounced boolean DEFAULT false NOT NULL,
    application_name text,
    creator_xid text
);
ALTER TABLE ONLY astromesh.rag_chunks ATTACH PARTITION astromesh.rag_chunks_1 FOR VALUES IN (1);
COPY astromesh.budget_accounts (kind, tenant, agent, name, owner, expires_at, tokens, cost_usd, tool_calls, wall_seconds) FROM stdin;
day	default	teller	2026-11-23 key:esda43w3224n	key:esda43w3224n	1795564800	79	0	4	0.35553189099982774
\.
COPY astromesh.budget_holds (id, kind, tenant, agent, name, run_id, holder, expires_at, tokens, cost_usd, tool_calls, wall_seconds) FROM stdin;
f6c18d9dedbaec7f54e5267d	day	default	teller	2026-11-23 key:esda43w3224n	run_01M83KZNVHSCVBGVJFZ9YA12W5	b_c74d16641aade734	1795417964.1825917	0	0	0	120
\.
COPY astromesh.events (id, tenant, agent, session_id, owner, expires_at, event) FROM stdin;
1	default	teller	s-1	key:esda43w3224n	0	{"event":"tool_call","tool":"charge","arguments":{"query":"round 0"},"ok":true,"result":"charged round 0","run_id":"run_01M83KZEZKRB96NE2ZVN8YK5MD"}
2	default	teller	s-1	key:esda43w3224n	0	{"event":"run","run_id":"run_01M83KZEZKRB96NE2ZVN8YK5MD","provider":"model","model":"mock+tools=1+say=Both_are_done.","latency_ms":116.494,"usage":{"input_tokens":20,"output_tokens":3,"cached_tokens":0,"cost_usd":0.0}}
3	default	teller	s-1	key:esda43w3224n	0	{"event":"tool_call","tool":"charge","arguments":{"query":"round 0"},"ok":true,"result":"charged round 0","run_id":"run_01M83KZF53N5CWGRPM7KX7PXYZ"}
4	default	teller	s-1	key:esda43w3224n	0	{"event":"run","run_id":"run_01M83KZF53N5CWGRPM7KX7PXYZ","provider":"model","model":"mock+tools=1+say=Both_are_done.","latency_ms":170.598,"usage":{"input_tokens":20,"output_tokens":3,"cached_tokens":0,"cost_usd":0.0}}
5	default	teller	s-1	key:esda43w3224n	0	{"event":"tool_call","tool":"charge","arguments":{"query":"round 0"},"ok":true,"result":"charged round 0","run_id":"run_01M83KZGFT7ESZT2CP1JY3WTV2"}
6	default	teller	s-1	key:esda43w3224n	0	{"event":"run","run_id":"run_01M83KZGFT7ESZT2CP1JY3WTV2","provider":"model","model":"mock+tools=1+say=Both_are_done.","latency_ms":83.004,"usage":{"input_tokens":20,"output_tokens":3,"cached_tokens":0,"cost_usd":0.0}}
\.
COPY astromesh.idempotency_keys (tenant, owner, route, key, body_hash, run_id, expires_at) FROM stdin;
\.
COPY astromesh.passages (id, tenant, agent, owner, session_id, hash, content, metadata, created_at, expires_at, space, embedding) FROM stdin;
1	default	teller	key:esda43w3224n	s-1	\\x05b31d5610487f4df8f8347a830432ec	Both are done.	{"source":"conversation","session_id":"s-1","run_id":"run_01M83KZF53N5CWGRPM7KX7PXYZ"}	1795417947.5098004	0	1	[0,0,-0.28867513,0,0,0.57735026,0,0,0.57735026,0.28867513,-0.28867513,0,0,0.28867513,0,0]
3	default	teller	key:esda43w3224n	s-1	\\xb8ddd2c666dc7c62f60d1096ef19eb81	Both are done. 	{"source":"conversation","session_id":"s-1","run_id":"run_01M83KZGFT7ESZT2CP1JY3WTV2"}	1795417948.7589695	0	1	[0,0,-0.28867513,0,0,0.57735026,0,0,0.57735026,0.28867513,-0.28867513,0,0,0.28867513,0,0]
\.
COPY astromesh.rag_chunks_1 (pipeline, id, document, start, "end", heading, body, words, space, embedding) FROM stdin;
1	1	tea	0	53	Tea	# Tea\n\nSteep green tea at 80 degrees for two minutes.	'80':8 'at':7 'degre':9 'for':10 'green':5 'minut':12 'steep':4 'tea':1B,2A,3,6 'two':11	1	[0.2073717,0,-0.528654,-0.2073717,-0.31105757,0,0.10368585,0,-0.010224699,-0.5388787,0,0.10368585,-0.2073717,0,-0.4147434,-0.10368585]
1	2	refunds	0	49	Refunds	# Refunds\n\nWe refund an order within thirty days.	'an':6 'day':10 'order':7 'refund':1B,2A,3,5 'thirti':9 'we':4 'within':8	1	[0.3862509,0,0.3862509,-0.43025973,-0.242831,0.1434199,0,-0.1434199,-0.1434199,0,-0.1434199,-0.1434199,-0.23143752,0.52967083,0,0.1434199]
1	3	coffee	0	47	Coffee	# Coffee\n\nGrind the beans just before you brew.	'bean':6 'befor':8 'brew':10 'coffe':1B,2A,3 'grind':4 'just':7 'the':5 'you':9	1	[-0.18334134,-0.55002403,0,0,-0.18334134,0.18334134,-0.31042388,-0.18334134,0.12708254,0.4375064,0,0.36668268,0.23960015,0.18334134,0.18334134,0]
\.
COPY astromesh.rag_documents (pipeline, id, hash, stamp, metadata) FROM stdin;
1	tea	6b6701ae5b7f2533d78cc072626f91b4		{"title": "Tea"}
1	refunds	1e798180d26492934cc7a71d9e2b77f3		{"title": "Refunds"}
1	coffee	91f94cb418907d270848be0b28acac7d		{"title": "Coffee"}
\.
COPY astromesh.rag_pipelines (id, name) FROM stdin;
1	handbook
\.
COPY astromesh.rag_spaces (id, name) FROM stdin;
1	hashing/1/16/16
\.
COPY astromesh.run_ends (run_id, tenant, owner, asked_at, answer) FROM stdin;
\.
COPY astromesh.run_events (run_id, seq, ts, type, data) FROM stdin;
run_01M83KZGFT7ESZT2CP1JY3WTV2	1	1795417948.6718853	run.started	{"run_id":"run_01M83KZGFT7ESZT2CP1JY3WTV2","agent":"teller","session_id":"s-1","trace_id":"7ef8ac495d9e7e4fca184d6ee12b3966","parent":""}
run_01M83KZGFT7ESZT2CP1JY3WTV2	2	1795417948.6787608	guardrails.checked	{"stage":"input","actions":0,"duration_ms":0.025}
run_01M83KZGFT7ESZT2CP1JY3WTV2	3	1795417948.7130506	memory.loaded	{"turns":4,"semantic":0,"episodic":4,"degraded":[],"duration_ms":34.233}
run_01M83KZGFT7ESZT2CP1JY3WTV2	4	1795417948.713104	prompt.rendered	{"characters":15,"duration_ms":0.023}
run_01M83KZGFT7ESZT2CP1JY3WTV2	5	1795417948.7131276	tools.listed	{"count":1}
run_01M83KZGFT7ESZT2CP1JY3WTV2	6	1795417948.7132547	node.started	{"node":"react"}
run_01M83KZGFT7ESZT2CP1JY3WTV2	7	1795417948.7133791	model.started	{"step":1,"role":"assistant","tools":1}
run_01M83KZGFT7ESZT2CP1JY3WTV2	8	1795417948.7306638	model.finished	{"step":1,"role":"assistant","provider":"model","model":"mock+tools=1+say=Both_are_done.","usage":{"input_tokens":10,"output_tokens":0,"cached_tokens":0,"cost_usd":0.0},"attempts":[],"duration_ms":5.428,"tool_calls":1}
run_01M83KZGFT7ESZT2CP1JY3WTV2	9	1795417948.7353618	tool.started	{"id":"call_13_0","name":"charge","arguments":{"query":"round 0"}}
run_01M83KZGFT7ESZT2CP1JY3WTV2	10	1795417948.7462482	tool.finished	{"id":"call_13_0","name":"charge","ok":true,"duration_ms":10.851,"untrusted":true}
run_01M83KZGFT7ESZT2CP1JY3WTV2	11	1795417948.7472682	node.finished	{"node":"react","duration_ms":34.007}
run_01M83KZGFT7ESZT2CP1JY3WTV2	12	1795417948.7473047	node.started	{"node":"react"}
run_01M83KZGFT7ESZT2CP1JY3WTV2	13	1795417948.747416	model.started	{"step":2,"role":"assistant","tools":1}
run_01M83KZGFT7ESZT2CP1JY3WTV2	14	1795417948.7494805	model.delta	{"step":2,"role":"assistant","content":"Both "}
run_01M83KZGFT7ESZT2CP1JY3WTV2	15	1795417948.7495124	model.delta	{"step":2,"role":"assistant","content":"are "}
run_01M83KZGFT7ESZT2CP1JY3WTV2	16	1795417948.749533	model.delta	{"step":2,"role":"assistant","content":"done. "}
run_01M83KZGFT7ESZT2CP1JY3WTV2	17	1795417948.7497272	model.finished	{"step":2,"role":"assistant","provider":"model","model":"mock+tools=1+say=Both_are_done.","usage":{"input_tokens":10,"output_tokens":3,"cached_tokens":0,"cost_usd":0.0},"attempts":[],"duration_ms":1.027,"tool_calls":0,"first_token_ms":2.026}
run_01M83KZGFT7ESZT2CP1JY3WTV2	18	1795417948.7546008	node.finished	{"node":"react","duration_ms":7.289}
run_01M83KZGFT7ESZT2CP1JY3WTV2	19	1795417948.754691	guardrails.checked	{"stage":"output","actions":0,"duration_ms":0.01}
run_01M83KZGFT7ESZT2CP1JY3WTV2	20	1795417948.758892	memory.persisted	{"turns":2,"duration_ms":4.161}
run_01M83KZGFT7ESZT2CP1JY3WTV2	21	1795417948.7625105	run.completed	{"response":"Both are done. ","agent":"teller","session_id":"s-1","run_id":"run_01M83KZGFT7ESZT2CP1JY3WTV2","metadata":{"provider":"model","model":"mock+tools=1+say=Both_are_done.","tokens_used":23,"usage":{"input_tokens":20,"output_tokens":3,"cached_tokens":0,"cost_usd":0.0},"tools_called":["charge"],"pattern":"react","iterations":2,"stop_reason":"completed","finish_reason":"stop","attempts":[],"latency_ms":87.113,"trace_id":"7ef8ac495d9e7e4fca184d6ee12b3966","guardrails":[]}}
run_01M83KZGKPVY364DE3XD11HGV0	1	1795417948.8028257	run.started	{"run_id":"run_01M83KZGKPVY364DE3XD11HGV0","agent":"payer","session_id":"s-2","trace_id":"ac0b3ef2c8f167d8bf510d6d2daa19a4","parent":""}
run_01M83KZGKPVY364DE3XD11HGV0	2	1795417948.8038464	guardrails.checked	{"stage":"input","actions":0,"duration_ms":0.021}
run_01M83KZGKPVY364DE3XD11HGV0	3	1795417948.8043869	memory.loaded	{"turns":0,"semantic":0,"episodic":0,"degraded":[],"duration_ms":0.493}
run_01M83KZGKPVY364DE3XD11HGV0	4	1795417948.8045018	prompt.rendered	{"characters":14,"duration_ms":0.098}
run_01M83KZGKPVY364DE3XD11HGV0	5	1795417948.8045185	tools.listed	{"count":1}
run_01M83KZGKPVY364DE3XD11HGV0	6	1795417948.8048108	node.started	{"node":"react"}
run_01M83KZGKPVY364DE3XD11HGV0	7	1795417948.8049026	model.started	{"step":1,"role":"assistant","tools":1}
run_01M83KZGKPVY364DE3XD11HGV0	8	1795417948.8113856	model.finished	{"step":1,"role":"assistant","provider":"model","model":"mock+tools=1+say=Paid.","usage":{"input_tokens":10,"output_tokens":0,"cached_tokens":0,"cost_usd":0.0},"attempts":[],"duration_ms":6.351,"tool_calls":1}
run_01M83KZGKPVY364DE3XD11HGV0	9	1795417948.812905	tool.started	{"id":"call_15_0","name":"charge","arguments":{"query":"round 0"}}
run_01M83KZGKPVY364DE3XD11HGV0	10	1795417948.8631496	node.finished	{"node":"react","duration_ms":58.328}
run_01M83KZGKPVY364DE3XD11HGV0	11	1795417948.8639948	run.waiting	{"approval":{"run_id":"run_01M83KZGKPVY364DE3XD11HGV0","kind":"approval","name":"charge","arguments":{"query":"round 0"},"question":"","asked_at":1795417948.8129954,"expires_at":1796022748.8129954,"path":"react/tool:call_15_0/approval","n":1,"asking_agent":"payer"}}
run_01M83KZNVHSCVBGVJFZ9YA12W5	1	1795417954.179602	run.started	{"run_id":"run_01M83KZNVHSCVBGVJFZ9YA12W5","agent":"teller","session_id":"s-3","trace_id":"1b5c607734f05c4684283b5055916f2c","parent":""}
run_01M83KZNVHSCVBGVJFZ9YA12W5	2	1795417954.1934588	guardrails.checked	{"stage":"input","actions":0,"duration_ms":0.03}
run_01M83KZNVHSCVBGVJFZ9YA12W5	3	1795417954.2416177	memory.loaded	{"turns":0,"semantic":0,"episodic":0,"degraded":[],"duration_ms":48.093}
run_01M83KZNVHSCVBGVJFZ9YA12W5	4	1795417954.2417622	prompt.rendered	{"characters":15,"duration_ms":0.1}
run_01M83KZNVHSCVBGVJFZ9YA12W5	5	1795417954.2417865	tools.listed	{"count":1}
run_01M83KZNVHSCVBGVJFZ9YA12W5	6	1795417954.2463243	node.started	{"node":"react"}
run_01M83KZNVHSCVBGVJFZ9YA12W5	7	1795417954.246517	model.started	{"step":1,"role":"assistant","tools":1}
run_01M83KZNVHSCVBGVJFZ9YA12W5	8	1795417954.2562096	model.finished	{"step":1,"role":"assistant","provider":"model","model":"mock+tools=1+say=Both_are_done.","usage":{"input_tokens":10,"output_tokens":0,"cached_tokens":0,"cost_usd":0.0},"attempts":[],"duration_ms":1.795,"tool_calls":1}
run_01M83KZNVHSCVBGVJFZ9YA12W5	9	1795417954.26324	tool.started	{"id":"call_16_0","name":"charge","arguments":{"query":"round 0"}}
run_01M83KZNVHSCVBGVJFZ9YA12W5	10	1795417954.2724292	tool.finished	{"id":"call_16_0","name":"charge","ok":true,"duration_ms":9.153,"untrusted":true}
\.
COPY astromesh.run_steps (run_id, path, n, kind, request_hash, state, output) FROM stdin;
run_01M83KZGFT7ESZT2CP1JY3WTV2	input	1	value		done	{"query":"Charge it again.","actions":[],"history":null,"preface":[]}
run_01M83KZGFT7ESZT2CP1JY3WTV2	memory	1	value		done	{"history":[{"role":"user","content":"What is owed?","tool_calls":[],"tool_call_id":"","name":"","images":[]},{"role":"assistant","content":"Both are done.","tool_calls":[],"tool_call_id":"","name":"","images":[]},{"role":"user","content":"Charge it.","tool_calls":[],"tool_call_id":"","name":"","images":[]},{"role":"assistant","content":"Both are done.","tool_calls":[],"tool_call_id":"","name":"","images":[]}],"semantic":[],"episodic":[{"event":"tool_call","tool":"charge","arguments":{"query":"round 0"},"ok":true,"result":"charged round 0","run_id":"run_01M83KZEZKRB96NE2ZVN8YK5MD"},{"event":"run","run_id":"run_01M83KZEZKRB96NE2ZVN8YK5MD","provider":"model","model":"mock+tools=1+say=Both_are_done.","latency_ms":116.494,"usage":{"input_tokens":20,"output_tokens":3,"cached_tokens":0,"cost_usd":0.0}},{"event":"tool_call","tool":"charge","arguments":{"query":"round 0"},"ok":true,"result":"charged round 0","run_id":"run_01M83KZF53N5CWGRPM7KX7PXYZ"},{"event":"run","run_id":"run_01M83KZF53N5CWGRPM7KX7PXYZ","provider":"model","model":"mock+tools=1+say=Both_are_done.","latency_ms":170.598,"usage":{"input_tokens":20,"output_tokens":3,"cached_tokens":0,"cost_usd":0.0}}],"owner":"key:esda43w3224n","degraded":[]}
run_01M83KZGFT7ESZT2CP1JY3WTV2	react	1	model	2016f41c56585809130bd01c11ee5fe0dbf1c7ebf162e2c47a16fb729d848b01	done	{"step":1,"result":{"content":"","tool_calls":[["call_13_0","charge","{\\"query\\":\\"round 0\\"}",""]],"usage":{"input_tokens":10,"output_tokens":0,"cached_tokens":0,"cost_usd":0.0},"provider":"model","model":"mock+tools=1+say=Both_are_done.","finish_reason":"tool_calls","attempts":[],"latency_ms":5.4280059998745855}}
run_01M83KZGFT7ESZT2CP1JY3WTV2	react/tool:call_13_0	1	tool	90233e79c2fe118f106a8bcd1c1313991797725a00b79e1103907a014f0a2c38	done	{"content":"charged round 0","ok":true,"error":"","duration_ms":3.656,"value":"charged round 0","ends_run":false,"untrusted":true}
run_01M83KZGFT7ESZT2CP1JY3WTV2	react	2	model	11993622bb111cb835500c3aecc925c8f408b9aeea397fda66943eedbbf9f939	done	{"step":2,"result":{"content":"Both are done. ","tool_calls":[],"usage":{"input_tokens":10,"output_tokens":3,"cached_tokens":0,"cost_usd":0.0},"provider":"model","model":"mock+tools=1+say=Both_are_done.","finish_reason":"stop","attempts":[],"latency_ms":1.0272100000747741}}
run_01M83KZGFT7ESZT2CP1JY3WTV2	kept	1	value		done	{}
run_01M83KZGKPVY364DE3XD11HGV0	input	1	value		done	{"query":"Pay.","actions":[],"history":null,"preface":[]}
run_01M83KZGKPVY364DE3XD11HGV0	memory	1	value		done	{"history":[],"semantic":[],"episodic":[],"owner":"","degraded":[]}
run_01M83KZGKPVY364DE3XD11HGV0	react	1	model	c7dac74a572a818360073a72f816003e124efc13086f31e01baad17e7ef468cb	done	{"step":1,"result":{"content":"","tool_calls":[["call_15_0","charge","{\\"query\\":\\"round 0\\"}",""]],"usage":{"input_tokens":10,"output_tokens":0,"cached_tokens":0,"cost_usd":0.0},"provider":"model","model":"mock+tools=1+say=Paid.","finish_reason":"tool_calls","attempts":[],"latency_ms":6.351369999947565}}
run_01M83KZGKPVY364DE3XD11HGV0	react/tool:call_15_0/approval	1	wait	90233e79c2fe118f106a8bcd1c1313991797725a00b79e1103907a014f0a2c38	intent	{"kind":"approval","name":"charge","arguments":{"query":"round 0"},"question":"","path":"react/tool:call_15_0/approval","n":1,"asked_at":1795417948.8129954,"expires_at":1796022748.8129954,"parameters":{"additionalProperties":false,"properties":{"query":{"type":"string"}},"required":["query"],"type":"object"},"agent":"payer","left":119.93980708899994}
run_01M83KZNVHSCVBGVJFZ9YA12W5	input	1	value		done	{"query":"Charge.","actions":[],"history":null,"preface":[]}
run_01M83KZNVHSCVBGVJFZ9YA12W5	memory	1	value		done	{"history":[],"semantic":[],"episodic":[],"owner":"","degraded":[]}
run_01M83KZNVHSCVBGVJFZ9YA12W5	react	1	model	c18b4c2827ed14fb422a79854ed7d4e26410b23f0a79058939a4dab2bd60ba0d	done	{"step":1,"result":{"content":"","tool_calls":[["call_16_0","charge","{\\"query\\":\\"round 0\\"}",""]],"usage":{"input_tokens":10,"output_tokens":0,"cached_tokens":0,"cost_usd":0.0},"provider":"model","model":"mock+tools=1+say=Both_are_done.","finish_reason":"tool_calls","attempts":[],"latency_ms":1.7952440000499337}}
run_01M83KZNVHSCVBGVJFZ9YA12W5	react/tool:call_16_0	1	tool	90233e79c2fe118f106a8bcd1c1313991797725a00b79e1103907a014f0a2c38	done	{"content":"charged round 0","ok":true,"error":"","duration_ms":1.326,"value":"charged round 0","ends_run":false,"untrusted":true}
\.
COPY astromesh.run_traces (run_id, events) FROM stdin;
run_01M83KZEZKRB96NE2ZVN8YK5MD	[[1,1795417947.1239445,"run.started",{}],[2,1795417947.201297,"guardrails.checked",{"stage":"input","actions":0,"duration_ms":0.033}],[3,1795417947.2248125,"memory.loaded",{"turns":0,"semantic":0,"episodic":0,"degraded":[],"duration_ms":23.476}],[4,1795417947.2249377,"prompt.rendered",{"characters":15,"duration_ms":0.095}],[5,1795417947.2249603,"tools.listed",{}],[8,1795417947.2360168,"model.finished",{"step":1,"role":"assistant","provider":"model","model":"mock+tools=1+say=Both_are_done.","usage":{"input_tokens":10,"output_tokens":0,"cached_tokens":0,"cost_usd":0.0},"attempts":[],"duration_ms":1.55,"tool_calls":1}],[10,1795417947.2380927,"tool.finished",{"id":"call_9_0","name":"charge","ok":true,"duration_ms":1.946,"untrusted":true}],[14,1795417947.2402217,"model.finished",{"step":2,"role":"assistant","provider":"model","model":"mock+tools=1+say=Both_are_done.","usage":{"input_tokens":10,"output_tokens":3,"cached_tokens":0,"cost_usd":0.0},"attempts":[],"duration_ms":0.659,"tool_calls":0}],[16,1795417947.240339,"guardrails.checked",{"stage":"output","actions":0,"duration_ms":0.02}],[17,1795417947.2740831,"memory.persisted",{"turns":2,"duration_ms":33.712}],[18,1795417947.2982032,"run.completed",{}]]
run_01M83KZF53N5CWGRPM7KX7PXYZ	[[1,1795417947.2999027,"run.started",{}],[2,1795417947.3074667,"guardrails.checked",{"stage":"input","actions":0,"duration_ms":0.032}],[3,1795417947.4285111,"memory.loaded",{"turns":2,"semantic":0,"episodic":2,"degraded":[],"duration_ms":121.018}],[4,1795417947.428558,"prompt.rendered",{"characters":15,"duration_ms":0.023}],[5,1795417947.4285781,"tools.listed",{}],[8,1795417947.448152,"model.finished",{"step":1,"role":"assistant","provider":"model","model":"mock+tools=1+say=Both_are_done.","usage":{"input_tokens":10,"output_tokens":0,"cached_tokens":0,"cost_usd":0.0},"attempts":[],"duration_ms":2.727,"tool_calls":1}],[10,1795417947.4620304,"tool.finished",{"id":"call_11_0","name":"charge","ok":true,"duration_ms":13.747,"untrusted":true}],[14,1795417947.470288,"model.finished",{"step":2,"role":"assistant","provider":"model","model":"mock+tools=1+say=Both_are_done.","usage":{"input_tokens":10,"output_tokens":3,"cached_tokens":0,"cost_usd":0.0},"attempts":[],"duration_ms":4.947,"tool_calls":0}],[16,1795417947.4704173,"guardrails.checked",{"stage":"output","actions":0,"duration_ms":0.023}],[17,1795417947.509702,"memory.persisted",{"turns":2,"duration_ms":39.258}],[18,1795417947.5172827,"run.completed",{}]]
\.
COPY astromesh.runs (id, run_id, tenant, owner, agent, session_id, trace_id, parent, status, durable, segment, worker, priority, cancelling, created_at, queued_at, finished_at, deadline_at, wake_at, input_tokens, output_tokens, cached_tokens, cost_usd, estimated, request, manifest, caller, result, error, attempts, waiting_for, ordered) FROM stdin;
1	run_01M83KZEZKRB96NE2ZVN8YK5MD	default	key:esda43w3224n	teller	s-1	89f415610c64bc897b14f6f4ae8ffdb4		completed	f	1		0	f	1795417947.1239445	1795417947.1239445	1795417947.2982032	0	0	20	3	0	0	f	{}	\N	{}	{"response":"Both are done.","agent":"teller","session_id":"s-1","run_id":"run_01M83KZEZKRB96NE2ZVN8YK5MD","metadata":{"provider":"model","model":"mock+tools=1+say=Both_are_done.","tokens_used":23,"usage":{"input_tokens":20,"output_tokens":3,"cached_tokens":0,"cost_usd":0.0},"tools_called":["charge"],"pattern":"react","iterations":2,"stop_reason":"completed","finish_reason":"stop","attempts":[],"latency_ms":150.189,"trace_id":"89f415610c64bc897b14f6f4ae8ffdb4","guardrails":[]}}	\N	[]	\N	f
2	run_01M83KZF53N5CWGRPM7KX7PXYZ	default	key:esda43w3224n	teller	s-1	9a35fa78303016e9c9972ec2d9894f2b		completed	f	1		0	f	1795417947.2999027	1795417947.2999027	1795417947.5172827	0	0	20	3	0	0	f	{}	\N	{}	{"response":"Both are done.","agent":"teller","session_id":"s-1","run_id":"run_01M83KZF53N5CWGRPM7KX7PXYZ","metadata":{"provider":"model","model":"mock+tools=1+say=Both_are_done.","tokens_used":23,"usage":{"input_tokens":20,"output_tokens":3,"cached_tokens":0,"cost_usd":0.0},"tools_called":["charge"],"pattern":"react","iterations":2,"stop_reason":"completed","finish_reason":"stop","attempts":[],"latency_ms":209.835,"trace_id":"9a35fa78303016e9c9972ec2d9894f2b","guardrails":[]}}	\N	[]	\N	f
3	run_01M83KZGFT7ESZT2CP1JY3WTV2	default	key:esda43w3224n	teller	s-1	7ef8ac495d9e7e4fca184d6ee12b3966		completed	t	1	host-16241-277e360b	0	f	1795417948.6663458	1795417948.6681986	1795417948.762669	1795418068.678683	0	20	3	0	0	f	{"context":{},"metadata":{},"query":"Charge it again.","session_id":"s-1","journal":1}	{"source":"apiVersion: astromesh/v1\\nkind: Agent\\nmetadata: {name: teller}\\nspec:\\n  model: {primary: {provider: model, model: \\"mock+tools=1+say=Both_are_done.\\"}}\\n  prompts: {system: \\"You are {{ agent_name }}.\\"}\\n  tools: [{name: charge, type: internal, function: \\"effects:charge\\", effect: write}]\\n  memory:\\n    conversational: {backend: \\"${MEMORY:-sqlite}\\"}\\n    episodic: {backend: \\"${MEMORY:-sqlite}\\"}\\n    semantic:\\n      backend: \\"${PASSAGES:-sqlite}\\"\\n      embeddings: {provider: hashing, dimensions: 16}\\n      auto_index: true\\n  budgets: {per_principal_daily: {tool_calls: 100}}\\n"}	{"user_id":"key:esda43w3224n","tenant_id":"default","roles":[],"scopes":["agents:run","rag:query","rag:write","runs:decide","runs:read","sessions:read","workflows:read","workflows:run"],"metadata":{"key_id":"esda43w3224n","key":"old"},"had_token":false}	{"response":"Both are done. ","agent":"teller","session_id":"s-1","run_id":"run_01M83KZGFT7ESZT2CP1JY3WTV2","metadata":{"provider":"model","model":"mock+tools=1+say=Both_are_done.","tokens_used":23,"usage":{"input_tokens":20,"output_tokens":3,"cached_tokens":0,"cost_usd":0.0},"tools_called":["charge"],"pattern":"react","iterations":2,"stop_reason":"completed","finish_reason":"stop","attempts":[],"latency_ms":87.113,"trace_id":"7ef8ac495d9e7e4fca184d6ee12b3966","guardrails":[]}}	\N	[]	\N	t
4	run_01M83KZGKPVY364DE3XD11HGV0	default	key:esda43w3224n	payer	s-2	ac0b3ef2c8f167d8bf510d6d2daa19a4		waiting	t	1	host-16241-277e360b	0	f	1795417948.790434	1795417948.7932448	0	0	1796022748.8129954	10	0	0	0	f	{"query":"Pay.","session_id":"s-2","context":{},"metadata":{},"journal":1}	{"source":"apiVersion: astromesh/v1\\nkind: Agent\\nmetadata: {name: payer}\\nspec:\\n  model: {primary: {provider: model, model: \\"mock+tools=1+say=Paid.\\"}}\\n  prompts: {system: \\"You are {{ agent_name }}.\\"}\\n  tools: [{name: charge, type: internal, function: \\"effects:charge\\", effect: write, approval: required}]\\n  memory: {conversational: {backend: \\"${MEMORY:-sqlite}\\"}}\\n"}	{"user_id":"key:esda43w3224n","tenant_id":"default","roles":[],"scopes":["agents:run","rag:query","rag:write","runs:decide","runs:read","sessions:read","workflows:read","workflows:run"],"metadata":{"key_id":"esda43w3224n","key":"old"},"had_token":false}	\N	\N	[]	{"run_id":"run_01M83KZGKPVY364DE3XD11HGV0","kind":"approval","name":"charge","arguments":{"query":"round 0"},"question":"","asked_at":1795417948.8129954,"expires_at":1796022748.8129954,"path":"react/tool:call_15_0/approval","n":1,"asking_agent":"payer"}	t
5	run_01M83KZNVHSCVBGVJFZ9YA12W5	default	key:esda43w3224n	teller	s-3	1b5c607734f05c4684283b5055916f2c		running	t	1	host-16397-6f9aba3e	0	f	1795417954.1618836	1795417954.165487	0	1795418074.193373	0	0	0	0	0	f	{"query":"Charge.","session_id":"s-3","context":{},"metadata":{},"journal":1}	{"source":"apiVersion: astromesh/v1\\nkind: Agent\\nmetadata: {name: teller}\\nspec:\\n  model: {primary: {provider: model, model: \\"mock+tools=1+say=Both_are_done.\\"}}\\n  prompts: {system: \\"You are {{ agent_name }}.\\"}\\n  tools: [{name: charge, type: internal, function: \\"effects:charge\\", effect: write}]\\n  memory:\\n    conversational: {backend: \\"${MEMORY:-sqlite}\\"}\\n    episodic: {backend: \\"${MEMORY:-sqlite}\\"}\\n    semantic:\\n      backend: \\"${PASSAGES:-sqlite}\\"\\n      embeddings: {provider: hashing, dimensions: 16}\\n      auto_index: true\\n  budgets: {per_principal_daily: {tool_calls: 100}}\\n"}	{"user_id":"key:esda43w3224n","tenant_id":"default","roles":[],"scopes":["agents:run","rag:query","rag:write","runs:decide","runs:read","sessions:read","workflows:read","workflows:run"],"metadata":{"key_id":"esda43w3224n","key":"old"},"had_token":false}	\N	\N	[]	\N	t
\.
COPY astromesh.schemas (name, version) FROM stdin;
rag	1
conversations	2
passages	1
episodes	1
tasks	1
runs	3
budgets	2
\.
COPY astromesh.session_leases (tenant, agent, session_id, token, holder, expires_at, interrupted) FROM stdin;
default	teller	s-3	5	p_7303ab0a98e50d5a	1795417964.179682	f
\.
COPY astromesh.sessions (id, tenant, agent, session_id, owner, last_seq, created_at, updated_at, expires_at, summary, upto) FROM stdin;
1	default	teller	s-1	key:esda43w3224n	6	1795417947.2404206	1795417948.755519	0	\N	0
\.
COPY astromesh.spaces (id, name) FROM stdin;
1	hashing/1/16:16
\.
COPY astromesh.task_artifacts (task_id, n, type, path, node, stage, created_at, fingerprint, content) FROM stdin;
task_01M83KZGQRV0X5DRBHV9H16ZT8	2000	output		take	take	1795417948.9318335	4503d179195475a4678e4a629ea20bba6209b0b95e14e5252bcc08228b166b1d	{"amount":21}
task_01M83KZGQRV0X5DRBHV9H16ZT8	3000	output		double	double	1795417948.9361618	4503d179195475a4678e4a629ea20bba6209b0b95e14e5252bcc08228b166b1d	{"amount":42}
task_01M83KZGQRV0X5DRBHV9H16ZT8	4000	output		done	done	1795417948.9373982	4503d179195475a4678e4a629ea20bba6209b0b95e14e5252bcc08228b166b1d	{"amount":42}
task_01M83KZGQRV0X5DRBHV9H16ZT8	5000	telemetry				1795417948.9384818	4503d179195475a4678e4a629ea20bba6209b0b95e14e5252bcc08228b166b1d	{"status":"success","queued_ms":11.113,"path":["take","double","done"],"usage":{"input_tokens":0,"output_tokens":0,"cached_tokens":0,"cost_usd":0.0},"latency_ms":6.776,"trace_id":"d828a7ac8aabd63c38f2dcc28873ca1a","run_fingerprint":"4503d179195475a4678e4a629ea20bba6209b0b95e14e5252bcc08228b166b1d","stages":[{"task":"","stage":"take","status":"success","duration_ms":0.074},{"task":"","stage":"double","status":"success","duration_ms":0.468},{"task":"","stage":"done","status":"success","duration_ms":0.044}]}
\.
COPY astromesh.task_records (task_id, n, record) FROM stdin;
task_01M83KZGQRV0X5DRBHV9H16ZT8	1	{"type":"begin","task_id":"task_01M83KZGQRV0X5DRBHV9H16ZT8","workflow":"double","start":"take","input":{"amount":21}}
task_01M83KZGQRV0X5DRBHV9H16ZT8	2	{"type":"stage","entry":{"seq":0,"task":"","stage_id":"take","node_id":"take","status":"success","input":{"amount":21},"output":{"amount":21},"error":null,"edge":"","tool_calls":[],"context_hash":"","context_items":[],"schema_in":"","schema_out":"","usage":null,"started_at":1795417948.9317594,"finished_at":1795417948.9318335}}
task_01M83KZGQRV0X5DRBHV9H16ZT8	3	{"type":"stage","entry":{"seq":0,"task":"","stage_id":"double","node_id":"double","status":"success","input":{"amount":21},"output":{"amount":42},"error":null,"edge":"","tool_calls":[],"context_hash":"","context_items":[],"schema_in":"","schema_out":"","usage":null,"started_at":1795417948.9356933,"finished_at":1795417948.9361618}}
task_01M83KZGQRV0X5DRBHV9H16ZT8	4	{"type":"stage","entry":{"seq":0,"task":"","stage_id":"done","node_id":"done","status":"success","input":{"amount":42},"output":{"amount":42},"error":null,"edge":"","tool_calls":[],"context_hash":"","context_items":[],"schema_in":"","schema_out":"","usage":null,"started_at":1795417948.937354,"finished_at":1795417948.9373982}}
task_01M83KZGQRV0X5DRBHV9H16ZT8	5	{"type":"end","status":"success","error":null,"at":1795417948.9384696}
\.
COPY astromesh.tasks (task_id, tenant, owner, workflow, start_node, status, created_at, fingerprint, trace_id, durable, caller, metadata, worker, lease_until, cancelling, finished_at, result) FROM stdin;
task_01M83KZGQRV0X5DRBHV9H16ZT8	default	key:esda43w3224n	double	take	success	1795417948.9206467	4503d179195475a4678e4a629ea20bba6209b0b95e14e5252bcc08228b166b1d	d828a7ac8aabd63c38f2dcc28873ca1a	1	{"user_id":"key:esda43w3224n","tenant_id":"default","roles":[],"scopes":["agents:run","rag:query","rag:write","runs:decide","runs:read","sessions:read","workflows:read","workflows:run"],"metadata":{"key_id":"esda43w3224n","key":"old"},"had_token":false}	{}		0	0	1795417948.9384842	{"output":{"amount":42},"error":null,"metadata":{"path":["take","double","done"],"usage":{"input_tokens":0,"output_tokens":0,"cached_tokens":0,"cost_usd":0.0},"latency_ms":6.776,"trace_id":"d828a7ac8aabd63c38f2dcc28873ca1a","run_fingerprint":"4503d179195475a4678e4a629ea20bba6209b0b95e14e5252bcc08228b166b1d"}}
\.
COPY astromesh.turns (session, seq, role, content, created_at, run_id, status, tokens) FROM stdin;
1	1	user	What is owed?	1795417947.24	run_01M83KZEZKRB96NE2ZVN8YK5MD	complete	0
1	2	assistant	Both are done.	1795417947.24	run_01M83KZEZKRB96NE2ZVN8YK5MD	complete	0
1	3	user	Charge it.	1795417947.47	run_01M83KZF53N5CWGRPM7KX7PXYZ	complete	0
1	4	assistant	Both are done.	1795417947.47	run_01M83KZF53N5CWGRPM7KX7PXYZ	complete	0
1	5	user	Charge it again.	1795417948.755	run_01M83KZGFT7ESZT2CP1JY3WTV2	complete	0
1	6	assistant	Both are done. 	1795417948.755	run_01M83KZGFT7ESZT2CP1JY3WTV2	complete	0
\.
COPY astromesh.workers (worker, seen_at) FROM stdin;
host-16397-6f9aba3e	1795417954.1618018
\.
COPY astromesh_dbos.application_versions (version_id, version_name, version_timestamp, created_at, application_name) FROM stdin;
7b805a38-c494-4cb9-b3cc-194f378c264c	1	1795417948602	1795417948602	astromesh
\.
COPY astromesh_dbos.dbos_migrations (version) FROM stdin;
125
\.
COPY astromesh_dbos.event_dispatch_kv (service_name, workflow_fn_name, key, value, update_seq, update_time) FROM stdin;
\.
COPY astromesh_dbos.notifications (message_uuid, destination_uuid, topic, message, created_at_epoch_ms, serialization, consumed, consumed_by_function_id) FROM stdin;
\.
COPY astromesh_dbos.operation_outputs (workflow_uuid, function_id, function_name, output, error, child_workflow_id, started_at_epoch_ms, completed_at_epoch_ms, serialization, application_name, retention_timestamp) FROM stdin;
\.
COPY astromesh_dbos.queues (queue_id, name, concurrency, worker_concurrency, rate_limit_max, rate_limit_period_sec, priority_enabled, partition_queue, polling_interval_sec, created_at, updated_at, application_name, partition_concurrency, partition_worker_concurrency, partition_rate_limit_max, partition_rate_limit_period_sec) FROM stdin;
be1ba19f-340e-44ac-b561-83fa8542d8a8	astromesh	\N	64	\N	\N	t	f	0.5	1795417948658	1795417954150	astromesh	\N	\N	\N	\N
\.
COPY astromesh_dbos.streams (workflow_uuid, key, value, "offset", function_id, serialization) FROM stdin;
\.
COPY astromesh_dbos.workflow_events (workflow_uuid, key, value, serialization) FROM stdin;
\.
COPY astromesh_dbos.workflow_events_history (workflow_uuid, function_id, key, value, serialization) FROM stdin;
\.
COPY astromesh_dbos.workflow_input (workflow_uuid, inputs, retention_timestamp) FROM stdin;
\.
COPY astromesh_dbos.workflow_output (workflow_uuid, output, error, retention_timestamp) FROM stdin;
\.
COPY astromesh_dbos.workflow_schedules (schedule_id, schedule_name, workflow_name, workflow_class_name, schedule, status, context, last_fired_at, automatic_backfill, cron_timezone, queue_name, application_name) FROM stdin;
\.
COPY astromesh_dbos.workflow_status (workflow_uuid, status, name, authenticated_user, assumed_role, authenticated_roles, request, output, error, executor_id, created_at, updated_at, application_version, application_id, class_name, config_name, recovery_attempts, queue_name, workflow_timeout_ms, workflow_deadline_epoch_ms, inputs, started_at_epoch_ms, deduplication_id, priority, queue_partition_key, forked_from, owner_xid, parent_workflow_id, serialization, delay_until_epoch_ms, was_forked_from, rate_limited, completed_at, attributes, schedule_name, debounce_deadline_epoch_ms, is_debounced, application_name, creator_xid) FROM stdin;
\.
SELECT pg_catalog.setval('astromesh.events_id_seq', 6, true);
SELECT pg_catalog.setval('astromesh.passages_id_seq', 3, true);
SELECT pg_catalog.setval('astromesh.rag_chunk_ids', 3, true);
SELECT pg_catalog.setval('astromesh.rag_pipelines_id_seq', 3, true);
SELECT pg_catalog.setval('astromesh.rag_spaces_id_seq', 1, true);
SELECT pg_catalog.setval('astromesh.runs_id_seq', 5, true);
SELECT pg_catalog.setval('astromesh.session_leases_token_seq', 5, true);
SELECT pg_catalog.setval('astromesh.sessions_id_seq', 3, true);
SELECT pg_catalog.setval('astromesh.spaces_id_seq', 1, true);
ALTER TABLE ONLY astromesh.budget_accounts
    ADD CONSTRAINT budget_accounts_pkey PRIMARY KEY (kind, tenant, agent, name);
ALTER TABLE ONLY astromesh.budget_holds
    ADD CONSTRAINT budget_holds_pkey PRIMARY KEY (id);
ALTER TABLE ONLY astromesh.events
    ADD CONSTRAINT events_pkey PRIMARY KEY (id);
ALTER TABLE ONLY astromesh.idempotency_keys
    ADD CONSTRAINT idempotency_keys_pkey PRIMARY KEY (tenant, owner, route, key);
ALTER TABLE ONLY astromesh.passages
    ADD CONSTRAINT passages_pkey PRIMARY KEY (id);
ALTER TABLE ONLY astromesh.passages
    ADD CONSTRAINT passages_tenant_owner_agent_hash_key UNIQUE (tenant, owner, agent, hash);
ALTER TABLE ONLY astromesh.rag_chunks
    ADD CONSTRAINT rag_chunks_pkey PRIMARY KEY (pipeline, id);
ALTER TABLE ONLY astromesh.rag_chunks_1
    ADD CONSTRAINT rag_chunks_1_pkey PRIMARY KEY (pipeline, id);
ALTER TABLE ONLY astromesh.rag_documents
    ADD CONSTRAINT rag_documents_pkey PRIMARY KEY (pipeline, id);
ALTER TABLE ONLY astromesh.rag_pipelines
    ADD CONSTRAINT rag_pipelines_name_key UNIQUE (name);
ALTER TABLE ONLY astromesh.rag_pipelines
    ADD CONSTRAINT rag_pipelines_pkey PRIMARY KEY (id);
ALTER TABLE ONLY astromesh.rag_spaces
    ADD CONSTRAINT rag_spaces_name_key UNIQUE (name);
ALTER TABLE ONLY astromesh.rag_spaces
    ADD CONSTRAINT rag_spaces_pkey PRIMARY KEY (id);
ALTER TABLE ONLY astromesh.run_ends
    ADD CONSTRAINT run_ends_pkey PRIMARY KEY (run_id);
ALTER TABLE ONLY astromesh.run_events
    ADD CONSTRAINT run_events_pkey PRIMARY KEY (run_id, seq);
ALTER TABLE ONLY astromesh.run_steps
    ADD CONSTRAINT run_steps_pkey PRIMARY KEY (run_id, path, n);
ALTER TABLE ONLY astromesh.run_traces
    ADD CONSTRAINT run_traces_pkey PRIMARY KEY (run_id);
ALTER TABLE ONLY astromesh.runs
    ADD CONSTRAINT runs_pkey PRIMARY KEY (id);
ALTER TABLE ONLY astromesh.runs
    ADD CONSTRAINT runs_run_id_key UNIQUE (run_id);
ALTER TABLE ONLY astromesh.schemas
    ADD CONSTRAINT schemas_pkey PRIMARY KEY (name);
ALTER TABLE ONLY astromesh.session_leases
    ADD CONSTRAINT session_leases_pkey PRIMARY KEY (tenant, agent, session_id);
ALTER TABLE ONLY astromesh.sessions
    ADD CONSTRAINT sessions_pkey PRIMARY KEY (id);
ALTER TABLE ONLY astromesh.sessions
    ADD CONSTRAINT sessions_tenant_agent_session_id_key UNIQUE (tenant, agent, session_id);
ALTER TABLE ONLY astromesh.spaces
    ADD CONSTRAINT spaces_name_key UNIQUE (name);
ALTER TABLE ONLY astromesh.spaces
    ADD CONSTRAINT spaces_pkey PRIMARY KEY (id);
ALTER TABLE ONLY astromesh.task_artifacts
    ADD CONSTRAINT task_artifacts_pkey PRIMARY KEY (task_id, n);
ALTER TABLE ONLY astromesh.task_records
    ADD CONSTRAINT task_records_pkey PRIMARY KEY (task_id, n);
ALTER TABLE ONLY astromesh.tasks
    ADD CONSTRAINT tasks_pkey PRIMARY KEY (task_id);
ALTER TABLE ONLY astromesh.turns
    ADD CONSTRAINT turns_pkey PRIMARY KEY (session, seq);
ALTER TABLE ONLY astromesh.workers
    ADD CONSTRAINT workers_pkey PRIMARY KEY (worker);
ALTER TABLE ONLY astromesh_dbos.application_versions
    ADD CONSTRAINT application_versions_pkey PRIMARY KEY (version_id);
ALTER TABLE ONLY astromesh_dbos.application_versions
    ADD CONSTRAINT application_versions_version_name_key UNIQUE (version_name);
ALTER TABLE ONLY astromesh_dbos.dbos_migrations
    ADD CONSTRAINT dbos_migrations_pkey PRIMARY KEY (version);
ALTER TABLE ONLY astromesh_dbos.event_dispatch_kv
    ADD CONSTRAINT event_dispatch_kv_pkey PRIMARY KEY (service_name, workflow_fn_name, key);
ALTER TABLE ONLY astromesh_dbos.notifications
    ADD CONSTRAINT notifications_pkey PRIMARY KEY (message_uuid);
ALTER TABLE ONLY astromesh_dbos.operation_outputs
    ADD CONSTRAINT operation_outputs_pkey PRIMARY KEY (workflow_uuid, function_id);
ALTER TABLE ONLY astromesh_dbos.queues
    ADD CONSTRAINT queues_name_key UNIQUE (name);
ALTER TABLE ONLY astromesh_dbos.queues
    ADD CONSTRAINT queues_pkey PRIMARY KEY (queue_id);
ALTER TABLE ONLY astromesh_dbos.streams
    ADD CONSTRAINT streams_pkey PRIMARY KEY (workflow_uuid, key, "offset");
ALTER TABLE ONLY astromesh_dbos.workflow_events_history
    ADD CONSTRAINT workflow_events_history_pkey PRIMARY KEY (workflow_uuid, function_id, key);
ALTER TABLE ONLY astromesh_dbos.workflow_events
    ADD CONSTRAINT workflow_events_pkey PRIMARY KEY (workflow_uuid, key);
ALTER TABLE ONLY astromesh_dbos.workflow_input
    ADD CONSTRAINT workflow_input_pkey PRIMARY KEY (workflow_uuid);
ALTER TABLE ONLY astromesh_dbos.workflow_output
    ADD CONSTRAINT workflow_output_pkey PRIMARY KEY (workflow_uuid);
ALTER TABLE ONLY astromesh_dbos.workflow_schedules
    ADD CONSTRAINT workflow_schedules_pkey PRIMARY KEY (schedule_id);
ALTER TABLE ONLY astromesh_dbos.workflow_schedules
    ADD CONSTRAINT workflow_schedules_schedule_name_key UNIQUE (schedule_name);
ALTER TABLE ONLY astromesh_dbos.workflow_status
    ADD CONSTRAINT workflow_status_pkey PRIMARY KEY (workflow_uuid);
CREATE INDEX artifacts_of_nodes ON astromesh.task_artifacts USING btree (node, created_at);
CREATE INDEX budgets_by_expiry ON astromesh.budget_accounts USING btree (expires_at);
CREATE INDEX events_by_expiry ON astromesh.events USING btree (expires_at) WHERE (expires_at > (0)::double precision);
CREATE INDEX events_by_owner ON astromesh.events USING btree (tenant, owner);
CREATE INDEX events_by_session ON astromesh.events USING btree (tenant, agent, session_id, id);
CREATE INDEX holds_by_account ON astromesh.budget_holds USING btree (tenant, agent, name);
CREATE INDEX holds_by_holder ON astromesh.budget_holds USING btree (holder);
CREATE INDEX keys_by_expiry ON astromesh.idempotency_keys USING btree (expires_at);
CREATE INDEX keys_by_run ON astromesh.idempotency_keys USING btree (run_id);
CREATE INDEX passages_by_expiry ON astromesh.passages USING btree (expires_at) WHERE (expires_at > (0)::double precision);
CREATE INDEX passages_by_scope ON astromesh.passages USING btree (tenant, owner, agent, space, id);
CREATE INDEX passages_by_session ON astromesh.passages USING btree (tenant, agent, session_id);
CREATE INDEX passages_by_words ON astromesh.passages USING gin (words) WITH (fastupdate=off);
CREATE INDEX passages_near_1 ON astromesh.passages USING hnsw (((embedding)::public.vector(16)) public.vector_ip_ops) WHERE (space = 1);
CREATE INDEX rag_chunks_by_document ON ONLY astromesh.rag_chunks USING btree (document);
CREATE INDEX rag_chunks_1_document_idx ON astromesh.rag_chunks_1 USING btree (document);
CREATE INDEX rag_chunks_by_id ON ONLY astromesh.rag_chunks USING btree (id);
CREATE INDEX rag_chunks_1_id_idx ON astromesh.rag_chunks_1 USING btree (id);
CREATE INDEX rag_chunks_by_words ON ONLY astromesh.rag_chunks USING gin (words);
CREATE INDEX rag_chunks_1_words_idx ON astromesh.rag_chunks_1 USING gin (words);
CREATE INDEX runs_by_owner ON astromesh.runs USING btree (tenant, owner, id);
CREATE INDEX runs_by_session ON astromesh.runs USING btree (tenant, agent, session_id, id);
CREATE INDEX runs_by_trace ON astromesh.runs USING btree (trace_id);
CREATE INDEX runs_ended ON astromesh.runs USING btree (finished_at) WHERE (finished_at > (0)::double precision);
CREATE INDEX runs_in_order ON astromesh.runs USING btree (tenant, agent, session_id, id) WHERE (ordered AND (status = ANY (ARRAY['queued'::text, 'running'::text])));
CREATE INDEX runs_open ON astromesh.runs USING btree (status, worker) WHERE ((status = ANY (ARRAY['queued'::text, 'running'::text, 'waiting'::text])) AND durable);
CREATE INDEX runs_plain_open ON astromesh.runs USING btree (worker) WHERE ((NOT durable) AND (status = 'running'::text));
CREATE INDEX sessions_by_expiry ON astromesh.sessions USING btree (expires_at) WHERE (expires_at > (0)::double precision);
CREATE INDEX sessions_by_owner ON astromesh.sessions USING btree (tenant, owner, agent, session_id);
CREATE INDEX tasks_of_owners ON astromesh.tasks USING btree (tenant, owner, created_at);
CREATE INDEX tasks_that_ended ON astromesh.tasks USING btree (finished_at) WHERE (finished_at > (0)::double precision);
CREATE INDEX tasks_that_run ON astromesh.tasks USING btree (created_at) WHERE (finished_at = (0)::double precision);
CREATE INDEX idx_application_versions_owner_timestamp ON astromesh_dbos.application_versions USING btree (application_name, version_timestamp DESC);
CREATE INDEX idx_application_versions_timestamp ON astromesh_dbos.application_versions USING btree (version_timestamp DESC);
CREATE INDEX idx_operation_outputs_completed_at_function_name_v2 ON astromesh_dbos.operation_outputs USING btree (completed_at_epoch_ms, function_name) INCLUDE (application_name);
CREATE INDEX idx_operation_outputs_retention ON astromesh_dbos.operation_outputs USING btree (retention_timestamp);
CREATE INDEX idx_workflow_input_retention ON astromesh_dbos.workflow_input USING btree (retention_timestamp);
CREATE INDEX idx_workflow_output_retention ON astromesh_dbos.workflow_output USING btree (retention_timestamp);
CREATE INDEX idx_workflow_status_attributes ON astromesh_dbos.workflow_status USING gin (attributes) WHERE (attributes IS NOT NULL);
CREATE INDEX idx_workflow_status_completed_at ON astromesh_dbos.workflow_status USING btree (completed_at) WHERE (completed_at IS NOT NULL);
CREATE INDEX idx_workflow_status_deadline ON astromesh_dbos.workflow_status USING btree (workflow_deadline_epoch_ms) WHERE ((status = ANY (ARRAY['ENQUEUED'::text, 'PENDING'::text, 'DELAYED'::text])) AND (workflow_deadline_epoch_ms IS NOT NULL));
CREATE INDEX idx_workflow_status_delayed ON astromesh_dbos.workflow_status USING btree (delay_until_epoch_ms) WHERE (status = 'DELAYED'::text);
CREATE INDEX idx_workflow_status_failed ON astromesh_dbos.workflow_status USING btree (status, created_at) WHERE (status = ANY (ARRAY['ERROR'::text, 'CANCELLED'::text, 'MAX_RECOVERY_ATTEMPTS_EXCEEDED'::text]));
CREATE INDEX idx_workflow_status_forked_from ON astromesh_dbos.workflow_status USING btree (forked_from) WHERE (forked_from IS NOT NULL);
CREATE INDEX idx_workflow_status_in_flight_v2 ON astromesh_dbos.workflow_status USING btree (queue_name, status, priority, created_at) INCLUDE (application_name) WHERE (status = ANY (ARRAY['ENQUEUED'::text, 'PENDING'::text]));
CREATE INDEX idx_workflow_status_parent_workflow_id ON astromesh_dbos.workflow_status USING btree (parent_workflow_id) WHERE (parent_workflow_id IS NOT NULL);
CREATE INDEX idx_workflow_status_partition_dequeue_v3 ON astromesh_dbos.workflow_status USING btree (queue_name, status, queue_partition_key, priority, created_at, workflow_uuid) INCLUDE (application_name) WHERE ((status = ANY (ARRAY['ENQUEUED'::text, 'PENDING'::text])) AND (queue_partition_key IS NOT NULL));
CREATE INDEX idx_workflow_status_pending ON astromesh_dbos.workflow_status USING btree (created_at) WHERE (status = 'PENDING'::text);
CREATE INDEX idx_workflow_status_rate_limited ON astromesh_dbos.workflow_status USING btree (queue_name, started_at_epoch_ms) WHERE (rate_limited = true);
CREATE INDEX idx_workflow_status_schedule_name ON astromesh_dbos.workflow_status USING btree (schedule_name) WHERE (schedule_name IS NOT NULL);
CREATE INDEX idx_workflow_status_started_at ON astromesh_dbos.workflow_status USING btree (started_at_epoch_ms) WHERE (started_at_epoch_ms IS NOT NULL);
CREATE INDEX idx_workflow_topic ON astromesh_dbos.notifications USING btree (destination_uuid, topic);
CREATE UNIQUE INDEX uq_application_versions_owner_version ON astromesh_dbos.application_versions USING btree (application_name, version_name) WHERE (application_name IS NOT NULL);
CREATE UNIQUE INDEX uq_application_versions_unclaimed_version ON astromesh_dbos.application_versions USING btree (version_name) WHERE (application_name IS NULL);
CREATE UNIQUE INDEX uq_workflow_status_dedup_id ON astromesh_dbos.workflow_status USING btree (queue_name, deduplication_id) WHERE (deduplication_id IS NOT NULL);
CREATE INDEX workflow_status_created_at_index ON astromesh_dbos.workflow_status USING btree (created_at);
ALTER INDEX astromesh.rag_chunks_by_document ATTACH PARTITION astromesh.rag_chunks_1_document_idx;
ALTER INDEX astromesh.rag_chunks_by_id ATTACH PARTITION astromesh.rag_chunks_1_id_idx;
ALTER INDEX astromesh.rag_chunks_pkey ATTACH PARTITION astromesh.rag_chunks_1_pkey;
ALTER INDEX astromesh.rag_chunks_by_words ATTACH PARTITION astromesh.rag_chunks_1_words_idx;
ALTER TABLE ONLY astromesh.passages
    ADD CONSTRAINT passages_space_fkey FOREIGN KEY (space) REFERENCES astromesh.spaces(id);
ALTER TABLE astromesh.rag_chunks
    ADD CONSTRAINT rag_chunks_space_fkey FOREIGN KEY (space) REFERENCES astromesh.rag_spaces(id);
ALTER TABLE ONLY astromesh.rag_documents
    ADD CONSTRAINT rag_documents_pipeline_fkey FOREIGN KEY (pipeline) REFERENCES astromesh.rag_pipelines(id);
ALTER TABLE ONLY astromesh.run_events
    ADD CONSTRAINT run_events_run_id_fkey FOREIGN KEY (run_id) REFERENCES astromesh.runs(run_id) ON DELETE CASCADE;
ALTER TABLE ONLY astromesh.run_steps
    ADD CONSTRAINT run_steps_run_id_fkey FOREIGN KEY (run_id) REFERENCES astromesh.runs(run_id) ON DELETE CASCADE;
ALTER TABLE ONLY astromesh.run_traces
    ADD CONSTRAINT run_traces_run_id_fkey FOREIGN KEY (run_id) REFERENCES astromesh.runs(run_id) ON DELETE CASCADE;
ALTER TABLE ONLY astromesh.turns
    ADD CONSTRAINT turns_session_fkey FOREIGN KEY (session) REFERENCES astromesh.sessions(id) ON DELETE CASCADE;
ALTER TABLE ONLY astromesh_dbos.notifications
    ADD CONSTRAINT notifications_destination_uuid_fkey FOREIGN KEY (destination_uuid) REFERENCES astromesh_dbos.workflow_status(workflow_uuid) ON UPDATE CASCADE ON DELETE CASCADE;
ALTER TABLE ONLY astromesh_dbos.streams
    ADD CONSTRAINT streams_workflow_uuid_fkey FOREIGN KEY (workflow_uuid) REFERENCES astromesh_dbos.workflow_status(workflow_uuid) ON UPDATE CASCADE ON DELETE CASCADE;
ALTER TABLE ONLY astromesh_dbos.workflow_events_history
    ADD CONSTRAINT workflow_events_history_workflow_uuid_fkey FOREIGN KEY (workflow_uuid) REFERENCES astromesh_dbos.workflow_status(workflow_uuid) ON UPDATE CASCADE ON DELETE CASCADE;
ALTER TABLE ONLY astromesh_dbos.workflow_events
    ADD CONSTRAINT workflow_events_workflow_uuid_fkey FOREIGN KEY (workflow_uuid) REFERENCES astromesh_dbos.workflow_status(workflow_uuid) ON UPDATE CASCADE ON DELETE CASCADE;
