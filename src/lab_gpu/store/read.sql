-- Every question the doors ask. With a million finished tasks each must still be answered from an index.

-- name: task_columns
select t.id, t.name, t.owner, t.state, t.reason_code, t.reason, t.exit_code, substr(t.command, 1, 4000) as command,
  t.priority, t.queue, t.batch, t.array_index, t.request, t.spec, t.time_limit_s, t.submitted_at, t.started_at,
  t.ended_at, t.not_before, t.version, a.number as attempt, a.state as attempt_state, a.node, a.gpus, a.log_path,
  a.started_at as attempt_started_at
from task t left join attempt a on a.task_id = t.id
  and a.number = (select max(number) from attempt where task_id = t.id and state <> 'armed')

-- name: detail
select command, workdir, estimate_s, held from task where id = :task;

-- name: states
select id, state from task where id in (select value from json_each(:ids)) order by id;

-- name: open_counts
select 'queued' as state, count(*) as number from task where state = 'queued'
union all select 'running', count(*) from task where state = 'running';

-- name: ended_counts
select state, count(*) as number
from (select state from task where ended_at > :since order by ended_at desc limit 100000) group by state;

-- name: attempts_of
select id, number, uni_id, state, ending, exit_code, signal, node, gpus, vram_mib, pid, log_path, directory,
  started_at, ended_at, detail, outside
from attempt where task_id = :task and state <> 'armed' order by number;

-- name: log_of
select number, log_path, state from attempt
where task_id = :task and state <> 'armed' and (:number is null or number = :number) order by number desc limit 1;

-- name: after_of
select d.on_task_id as id, d.kind, o.state from dependency d join task o on o.id = d.on_task_id
where d.task_id = :task order by d.on_task_id;

-- name: dependents_of
select task_id as id from dependency where on_task_id = :task order by task_id limit 1000;

-- name: events
select seq, at, kind, task_id as task, attempt, who, body from event
where seq > :after and seq <= :until order by seq limit :limit;

-- name: events_of
select seq, at, kind, task_id as task, attempt, who, body from event
where task_id = :task and seq > :after and seq <= :until order by seq limit :limit;

-- name: history_of
select * from (select seq, at, kind, task_id as task, attempt, who, body from event
where task_id = :task order by seq desc limit :limit) order by seq;

-- name: changes
select seq, task_id as task from event where seq > :after order by seq limit :limit;

-- name: newest_event
select coalesce(max(seq), 0) as seq from event;
