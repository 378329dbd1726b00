-- Times are unix seconds, UTC. JSON columns hold what nobody filters by.
create table meta (
  key text primary key,
  value text not null
) strict;

-- The environment of a submit, stored once however many tasks share it: zlib of a JSON object.
create table environment (
  id integer primary key,
  digest text not null unique,
  body blob not null
) strict;

create table task (
  id integer primary key autoincrement,
  owner text not null,
  uid integer not null,
  name text,
  command text not null,
  workdir text not null,
  environment_id integer references environment (id),
  state text not null check (state in ('queued', 'running', 'completed', 'failed', 'cancelled')),
  reason_code text,
  reason text,
  request text not null,
  spec text not null,
  priority integer not null check (priority between -1000 and 1000),
  position integer not null,
  front integer not null default 0,
  held integer not null default 0 check (held in (0, 1)),
  not_before real,
  queue text,
  batch integer,
  array_index integer,
  batch_limit integer,
  time_limit_s real,
  estimate_s real,
  signature text,
  attempts integer not null default 0,
  failures integer not null default 0,
  losses integer not null default 0,
  refused_launches integer not null default 0,
  exit_code integer,
  submitted_at real not null,
  started_at real,
  ended_at real,
  version integer not null default 1,
  check ((state in ('completed', 'failed', 'cancelled')) = (ended_at is not null))
) strict;
create index task_open on task (id) where state in ('queued', 'running');
create index task_owner on task (owner, id);
create index task_state on task (state, id);
create index task_queue on task (queue, id) where queue is not null;
create index task_batch on task (batch, id) where batch is not null;
create index task_learned on task (signature, ended_at) where state = 'completed' and signature is not null;
create index task_ended on task (ended_at, state) where ended_at is not null;

create table dependency (
  task_id integer not null references task (id),
  on_task_id integer not null references task (id),
  kind text not null check (kind in ('ok', 'fail', 'any')),
  primary key (task_id, on_task_id)
) strict, without rowid;
create index dependency_on on dependency (on_task_id);

create table attempt (
  id integer primary key autoincrement,
  task_id integer not null references task (id),
  number integer not null,
  uni_id text not null unique,
  state text not null check (state in ('armed', 'launching', 'running', 'stopping', 'silent', 'ended')),
  outside integer not null default 0 check (outside in (0, 1)),
  node text,
  gpus text not null default '[]',  -- [{"uuid", "index"}]
  vram_mib integer,
  virtual integer not null default 0,
  directory text not null,
  log_path text not null,
  boot_id text,
  pid integer,
  pid_started integer,
  created_at real not null,
  started_at real,
  stop_began_at real,
  stop_why text,  -- the ending a stop will have: cancelled, preempted, time_limit
  stop_by text,
  stop_then text not null default 'queue' check (stop_then in ('queue', 'hold', 'cancel')),
  soft_timeout_s real,
  term_timeout_s real,
  ended_at real,
  ending text check (ending in ('ok', 'error', 'oom', 'oom_host', 'time_limit', 'preempted', 'resized', 'cancelled', 'launch_failed', 'lost')),
  exit_code integer,
  signal integer,
  detail text,
  unique (task_id, number),
  check ((state = 'ended') = (ending is not null)),
  check ((state = 'ended') = (ended_at is not null)),
  check (state in ('armed', 'ended') or node is not null)
) strict;
create index attempt_live on attempt (id) where state <> 'ended';

create table lease (
  id integer primary key autoincrement,
  owner text not null,
  uid integer not null,
  name text,
  state text not null check (state in ('waiting', 'held', 'released')),
  request text not null,
  priority integer not null default 0,
  pid integer,
  pid_started integer,
  boot_id text,
  node text,
  gpus text not null default '[]',
  vram_mib integer,
  virtual integer not null default 0,
  asked_at real not null,
  granted_at real,
  expires_at real,
  released_at real,
  why text,
  check ((state = 'held') <= (node is not null))
) strict;
create index lease_live on lease (id) where state <> 'released';

create table node (
  name text primary key,
  virtual integer not null check (virtual in (0, 1)),
  gpus integer,
  vram_mib integer,
  gpu_type text,
  added_by text,
  added_at real not null
) strict;

-- What policy or a person keeps us from: a whole node (gpu = '') or one GPU.
create table closed (
  node text not null,
  gpu text not null default '',
  reason text not null,
  who text,
  at real not null,
  primary key (node, gpu)
) strict;

create table idempotency (
  key text not null,
  uid integer not null,
  answer text not null,
  at real not null,
  primary key (uid, key)
) strict, without rowid;
create index idempotency_at on idempotency (at);

-- History: who did what to a task, and what became of it. Streams resume by seq.
create table event (
  seq integer primary key autoincrement,
  at real not null,
  kind text not null,
  task_id integer,
  attempt integer,
  who text,
  body text not null default '{}'
) strict;
create index event_task on event (task_id, seq) where task_id is not null;
create index attempt_ended on attempt (ended_at) where ended_at is not null;
