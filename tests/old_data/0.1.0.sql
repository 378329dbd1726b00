-- A ledger as release 0.1.0 left it.
pragma user_version = 1;
BEGIN TRANSACTION;
CREATE TABLE attempt (
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
INSERT INTO "attempt" VALUES(1,1,1,'1-1-31a4804bbf7d','ended',0,'node-1','[{"uuid":"virtual-node-1-0","index":0}]',NULL,1,'/home/alice/.lab-gpu/host/tasks/task_1/1','/home/alice/.lab-gpu/host/logs/1.log','boot',100,1,1000000.0,1000000.0,NULL,NULL,NULL,'queue',NULL,NULL,1000000.0,'ok',0,NULL,'exit code 0');
INSERT INTO "attempt" VALUES(2,2,1,'2-1-3b0fd452e0ca','ended',0,'node-1','[{"uuid":"virtual-node-1-0","index":0}]',NULL,1,'/home/alice/.lab-gpu/host/tasks/task_2/1','/home/alice/.lab-gpu/host/logs/2.log','boot',101,1,1000000.0,1000000.0,NULL,NULL,NULL,'queue',NULL,NULL,1000000.0,'error',1,NULL,'exit code 1');
CREATE TABLE closed (
  node text not null,
  gpu text not null default '',
  reason text not null,
  who text,
  at real not null,
  primary key (node, gpu)
) strict;
CREATE TABLE dependency (
  task_id integer not null references task (id),
  on_task_id integer not null references task (id),
  kind text not null check (kind in ('ok', 'fail', 'any')),
  primary key (task_id, on_task_id)
) strict, without rowid;
INSERT INTO "dependency" VALUES(6,5,'ok');
CREATE TABLE environment (
  id integer primary key,
  digest text not null unique,
  body blob not null
) strict;
CREATE TABLE event (
  seq integer primary key autoincrement,
  at real not null,
  kind text not null,
  task_id integer,
  attempt integer,
  who text,
  body text not null default '{}'
) strict;
INSERT INTO "event" VALUES(1,1000000.0,'node_added',NULL,NULL,'alice','{"node":"node-1"}');
INSERT INTO "event" VALUES(2,1000000.0,'submitted',1,NULL,'alice','{}');
INSERT INTO "event" VALUES(3,1000000.0,'started',1,1,NULL,'{"gpus":[{"node":"node-1","index":0}]}');
INSERT INTO "event" VALUES(4,1000000.0,'completed',1,1,NULL,'{"ending":"ok","exit_code":0,"reason":"completed"}');
INSERT INTO "event" VALUES(5,1000000.0,'submitted',2,NULL,'alice','{}');
INSERT INTO "event" VALUES(6,1000000.0,'started',2,1,NULL,'{"gpus":[{"node":"node-1","index":0}]}');
INSERT INTO "event" VALUES(7,1000000.0,'failed',2,1,NULL,'{"ending":"error","exit_code":1,"reason":"exit code 1"}');
INSERT INTO "event" VALUES(8,1000000.0,'submitted',3,NULL,'alice','{}');
INSERT INTO "event" VALUES(9,1000000.0,'submitted',4,NULL,'alice','{}');
INSERT INTO "event" VALUES(10,1000000.0,'submitted',5,NULL,'alice','{}');
INSERT INTO "event" VALUES(11,1000000.0,'submitted',6,NULL,'alice','{}');
INSERT INTO "event" VALUES(12,1000000.0,'submitted',7,NULL,'alice','{}');
CREATE TABLE idempotency (
  key text not null,
  uid integer not null,
  answer text not null,
  at real not null,
  primary key (uid, key)
) strict, without rowid;
CREATE TABLE lease (
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
CREATE TABLE meta (
  key text primary key,
  value text not null
) strict;
CREATE TABLE node (
  name text primary key,
  virtual integer not null check (virtual in (0, 1)),
  gpus integer,
  vram_mib integer,
  gpu_type text,
  added_by text,
  added_at real not null
) strict;
INSERT INTO "node" VALUES('node-1',1,2,24576,NULL,'alice',1000000.0);
CREATE TABLE task (
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
INSERT INTO "task" VALUES(1,'alice',1000,NULL,'true','/',NULL,'completed',NULL,NULL,'{}','{}',0,1,0,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,1,0,0,0,0,1000000.0,1000000.0,1000000.0,3);
INSERT INTO "task" VALUES(2,'alice',1000,NULL,'false','/',NULL,'failed','error','exit code 1','{}','{}',0,2,0,0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,1,1,0,0,1,1000000.0,1000000.0,1000000.0,3);
INSERT INTO "task" VALUES(3,'alice',1000,'train','python train.py','/',NULL,'queued',NULL,NULL,'{"vram_mib":10240}','{}',0,3,0,0,NULL,NULL,NULL,NULL,NULL,3600.0,NULL,NULL,0,0,0,0,NULL,1000000.0,NULL,NULL,1);
INSERT INTO "task" VALUES(4,'alice',1000,NULL,'python later.py','/',NULL,'queued',NULL,NULL,'{}','{}',0,4,0,1,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,0,0,0,NULL,1000000.0,NULL,NULL,1);
INSERT INTO "task" VALUES(5,'alice',1000,NULL,'python a.py','/',NULL,'queued',NULL,NULL,'{}','{}',100,5,0,0,2000000000.0,'q',NULL,NULL,NULL,NULL,NULL,NULL,0,0,0,0,NULL,1000000.0,NULL,NULL,1);
INSERT INTO "task" VALUES(6,'alice',1000,NULL,'python b.py','/',NULL,'queued',NULL,NULL,'{}','{}',0,6,0,0,NULL,'q',NULL,NULL,NULL,NULL,NULL,NULL,0,0,0,0,NULL,1000000.0,NULL,NULL,1);
INSERT INTO "task" VALUES(7,'alice',1000,NULL,'python c.py','/',NULL,'queued',NULL,NULL,'{}','{"setenv":{"A":"b"},"retry":{"max_retries":null}}',0,7,0,0,NULL,NULL,7,0,1,NULL,NULL,NULL,0,0,0,0,NULL,1000000.0,NULL,NULL,1);
CREATE INDEX task_open on task (id) where state in ('queued', 'running');
CREATE INDEX task_owner on task (owner, id);
CREATE INDEX task_state on task (state, id);
CREATE INDEX task_queue on task (queue, id) where queue is not null;
CREATE INDEX task_batch on task (batch, id) where batch is not null;
CREATE INDEX task_learned on task (signature, ended_at) where state = 'completed' and signature is not null;
CREATE INDEX task_ended on task (ended_at, state) where ended_at is not null;
CREATE INDEX dependency_on on dependency (on_task_id);
CREATE INDEX attempt_live on attempt (id) where state <> 'ended';
CREATE INDEX lease_live on lease (id) where state <> 'released';
CREATE INDEX idempotency_at on idempotency (at);
CREATE INDEX event_task on event (task_id, seq) where task_id is not null;
CREATE INDEX attempt_ended on attempt (ended_at) where ended_at is not null;
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('event',12);
INSERT INTO "sqlite_sequence" VALUES('task',7);
INSERT INTO "sqlite_sequence" VALUES('attempt',2);
COMMIT;
