-- Every statement by which the ledger is written, and what the loop reads back at its start.

-- name: find_environment
select id from environment where digest = ?;
-- name: add_environment
insert into environment (digest, body) values (?, ?);
-- name: environment_body
select body from environment where id = ?;

-- name: add_task
insert into task (owner, uid, name, command, workdir, environment_id, state, request, spec, priority, position, held,
  not_before, queue, batch, array_index, batch_limit, time_limit_s, estimate_s, signature, submitted_at, id)
values (?, ?, ?, ?, ?, ?, 'queued', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);
-- name: next_task_id
select coalesce((select seq from sqlite_sequence where name = 'task'), 0) + 1;
-- name: next_position
select coalesce(max(position), 0) + 1 from task where state in ('queued', 'running');
-- name: add_dependency
insert or replace into dependency (task_id, on_task_id, kind) values (?, ?, ?);
-- name: task
select * from task where id = ?;
-- name: task_standing
select request, failures, losses, refused_launches from task where id = ?;
-- name: task_state
select state from task where id = ?;
-- name: open_tasks
select id, owner, uid, state, request, priority, position, front, held, not_before, reason_code, reason, queue, batch,
  batch_limit, time_limit_s, estimate_s, signature, attempts, name, submitted_at, started_at
from task where state in ('queued', 'running') order by id;
-- name: open_dependencies
select d.task_id, d.on_task_id, d.kind, o.state as on_state from dependency d
join task t on t.id = d.task_id join task o on o.id = d.on_task_id where t.state = 'queued';
-- name: dependencies_of
select d.on_task_id, d.kind, o.state as on_state from dependency d join task o on o.id = d.on_task_id where d.task_id = ?;
-- name: queued_dependents
select t.id, d.kind from dependency d join task t on t.id = d.task_id where d.on_task_id = ? and t.state = 'queued';
-- name: failed_dependents
select t.id from dependency d join task t on t.id = d.task_id
where d.on_task_id = ? and t.state = 'failed' and t.reason_code = 'dependency';
-- name: recent_runs
select ended_at - started_at from task
where signature = ? and state = 'completed' and started_at is not null order by ended_at desc limit 2;

-- name: launch_task
update task set state = 'running', attempts = ?, started_at = ?, reason_code = null, reason = null,
  not_before = null, front = 0, version = version + 1 where id = ?;
-- name: finish_task
update task set state = ?, reason_code = ?, reason = ?, exit_code = ?, ended_at = ?, failures = ?, losses = ?,
  not_before = null, version = version + 1 where id = ?;
-- name: requeue_task
update task set state = 'queued', reason_code = ?, reason = ?, exit_code = ?, not_before = ?, held = ?, front = ?,
  position = ?, request = ?, failures = ?, losses = ?, refused_launches = ?, attempts = ?, ended_at = null,
  version = version + 1 where id = ?;
-- name: hold_task
update task set held = ?, reason_code = ?, reason = ?, version = version + 1 where id = ?;
-- name: front_task
update task set front = ?, version = version + 1 where id = ?;
-- name: edit_task
update task set name = ?, priority = ?, time_limit_s = ?, estimate_s = ?, not_before = ?, request = ?, spec = ?,
  version = version + 1 where id = ?;

-- name: count_attempt
update task set attempts = ?, version = version + 1 where id = ?;

-- name: add_attempt
insert into attempt (task_id, number, uni_id, state, node, gpus, vram_mib, virtual, directory, log_path, boot_id, pid,
  pid_started, created_at, outside, started_at) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);
-- name: launch_attempt
update attempt set state = 'launching', node = ?, gpus = ?, vram_mib = ?, virtual = ?, log_path = ? where id = ?;
-- name: begin_attempt
update attempt set state = 'running', started_at = ? where id = ? and state = 'launching';
-- name: stop_attempt
update attempt set state = 'stopping', stop_began_at = ?, stop_why = ?, stop_by = ?, stop_then = ?,
  soft_timeout_s = ?, term_timeout_s = ? where id = ?;
-- name: end_attempt
update attempt set state = 'ended', ending = ?, exit_code = ?, signal = ?, detail = ?, ended_at = ?,
  started_at = coalesce(started_at, ?) where id = ?;
-- name: remove_attempt
delete from attempt where id = ?;
-- name: remove_armed_of
delete from attempt where task_id = ? and state = 'armed';
-- name: remove_armed
-- state <> 'ended' is what the index of live attempts is for: without it every attempt there ever was is read
delete from attempt where state = 'armed' and state <> 'ended';
-- name: armed_directories
select id, directory, log_path from attempt where state = 'armed' and state <> 'ended';
-- name: move_log
update attempt set log_path = ? where id = ?;
-- name: newest_log
select id, number, log_path, directory from attempt where task_id = ? and log_path <> '' and started_at is not null
order by number desc limit 1;
-- name: attempt_with_log
select id, number, log_path, directory from attempt where task_id = ? and log_path = ? and started_at is not null
order by number desc limit 1;
-- name: attempt_boot
select boot_id from attempt where id = ?;
-- name: live_attempts
select * from attempt where state <> 'ended' and state <> 'armed' order by id;

-- name: add_lease
insert into lease (owner, uid, name, state, request, priority, pid, pid_started, boot_id, asked_at, expires_at)
values (?, ?, ?, 'waiting', ?, ?, ?, ?, ?, ?, ?);
-- name: grant_lease
update lease set state = 'held', node = ?, gpus = ?, vram_mib = ?, virtual = ?, granted_at = ? where id = ?;
-- name: beat_lease
update lease set expires_at = ? where id = ?;
-- name: release_lease
update lease set state = 'released', released_at = ?, why = ? where id = ?;
-- name: live_leases
select * from lease where state <> 'released' order by id;
-- name: lease
select * from lease where id = ?;

-- name: nodes
select * from node order by name;
-- name: add_node
insert into node (name, virtual, gpus, vram_mib, gpu_type, added_by, added_at) values (?, ?, ?, ?, ?, ?, ?);
-- name: remove_node
delete from node where name = ?;
-- name: closed
select * from closed;
-- name: close
insert or replace into closed (node, gpu, reason, who, at) values (?, ?, ?, ?, ?);
-- name: open
delete from closed where node = ? and gpu = ?;
-- name: open_node
delete from closed where node = ?;

-- name: add_event
insert into event (at, kind, task_id, attempt, who, body) values (?, ?, ?, ?, ?, ?);
-- name: newest_event
select coalesce((select seq from sqlite_sequence where name = 'event'), 0);
-- name: repeated
select answer from idempotency where uid = ? and key = ?;
-- name: remember_answer
insert into idempotency (key, uid, answer, at) values (?, ?, ?, ?);
-- name: forget_answers
delete from idempotency where at < ?;
-- name: get_meta
select value from meta where key = ?;
-- name: ended_attempts
select id, log_path, directory, ended_at from attempt where ended_at > ? and outside = 0 order by ended_at limit 500;
-- name: ended_attempt
select id, log_path, directory, ended_at from attempt where id = ?;
-- name: put_meta
insert or replace into meta (key, value) values (?, ?);

-- name: ended_before
select id from task where ended_at < ? order by ended_at limit ?;
-- name: files_of
select log_path, directory from attempt where task_id = ? and outside = 0;
-- name: forget_dependencies
delete from dependency where task_id = ? or on_task_id = ?;
-- name: forget_attempts
delete from attempt where task_id = ?;
-- name: forget_events
delete from event where task_id = ?;
-- name: forget_task
delete from task where id = ?;
